"""fixstar evaluate: a workspace by every protocol, another system's features, reports and kept files."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner
from wording import refuses

from fixstar.cli import app
from fixstar.errors import DataError, FixstarError, InputError
from fixstar.evaluation import (
    VersionFeatures,
    cross_test,
    gallery_query_split,
    sample_pairs,
)
from fixstar.evaluation.evidence import verdicts
from fixstar.wording import percent

pytestmark = pytest.mark.draws

QUERY_LABELS, GALLERY_LABELS = np.arange(200) % 5, np.arange(100) % 5


def fixstar(*words: str | Path, columns: int = 200) -> str:
    """Standard output; expected errors come out as they were raised."""
    environment = {"COLUMNS": str(columns)}
    result = CliRunner().invoke(
        app, [str(word) for word in words], env=environment, catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    return result.stdout


def answer(*words: str | Path) -> Any:
    return json.loads(fixstar("evaluate", *words, "--json"))


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace of two versions, and the folder "held-out" beside it."""
    folder = tmp_path_factory.mktemp("shop")
    rng = np.random.default_rng(0)
    for part, names in (("first", "abc"), ("second", "de"), ("held-out", "vwxyz")):
        for name in names:
            (folder / part / name).mkdir(parents=True)
            colour = rng.integers(0, 150, 3)
            for i in range(8):
                pixels = (colour + rng.integers(0, 100, (20, 30, 3))).astype(np.uint8)
                Image.fromarray(pixels).save(folder / part / name / f"{i}.png")
    fixstar("init", folder / "space")
    tiny = shlex.split(
        "--backbone tiny --method hoc --capacity 20 --batch-size 8 --replay 3 --epochs 1"
    )
    fixstar("train", folder / "first", "-w", folder / "space", *tiny, "--json")
    fixstar("upgrade", folder / "second", "-w", folder / "space", "--json")
    return folder


def features(seed: int = 0, widths: tuple[int, int] = (6, 6)) -> list[VersionFeatures]:
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(5, max(widths)))

    def embed(name: str, d: int, noise: float) -> VersionFeatures:
        q, g = (
            centres[y][:, :d] + noise * rng.normal(size=(len(y), d))
            for y in (QUERY_LABELS, GALLERY_LABELS)
        )
        return VersionFeatures(name, q, g)

    return [embed("old", widths[0], 1.6), embed("new", widths[1], 0.8)]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The words that name two versions of another system."""
    monkeypatch.chdir(tmp_path)
    for version in features():
        np.savez(f"{version.name}.npz", queries=version.queries, gallery=version.gallery)
        np.save(f"{version.name}-q.npy", version.queries)
        np.save(f"{version.name}-g.npy", version.gallery)
    np.savez("labels.npz", query_labels=QUERY_LABELS, gallery_labels=GALLERY_LABELS)
    np.save("ql.npy", QUERY_LABELS)
    np.save("gl.npy", GALLERY_LABELS)
    return ["--features", "old=old.npz", "--features", "new=new.npz", "--labels", "labels.npz"]


def test_an_open_set_search_leaves_every_second_class_out_of_the_gallery(
    shop: Path, tmp_path: Path
) -> None:
    words = (
        "-w",
        shop / "space",
        "--protocol",
        "TPIR@FPIR=0.5",
        "--split-file",
        tmp_path / "split.npz",
    )
    assert [len(row) for row in answer(shop / "held-out", *words)["matrix"]] == [1, 2]
    rows = np.load(tmp_path / "split.npz")
    labels = np.arange(40) // 8
    assert len(np.unique(labels[rows["gallery"]])) == 3
    assert len(np.unique(labels[rows["queries"]])) == 5


def test_features_of_another_system_in_both_layouts(files: list[str]) -> None:
    found = answer(*files)
    expected = cross_test(features(), QUERY_LABELS, GALLERY_LABELS, "image")
    assert found["versions"] == ["old", "new"]
    assert [value for row in found["matrix"] for value in row] == expected.matrix[
        np.tril_indices(2)
    ].tolist()
    cell = verdicts(expected)[1, 0]
    assert [
        found["cells"][0][key]
        for key in ("query", "gallery", "difference", "low", "high", "verdict")
    ] == [*("new", "old", cell.mean, cell.low, cell.high, cell.verdict)]
    pairs = [
        "--features",
        "old=old-q.npy,old-g.npy",
        "--features",
        "new=new-q.npy,new-g.npy",
        "--labels",
        "ql.npy,gl.npy",
    ]
    assert answer(*pairs) == found


@pytest.mark.parametrize("protocol", ["template", "rank3", "knn5", "map", "map10"])
def test_every_protocol(files: list[str], protocol: str) -> None:
    found = answer(*files, "--protocol", protocol)
    expected = cross_test(features(), QUERY_LABELS, GALLERY_LABELS, protocol)
    assert found["protocol"] == protocol
    assert found["matrix"][1] == expected.matrix[1].tolist()
    assert found["AC"] == expected.summary()["AC"]


def test_confidence_and_classes_change_the_evidence(files: list[str]) -> None:
    expected = cross_test(features(), QUERY_LABELS, GALLERY_LABELS, "image")
    found = answer(*files, "--confidence", "0.999", "--by-class")
    cell = verdicts(expected, confidence=0.999, clusters=QUERY_LABELS)[1, 0]
    assert (found["cells"][0]["low"], found["confidence"], found["by_class"]) == (
        cell.low,
        0.999,
        True,
    )
    assert found["cells"][0]["differing"] == cell.differing <= 5
    mean_precision = answer(*files, "--protocol", "map", "--by-class")
    assert mean_precision["cells"][0]["differing"] <= 5


def test_verification_keeps_its_pairs(files: list[str], tmp_path: Path) -> None:
    words = [*files, "--protocol", "verification", "--pairs-file", "pairs.npz", "--seed", "3"]
    found = answer(*words, "--by-class")
    labels = np.concatenate([QUERY_LABELS, GALLERY_LABELS])
    count = (
        len(labels) // 2 - len(labels) // 2 % 10
    )  # no more than half as many pairs of a kind as images
    pairs = sample_pairs(labels, count, count, 3)
    both = [
        VersionFeatures(v.name, *2 * (np.concatenate([v.queries, v.gallery]),)) for v in features()
    ]
    expected = cross_test(both, labels, labels, "verification", pairs=pairs)
    assert found["answers"] == 2 * count
    assert found["matrix"][1] == expected.matrix[1].tolist()
    kept = (tmp_path / "pairs.npz").read_bytes()
    words[-1] = "4"  # the file decides, not the seed
    assert answer(*words)["matrix"] == found["matrix"]
    assert (tmp_path / "pairs.npz").read_bytes() == kept
    sample_pairs(np.sort(labels), 50, 50).save("pairs.npz")
    with refuses(DataError):
        answer(*words)
    sample_pairs(np.tile(labels, 9), 50, 50).save("pairs.npz")
    with refuses(DataError):
        answer(*words)


def test_one_set_as_queries_and_gallery_is_verified_once(files: list[str]) -> None:
    np.savez(
        "same.npz",
        queries=QUERY_LABELS[:, None] + np.ones((200, 3)),
        gallery=QUERY_LABELS[:, None] + np.ones((200, 3)),
    )
    np.savez("labels.npz", query_labels=QUERY_LABELS, gallery_labels=QUERY_LABELS)
    answer(
        "--features",
        "a=same.npz",
        *files[-2:],
        "--protocol",
        "verification",
        "--pairs-file",
        "p.npz",
    )
    with np.load("p.npz") as pairs:
        assert max(pairs["first"].max(), pairs["second"].max()) < 200


def test_the_table_marks_what_the_evidence_says(files: list[str]) -> None:
    better = fixstar("evaluate", *files)
    expected = cross_test(features(), QUERY_LABELS, GALLERY_LABELS, "image")
    assert percent(expected.matrix[1, 0]) in better
    assert "1 compatible, 0 incompatible (x), 0 not decided (?)" in better
    assert "new can be deployed over old's gallery" in better
    worse = fixstar("evaluate", *files[2:4], *files[:2], *files[4:])
    assert " x " in worse
    assert "old must not be deployed over new's gallery" in worse
    np.savez("twin.npz", queries=features()[0].queries, gallery=features()[0].gallery)
    twin = fixstar("evaluate", *files[:2], "--features", "twin=twin.npz", *files[4:])
    assert " ? " in twin
    assert "It is not decided" in twin


def test_widths_that_differ_need_a_word(files: list[str]) -> None:
    wide = features(widths=(6, 8))
    np.savez("new.npz", queries=wide[1].queries, gallery=wide[1].gallery)
    np.savez("old.npz", queries=wide[0].queries, gallery=wide[0].gallery)
    with pytest.raises(FixstarError, match=r"old 6, new 8.*--shared-components"):
        answer(*files)
    shared = [replace(version, shared_components=True) for version in wide]
    expected = cross_test(shared, QUERY_LABELS, GALLERY_LABELS, "image")
    assert (
        answer(*files, "--shared-components", "--report", "out")["matrix"][1]
        == expected.matrix[1].tolist()
    )


def test_a_report_of_features(files: list[str], tmp_path: Path) -> None:
    shown = fixstar("evaluate", *files, "--report", "out")
    assert "Report: out/report.html" in shown
    names = {"report.html", "report.json", "matrix.png", "backfill.png"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == names
    content = json.loads((tmp_path / "out" / "report.json").read_text())
    expected = cross_test(features(), QUERY_LABELS, GALLERY_LABELS, "image")
    assert content["methods"][""]["summary"] == expected.summary()
    assert content["backfill"][""]["accuracy"][0] == pytest.approx(expected.matrix[1, 0])
    assert content["backfill"][""]["accuracy"][-1] == pytest.approx(expected.matrix[1, 1])
    assert (
        content["tables"][0]["rows"]["queries by new, gallery by old"][0] == expected.matrix[1, 0]
    )
    fixstar("evaluate", *files, "--report", "pairs", "--protocol", "verification")
    assert (tmp_path / "pairs" / "roc.png").exists()
    fixstar("evaluate", *files, "--report", "precision", "--protocol", "map")
    assert json.loads((tmp_path / "precision" / "report.json").read_text())["protocol"] == "map"


def test_a_workspace_with_a_report_and_a_kept_split(shop: Path, tmp_path: Path) -> None:
    words: list[str | Path] = [
        shop / "held-out",
        "-w",
        shop / "space",
        "--split-file",
        tmp_path / "split.npz",
    ]
    found = answer(*words, "--report", tmp_path / "out", "--picture", tmp_path / "matrix.svg")
    assert found["answers"] == 20
    assert (tmp_path / "matrix.svg").read_text().startswith("<?xml")
    page = (tmp_path / "out" / "report.html").read_text()
    assert "half of each class is the gallery, seed 0" in page
    flipped = json.loads((tmp_path / "out" / "report.json").read_text())["methods"][""]
    assert ("thumbnail" in page.split("</style>")[1]) == bool(flipped["lost"])
    with np.load(tmp_path / "split.npz") as kept:
        expected = gallery_query_split(np.repeat(np.arange(5), 8))
        assert kept["queries"].tolist() == expected.queries.tolist()
    assert answer(*words, "--seed", "7")["matrix"] == found["matrix"]
    gallery_query_split(np.repeat(np.arange(5), 9)).save(tmp_path / "split.npz")
    with refuses(DataError):
        answer(*words)
    gallery_query_split(np.repeat(np.arange(5), 4)).save(tmp_path / "split.npz")
    with pytest.warns(UserWarning, match="leaves out 20 of 40 images"):
        assert answer(*words)["answers"] == 10


def test_images_of_one_class_are_refused(shop: Path) -> None:
    """All of one class are found by any model: 100 % everywhere would read as perfect."""
    (shop / "one").mkdir()
    (shop / "one" / "v").symlink_to(shop / "held-out" / "v")
    with refuses(InputError):
        fixstar("evaluate", shop / "one", "-w", shop / "space")


def test_a_file_of_pairs_is_no_split(shop: Path, tmp_path: Path) -> None:
    path = tmp_path / "pairs.npz"
    words: list[str | Path] = [shop / "held-out", "-w", shop / "space"]
    answer(*words, "--protocol", "verification", "--pairs-file", path)
    kept = path.read_bytes()
    with refuses(DataError, "evaluate", "evaluate") as refused:
        answer(*words, "--split-file", path)
    assert refused.value.next_steps[1].arguments["pairs_file"] == str(path)
    assert path.read_bytes() == kept


@pytest.mark.parametrize(("columns", "blocks"), [(20, 7), (40, 7), (80, 4)])
@pytest.mark.usefixtures("files")
def test_no_name_and_no_figure_is_cut_in_a_narrow_terminal(columns: int, blocks: int) -> None:
    names = [f"v{number}-of-the-shop" for number in range(1, 8)]
    words = [word for name in names for word in ("--features", f"{name}=old.npz")]
    shown = fixstar("evaluate", *words, "--labels", "labels.npz", columns=columns)
    table = shown[: shown.index("AC ")]
    wide = fixstar("evaluate", *words, "--labels", "labels.npz")
    assert "…" not in shown
    assert table.count("%") == wide[: wide.index("AC ")].count("%") == 28
    assert all(table.count(f"gallery {name}") == 1 for name in names)
    lines = [line.rstrip() for line in table.splitlines()]
    assert max(map(len, lines)) <= max(columns, len("v1-of-the-shop  gallery v1-of-the-shop"))
    assert sum(line.startswith("queries by") for line in lines) == blocks


def test_a_workspace_is_verified_on_all_its_images(shop: Path, tmp_path: Path) -> None:
    words: list[str | Path] = [
        shop / "held-out",
        "-w",
        shop / "space",
        "--protocol",
        "verification",
        "--pairs-file",
        tmp_path / "p.npz",
    ]
    found = answer(*words)
    assert found["answers"] == 40  # five classes of eight: half as many pairs of a kind as images
    with np.load(tmp_path / "p.npz") as pairs:
        assert pairs["first"].max() > 30


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--labels", "labels.npz"],
        ["photos", "--features", "a=old.npz"],
        ["--features", "old.npz"],
        ["--features", "a=old.npz", "--split-file", "s.npz"],
        ["--features", "a=old-q.npy,old-g.npy"],
        ["--features", "a=old.npz"],
        ["--features", "a=old.npz", "--features", "a=new.npz", "--labels", "labels.npz"],
        ["--features", "a=old.npz", "--labels", "labels.npz", "--report", "out"],
        ["--features", "a=old.npz", "--features", "b=new.npz", "--report", "old.npz"],
        ["--features", "a=old.npz", "--protocol", "rank"],
        ["--features", "a=old.npz", "--confidence", "95"],
        ["--features", "a=old.npz", "--labels", "gl.npy,ql.npy"],
        ["--features", "a=old.npz", "--features", "b=short.npz", "--labels", "labels.npz"],
        ["--features", "a=old.npz", "--features", "b=flat.npz", "--labels", "labels.npz"],
        ["--features", "a=old.npz", "--labels", "one.npz"],
        ["--features", "a=old.npz", "--labels", "labels.npz", "--pairs-file", "p.npz"],
        ["photos", "--protocol", "verification", "--split-file", "s.npz"],
        ["--features", "a=old.npz", "--labels", "few.npz", "--protocol", "verification"],
        [
            "--features",
            "a=old.npz",
            "--labels",
            "labels.npz",
            "--protocol",
            "verification",
            "--seed",
            "-1",
        ],
    ],
)
@pytest.mark.usefixtures("files")
def test_mistakes_are_named(words: list[str]) -> None:
    np.savez("few.npz", query_labels=np.arange(200), gallery_labels=200 + np.arange(100))
    np.savez("one.npz", query_labels=np.full(200, "hat"), gallery_labels=np.full(100, "hat"))
    np.savez("short.npz", queries=np.ones((9, 6)), gallery=np.ones((100, 6)))
    np.savez("flat.npz", queries=np.ones((200, 6)), gallery=np.ones((9, 6)))
    with refuses(FixstarError):
        fixstar("evaluate", *words)


def test_features_need_no_torch_and_mistakes_get_one_line(files: list[str], tmp_path: Path) -> None:
    run = partial(subprocess.run, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    code = "import sys; from fixstar.cli import app; app(standalone_mode=False); print('torch' in sys.modules)"
    done = run([sys.executable, "-c", code, "evaluate", *files])
    assert done.stdout.strip().endswith("False"), done.stderr
    np.save("old-q.npy", np.array([[None]]), allow_pickle=True)
    refused = run(
        [
            sys.executable,
            "-m",
            "fixstar",
            "evaluate",
            "--features",
            "v1=old-q.npy,old-g.npy",
            *files[-2:],
        ]
    )
    assert refused.returncode == 1
    assert "never unpickled" in refused.stderr
    assert "Traceback" not in refused.stderr
