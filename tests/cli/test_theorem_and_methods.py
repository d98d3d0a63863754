"""fixstar theorem, picture2d and methods: where the picture goes, what the angles are, names that can be typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner
from wording import refuses

from fixstar.cli import app
from fixstar.errors import InputError
from fixstar.methods import METHODS
from fixstar.research.picture2d import PictureResult

DRAW = "fixstar.research.theorem.draw_theorem"  # matplotlib takes a second for each picture
QUICK = ["theorem", "--dimensions", "10", "--samples", "400"]


def fixstar(*words: str) -> str:
    """Standard output in a terminal of 80 columns; expected errors come out as they were raised."""
    result = CliRunner().invoke(app, words, env={"COLUMNS": "80"}, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize(
    ("out", "written"),
    [("pic", "pic.png"), ("new/folder/x.png", "new/folder/x.png"), ("x.SVG", "x.SVG")],
)
def test_the_path_that_is_told_is_the_file_that_is_there(
    out: str, written: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert f"Picture: {written}\n" in fixstar(*QUICK, "--out", out)
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.*")] == [written]
    monkeypatch.setattr(DRAW, lambda *_: None)
    assert json.loads(fixstar(*QUICK, "--out", out, "--json"))["picture"] == written


@pytest.mark.parametrize(
    "words",
    [
        ["--out", "taken"],
        ["--out", "also"],
        ["--out", "x.jpeg2"],
        ["--old-angle", "200"],
        ["--new-angle", "0"],
        ["--new-angle", "nan"],
    ],
)
def test_mistakes_are_named_in_the_users_words(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").mkdir()
    (tmp_path / "also.png").mkdir()
    with refuses(InputError) as refused:
        fixstar(*QUICK, *words)
    assert "radians" not in str(refused.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["also.png", "taken"]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """What picture2d was told to draw; training takes a minute, and is tested elsewhere."""
    asked: list[Path] = []

    def draw(out: Path, *_: object, **__: object) -> PictureResult:
        asked.append(out)
        out.write_bytes(b"a picture")
        return PictureResult({"IFT": [90.0, 10.0]}, {"IFT": [0.9, 0.8, 0.7]}, str(out))

    monkeypatch.setattr("fixstar.research.picture2d.run_picture2d", draw)
    return asked


@pytest.mark.parametrize(
    ("out", "written"),
    [("pic", "pic.png"), ("new/folder/x", "new/folder/x.png"), ("x.SVG", "x.SVG")],
)
def test_the_picture_in_the_plane_is_where_it_is_told(
    out: str, written: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drawn: list[Path]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert f"Picture: {written}\n" in fixstar("picture2d", "--out", out)
    assert json.loads(fixstar("picture2d", "--out", out, "--json"))["picture"] == written
    assert drawn == [Path(written)] * 2
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.*")] == [written]


@pytest.mark.parametrize(
    "out",
    [
        "taken",
        "also",
        "x.jpeg2",
    ],
)
def test_no_minute_is_spent_on_a_picture_that_cannot_be_written(
    out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drawn: list[Path]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").mkdir()
    (tmp_path / "also.png").mkdir()
    with refuses(InputError):
        fixstar("picture2d", "--out", out)
    assert not drawn


def test_classes_that_widen_do_not_meet_the_assumption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DRAW, lambda *_: None)
    words = [*QUICK, "--out", str(tmp_path / "x.png")]
    wider = fixstar(*words, "--new-angle", "60")
    assert "violated" in wider
    assert "The theorem assumes that classes get no wider. From 45 to 60 degrees they do" in wider
    assert "assumes" not in fixstar(*words)
    assert json.loads(fixstar(*words, "--new-angle", "45.1", "--json"))["assumption_met"] is False
    assert json.loads(fixstar(*words, "--new-angle", "45", "--json"))["assumption_met"] is True


def test_every_method_is_named_whole_at_80_columns() -> None:
    shown = fixstar("methods")
    assert "…" not in shown
    first_words = {line.split(" ")[0] for line in shown.splitlines()}
    assert set(METHODS) <= first_words
    assert "discriminator" in shown  # the longest word of a summary
