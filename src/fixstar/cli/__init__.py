"""The command line, one file per group of verbs. Verbs import on use, so that ``--help`` is fast."""

from fixstar.cli import (  # noqa: F401
    bench,
    bridge,
    doctor,
    gallery,
    judge,
    migrate,
    research,
    rollout,
    service,
    versions,
    workspace,
)
from fixstar.cli.app import app, main

__all__ = ["app", "main"]
