"""The demo at a fraction of its size: what it says must follow from what it measured."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fixstar import demo
from fixstar.errors import InputError
from fixstar.models import Encoder
from fixstar.workspace import Workspace


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = {"KNOWN": ("greek",), "ADDED": ("lao",), "UNSEEN": ("hebrew",)}
    for name, value in {**scripts, "GALLERY": 10, "QUERIES": 6}.items():
        monkeypatch.setattr(demo, name, value)


@pytest.mark.usefixtures("small")
def test_the_demo_measures_draws_and_leaves_its_models(tmp_path: Path) -> None:
    said: list[str] = []
    result = demo.run_demo(tmp_path / "out", progress=False, say=said.append)
    for path in result.pictures:
        assert Image.open(path).size[0] > 500
    queries, gallery = demo.characters(("hebrew",), 6, seed=2), demo.characters(("hebrew",), demo.GALLERY, seed=1)
    for kind, rows in result.matrices.items():
        v1, v2 = (Encoder.load(tmp_path / "out" / kind / "versions" / name) for name in ("v1", "v2"))
        cosines = v2.encode(queries.images) @ v1.encode(gallery.images).T
        hits = gallery.labels[cosines.argmax(1)] == queries.labels
        assert rows[1][0] == pytest.approx(hits.mean()), kind
        with Workspace(tmp_path / "out" / kind, device="cpu") as space:
            assert space.gallery.count()["v1"] == len(gallery)
            check = space.last_check("v2")
            assert check is not None
            assert check.outcome == result.gate[kind]
            assert space.deployed() == result.deployed[kind] == ("v2" if check.outcome == "pass" else "v1")
    assert result.gate["independent"] == "refuse"
    assert result.matrices["independent"][1][0] < 0.3 * result.matrices["independent"][0][0]
    assert json.loads((tmp_path / "out" / "demo.json").read_text())["sentence"] == result.sentence
    assert [line.split(":")[0].strip() for line in said if ":" in line][:4] == [
        "train v1",
        "index",
        "upgrade to v2",
        "check v2",
    ]


@pytest.mark.parametrize(
    ("compatible", "control", "words"),
    [
        ([[0.2, 0], [0.3, 0.4]], [[0.2, 0], [0.01, 0.5]], ["is compatible", "30.0%", "20.0%", "50%", "1.0%"]),
        ([[0.3, 0], [0.2, 0.4]], [[0.2, 0], [0.01, 0.5]], ["is NOT compatible", "20.0%", "30.0%"]),
        ([[0.3, 0], [0.3, 0.4]], [[0.2, 0], [0.01, 0.5]], ["is NOT compatible"]),
    ],
)
def test_the_sentence_follows_the_numbers(
    compatible: list[list[float]], control: list[list[float]], words: list[str]
) -> None:
    sentence = demo._sentence(np.array(compatible), np.array(control), "refuse")
    assert all(word in sentence for word in words)
    assert ("re-embedding everything" in sentence) == (compatible[1][0] > compatible[0][0])


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
