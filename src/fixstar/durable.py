"""Files that are either whole or absent, whatever moment the machine dies at, and directories with one writer."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

__all__ = ["exclusive", "flush", "is_vacant", "remove_leftovers", "replace_file", "replace_json"]

_LOCK = ".lock"


def flush(path: Path) -> None:
    """Wait until a file's, or a directory's, content is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, write: Callable[[Path], object], mode: int = 0o644) -> None:
    """Let ``write`` fill a file beside ``path``, flush it, and put it in the place of ``path`` at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.partial")  # threads may write alike
    try:
        write(partial)
        partial.chmod(mode)  # some writers make private files
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


def is_vacant(directory: Path) -> bool:
    """Whether a directory is absent or holds nothing but what a killed writer left behind."""
    if not directory.exists():
        return True
    return directory.is_dir() and all(_is_leftover(path) for path in directory.iterdir())


def remove_leftovers(directory: Path) -> None:
    """Clear away what killed writers left behind. Only for whoever holds the directory (``exclusive``)."""
    for path in directory.iterdir() if directory.is_dir() else ():
        if path.name.endswith(".partial"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _is_leftover(path: Path) -> bool:
    return path.name == _LOCK or path.name.endswith(".partial")


@contextlib.contextmanager
def exclusive(directory: Path, wait: float = 0.0) -> Iterator[None]:
    """Hold a directory as its only writer; freed by any death.

    ``BlockingIOError`` if another process, or another holder in this one, still has it after ``wait`` seconds.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / _LOCK).open("w") as lock:
        try:
            import fcntl
        except ImportError:  # no such locks on this system
            yield
            return
        end = time.monotonic() + wait
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= end:
                    raise
                time.sleep(0.01)
        yield
