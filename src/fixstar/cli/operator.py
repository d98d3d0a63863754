"""Who types a command: the history of deployments keeps it."""

from __future__ import annotations

import getpass
import os

__all__ = ["operator_name"]


def operator_name() -> str:
    """The operating system's user; where it has no name, as in some containers, its number."""
    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError):  # which of them depends on the system and on Python's version
        return f"uid {os.getuid()}" if hasattr(os, "getuid") else "unknown"
