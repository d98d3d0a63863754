"""Texts at the command line, from `init` to `rollback`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from text_models import FakeServer, embeddings_server, own_settings, topic_texts, write_jsonl
from typed import typed
from wording import check_wording

__all__ = ["own_settings"]  # a fixture
pytestmark = pytest.mark.usefixtures("own_settings")


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with embeddings_server(width=24, noise=2.5) as fake:
        yield fake


@pytest.fixture
def notes(server: FakeServer, tmp_path: Path) -> Path:
    """A workspace with one model and 80 texts."""
    workspace = tmp_path / "notes"
    assert typed("init", workspace).code == 0
    assert typed("add", server.url(), "--trust", server.address, "-w", workspace).code == 0
    file = write_jsonl(tmp_path / "notes.jsonl", topic_texts(20))
    done = typed("index", file, "-w", workspace)
    assert done.code == 0, done.err
    assert "Next: fixstar search TEXT" in done.out
    return workspace


def test_a_server_is_asked_only_if_it_is_trusted(server: FakeServer, tmp_path: Path) -> None:
    typed("init", tmp_path / "w")
    refused = typed("add", server.url(), "-w", tmp_path / "w")
    assert refused.code == 1
    assert f"--trust {server.address}" in refused.err
    assert not server.requests
    added = typed("add", server.url(), "--trust", server.address, "-w", tmp_path / "w", "--json")
    assert json.loads(added.out) == {
        "version": "v1",
        "width": 24,
        "compatible_with": None,
        "reads": "texts",
    }


def test_a_text_is_searched_and_what_is_found_can_be_read(notes: Path) -> None:
    stored = topic_texts(20)[3][0]
    found = typed("search", stored, "-k", "3", "-w", notes)
    assert found.code == 0, found.err
    assert stored in found.out.splitlines()[2]
    (query,) = json.loads(typed("search", stored, "-w", notes, "--json").out)["queries"]
    assert query["hits"][0]["payload"]["text"] == stored


def test_a_long_text_leaves_room_for_the_other_columns(server: FakeServer, tmp_path: Path) -> None:
    workspace = tmp_path / "long"
    typed("init", workspace)
    typed("add", server.url(), "--trust", server.address, "-w", workspace)
    typed(
        "index",
        write_jsonl(tmp_path / "long.jsonl", [("word " * 60, "a"), ("other " * 60, "b")]),
        "-w",
        workspace,
    )
    with patch("typed.COLUMNS", "80"):
        lines = typed("search", "word", "-w", workspace).out.splitlines()
    assert sum("score" in line for line in lines) == 1  # one table
    assert max(map(len, lines)) <= 80
    assert "word word" in lines[2] + lines[3]


def test_the_whole_upgrade(notes: Path, tmp_path: Path) -> None:
    labelled = write_jsonl(tmp_path / "held.jsonl", topic_texts(120, seed=7))
    with embeddings_server(width=32, salt="two", noise=0.2) as better:
        assert typed("add", better.url("better"), "--trust", better.address, "-w", notes).code == 0
        checked = typed("check", "v2", "--data", labelled, "-w", notes)
        assert checked.code == 0, checked.out + checked.err
        assert "PASS" in checked.out
        assert "gallery texts (" in checked.out
        assert typed("deploy", "v2", "-w", notes).code == 0
        met = typed("search", "rain storm", "--fresh", "10", "-w", notes)
        assert "10 items embedded again with v2 before this answer" in met.err
        again = json.loads(
            typed("search", "rain storm", "--fresh", "10", "-w", notes, "--json").out
        )
        assert again["embedded"] < 10
        older = 70 - again["embedded"]
        assert (
            "stored vector" in typed("search", "--like", "notes-1", "--fresh", "5", "-w", notes).err
        )
        filled = typed("backfill", "--budget", "50%", "-w", notes)
        assert filled.code == 0
        told = [
            checked,
            filled,
            typed("status", "-w", notes),
            typed("check", "v2", "--history", "-w", notes),
        ]
        assert not [line for one in told for line in one.out.splitlines() if "image" in line]
        counts = json.loads(typed("status", "-w", notes, "--json").out)["vectors"]
        assert counts == {"v1": older // 2, "v2": 80 - older // 2}
        assert typed("rollback", "-w", notes).code == 0
        assert typed("search", "rain storm", "-w", notes).code == 0


def test_the_field_of_the_text_may_have_any_name(notes: Path, tmp_path: Path) -> None:
    rows = [f"{text},{label}\n" for text, label in topic_texts(60, seed=7)]
    table = tmp_path / "tickets.csv"
    table.write_text("question,label\n" + "".join(rows))
    unlabelled = tmp_path / "more"
    unlabelled.mkdir()
    for row, (text, _) in enumerate(topic_texts(10, seed=8)):
        (unlabelled / f"{row}.txt").write_text(text)
    with embeddings_server(width=32, salt="two", noise=0.2) as better:
        typed("add", better.url("better"), "--trust", better.address, "-w", notes)
        refused = typed("check", "v2", "--data", table, "-w", notes)
        assert "another name of the field with the text has to be given" in refused.err
        words: list[str | Path] = [
            "check",
            "v2",
            "--data",
            table,
            "--text",
            "question",
            "-w",
            notes,
        ]
        checked = typed(*words, "--images", unlabelled, "--json")
        assert checked.code in (0, 3), checked.err
        assert json.loads(checked.out)["queries"] > 0
        named = typed(*words, "--name", "tickets", "--json")
        assert named.code in (0, 3), named.err
        again = typed("check", "v2", "-w", notes, "--json")  # the name keeps the field
        assert json.loads(again.out)["data"]["name"] == "tickets"
        typed("deploy", "v2", "--force", "a try", "-w", notes)
        planned = typed(
            "backfill", "--plan-only", "--data", table, "--text", "question", "-w", notes
        )
        assert planned.code == 0, planned.err
    assert (
        "not a file with a field"
        in typed("check", "v2", "--data", unlabelled, "--text", "q", "-w", notes).err
    )
    assert "give one of them" in typed("check", "v2", "--text", "q", "-w", notes).err


def test_a_backfill_may_have_a_budget_in_money(notes: Path) -> None:
    with embeddings_server(width=32, salt="two") as better:
        words: list[str | Path] = [
            "add",
            better.url("better"),
            "--trust",
            better.address,
            "-w",
            notes,
        ]
        assert typed(*words, "--price", "1000").code == 0
        assert typed("deploy", "v2", "--force", "a try", "-w", notes).code == 0
        lengths = [len(text) for text, _ in topic_texts(20)]
        one = sum(lengths) / len(lengths) / 3.5 * 1000 / 1e6
        done = typed(
            "backfill", "--budget", f"${10.5 * one:.6f}", "--anyway", "--json", "-w", notes
        )
        assert done.code == 0, done.err
        assert json.loads(typed("status", "-w", notes, "--json").out)["vectors"] == {
            "v1": 70,
            "v2": 10,
        }
    refused = typed("rollback", "-w", notes)
    assert refused.code == 0


def test_money_needs_a_price(notes: Path) -> None:
    with embeddings_server(width=32, salt="two") as better:
        typed("add", better.url("better"), "--trust", better.address, "-w", notes)
        typed("deploy", "v2", "--force", "a try", "-w", notes)
        refused = typed("backfill", "--budget", "$2", "-w", notes)
        assert refused.code == 1
        check_wording(refused.err)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("latin.csv", "id,text\n1,Grüße\n".encode("latin-1"), "not UTF-8"),
        (
            "twice.jsonl",
            b'{"id": "a", "text": "x"}\n{"id": "a", "text": "y"}\n',
            "duplicate id 'a'",
        ),
        ("other.jsonl", b'{"id": "a", "body": "x"}\n', "no field 'text'; it has body, id"),
        ("empty.jsonl", b"", "no rows"),
        ("photo.jpg", b"x", "is not a file of texts"),
    ],
)
def test_files_that_cannot_be_indexed_are_named(
    notes: Path, tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    (tmp_path / name).write_bytes(content)
    refused = typed("index", tmp_path / name, "-w", notes)
    assert (refused.code, refused.out) == (1, "")
    assert said in refused.err


def test_texts_that_cannot_be_embedded_are_named_and_the_others_stored(
    notes: Path, tmp_path: Path
) -> None:
    rows = [
        {"id": "long", "text": "x" * 200_000},
        {"id": "blank", "text": " "},
        {"id": "good", "text": "rain"},
    ]
    (tmp_path / "mixed.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = typed("index", tmp_path / "mixed.jsonl", "-w", notes)
    assert done.code == 0
    assert "left out long: it has 200,000 characters" in done.err
    assert "left out blank: it is empty" in done.err
    assert "1 item embedded" in done.out


TEN_MB = "word " * 2_000_000


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ""])
def test_a_text_of_10_mb_is_named_with_its_length_and_the_others_stored(
    notes: Path, tmp_path: Path, suffix: str
) -> None:
    source = tmp_path / f"long{suffix}"
    rows = {"first": "rain", "long": TEN_MB, "last": "bread"}
    if suffix == ".jsonl":
        source.write_text(
            "".join(json.dumps({"id": name, "text": text}) + "\n" for name, text in rows.items())
        )
    elif suffix:
        by = {".csv": ",", ".tsv": "\t"}[suffix]
        source.write_text(
            f"id{by}text\n" + "".join(f"{name}{by}{text}\n" for name, text in rows.items())
        )
    else:
        source.mkdir()
        for name, text in rows.items():
            (source / f"{name}.txt").write_text(text)
    done = typed("index", source, "-w", notes)
    assert done.code == 0, done.err
    assert "2 items embedded" in done.out
    (told,) = [line for line in done.err.splitlines() if line.startswith("left out ")]
    assert "long" in told
    assert "it has 10,000,000 characters" in told


def test_broken_rows_are_named_and_the_others_stored(notes: Path, tmp_path: Path) -> None:
    lines = [
        '{"id": "good", "text": "rain"}',
        '{"id": "cut',
        '{"id": "other", "body": "x"}',
        '{"id": "n", "text": 3}',
    ]
    (tmp_path / "mixed.jsonl").write_text("\n".join(lines) + "\n")
    done = typed("index", tmp_path / "mixed.jsonl", "-w", notes)
    assert done.code == 0, done.err
    assert "1 item embedded" in done.out
    assert "3 unreadable" in done.out
    for line, reason in (
        (2, "it is not JSON"),
        (3, "no field 'text'"),
        (4, "text is 3, not a text"),
    ):
        (told,) = [shown for shown in done.err.splitlines() if f"mixed.jsonl, line {line}" in shown]
        assert told.startswith("left out ")
        assert reason in told
    again = json.loads(typed("index", tmp_path / "mixed.jsonl", "-w", notes, "--json").out)
    assert (again["unchanged"], len(again["bad"])) == (1, 3)


def test_options_of_images_and_texts_are_not_mixed(notes: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("rain")
    check_wording(typed("index", tmp_path, "--label", "top", "-w", notes).err)
    assert "a contact sheet" in typed("search", "rain", "--sheet", "x.jpg", "-w", notes).err
    assert "draws images" in typed("search", "rain", "--sheet", "x.png", "-w", notes).err
    check_wording(typed("add", "nothing", "--query-prompt", "q: ", "-w", notes).err)
