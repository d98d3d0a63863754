"""The command line, one file per group of verbs. A verb imports what it needs when it runs: ``--help`` is quick."""

from fixstar.cli import bench, bridge, doctor, gallery, research, rollout, service, versions, workspace  # noqa: F401
from fixstar.cli.app import app, main

__all__ = ["app", "main"]
