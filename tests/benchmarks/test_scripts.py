"""Scripts of benchmarks/: another folder, or an unknown method, gets one clear line; what change_model.py draws."""

from __future__ import annotations

import importlib
import json
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wording import check_wording

from fixstar.geometry import unit

SCRIPTS = Path(__file__).parents[2] / "benchmarks"


def refused(monkeypatch: pytest.MonkeyPatch, script: str, *words: str) -> str:
    """What a script prints as it ends with an error: one line, without a traceback."""
    monkeypatch.setattr(sys, "argv", [script, *words])
    monkeypatch.syspath_prepend(SCRIPTS)
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(SCRIPTS / script), run_name="__main__")
    (line,) = str(end.value.code).splitlines()
    return line


@pytest.mark.parametrize(
    ("words", "folder", "message"),
    [
        (
            ["methods.py"],
            "missing",
            "missing has no images_background and no images_evaluation; give Omniglot's folder",
        ),
        (["methods.py"], "half", "half has no images_evaluation; give Omniglot's folder"),
        (["searched_feature.py"], "half", "half has no images_evaluation; give Omniglot's folder"),
        (["methods.py"], "empty", "no drawings; expected alphabet/character"),
    ],
)
def test_another_folder_is_refused_in_one_line(
    words: list[str], folder: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in ("half/images_background", "empty/images_background", "empty/images_evaluation"):
        (tmp_path / part).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    line = refused(monkeypatch, *words, folder)
    assert line.startswith(f"{words[0]}: ")
    assert message in line


def test_an_unknown_method_is_refused_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    line = refused(monkeypatch, "methods.py", "missing", "--methods", "er, hco")
    assert line.startswith("methods.py: unknown method 'hco'; did you mean 'hoc'? Known: ")
    assert "bct-kd, " in line
    assert line.endswith("--methods hoc,er")
    assert not list(tmp_path.iterdir())


# change_model.py: classes that judge are not fitted


def saved_models(folder: Path, each: int = 16) -> None:
    """Two models of 12 classes; the new one sees what the old one sees, turned, with less noise."""
    rng = np.random.default_rng(0)
    labels = np.repeat([f"class {number:02}" for number in range(12)], each)
    centres = rng.normal(size=(12, 8))
    turned = np.linalg.qr(rng.normal(size=(8, 8)))[0]
    (folder / "banking77").mkdir()
    for model, noise in (("wordllama", 0.8), ("minilm", 0.4)):
        seen = np.repeat(centres, each, axis=0) + noise * rng.normal(size=(12 * each, 8))
        vectors = unit((seen @ turned if model == "minilm" else seen).astype(np.float32))
        ids = [str(row) for row in range(12 * each)]
        np.savez(folder / "banking77" / f"{model}.npz", vectors=vectors, labels=labels, ids=ids)


def test_a_missing_file_of_pairs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = refused(
        monkeypatch, "change_model.py", str(tmp_path), "--out", str(tmp_path / "out.json")
    )
    assert line.startswith("change_model.py: ")
    check_wording(line)


def test_items_that_judge_are_of_classes_that_are_not_fitted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(SCRIPTS)
    change_model = importlib.import_module("change_model")
    labels = np.repeat(["a", "b", "c", "d", ""], 10)
    drawn = change_model.draw(labels, "all", seed=3)
    fewer = change_model.draw(labels, "7", seed=3)
    assert sorted([*drawn.fitted, *drawn.judging]) == list(range(50))
    assert not set(labels[drawn.fitted]) & set(labels[drawn.judging])
    assert len(set(labels[drawn.judging])) == 2
    assert "" in labels[drawn.fitted]
    assert set(fewer.fitted) < set(drawn.fitted)
    assert len(fewer.fitted) == 7
    assert fewer.judging.tolist() == drawn.judging.tolist()
    assert change_model.draw(labels, "all", seed=4).judging.tolist() != drawn.judging.tolist()


def ready(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[str], Path]:
    """change_model.py, the words that measure Banking77 with it, and the file that it writes."""
    saved_models(folder)
    monkeypatch.syspath_prepend(SCRIPTS)
    out = folder / "out.json"
    words = ["change_model.py", str(folder), "--only", "banking77", "--out", str(out)]
    return importlib.import_module("change_model"), words, out


def test_figures_of_a_change_are_kept_and_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    change_model, usual, out = ready(tmp_path, monkeypatch)
    monkeypatch.setattr(sys, "argv", [*usual, "--seeds", "2", "--sizes", "40,500,all"])
    change_model.main()
    runs = json.loads(out.read_text())["runs"]
    assert [(run["size"], run["seed"]) for run in runs] == [
        ("all", 0),
        ("all", 1),
        ("40", 0),
        ("40", 1),
    ]
    assert [run["pairs"] for run in runs] == [96, 96, 40, 40]
    for run in runs:
        ways = run["ways"]
        assert set(ways) == set(change_model.WAYS)
        assert ways["all re-embedded"]["finds"] > ways["old model"]["finds"]
        differs = ways["both sides, two models"]["finds"] - ways["old model"]["finds"]
        assert ways["both sides, two models"]["difference"] == pytest.approx(differs, abs=2e-5)
        followed = ways[run["chosen"] if run["outcome"] == "pass" else "old model"]["finds"]
        assert run["as advised"] == followed
    assert "| banking77: wordllama -> minilm | 96 |" in capsys.readouterr().out
    monkeypatch.setattr(change_model, "bridge", lambda *_, **__: pytest.fail("measured again"))
    change_model.main()
    assert json.loads(out.read_text())["runs"] == runs
    mean = np.mean([run["ways"]["all re-embedded"]["difference"] for run in runs[:2]])
    change = change_model.CHANGES[0]
    assert (
        change_model.difference(change_model.runs_of(runs, change, "all"), "all re-embedded")[0]
        == 100 * mean
    )


def test_a_size_alone_is_measured_and_fills_no_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    change_model, usual, out = ready(tmp_path, monkeypatch)
    monkeypatch.setattr(sys, "argv", [*usual, "--seeds", "1", "--sizes", "40"])
    change_model.main()
    assert [run["size"] for run in json.loads(out.read_text())["runs"]] == ["40"]
    assert "| banking77" not in capsys.readouterr().out


def test_runs_on_items_alone_stay_beside_those_of_today_and_are_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    change_model, usual, out = ready(tmp_path, monkeypatch)
    usual += ["--seeds", "2"]
    monkeypatch.setattr(sys, "argv", [*usual, "--sizes", "100,all"])
    monkeypatch.setattr(change_model, "enough", lambda *_: True)
    change_model.main()
    assert "items alone" not in capsys.readouterr().out
    earlier = json.loads(out.read_text())["runs"]
    for run in earlier:
        assert run["fitted on"] == "items and queries"
        run["fitted on"] = "items"
    out.write_text(json.dumps({"runs": earlier}))
    monkeypatch.setattr(sys, "argv", [*usual, "--sizes", "all"])
    change_model.main()
    runs = json.loads(out.read_text())["runs"]
    assert runs[:4] == earlier
    assert [(run["size"], run["seed"]) for run in runs[4:]] == [("all", 0), ("all", 1)]
    change = change_model.CHANGES[0]
    assert change_model.runs_of(runs, change, "all") == runs[4:]
    assert change_model.runs_of(earlier, change, "all") == earlier[:2]
    # a row over all sizes is of one procedure
    assert change_model.by_size(runs, change) == {"100": earlier[2:], "all": earlier[:2]}
    shown = capsys.readouterr().out
    assert "| banking77: wordllama -> minilm | 96 |" in shown
    assert "| banking77: wordllama -> minilm (items alone) | 2 |" in shown


# maps_tried.py: what is measured is not fitted, and rows are what they say


def test_what_was_tried_is_measured_on_queries_and_items_that_are_not_fitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    saved_models(tmp_path, each=24)
    monkeypatch.syspath_prepend(SCRIPTS)
    tried = importlib.import_module("maps_tried")
    change = tried.CHANGES[0]
    split = tried.class_split(tmp_path, change, 200)
    measured = {tuple(row) for side in (split.gallery, split.queries) for row in side[0].tolist()}
    assert not measured & {tuple(row) for row in split.both.X.tolist()}
    assert len(split.both) == len(split.items) + len(split.asked[0]) == 144 + 36
    assert split.both.weights[-1] == pytest.approx(3 * split.both.weights[0])
    # the first row, by slow code
    items = tried.read_items(tmp_path, change)
    label = {
        tuple(row): name
        for row, name in zip(items.old.tolist(), items.labels.tolist(), strict=True)
    }
    forward = tried.fit_map("ridge", split.items).map
    stored = split.gallery[0]
    mapped = forward(stored)
    right = []
    for old, new in zip(*split.queries, strict=True):
        scores = [
            0.6 * new @ ahead + 0.4 * old @ z for ahead, z in zip(mapped, stored, strict=True)
        ]
        right.append(label[tuple(stored[np.argmax(scores)].tolist())] == label[tuple(old.tolist())])
    assert split.finds(tried.WAYS["items: ridge"](split)) == np.mean(right)
    drawn = np.random.default_rng(0).normal(size=(3, 5))
    for row, given in zip(tried.standardised(drawn), drawn, strict=True):
        np.testing.assert_allclose(
            row, [(score - np.mean(given)) / np.std(given) for score in given]
        )
    out = tmp_path / "out.json"
    usual = [
        "maps_tried.py",
        str(tmp_path),
        "--only",
        "banking77",
        "--seeds",
        "2",
        "--out",
        str(out),
    ]
    monkeypatch.setattr(sys, "argv", usual)
    tried.main()
    runs = json.loads(out.read_text())["runs"]
    assert [run["seed"] for run in runs] == [200, 201]
    for run in runs:
        assert set(run["finds"]) == {tried.OLD, *tried.WAYS}
        assert run["explained"]["items"] < run["explained"]["gallery"] < 1
    mean = 100 * np.mean([run["finds"][tried.AGAIN] - run["finds"][tried.OLD] for run in runs])
    assert tried.gain(runs, tried.AGAIN)[0] == pytest.approx(mean)
    assert tried.share(runs, tried.AGAIN) == pytest.approx(100)
    assert "| items and queries: ridge |" in capsys.readouterr().out
    monkeypatch.setattr(tried, "measured", lambda *_: pytest.fail("measured again"))
    tried.main()


# scifact.py: documents of the gallery are not fitted, and other tools are measured on the same queries


def saved_texts(folder: Path) -> None:
    """400 documents and 60 queries by three models; a query's own document is relevant, and sometimes another."""
    rng = np.random.default_rng(0)
    content = rng.normal(size=(400, 8))
    claims = content[:60] + 0.3 * rng.normal(size=(60, 8))
    (folder / "scifact").mkdir()
    for model, noise, width in (("wordllama", 0.8, 8), ("use-lite", 0.5, 10), ("minilm", 0.1, 9)):
        turned = np.linalg.qr(rng.normal(size=(width, width)))[0][:8]
        for part, seen in (("docs", content), ("queries", claims)):
            vectors = unit((seen + noise * rng.normal(size=seen.shape)) @ turned).astype(np.float32)
            ids = [f"{part} {row}" for row in range(len(seen))]
            np.savez(folder / "scifact" / f"{model}_{part}.npz", vectors=vectors, ids=ids)
    lines = [f"queries {row}\tdocs {row}\t1" for row in range(60)]
    lines += [f"queries {row}\tdocs {row + 100}\t1" for row in range(0, 60, 5)]
    (folder / "scifact" / "qrels.tsv").write_text(
        "query-id\tcorpus-id\tscore\n" + "\n".join(lines) + "\n"
    )


def test_a_missing_file_of_texts_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = refused(monkeypatch, "scifact.py", str(tmp_path), "--out", str(tmp_path / "out.json"))
    check_wording(line)
    assert "give --write FOLDER or --out FILE" in refused(monkeypatch, "scifact.py", str(tmp_path))


def test_tools_get_the_pairs_that_are_fitted_and_are_measured_on_the_same_queries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    saved_texts(tmp_path)
    monkeypatch.syspath_prepend(SCRIPTS)
    scifact = importlib.import_module("scifact")
    change = scifact.CHANGES[0]
    monkeypatch.setattr(scifact, "CHANGES", (change,))
    monkeypatch.setattr(
        scifact, "DEPTH", 400
    )  # of all documents, so that re-ranking is re-embedding
    texts = scifact.read_texts(tmp_path, change)
    drawn = scifact.draw(texts, 1)
    assert not set(drawn.fitted.tolist()) & set(drawn.gallery.tolist())
    assert len(drawn.fitted) + len(drawn.gallery) == 400
    assert len(drawn.fitted) == (400 - 72) // 2
    assert len(drawn.judging) == 30
    tools = tmp_path / "tools"
    monkeypatch.setattr(
        sys, "argv", ["scifact.py", str(tmp_path), "--seeds", "1", "--write", str(tools)]
    )
    scifact.main()
    folder = tools / "wordllama-minilm-0"
    fitted = scifact.draw(texts, 0).fitted
    np.testing.assert_array_equal(np.load(folder / "new.npy"), texts.new[fitted])
    exact = np.pad(
        texts.new[scifact.draw(texts, 0).gallery], ((0, 0), (0, 2))
    )  # wider, as from a tool that pads
    np.savez(folder / "0.npz", name="some tool: exact", vectors=exact)
    out = tmp_path / "out.json"
    usual = ["scifact.py", str(tmp_path), "--seeds", "1", "--tools", str(tools), "--out", str(out)]
    monkeypatch.setattr(sys, "argv", usual)
    scifact.main()
    (run,) = json.loads(out.read_text())["runs"]
    ways = run["ways"]
    assert ways["some tool: exact"]["finds"] == ways["all re-embedded"]["finds"]
    assert ways[scifact.RESCORED]["finds"] == ways["all re-embedded"]["finds"]
    assert ways["all re-embedded"]["finds"] > ways["old model"]["finds"]
    assert (run["pairs"], run["queries"]) == (164, 30)
    shown = capsys.readouterr().out
    assert "| search | wordllama -> minilm |" in shown
    assert "| some tool: exact | " in shown
    monkeypatch.setattr(scifact, "bridge", lambda *_, **__: pytest.fail("measured again"))
    scifact.main()
    assert json.loads(out.read_text())["runs"] == [run]


def test_a_tool_that_is_not_installed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "give the folder" in refused(monkeypatch, "rival_maps.py")
    (tmp_path / "a").mkdir()
    for name in ("old", "new", "stored"):
        np.save(tmp_path / "a" / f"{name}.npy", np.eye(3))
    rival_maps = importlib.import_module("rival_maps")
    tools = {
        "absent: ridge": rival_maps.of_isotrieve("Absent"),
        "here: itself": lambda _old, _new, stored: stored,
    }
    monkeypatch.setattr(rival_maps, "TOOLS", tools)
    monkeypatch.setattr(sys, "argv", ["rival_maps.py", str(tmp_path)])
    rival_maps.main()
    assert "a, absent: ridge: " in capsys.readouterr().out
    assert [path.name for path in (tmp_path / "a").glob("*.npz")] == ["1.npz"]
    assert rival_maps.padded(np.eye(3), 5).shape == (3, 5)
    assert rival_maps.padded(np.eye(3), 0).shape == (3, 3)


def test_what_traffic_meets_is_embedded_in_the_order_in_which_it_is_met(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(SCRIPTS)
    read_through = importlib.import_module("read_through")
    search = read_through.Search.__new__(read_through.Search)
    search.old = np.array([[0.9, 0.1, 0.5, 0.2], [0.1, 0.2, 0.3, 0.9]])
    search.new = np.array([[0.0, 0.0, 0.0, 0.0], [0.8, 0.7, 0.6, 1.0]])
    search.right = np.array([[True, False, False, False], [False, True, False, False]])
    order = read_through.met(search, np.array([0, 1]), 4, depth=2, rng=np.random.default_rng(0))
    assert order[:3] == [0, 2, 3]  # the second query meets 0, as it is embedded now, and 3
    assert sorted(order) == [0, 1, 2, 3]
    nobody = np.zeros(4, bool)
    assert search.accuracy(nobody, np.array([0, 1])) == 0.5  # the second finds item 3
    assert search.accuracy(~nobody, np.array([1])) == 0.0


def test_uneven_traffic_asks_for_the_first_class_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SCRIPTS)
    read_through = importlib.import_module("read_through")
    labels = np.array(["a", "b", "c", "d"] * 50)
    rows = np.arange(200)
    asked = read_through.drawn_queries(labels, rows, "zipf", 4000, np.array([3, 0, 1, 2]), seed=0)
    counts = [int((labels[asked] == name).sum()) for name in ("b", "c", "d", "a")]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] / counts[1] == pytest.approx(2.0, rel=0.15)
