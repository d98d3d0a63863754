"""Compare the public API with the last release. A breaking change needs a higher version: minor before 1.0, else major.

python .ci/api_diff.py           compares src/ with the newest tag
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import griffe

PACKAGE = "fixstar"


def last_tag(repository: Path) -> str | None:
    """The newest release that this commit contains, such as v0.2.0; None if there is none."""
    command = ["git", "describe", "--tags", "--abbrev=0", "--match", "v*"]
    found = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    if found.returncode != 0:
        return None
    return found.stdout.strip()


def may_break(old: str, new: str) -> bool:
    """Whether a release ``new`` may break what used the release ``old``.

    >>> may_break("0.2.0", "0.2.1"), may_break("0.2.0", "0.3.0")
    (False, True)
    >>> may_break("1.2.0", "1.3.0"), may_break("1.2.0", "2.0.0")
    (False, True)
    """
    before = [int(part) for part in old.split(".")]
    now = [int(part) for part in new.split(".")]
    compared = 1 if before[0] > 0 else 2
    return now[:compared] > before[:compared]


def main(repository: Path) -> int:
    """Print each breaking change; 1 if there is one and the version does not allow it."""
    tag = last_tag(repository)
    if tag is None:
        print("no release is tagged yet: there is nothing to compare with")
        return 0
    old = griffe.load_git(PACKAGE, ref=tag, repo=repository, search_paths=["src"])
    new = griffe.load(PACKAGE, search_paths=[repository / "src"])
    breakages = list(griffe.find_breaking_changes(old, new))
    for breakage in breakages:
        print(breakage.explain(griffe.ExplanationStyle.ONE_LINE))

    version = ast.literal_eval(str(new["__version__"].value))
    if not breakages:
        print(f"{version} has everything that {tag} has")
        return 0
    if may_break(tag.removeprefix("v"), version):
        print(f"{len(breakages)} breaking changes since {tag}, which {version} may have")
        return 0
    print(
        f"{len(breakages)} breaking changes since {tag}: raise __version__, now {version}, or keep the old names"
    )
    return 1


if __name__ == "__main__":
    sys.exit(main(Path.cwd()))
