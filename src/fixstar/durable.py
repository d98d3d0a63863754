"""Files that are complete or absent, whenever the machine dies, and directories with one writer."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

Content = TypeVar("Content")

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
    partial = path.with_name(
        f".{path.name}.{os.getpid()}-{threading.get_ident()}.partial"
    )  # two threads may write one file
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


class WatchedFile(Generic[Content]):
    """The content of a file, parsed again only when the file was replaced. Threads may share it.

    ``content`` costs one ``stat``, so every search and every request may call it. A missing file has the content
    ``absent``.
    """

    def __init__(self, path: Path, parse: Callable[[Path], Content], absent: Content) -> None:
        self.path, self._parse, self._absent = path, parse, absent
        self._read: tuple[tuple[int, int, int] | None, Content] = (None, absent)

    def content(self) -> Content:
        """The content now."""
        try:
            seen = os.stat(self.path)  # noqa: PTH116 (as quick as can be)
        except FileNotFoundError:
            stamp = None
        else:
            stamp = seen.st_ino, seen.st_mtime_ns, seen.st_size
        known, content = self._read
        if stamp != known:
            content = self._absent if stamp is None else self._parse(self.path)
            self._read = stamp, content  # one assignment: another thread sees the old pair or the new one
        return content


def is_vacant(directory: Path) -> bool:
    """Whether a directory is absent or holds nothing but what a killed writer left behind."""
    if not directory.exists():
        return True
    return directory.is_dir() and all(
        path.name == _LOCK or path.name.endswith(".partial") for path in directory.iterdir()
    )


def remove_leftovers(directory: Path) -> None:
    """Remove what killed writers left behind. Only the process that holds the directory may call it (``exclusive``)."""
    for path in directory.glob("*.partial"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@contextlib.contextmanager
def exclusive(
    directory: Path, wait: float = 0.0, busy: Exception | None = None, shared: bool = False
) -> Iterator[None]:
    """Hold a directory as its only writer, or ``shared`` with others that do; released however the process ends.

    ``busy`` is raised if another process, or another thread of this one, still holds it after ``wait`` seconds;
    ``BlockingIOError`` by default.
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
                fcntl.flock(lock, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() >= end:
                    raise busy or error from None
                time.sleep(0.01)
        yield
