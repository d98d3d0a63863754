"""The commands of the pages that people follow are typed in their order, each page in a folder with what it names.

Images and models are tiny, and trainings have one epoch. A check of so few images decides nothing, so each check is
followed by a passed one: ``deploy`` is typed as the page has it.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the onnx extra is not installed")

import onnx
from command_blocks import ROOT, lines
from onnx_models import image_model
from PIL import Image
from shops import shop
from text_models import bert_folder, topic_texts
from typed import typed

from fixstar.models import Encoder
from fixstar.models.backbones.pretrained import at_hand
from fixstar.workspace import catalogue
from fixstar.workspace.checks import last_check, save_check

# --- what a page names


def photos(folder: str, *classes: str, count: int = 4, size: int = 32) -> None:
    """One folder per class: a colour with noise."""
    rng = np.random.default_rng(len(folder))
    for name in classes:
        place = Path(folder, name)
        place.mkdir(parents=True)
        colour = rng.integers(0, 200, 3)
        for number in range(count):
            pixels = (colour + rng.integers(0, 55, (size, size, 3))).astype(np.uint8)
            Image.fromarray(pixels).save(place / f"{number:03}.png")


def images() -> None:
    """Photos of two years, a catalogue, and classes that nothing learns."""
    photos("photos/2024", "bag", "hat", "shoe", count=6)
    photos("photos/2025", "coat", "scarf")
    photos("catalogue", "belt", "boot", "ring")
    photos("held-out", "belt", "boot", "ring")
    Image.new("RGB", (32, 32), "red").save("shoe.jpg")


def characters() -> None:
    """What examples/characters.py draws, which has a test of its own."""
    letters = ("U+0416", "U+0418", "U+042C")
    photos("characters/2024", "U+0041", "U+0042", "U+0043", count=6)
    photos("characters/2025", "U+0041", "U+0042", "U+0043", "U+0393")
    photos("characters/catalogue", *letters)
    photos("characters/held-out", *letters)


def trained() -> None:
    """A workspace whose v1 was trained here, and made the vectors of the catalogue."""
    images()
    run("fixstar init shop")
    run("fixstar train photos/2024 -w shop --backbone tiny")
    run("fixstar index catalogue -w shop")


def deployed() -> None:
    """A workspace whose v2 is deployed, and v1 made all vectors."""
    trained()
    run("fixstar upgrade photos/2025 -w shop")
    run("fixstar check v2 -w shop --data held-out")
    run("fixstar deploy v2 -w shop")


def models() -> None:
    """ONNX models, and files of vectors."""
    images()
    for seed, name in enumerate(("old.onnx", "new.onnx", "better.onnx")):
        onnx.save(image_model(seed), name)
    vectors = np.random.default_rng(0).normal(size=(18, 5)).astype(np.float32)
    ids = np.array([f"old/{number}" for number in range(18)])
    np.savez("old.npz", vectors=vectors, ids=ids)
    np.savez("moved.npz", vectors=np.tile(vectors, 3)[:, :12], ids=np.char.add("moved/", ids))


def models_and_pairs() -> None:
    """What the README has at hand: images, a model, texts, and vectors of the same items by two others."""
    models()
    pairs(width=8)
    for seed, name in enumerate(("old-model", "new-model")):
        bert_folder(Path(name), seed=seed, pooling="mean_tokens")
    rows = [{"url": f"faq/{row}", "body": text} for row, (text, _) in enumerate(topic_texts(2))]
    Path("notes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def two_models() -> None:
    """A workspace of two versions, and vectors by an old model and a better one that are as wide."""
    images()
    with shop(Path("shop"), free=True) as space:
        space.index(catalogue(Path("catalogue")))
    pairs(width=Encoder.load(Path("shop/versions/v1")).feature_dim)


def pairs(width: int) -> None:
    """Items and queries by both models, labels, and what is relevant."""
    rng = np.random.default_rng(0)
    classes = np.repeat(np.arange(40), 10)
    meant = rng.normal(size=(40, width))[classes]
    ids = np.array([f"item-{number}" for number in range(400)])
    for names, noise in ((("old.npz", "docs-a.npz"), 1.0), (("new.npz", "docs-b.npz"), 0.3)):
        vectors = (meant + noise * rng.normal(size=meant.shape)).astype(np.float32)
        for name in names:
            np.savez(name, vectors=vectors, ids=ids)
        letter = names[1].removeprefix("docs-")
        np.savez(
            f"queries-{letter}", vectors=vectors[:200:5], ids=np.char.add("query-", ids[:200:5])
        )
    labels = [f"{item},{label}" for item, label in zip(ids, classes, strict=True)]
    Path("labels.csv").write_text("\n".join(["id,label", *labels]) + "\n")
    asked = ids[
        :200:5
    ]  # items that are relevant to a query are not fitted on: half of the classes are not asked for
    relevant = [
        f"query-{query}\t{item}\t1"
        for query, label in zip(asked, classes[:200:5], strict=True)
        for item in ids[classes == label]
        if item != query
    ]
    Path("qrels").mkdir()
    Path("qrels/test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *relevant]) + "\n")


def faces() -> None:
    """Photos of people, a model of faces, and vectors of faces by it and by an old one."""
    photos("faces/2024", "ann", "bob", "cleo", count=6)
    photos("faces/2025", "dan", "eve")
    photos("faces/others", *(f"person-{number}" for number in range(4)), count=8)
    photos("enrolled", "ann", "dan", "fay")
    Image.new("RGB", (112, 112), "pink").save("visitor.jpg")
    photos("faces/unlabelled", "faces", count=40)
    for name, side in (("old.onnx", 150), ("new.onnx", 112)):
        onnx.save(image_model(side, side), name)
    rng = np.random.default_rng(0)
    people = np.repeat(np.arange(80), 6)
    meant = rng.normal(size=(80, 12))[people]
    names = np.char.add("person ", people.astype(str))
    ids = np.array([f"face-{number}" for number in range(480)])
    shown = np.where(people < 40, "", names)
    for model, noise in (("old", 0.9), ("new", 0.3)):
        vectors = (meant + noise * rng.normal(size=meant.shape)).astype(np.float32)
        few = people < 60
        np.savez(f"faces-{model}.npz", vectors=vectors[few], ids=ids[few], labels=shown[few])
        np.savez(f"test-{model}.npz", vectors=vectors[~few], ids=ids[~few], labels=names[~few])
        if model == "old":
            np.savez("enrolled.npz", vectors=vectors[::6], ids=ids[::6], labels=names[::6])


class Page(NamedTuple):
    """A page whose commands are typed, and what is there before."""

    file: str
    prepare: Callable[[], None]


PAGES = (
    Page("README.md", models_and_pairs),
    Page("docs/quickstart.md", characters),
    Page("docs/tutorials/own-images.md", models),
    Page("docs/tutorials/faces.md", faces),
    Page("docs/how-to/upgrade.md", trained),
    Page("docs/how-to/backfill.md", deployed),
    Page("docs/how-to/own-model.md", models),
    Page("docs/how-to/change-model.md", two_models),
)
FIRST = ("README.md",)  # the others are long
LEFT_OUT = {  # beginnings of lines that are not typed, and why
    "make ": "tests/test_container.py and the demo's tests",
    "git clone": "installs",
    "pip install": "installs",
    "source ": "installs",
    "export ": "the shell's",
    "python examples/characters.py": "tests/test_examples.py runs it; its images are here already",
    "fixstar bench": "reads CelebA and LFW; tests/benchmarks",
    "fixstar serve": "runs until it is stopped; tests/service",
    "FIXSTAR_TRUST=shop.models fixstar serve": "runs until it is stopped; tests/service",
    "fixstar init shop --trust shop.models": "asks for a module of the user's; tests/models",
}


# --- typing


ANSWERS = {
    "check": (0, 2, 3),
    "bridge": (0, 3),
    "judge": (0, 2, 3),
}  # exit codes that are no errors
SHORT = {
    "train": "--epochs 1 --batch-size 8 --capacity 100",
    "upgrade": "--epochs 1 --try off",
    "check": "--no-report",
    "backfill": "--anyway",  # what so few images predict does not count
}
LARGE = {  # in place of what is too large, or is not here
    "--backbone resnet18": "--backbone tiny",
    "efficientnet-lite0 ": "efficientnet-lite0 --size 32 ",
    "--cluster auto": "",
}
WITHOUT_WHEEL = {"--backbone efficientnet-lite0 --size 32 --frozen": "--backbone tiny"}


def shortened(line: str) -> list[str]:
    """The words of a command, with images and trainings as small as they can be."""
    replaced = [*LARGE.items()]
    if not at_hand("efficientnet-lite0"):
        replaced += WITHOUT_WHEEL.items()
    for large, small in replaced:
        line = line.replace(large, small)
    _, verb, *words = shlex.split(line, comments=True)
    asked = shlex.split(SHORT.get(verb, ""))
    for option, value in zip(asked[::2], asked[1::2], strict=False):
        if option in words:
            words[words.index(option) + 1] = value
    missing = [] if not asked or asked[0] in words else asked
    return [verb, *words, *missing]


def run(line: str) -> None:
    """Type a line of a page. What is not an answer is a failure."""
    verb, *words = shortened(line)
    ended = typed(verb, *words)
    assert ended.code in ANSWERS.get(verb, (0,)), (
        f"{line} -> {ended.code}\n{ended.out[-1500:]}{ended.err[-1500:]}"
    )
    assert "Traceback" not in ended.err, line
    if verb == "check":
        let_pass(Path(words[words.index("-w") + 1]), words[0])


def let_pass(place: Path, version: str) -> None:
    """Let the check that was just made have passed, by the same translation and the same models."""
    found = last_check(place, version)
    assert found is not None
    cells = tuple(replace(cell, verdict="compatible") for cell in found.cells)
    save_check(place, replace(found, outcome="pass", cells=cells, queries=found.queries + 1))


def commands(page: Page) -> list[str]:
    """The lines of a page that are typed: neither output nor comments."""
    shown = [line for line in lines(ROOT / page.file) if not line.startswith("#")]
    return [
        line
        for line in shown
        if line.startswith("fixstar ") and not line.startswith(tuple(LEFT_OUT))
    ]


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.file, marks=() if page.file in FIRST else pytest.mark.long)
        for page in PAGES
    ],
)
def test_the_commands_of_a_page_run_in_their_order(
    page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page.prepare()
    typed_lines = commands(page)
    assert len(typed_lines) > 2
    for line in typed_lines:
        run(line)
