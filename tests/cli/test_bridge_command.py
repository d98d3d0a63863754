"""fixstar bridge: the verdict first, the table, the file, and the exit code."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from text_models import bert_folder, topic_texts, write_jsonl
from typed import Typed, typed
from wording import check_wording

from fixstar.geometry import unit
from fixstar.translation import load_translation


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """good.npz is a better model than poor.npz; plain.npy is the good one without ids and labels."""
    folder, rng = tmp_path_factory.mktemp("bridge"), np.random.default_rng(0)
    labels = rng.integers(30, size=900)
    content = rng.standard_normal((30, 12))[labels] + 0.3 * rng.standard_normal((900, 12))
    turn = np.linalg.qr(rng.standard_normal((12, 12)))[0]
    ids, names = (
        np.array([f"item {row}" for row in range(900)]),
        np.array([f"class {label}" for label in labels]),
    )
    for name, noise in (("poor", 2.0), ("good", 0.1)):
        vectors = unit(content + noise * rng.standard_normal(content.shape)) @ (
            turn if name == "good" else np.eye(12)
        )
        np.savez(folder / f"{name}.npz", vectors=vectors, ids=ids, labels=names)
        np.save(folder / f"{name}.npy", vectors)
    return folder


def bridge(*words: str | Path) -> Typed:
    return typed("bridge", *words, "--kinds", "rotation, ridge")


def test_a_better_model_is_written_and_applied(files: Path, tmp_path: Path) -> None:
    out = tmp_path / "bridge.npz"
    done = bridge(files / "poor.npz", files / "good.npz", "--out", out)
    assert done.code == 0
    assert done.out.startswith("Re-embedding everything would find ")
    assert "Use it: both sides, " in done.out
    for word in ("old model", "the one to beat", "stored mapped forward", "query mapped back"):
        assert word in done.out
    for word in (
        "both sides, one model",
        "both sides, two models",
        "all re-embedded",
        "compatible",
    ):
        assert word in done.out
    made = load_translation(out)
    maps = made.about["maps"]
    for word in (
        f"Maps: {maps['forward']} forward, {maps['backward']} backward, fitted on 540 pairs",
        "card.json",
    ):
        assert word in done.out
    assert (made.source, made.target) == ("poor", "good")
    assert made.about["outcome"] == "pass"
    assert made.about["measured"][made.about["chosen"]]["low"] > 0
    *_, following = done.out.splitlines()
    words = shlex.split(following.removeprefix("Next: fixstar "), comments=True)
    assert words[:2] == ["migrate", "plan"]
    planned = typed(*[str(tmp_path / word) if word == "TRANSLATED.npz" else word for word in words])
    assert planned.code == 0, planned.err
    assert (
        "Next: the same command with --out FILE.npz"
        in bridge(files / "poor.npz", files / "good.npz").out
    )
    again = bridge(files / "poor.npz", files / "good.npz", "--out", out)
    assert again.code == 1
    assert "never overwritten" in again.err


def test_vectors_of_both_sides_are_mapped(files: Path, tmp_path: Path) -> None:
    out = tmp_path / "bridge.npz"
    bridge(files / "poor.npz", files / "good.npz", "--out", out)
    way = load_translation(out)
    sides = {"forward": ("poor", "good", way.forward), "backward": ("good", "poor", way.backward)}
    for side, (mapped, space, part) in sides.items():
        assert part is not None
        into = tmp_path / f"{side}.npz"
        words = (
            "bridge",
            files / "poor.npz",
            files / "good.npz",
            "--use",
            out,
            "--side",
            side,
            "--out",
            into,
        )
        used = typed(*words, "--json")
        assert used.json == {"file": str(into), "vectors": 900, "width": 12, "space": space}
        with np.load(into) as written, np.load(files / f"{mapped}.npz") as given:
            assert written["ids"].tolist() == given["ids"].tolist()
            np.testing.assert_allclose(written["vectors"], part(given["vectors"]), atol=1e-6)
        check_wording(typed(*words).err)
    plain = (
        "bridge",
        files / "poor.npz",
        files / "good.npz",
        "--use",
        out,
        "--out",
        tmp_path / "default.npz",
    )
    check_wording(typed(*plain).out)


def test_one_model_per_query(files: Path) -> None:
    done = typed(
        "bridge",
        files / "poor.npz",
        files / "good.npz",
        "--kinds",
        "ridge",
        "--one-model",
        "--json",
    )
    assert done.json["chosen"] == "both sides, one model"
    assert "both sides, two models" not in done.json["measured"]


def test_a_worse_model_is_not_used(files: Path, tmp_path: Path) -> None:
    out = tmp_path / "bridge.npz"
    words = ("bridge", files / "good.npz", files / "poor.npz", "--kinds", "ridge", "--out", out)
    done = typed(*words, "--json")
    assert done.json["outcome"] != "pass"
    assert done.json["verdict"].startswith("Keep the old model")
    assert done.code == {"refuse": 2, "missing evidence": 3}[done.json["outcome"]]
    assert out.exists() == (done.json["outcome"] != "refuse")
    assert done.json["file"] == (str(out) if out.exists() else None)
    out.unlink(missing_ok=True)
    alone = typed(*words, "--one-model")
    assert alone.code == 2
    assert "Nothing was written: the old model is better" in alone.out
    assert not out.exists()


def test_without_labels_it_is_unproven(files: Path) -> None:
    done = bridge(files / "poor.npy", files / "good.npy")
    assert done.code == 3
    assert done.out.startswith("Unproven: there are no labels.")
    assert "unproven" in done.out
    assert "neighbours" in done.out
    assert "Judged by 180 queries among 180 items" in done.out


@pytest.mark.parametrize("label", ["npz", "npy"])
def test_nothing_is_wider_than_80_columns(files: Path, label: str) -> None:
    with patch("typed.COLUMNS", "80"):
        done = bridge(files / f"poor.{label}", files / f"good.{label}")
    assert all(len(line.rstrip()) <= 80 for line in done.out.splitlines()), done.out


def test_mistakes_are_one_line(files: Path, tmp_path: Path) -> None:
    cases: list[tuple[list[str | Path], str]] = [
        ([files / "absent.npz", files / "good.npz"], "absent.npz"),
        (
            ["mysql://host/db?table=x", files / "good.npz"],
            "postgresql://, qdrant://, chroma://, lancedb://",
        ),
        (
            [files / "poor.npz", files / "good.npz", "--out", tmp_path / "bridge.onnx"],
            "saved as FILE.npz",
        ),
        (
            [files / "poor.npz", files / "good.npz", "--use", files / "good.npz"],
            "name the file to write",
        ),
        (
            [
                files / "poor.npz",
                files / "good.npz",
                "--use",
                files / "good.npz",
                "--out",
                tmp_path / "mapped.npz",
            ],
            "it has no card.json",
        ),
        ([files / "poor.npz", "new.onnx"], "is a model: give images or texts"),
    ]
    for words, told in cases:
        done = typed("bridge", *words)
        assert done.code == 1
        assert told in done.err
        assert "Traceback" not in done.err
    torn = tmp_path / "torn.npz"
    torn.write_bytes((files / "good.npz").read_bytes()[:500])
    assert "torn.npz is damaged" in typed("bridge", files / "poor.npz", torn).err


def test_relevant_items_in_a_file_of_qrels(files: Path, tmp_path: Path) -> None:
    with np.load(files / "good.npz") as good:
        labels = good["labels"]
        ids = good["ids"]
    lines = []
    for row in range(300):
        same = np.flatnonzero(labels[300:] == labels[row])[:4] + 300
        lines += [f"q {row}\titem {item}\t{1 + place}" for place, item in enumerate(same.tolist())]
    qrels = tmp_path / "test.tsv"
    qrels.write_text("query-id\tcorpus-id\tscore\n" + "\n".join(lines) + "\n")
    words: list[str | Path] = ["bridge"]
    for name in ("poor", "good"):
        with np.load(files / f"{name}.npz") as whole:
            np.savez(tmp_path / f"{name}.npz", vectors=whole["vectors"][300:], ids=ids[300:])
            np.save(tmp_path / f"{name}-queries.npy", whole["vectors"][:300])
        words.append(tmp_path / f"{name}.npz")
    (tmp_path / "queries.jsonl").write_text(
        "".join(f'{{"_id": "q {row}", "text": "?"}}\n' for row in range(300))
    )
    words += [
        "--kinds",
        "ridge,rotation",
        "--relevant",
        qrels,
        "--queries-old",
        tmp_path / "poor-queries.npy",
    ]
    lacking = typed(*words)
    assert lacking.code == 1
    check_wording(lacking.err)
    words += ["--queries-new", tmp_path / "good-queries.npy"]
    nameless = typed(*words)
    assert nameless.code == 1
    assert "none of them has a vector: their ids are such as 'q 0'" in nameless.err
    words += ["--relevant", tmp_path / "queries.jsonl"]
    done = typed(*words)
    assert done.code == 0
    assert "nDCG@10" in done.out
    assert "reaches an nDCG@10 of " in done.out
    found = typed(*words, "--json").json
    assert (found["evidence"], found["measure"], found["queries"]) == ("relevance", "nDCG@10", 150)


def test_the_table_stays_one_at_80_columns(files: Path) -> None:
    with patch("typed.COLUMNS", "80"):
        shown = bridge(files / "poor.npz", files / "good.npz")
    heads = [line for line in shown.out.splitlines() if line.startswith("search")]
    assert len(heads) == 1
    assert heads[0].split() == ["search", "finds", "difference", "from", "to", "w", "verdict"]
    assert all(len(line.rstrip()) <= 80 for line in shown.out.splitlines())


@pytest.fixture(scope="module")
def text_models(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Two small models of texts that never met."""
    folder = tmp_path_factory.mktemp("models")
    return (
        f"hf:{bert_folder(folder / 'old')}",
        f"st:{bert_folder(folder / 'new', seed=1, pooling='mean_tokens')}",
    )


def test_models_of_texts_embed_a_file_of_texts(
    text_models: tuple[str, str], tmp_path: Path
) -> None:
    notes = write_jsonl(tmp_path / "notes.jsonl", topic_texts(60))
    with notes.open("a") as file:
        file.write('{"id": "cut\n')
    done = bridge(*text_models, "--images", notes, "--json")
    assert done.code in (0, 2, 3), done.err
    found = json.loads(done.out)
    assert (found["fitted_on"], found["evidence"]) == (
        "144 pairs and 24 queries",
        "labels",
    )  # 60 % of 240 texts
    assert "1 text left out, such as" in done.err
    assert "line 241" in done.err


def test_a_folder_of_texts_is_labelled_by_its_folders(
    text_models: tuple[str, str], tmp_path: Path
) -> None:
    for row, (text, label) in enumerate(topic_texts(20)):
        (tmp_path / label).mkdir(exist_ok=True)
        (tmp_path / label / f"{row}.txt").write_text(text)
    done = bridge(*text_models, "--images", tmp_path, "--json")
    assert done.code in (0, 2, 3), done.err
    assert json.loads(done.out)["fitted_on"] == "48 pairs and 8 queries"


def test_models_of_texts_say_what_they_embed(text_models: tuple[str, str], tmp_path: Path) -> None:
    assert "give images or texts for it to embed" in bridge(*text_models).err
    (tmp_path / "photo.jpg").write_bytes(b"x")
    refused = bridge(*text_models, "--images", tmp_path / "photo.jpg")
    assert "is not a file of texts" in refused.err
