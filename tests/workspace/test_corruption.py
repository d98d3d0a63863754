"""Random damage anywhere in a workspace: it is found, or it changes no answer.

FIXSTAR_TRIALS and FIXSTAR_SEED make a longer trial, or another one; ``-s`` prints what came of it.
"""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from pathlib import Path

import pytest
from whole_workspace import answers, whole_workspace

from fixstar.errors import FixstarError
from fixstar.workspace.verify import verify_workspace

TRIALS, SEED = int(os.environ.get("FIXSTAR_TRIALS", "60")), int(os.environ.get("FIXSTAR_SEED", "0"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return whole_workspace(tmp_path_factory.mktemp("corruption"))


def damage(path: Path, rng: random.Random) -> str:
    """Flip one byte, or cut one file short: half of the time anywhere by bytes, else in any file."""
    files = sorted(file for file in path.rglob("*") if file.is_file() and file.stat().st_size)
    weights = [file.stat().st_size for file in files] if rng.random() < 0.5 else None
    (file,) = rng.choices(files, weights)
    content = bytearray(file.read_bytes())
    place, flipped = rng.randrange(len(content)), rng.random() < 0.7
    if flipped:
        content[place] ^= rng.randrange(1, 256)
    file.write_bytes(content if flipped else content[:place])
    return f"{file.relative_to(path)} {'flipped at' if flipped else 'cut at'} {place} of {len(content)}"


def test_damage_is_found_or_changes_nothing(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "fresh")
    assert list(verify_workspace(tmp_path / "fresh")) == []
    expected = answers(tmp_path / "fresh")
    rng, seen, silent = random.Random(SEED), Counter[str](), list[str]()
    for number in range(TRIALS):
        copy = tmp_path / f"trial-{number}"
        shutil.copytree(whole, copy)
        what = damage(copy, rng)
        found = list(verify_workspace(copy))
        outcome = "found by verify" if found else "harmless"
        if not found:
            try:
                if answers(copy) != expected:
                    outcome = "silent"
                    silent.append(what)
            except FixstarError as error:
                outcome = "refused when used, missed by verify"
                silent.append(f"{what}: {error}")
        seen[outcome] += 1
        shutil.rmtree(copy)
    print(f"\n{TRIALS} trials, seed {SEED}: {dict(seen)}")
    assert silent == []
