"""The demo at a fraction of its size: what it says must follow from what it measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from fixstar import demo
from fixstar.errors import InputError
from fixstar.models import Encoder
from fixstar.workspace import Workspace

pytestmark = pytest.mark.draws


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = {"KNOWN": ("greek",), "ADDED": ("lao",), "UNSEEN": ("hebrew",)}
    for name, value in {**scripts, "GALLERY": 10, "CHECKED": 120, "QUERIES": 6}.items():
        monkeypatch.setattr(demo, name, value)


@pytest.mark.usefixtures("small")
def test_the_demo_measures_draws_and_leaves_its_workspace(tmp_path: Path) -> None:
    said: list[str] = []
    result = demo.run_demo(tmp_path / "out", progress=False, say=said.append)
    for path in result.pictures:
        assert Image.open(path).size[0] > 500
    queries = demo.characters(("hebrew",), 6, seed=2)
    gallery = demo.characters(("hebrew",), demo.GALLERY, seed=1)
    v1, v2 = (
        Encoder.load(tmp_path / "out" / "workspace" / "versions" / name) for name in ("v1", "v2")
    )

    def found(asked: Encoder, stored: Encoder) -> float:
        cosines = asked.encode(queries.images) @ stored.encode(gallery.images).T
        return float((gallery.labels[cosines.argmax(1)] == queries.labels).mean())

    assert result.now == pytest.approx(found(v1, v1))
    assert result.untranslated == pytest.approx(found(v2, v1))
    with Workspace(tmp_path / "out" / "workspace", device="cpu") as space:
        check = space.last_check("v2")
        assert check is not None
        assert check.outcome == result.gate == "pass"
        assert space.deployed() == result.deployed == "v2"
        assert space.gallery.count() == {"v1": 0, "v2": len(gallery)}
        assert demo.accuracy(space, queries) == result.reembedded == pytest.approx(found(v2, v2))
    assert [share for share, _ in result.curve] == pytest.approx([0, 0.25, 0.5, 0.75, 1], abs=0.01)
    assert result.curve[0][1] == result.at_once
    assert json.loads((tmp_path / "out" / "demo.json").read_text())["sentence"] == result.sentence
    told = [line.split(":")[0].strip() for line in said if ":" in line]
    assert told[:5] == ["train v1", "index", "search", "upgrade to v2", "check v2"]


def test_the_sentence_follows_the_numbers() -> None:
    told = demo.sentence(0.3, 0.4, 0.5, "pass")
    assert all(word in told for word in ("30.0%", "40.0%", "+10.0 points", "50%", "(50.0%)"))
    assert "re-embedding" not in demo.sentence(0.3, 0.2, 0.25, "pass")
    assert "-10.0 points" in demo.sentence(0.3, 0.2, 0.25, "pass")
    refused = demo.sentence(0.3, 0.4, 0.5, "missing evidence")
    assert "missing evidence" in refused
    assert "40.0%" not in refused


def test_only_an_earlier_demo_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    for mark in (None, "{}", '{"format": "other"}', "not json"):
        if mark is not None:
            (tmp_path / "demo.json").write_text(mark)
        with pytest.raises(InputError, match="not a demo"):
            demo.run_demo(tmp_path, progress=False)
    (tmp_path / "demo.json").write_text('{"format": "fixstar-demo"}')
    demo._prepare(tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "precious"
