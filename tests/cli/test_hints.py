"""What to type next can be typed: commands inside messages name the workspace and the data that were given."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from shops import pictures, shop
from typed import typed

from fixstar.cli.hints import completed, workspace_of
from fixstar.data import open_images
from fixstar.lifecycle import catalogue, labelled_items

SHOP = Path("my shop")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("(fixstar backfill --budget all), or", "(fixstar backfill --budget all -w 'my shop'), or"),
        ("run: fixstar check v2. Then wait", "run: fixstar check v2 -w 'my shop'. Then wait"),
        ("fixstar adapt a --for v2, or b", "fixstar adapt a --for v2 -w 'my shop', or b"),
        ('fixstar deploy v2 --force "my, REASON"', "fixstar deploy v2 --force \"my, REASON\" -w 'my shop'"),
        ("fixstar gallery import FILE --as a@v2", "fixstar gallery import FILE --as a@v2 -w 'my shop'"),
        ("fixstar check v2 --tolerance 0.01; or", "fixstar check v2 --tolerance 0.01 -w 'my shop'; or"),
        ("fixstar train X -w other. Yes", "fixstar train X -w other. Yes"),
        ("fixstar upgrade --help", "fixstar upgrade --help"),
        ("fixstar init shop, fixstar methods", "fixstar init shop, fixstar methods"),
        ("is not a fixstar checkpoint", "is not a fixstar checkpoint"),
    ],
)
def test_commands_get_the_workspace(text: str, said: str) -> None:
    assert completed(text, SHOP) == said
    assert completed(text, None) == completed(text, Path()) == text


def test_options_that_were_given_are_kept_in_commands_of_the_same_verb() -> None:
    text = "fixstar check v2 --tolerance 0.01, fixstar check v2 --data NEW or fixstar deploy v2"
    text = text.replace(" or", "; or")
    said = completed(text, None, "check", {"--data": ["old", "--split", "test"], "--seed": None})
    assert said == (
        "fixstar check v2 --tolerance 0.01 --data old --split test, fixstar check v2 --data NEW; or fixstar deploy v2"
    )


def test_the_workspace_of_a_command_line() -> None:
    for words in (["-w", "a"], ["--workspace", "a"], ["--workspace=a"], ["-wa"]):
        assert workspace_of(["check", "v2", *words]) == Path("a")
    assert workspace_of(["check", "v2"]) is None


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hints")
    with shop(folder / "shop") as space:
        space.index(catalogue(pictures(folder / "photos", 8)))
    return folder


def test_an_error_and_the_reasons_of_a_check(ready: Path, tmp_path: Path) -> None:
    path, photos = shutil.copytree(ready / "shop", tmp_path / "shop"), ready / "photos"
    refused = typed("deploy", "v2", "-w", path)
    assert f"fixstar check v2 -w {path}" in refused.err
    shown = typed("check", "v2", "--data", photos, "--no-report", "-w", path)
    assert shown.code == 3, shown.out
    assert f"fixstar check v2 --data LABELLED_IMAGES -w {path}" in " ".join(shown.out.split())


def test_the_reasons_of_an_adapter(ready: Path, tmp_path: Path) -> None:
    path = shutil.copytree(ready / "shop", tmp_path / "shop")
    with shop(tmp_path / "other") as space:
        items = list(labelled_items(open_images(ready / "photos")))
        vectors = space.serving.embed("v1", [item.image for item in items])
    pairs = tmp_path / "pairs.npz"
    labels = [item.payload["label"] for item in items]
    np.savez(tmp_path / "old.npz", vectors=vectors[:, ::-1], ids=[f"old/{i}" for i in range(len(items))])
    np.savez(pairs, old=vectors[:, ::-1], new=vectors, labels=labels)
    typed("gallery", "import", tmp_path / "old.npz", "--as", "old-system", "-w", path)
    shown = typed("adapt", "old-system", "--kind", "procrustes", "--pairs", pairs, "-w", path)
    assert shown.code == 3, shown.out
    said = " ".join(shown.out.split())
    assert f"fixstar adapt old-system --tolerance 0.01 --kind procrustes --pairs {pairs} -w {path}" in said
    assert f'--for v1 --force "REASON" --kind procrustes --pairs {pairs} -w {path}' in said
