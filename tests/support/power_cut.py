"""What is left of a folder when the power fails: what was synced, and any part of what was not.

A small library (``power_cut.c``, compiled here with cc and preloaded) notes what a file or directory holds after every
fsync and fdatasync. It needs no rights and no file system of its own, and sees SQLite's syncs as well as Python's. When
the process is dead, the folder shows what it had written. A disk may hold, of every directory entry and of every block,
what was synced last or what was written since: ``Disk.after_cut`` draws one such state.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

_BLOCK = 4096


@cache
def library() -> Path | None:
    """The compiled library; None where there is no compiler."""
    if shutil.which("cc") is None:
        return None
    made = Path(tempfile.mkdtemp(prefix="fixstar-power-")) / "power_cut.so"
    source = Path(__file__).with_suffix(".c")
    subprocess.run(
        ["cc", "-O1", "-shared", "-fPIC", "-o", str(made), str(source), "-ldl"], check=True
    )
    return made


class Entry(NamedTuple):
    """An entry of a directory."""

    inode: int
    is_directory: bool


Entries = dict[str, Entry]


class Disk:
    """Directories and files by inode."""

    def __init__(self, root: Path) -> None:
        """As the folder shows them now."""
        self.root = root.stat().st_ino
        self.entries: dict[int, Entries] = {}
        self.content: dict[int, bytes] = {}
        for folder, _, _ in os.walk(root):
            inode, here = Path(folder).stat().st_ino, Entries()
            for found in os.scandir(folder):
                here[found.name] = Entry(found.inode(), found.is_dir())
                if not found.is_dir():
                    self.content[found.inode()] = Path(found.path).read_bytes()
            self.entries[inode] = here

    def hold(self, root: Path, log: Path) -> None:
        """Keep the inodes of all files from being used again."""
        for path in root.rglob("*"):
            if path.is_file():
                (log / f"held-{path.stat().st_ino}").hardlink_to(path)

    def sync(self, log: Path) -> None:
        """Take over what a log says was synced since."""
        for note in sorted(log.glob("[0-9]*")):
            inode = int(note.name.split(".")[1])
            if note.suffix == ".entries":
                lines = (line.split(" ", 2) for line in note.read_text().splitlines())
                self.entries[inode] = {
                    name: Entry(int(number), kind == "d") for number, kind, name in lines
                }
            else:
                self.content[inode] = note.read_bytes()

    def after_cut(self, written: Disk, target: Path, rng: random.Random | None) -> None:
        """Make a folder as it may be after a cut: what was synced, and without ``rng`` nothing else."""
        self._make_folder(self.root, written, target, rng)

    def _make_folder(
        self, inode: int, written: Disk, target: Path, rng: random.Random | None
    ) -> None:
        target.mkdir()
        synced, later = self.entries.get(inode, {}), written.entries.get(inode, {})
        for name in sorted({*synced, *later}):
            entry = (synced if rng is None or rng.random() < 0.5 else later).get(name)
            if entry is None or name.endswith(
                "-shm"
            ):  # shared memory is no file that outlives the machine
                continue
            if entry.is_directory:
                self._make_folder(entry.inode, written, target / name, rng)
            else:
                old = self.content.get(entry.inode, b"")
                (target / name).write_bytes(_torn(old, written.content.get(entry.inode, old), rng))


def _torn(synced: bytes, written: bytes, rng: random.Random | None) -> bytes:
    """Of every block, and of the length, the one or the other."""
    if rng is None or synced == written:
        return synced
    if (kind := rng.choice(["synced", "written", "torn", "torn"])) != "torn":
        return synced if kind == "synced" else written
    length = rng.choice([len(synced), len(written)])
    blocks = []
    for first in range(0, length, _BLOCK):
        cut_off = first >= len(
            written
        )  # a file that is cut short loses no block before it has lost its length
        some = (synced if cut_off or rng.random() < 0.5 else written)[first : first + _BLOCK]
        blocks.append(some.ljust(min(_BLOCK, length - first), b"\0")[: length - first])
    return b"".join(blocks)
