"""Files that are either whole or absent, whatever moment the machine dies at."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["flush", "replace_file", "replace_json"]


def flush(path: Path) -> None:
    """Wait until a file's, or a directory's, content is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a file beside ``path``, flush it, and put it in the place of ``path`` at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    try:
        write(partial)
        flush(partial)
        partial.replace(path)
        flush(path.parent)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def replace_json(path: Path, content: Any) -> None:
    """The same for a JSON document."""
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    replace_file(path, lambda partial: partial.write_text(text, encoding="utf-8"))
