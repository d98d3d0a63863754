"""Files that are written atomically and survive power cuts, and directories with a single writer.

A file has its kind, the version of its format, and a digest of its content. A flipped bit is detected on reading, and a
file of a newer fixstar is refused.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import stat
import threading
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from io import BufferedReader
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Generic, TypeVar

from fixstar.errors import DataError, FixstarError, ModelError

if TYPE_CHECKING:
    from numpy.typing import NDArray

Content = TypeVar("Content")
Arrays = Mapping[str, "NDArray[Any]"]

_LOCK = ".lock"
_UNPACKED = 256 << 20  # maximum unpacked bytes of any .npz
_PACKED = 100  # maximum ratio for larger files; measured data is at most 20

DAMAGE = (ValueError, TypeError, AttributeError, LookupError, RecursionError)
"""What reading JSON or arrays with unexpected content raises."""
DAMAGED_ARCHIVE = (
    *DAMAGE,
    EOFError,
    RuntimeError,  # an encrypted member, or an unknown compression
    MemoryError,  # a header that claims more than there is
    zipfile.BadZipFile,
    zlib.error,
)
"""What NumPy and zipfile raise for a damaged .npz or .npy file."""


def flush(path: Path) -> None:
    """Sync a file or a directory to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def require_regular_file(path: Path) -> None:
    """Raise ``OSError`` unless it is a regular file: opening a pipe may block, and a device may never end."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def open_regular_file(path: Path) -> BufferedReader:
    """Open a regular file for reading; like ``require_regular_file`` but safe against concurrent replacement."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def require_plausible_archive(path: Path) -> None:
    """Refuse a .npz file that unpacks to far more than it is: a few megabytes of zeros would fill the memory."""
    if not zipfile.is_zipfile(path):
        return  # reading it will report the problem
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    unpacked = sum(member.file_size for member in members)
    packed = sum(member.compress_size for member in members)
    if unpacked > max(_UNPACKED, _PACKED * packed):
        raise DataError(
            f"{path} has {packed:,} bytes and would unpack to {unpacked:,}: more than {_PACKED} times as many, which "
            "is implausible for vectors. If it is intended, save it without compression (np.savez)"
        )


def make_directory(directory: Path) -> None:
    """Create a directory and its parents, if missing, and sync them to disk."""
    if directory.is_dir():
        return
    missing = [folder for folder in (directory, *directory.parents) if not folder.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    for made in missing:
        flush(made.parent)


def replace_file(path: Path, write: Callable[[Path], object], mode: int = 0o644) -> None:
    """Let ``write`` write a temporary file, sync it, and atomically replace ``path`` with it."""
    make_directory(path.parent)
    partial = path.with_name(
        f".{path.name}.{os.getpid()}-{threading.get_ident()}.partial"
    )  # two threads may write the same file
    try:
        if not mode & 0o077:
            partial.touch(mode=mode)  # so that no other user can read it while it is written
        write(partial)
        partial.chmod(mode)  # some writers create private files
        flush(partial)
        partial.replace(path)
        flush(path.parent)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def remove_unfinished(path: Path) -> None:
    """Remove leftovers of a killed ``replace_file`` of ``path``. Only the single writer may call it."""
    unfinished = re.compile(rf"\.{re.escape(path.name)}\.\d+-\d+\.partial")
    for file in path.parent.glob("*.partial"):
        if unfinished.fullmatch(file.name):
            file.unlink(missing_ok=True)


def replace_json(path: Path, content: Any, mode: int = 0o644) -> None:
    """Atomically write a JSON document. File names that are not UTF-8 are escaped."""
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    try:
        written = text.encode()
    except UnicodeEncodeError:
        written = json.dumps(content, indent=2).encode() + b"\n"
    replace_file(path, lambda partial: partial.write_bytes(written), mode)


def document(name: str, content: Mapping[str, Any], version: int = 1) -> dict[str, Any]:
    """A JSON document for ``read_document``, with its kind, the version of its format, and a digest."""
    body = json.loads(
        json.dumps({"format": f"fixstar-{name}", "format_version": version, **content})
    )
    return {**body, "digest": _digest(body)}


def read_document(path: Path, name: str, version: int = 1) -> dict[str, Any]:
    """The content of a document, or a ``ModelError`` if it is damaged, of another kind, or of a newer format."""
    return parse_document(path, name, lambda content: content, version)


def parse_document(
    path: Path, name: str, parse: Callable[[dict[str, Any]], Content], version: int = 1
) -> Content:
    """What ``parse`` makes of a document. Content that it cannot parse is damage too, and raises a ``ModelError``."""
    with _damage_named(path):
        return parse(open_document(json.loads(path.read_text(encoding="utf-8")), name, version))


@contextlib.contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    try:
        yield
    except DAMAGE as error:
        raise ModelError(f"{path} is damaged ({error}); restore it from a copy") from error
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from None


def open_document(content: dict[str, Any], name: str, version: int = 1) -> dict[str, Any]:
    """The content given to ``document``. A newer format raises ``ModelError``, damage any JSON error."""
    kind = content["format"]
    found = content["format_version"]
    if kind == f"fixstar-{name}" and isinstance(found, int) and found > version:
        raise ModelError(
            f"it has format {found}; this fixstar reads formats up to {version}. Update fixstar"
        )
    if content.pop("digest", None) != _digest(content):
        raise ValueError("its digest does not match its content")
    if kind != f"fixstar-{name}":
        raise ValueError(f"it is a {kind}, not a fixstar-{name}")
    del content["format"], content["format_version"]
    return content


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


def write_arrays(
    path: Path, name: str, content: Mapping[str, Any], arrays: Arrays, version: int = 1
) -> None:
    """Write arrays and a document about them as FILE.safetensors, for ``read_arrays``."""
    from safetensors.numpy import save_file

    whole = document(name, {**content, "arrays_sha256": _arrays_digest(arrays)}, version)
    with disk_errors(path):
        replace_file(
            path, lambda partial: save_file(dict(arrays), partial, {"document": json.dumps(whole)})
        )


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Convert errors of safetensors on writing, such as a full disk, to ``OSError``."""
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error


def read_arrays(
    path: Path, name: str, version: int = 1
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """The verified document and arrays of a file, or a ``ModelError``."""
    from safetensors import SafetensorError, safe_open

    with _damage_named(path):
        try:
            with safe_open(path, framework="np") as file:
                content = open_document(
                    json.loads((file.metadata() or {})["document"]), name, version
                )
                arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a mapping
        except SafetensorError as error:
            raise ValueError(str(error)) from error
        if content.pop("arrays_sha256") != _arrays_digest(arrays):
            raise ValueError("the digest of its arrays does not match")
    return content, arrays


def _arrays_digest(arrays: Arrays) -> str:
    """A digest of name, type, shape and values of every array."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def file_stamp(path: Path) -> tuple[int, int, int] | None:
    """A value that changes when a file is replaced; None if it is missing."""
    try:
        seen = os.stat(path)  # noqa: PTH116 (as quick as can be)
    except FileNotFoundError:
        return None
    return seen.st_ino, seen.st_mtime_ns, seen.st_size


class WatchedFile(Generic[Content]):
    """The content of a file, parsed again only when replaced; one ``stat`` per call. Threads may share it."""

    def __init__(self, path: Path, parse: Callable[[Path], Content], absent: Content) -> None:
        self.path = path
        self._parse = parse
        self._absent = absent
        self._read: tuple[tuple[int, int, int] | None, Content] = (None, absent)

    def content(self) -> Content:
        """The current content."""
        stamp = file_stamp(self.path)
        known, content = self._read
        if stamp != known:
            content = self._absent if stamp is None else self._parse(self.path)
            self._read = (
                stamp,
                content,
            )  # one assignment: another thread sees the old pair or the new one
        return content


def is_vacant(directory: Path) -> bool:
    """Whether a directory is absent, or empty apart from leftovers of killed writers."""
    if not directory.exists():
        return True
    return directory.is_dir() and all(
        path.name == _LOCK or path.name.endswith(".partial") for path in directory.iterdir()
    )


def remove_leftovers(directory: Path) -> None:
    """Remove leftovers of killed writers. Only the process that holds the directory may call it (``exclusive``)."""
    for path in directory.glob("*.partial"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _opened_lock(directory: Path) -> IO[str]:
    """The lock file of a directory, created if it is missing."""
    try:
        make_directory(directory)
        descriptor = os.open(
            directory / _LOCK, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o666
        )
        return os.fdopen(descriptor, "w")
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise FixstarError(
                f"{directory / _LOCK} is a pipe or a socket, not a lock; remove it"
            ) from error
        if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        raise FixstarError(
            f"{directory} cannot be written ({os.strerror(error.errno)}), so nothing was changed. Make it writable, or "
            "use a copy; searching works without"
        ) from error


@contextlib.contextmanager
def exclusive(
    directory: Path, wait: float = 0.0, busy: Exception | None = None, shared: bool = False
) -> Iterator[None]:
    """Lock a directory as its only writer, or ``shared``; raises ``busy`` if it is not free after ``wait`` seconds."""
    with _opened_lock(directory) as lock:
        try:
            import fcntl
        except ImportError:  # this system has no such locks
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
