"""A copy of a whole workspace, in a folder or in one file (.tar). The workspace can be used meanwhile.

manifest.json          when it was taken, and the SHA-256, size and mode of every file
objects/ab/abcd...     the files, by their SHA-256

An existing folder is updated: files that it already has are not copied again. The manifest is replaced last, so the
older snapshot stays valid until the newer one is complete.

Jobs, cursors and deployments are copied first, then a consistent gallery, then all files that these refer to. So no
copied job is ahead of the copied data: an index job or a backfill of the copy may repeat work, but skips none.
"""

from __future__ import annotations

import ctypes
import hashlib
import io
import json
import os
import re
import shutil
import sqlite3
import tarfile
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple, Protocol
from urllib.parse import quote

from fixstar.durable import (
    DAMAGE,
    document,
    exclusive,
    flush,
    is_vacant,
    open_document,
    open_regular_file,
    remove_unfinished,
    replace_file,
    replace_json,
)
from fixstar.errors import FixstarError, InputError, ModelError, NextStep
from fixstar.gallery import copy_gallery, open_gallery, verify_gallery
from fixstar.trust import forget
from fixstar.workspace.files import (
    GALLERY,
    gallery_url,
    open_workspace_gallery,
    require_plain_files,
)
from fixstar.workspace.registry import Registry
from fixstar.workspace.verify import verify_files, verify_workspace

_MANIFEST = "manifest.json"
_MARK = "workspace.json"
_USAGE = "state/usage.db"
_ORDER = ("images/??/*", "translations/*.npz", "state/**/*")  # then the databases, then everything
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_SHA256 = re.compile("[0-9a-f]{64}")
_RIGHTS = (
    0o777  # of a file: no set-user-ID, which would let others run it as the user who restores it
)
_MANIFEST_BYTES = 1 << 30  # some millions of files


class Entry(NamedTuple):
    """A file of a snapshot."""

    sha256: str
    size: int
    mode: int


class Snapshot(NamedTuple):
    """A snapshot. ``copied`` of its files (``copied_bytes`` in total) were not there before."""

    when: str
    files: int
    bytes: int
    copied: int
    copied_bytes: int


class _Folder:
    """Writes the files of a snapshot into a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def has(self, entry: Entry) -> bool:
        place = self.path / _object(entry.sha256)
        return place.is_file() and place.stat().st_size == entry.size

    def add(self, entry: Entry, file: IO[bytes]) -> None:
        replace_file(
            self.path / _object(entry.sha256),
            lambda unfinished: _copy(file, unfinished, entry.size),
            0o600,
        )

    def finish(self, manifest: dict[str, Any]) -> None:
        replace_json(self.path / _MANIFEST, manifest)
        named = {_object(digest) for digest, *_ in manifest["files"].values()}
        for path in self.path.glob("objects/??/*"):
            if path.relative_to(self.path).as_posix() not in named:
                path.unlink()


class _Tar:
    """Writes the files of a snapshot into one .tar file."""

    def __init__(self, archive: tarfile.TarFile) -> None:
        self._archive = archive
        self._digests = set[str]()

    def has(self, entry: Entry) -> bool:
        return entry.sha256 in self._digests

    def add(self, entry: Entry, file: IO[bytes]) -> None:
        self._digests.add(entry.sha256)
        self._put(_object(entry.sha256), entry.size, file)

    def finish(self, manifest: dict[str, Any]) -> None:
        content = json.dumps(manifest).encode()
        self._put(_MANIFEST, len(content), io.BytesIO(content))

    def _put(self, name: str, size: int, file: IO[bytes]) -> None:
        head = tarfile.TarInfo(name)
        head.size = size
        head.mode = 0o600
        self._archive.addfile(head, file)


def take_snapshot(
    workspace: Path,
    target: Path,
    progress: Callable[[int], object] | None = None,
    without: Collection[str] = (),
) -> Snapshot:
    """Copy a workspace to a folder, or to FILE.tar; an older snapshot there is replaced when this one is complete.

    A damaged workspace is refused. ``without`` lists files to leave out, by their path within the workspace.
    """
    workspace = workspace.resolve()
    target = target.resolve()
    require_plain_files(workspace)
    if target.is_relative_to(workspace):
        raise InputError(
            f"{target} is within the workspace; choose a place outside of it, preferably on another disk"
        )
    if not _is_new(target) and (older := _read_manifest(target)["workspace"]) != workspace.name:
        raise InputError(f"{target} holds a snapshot of {older!r}; choose another place")
    is_tar = target.suffix == ".tar"
    fill = partial(_fill, workspace=workspace, progress=progress, without=without)
    if is_tar:
        staged = target.with_name(f".{target.name}.staged.partial")
    else:
        staged = target / ".staged.partial"
    with exclusive(
        staged, busy=InputError(f"another snapshot is being written to {target}; wait for it")
    ):
        try:
            _clear(staged)
            remove_unfinished(target if is_tar else target / _MANIFEST)
            if not is_tar:
                target.chmod(0o700)  # it may hold private data
                return fill(_Folder(target), staged)
            done: list[Snapshot] = []

            def write(unfinished: Path) -> None:
                with tarfile.open(unfinished, "w") as archive:
                    done.append(fill(_Tar(archive), staged))

            replace_file(target, write, 0o600)
            return done[0]
        finally:
            shutil.rmtree(staged, ignore_errors=True)


def _is_new(target: Path) -> bool:
    """Whether the target is empty, apart from leftovers of a killed first snapshot."""
    if target.suffix == ".tar" or not target.is_dir():
        return not target.exists()
    return all(
        path.name == "objects" or path.name.endswith(".partial") for path in target.iterdir()
    )


def _fill(
    store: _Folder | _Tar,
    staged: Path,
    workspace: Path,
    progress: Callable[[int], object] | None,
    without: Collection[str],
) -> Snapshot:
    when = datetime.now(UTC).isoformat(timespec="seconds")
    entries = dict[str, Entry]()
    copied = list[int]()

    def take(name: str, path: Path) -> None:
        if name in entries or name in without:
            return
        if progress is not None:
            progress(len(entries))
        try:
            with path.open(
                "rb"
            ) as file:  # files are replaced, never rewritten, so an open file does not change
                seen = os.fstat(file.fileno())
                entry = Entry(
                    path.stem, seen.st_size, seen.st_mode & _RIGHTS
                )  # images are named by their digest
                if not name.startswith("images/") or not store.has(entry):
                    digest = _sha256(file, entry.size)
                    if name.startswith("images/") and digest != path.stem:
                        raise _damaged(
                            [
                                f"{path} is damaged: store that image again, or restore it from a copy"
                            ]
                        )
                    entry = entry._replace(sha256=digest)
                    if not store.has(entry):
                        file.seek(0)
                        store.add(entry, file)
                        copied.append(entry.size)
        except FileNotFoundError:  # deleted meanwhile
            return
        entries[name] = entry

    with ExitStack() as held:
        registry = Registry(workspace)
        for version in registry.names():
            held.enter_context(registry.using(version))  # so that it is not retired meanwhile
        if problems := list(verify_files(workspace)):
            raise _damaged(problems)
        for pattern in _ORDER:
            for path in _files(workspace, pattern):
                take(path.relative_to(workspace).as_posix(), path)
        for name, path in _copied_databases(workspace, staged):
            take(name, path)
        for path in _files(
            workspace, "**/*"
        ):  # again with images, for those that were added meanwhile
            take(path.relative_to(workspace).as_posix(), path)
    files = {name: list(entries[name]) for name in sorted(entries)}
    store.finish(document("snapshot", {"when": when, "workspace": workspace.name, "files": files}))
    return Snapshot(
        when=when,
        files=len(entries),
        bytes=sum(entry.size for entry in entries.values()),
        copied=len(copied),
        copied_bytes=sum(copied),
    )


def _files(workspace: Path, pattern: str) -> Iterator[Path]:
    """All files except locks, leftovers of killed writers, databases, and the index, which can be rebuilt."""
    for path in sorted(workspace.glob(pattern)):
        parts = path.relative_to(workspace).parts
        passing = any(
            part.startswith(".") or part.endswith((".partial", ".index")) for part in parts
        )
        if (
            path.is_file()
            and not passing
            and not path.name.endswith((".db", ".db-wal", ".db-shm", _MARK))
        ):
            yield path


def _copied_databases(workspace: Path, staged: Path) -> Iterator[tuple[str, Path]]:
    """Consistent copies of the gallery and the hit counts; from a server, only each item is consistent."""
    copy = staged / GALLERY
    with open_workspace_gallery(workspace) as gallery:
        url = gallery_url(workspace)
        if "://" in url:
            with open_gallery(copy) as items:
                copy_gallery(gallery, items)
        else:
            _back_up(Path(url), copy)
    with open_gallery(copy) as items:
        if problems := verify_gallery(items):
            raise _damaged(problems)
    yield GALLERY, copy
    replace_json(staged / _MARK, document("workspace", {}))
    yield _MARK, staged / _MARK
    if (workspace / _USAGE).is_file():
        _back_up(workspace / _USAGE, staged / "usage.db")
        yield _USAGE, staged / "usage.db"


def _back_up(source: Path, target: Path) -> None:
    uri = f"file:{quote(str(source))}?mode=ro"
    try:
        with (
            closing(sqlite3.connect(uri, uri=True, timeout=30)) as db,
            closing(sqlite3.connect(target)) as copy,
        ):
            db.backup(copy)
    except sqlite3.Error as error:
        raise _damaged([f"{source}: {error}"]) from error


def _damaged(problems: list[str]) -> ModelError:
    seen = "; ".join(problems[:3])
    return ModelError(
        f"the workspace is damaged, so no snapshot was taken: {seen}", NextStep("verify-gallery")
    )


# --- restoring


def restore_snapshot(source: Path, path: Path, replace: bool = False) -> Snapshot:
    """Restore a snapshot to ``path``: everything is checked first, then the workspace is swapped in at once.

    Code that it names is not trusted afterwards: see ``fixstar.trust``.
    """
    path = path.resolve()
    manifest = _read_manifest(source)
    occupied = not is_vacant(path)
    if occupied and not replace:
        raise InputError(
            f"{path} is not empty; nothing was changed", NextStep("repeat", {"replace": True})
        )
    if occupied and not (path / _MARK).is_file():
        raise InputError(f"{path} is not a workspace, so it is not replaced; choose another place")
    made = path.with_name(f".{path.name}.restored.partial")
    with exclusive(
        made, busy=InputError(f"another snapshot is being restored to {path}; wait for it")
    ):
        try:
            _clear(made)
            with _opened(source) as store:
                _check_sizes(
                    source, files=manifest["files"], store=store, free=shutil.disk_usage(made).free
                )
                for name, entry in manifest["files"].items():
                    _restore_file(
                        made / name,
                        entry=entry,
                        store=store,
                        called=f"{name} of the snapshot {source}",
                    )
            if problems := list(verify_workspace(made)):
                raise ModelError(
                    f"{source} is damaged and was not restored: {'; '.join(problems[:3])}"
                )
            for folder in [made, *(one for one in made.rglob("*") if one.is_dir())]:
                flush(folder)
            forget(path)
            if occupied:
                running = InputError(f"a service uses {path}; stop it first. Nothing was changed")
                with exclusive(path / "state" / "jobs", busy=running):
                    _exchange(made, path)
            else:
                shutil.rmtree(path, ignore_errors=True)  # a lock, or leftovers of a killed writer
                made.rename(path)
            flush(path.parent)
        finally:
            shutil.rmtree(made, ignore_errors=True)  # the failed copy, or the replaced workspace
    size = sum(entry.size for entry in manifest["files"].values())
    return Snapshot(
        when=manifest["when"],
        files=len(manifest["files"]),
        bytes=size,
        copied=len(manifest["files"]),
        copied_bytes=size,
    )


def _check_sizes(source: Path, files: dict[str, Entry], store: _Source, free: int) -> None:
    """Refuse file sizes that differ from the manifest or exceed the free space, before anything is written."""
    for name, entry in files.items():
        try:
            size = store.size(_object(entry.sha256))
        except (OSError, KeyError) as error:
            raise ModelError(
                f"{name} of the snapshot {source} cannot be read ({error}); use another snapshot"
            ) from error
        if size != entry.size:
            raise ModelError(
                f"{name} of the snapshot {source} is damaged: it has {size:,} bytes, and the manifest says "
                f"{entry.size:,}; use another snapshot"
            )
    needed = sum(entry.size for entry in files.values())
    if needed > free:
        raise InputError(
            f"{source} takes {needed:,} bytes, and {free:,} are free; free some space. Nothing was changed"
        )


def _restore_file(path: Path, entry: Entry, store: _Source, called: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with store.open(_object(entry.sha256)) as file:
            _copy(file, path, entry.size)
    except (OSError, KeyError, tarfile.TarError) as error:
        raise ModelError(f"{called} cannot be restored ({error}); use another snapshot") from error
    with path.open("rb") as copy:
        if hashlib.file_digest(copy, "sha256").hexdigest() != entry.sha256:
            raise ModelError(f"{called} is damaged; use another snapshot")
    path.chmod(entry.mode)
    flush(path)


class _Source(Protocol):
    """Reads the files of a snapshot; only regular files are accepted."""

    def size(self, name: str) -> int:
        """The size of a file, without reading it."""

    def open(self, name: str) -> IO[bytes]:
        """Open a file for reading."""


class _SourceFolder:
    """A snapshot in a folder."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def size(self, name: str) -> int:
        with self.open(name) as file:
            return os.fstat(file.fileno()).st_size

    def open(self, name: str) -> IO[bytes]:
        return open_regular_file(self._path / name)


class _SourceTar:
    """A snapshot in one file. A sparse member would write more than it takes in the archive."""

    def __init__(self, archive: tarfile.TarFile) -> None:
        self._archive = archive
        self._members = {
            member.name: member for member in archive if member.isreg() and not member.issparse()
        }

    def size(self, name: str) -> int:
        return self._members[name].size

    def open(self, name: str) -> IO[bytes]:
        file = self._archive.extractfile(self._members[name])
        assert file is not None  # None only for members that are not files
        return file


@contextmanager
def _opened(source: Path) -> Iterator[_Source]:
    if source.is_dir():
        yield _SourceFolder(source)
        return
    try:
        with open_regular_file(source) as file, tarfile.open(fileobj=file, mode="r:") as archive:
            yield _SourceTar(archive)
    except tarfile.TarError as error:
        raise ModelError(str(error)) from error


def _read_manifest(source: Path) -> dict[str, Any]:
    """The manifest: time, workspace, and files by name. Raises if it is damaged or not a snapshot."""
    if not source.exists():
        raise InputError(f"there is no snapshot at {source}")
    try:
        with _opened(source) as store:
            size = store.size(_MANIFEST)
            if size > _MANIFEST_BYTES:
                raise ValueError(
                    f"its manifest has {size:,} bytes, and up to {_MANIFEST_BYTES:,} are read"
                )
            with store.open(_MANIFEST) as file:
                content = open_document(json.loads(file.read(size)), "snapshot")
        content["files"] = {name: _entry(name, *entry) for name, entry in content["files"].items()}
    except (FixstarError, OSError, *DAMAGE) as error:
        raise ModelError(f"{source} is not a snapshot, or it is damaged: {error}") from error
    return content


def _entry(name: str, sha256: object, size: object, mode: object) -> Entry:
    """Validate one file of a manifest, which is not trusted."""
    parts = PurePosixPath(name).parts
    if not parts or parts[0] == "/" or ".." in parts:
        raise ValueError(f"it names {name!r}, which is outside of a workspace")
    os.fsencode(name)  # raises if this cannot be a file name
    if "\0" in name:
        raise ValueError(f"it names {name!r}, which is not a possible file name")
    if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
        raise ValueError(f"the SHA-256 of {name!r} is {sha256!r}, not 64 hexadecimal digits")
    if not isinstance(size, int) or size < 0:
        raise ValueError(f"the size of {name!r} is {size!r}")
    if not isinstance(mode, int) or mode & ~_RIGHTS:
        raise ValueError(
            f"the rights of {name!r} are {mode!r}, and up to {_RIGHTS:#o} are restored"
        )
    return Entry(sha256, size, mode)


def _object(digest: str) -> str:
    return f"objects/{digest[:2]}/{digest}"


def _sha256(file: IO[bytes], size: int) -> str:
    """The SHA-256 of the first ``size`` bytes: later appends are not part of the snapshot."""
    digest = hashlib.sha256()
    for part in _parts(file, size):
        digest.update(part)
    return digest.hexdigest()


def _parts(file: IO[bytes], size: int) -> Iterator[bytes]:
    """The first ``size`` bytes of a file in parts, or all of it if it is shorter."""
    left = size
    while part := file.read(min(left, 1 << 20)):
        yield part
        left -= len(part)


def _copy(file: IO[bytes], path: Path, size: int) -> None:
    with path.open("wb") as copy:
        copy.writelines(_parts(file, size))


def _clear(folder: Path) -> None:
    """Remove leftovers of a killed process, except the lock, which the caller holds."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != ".lock":
            path.unlink()


def _exchange(one: Path, other: Path) -> None:
    """Swap two directories: atomically on Linux, elsewhere one after the other."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    names = os.fsencode(one), _AT_FDCWD, os.fsencode(other)
    if rename is None or rename(_AT_FDCWD, *names, _RENAME_EXCHANGE):
        aside = one.with_name(f".{other.name}.replaced.partial")
        other.rename(aside)
        one.rename(other)
        aside.rename(one)
