"""Workspaces as earlier releases wrote them: this one opens them, and they say what they said then.

frozen/workspace-VERSION.tar.gz is one; a release adds its own with FIXSTAR_FREEZE=1 and never changes the others.
"""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest
from whole_workspace import answers, whole_workspace

from fixstar import __version__
from fixstar.workspace.verify import verify_workspace

FROZEN = Path(__file__).parent / "frozen"


def told(path: Path) -> dict[str, Any]:
    """The part of its answers that JSON can hold, scores rounded: libraries may change the last digits."""
    found = answers(path)
    return {
        "search": [
            [[hit.id, round(hit.score, 3)] for hit in hits] for hits in found["search"].hits
        ],
        "models": found["search"].models,
        "translations": found["translations"],
        "old": [[[hit.id, round(hit.score, 3)] for hit in hits] for hits in found["old"].hits],
        "items": [
            [name, version, payload.get("price")] for name, version, _, payload in found["items"]
        ],
        "vectors": found["status"]["vectors"],
        "deployed": [move.version for move in found["moves"]],
        "classes": [card["slots"]["by_class"] for card in found["cards"]],
        "check": found["checks"][0].outcome,
        "growth": found["growth"],
        "keys": [key.name for key in found["keys"]],
        "jobs": [[job.kind, job.state] for job in found["jobs"]],
        "plan": found["plan"].ids,
        "memory": found["memory"][1:],
        "held out": found["held out"][1:],
        "images": found["images"],
    }


def freeze(folder: Path) -> None:
    """Write the workspace of this release."""
    path = whole_workspace(folder)
    FROZEN.mkdir(exist_ok=True)
    with tarfile.open(FROZEN / f"workspace-{__version__}.tar.gz", "w:gz") as archive:
        archive.add(path, "shop")
    (FROZEN / f"workspace-{__version__}.json").write_text(json.dumps(told(path), indent=1) + "\n")


def test_every_release_is_there(tmp_path: Path) -> None:
    if os.environ.get("FIXSTAR_FREEZE"):
        freeze(tmp_path)
    assert (FROZEN / f"workspace-{__version__}.tar.gz").is_file(), (
        "freeze this release: FIXSTAR_FREEZE=1"
    )


@pytest.mark.parametrize(
    "release", sorted(path.name.removesuffix(".tar.gz") for path in FROZEN.glob("*.tar.gz"))
)
def test_a_workspace_of_an_earlier_release_opens(tmp_path: Path, release: str) -> None:
    with tarfile.open(FROZEN / f"{release}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    assert list(verify_workspace(tmp_path / "shop")) == []
    expected = json.loads((FROZEN / f"{release}.json").read_text())
    assert json.loads(json.dumps(told(tmp_path / "shop"))) == expected
