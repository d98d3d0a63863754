"""Files of texts, good and bad."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from wording import refuses

from fixstar.data import open_images, texts
from fixstar.data.texts import TextRow, labelled_texts, text_rows
from fixstar.errors import DataError, FixstarError, InputError
from fixstar.images import Preprocessing
from fixstar.texts import Prompts


def jsonl(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_json_lines_have_texts_ids_and_other_fields(tmp_path: Path) -> None:
    file = jsonl(
        tmp_path / "n.jsonl", {"url": "a", "body": "one", "year": 3}, {"url": "b", "body": "two"}
    )
    rows = text_rows(file, "body", "url")
    assert [(row.id, row.text, dict(row.fields)) for row in rows] == [
        ("a", "one", {"year": 3}),
        ("b", "two", {}),
    ]


def test_without_an_id_it_is_the_file_and_the_line(tmp_path: Path) -> None:
    file = tmp_path / "n.jsonl"
    file.write_text('{"text": "one"}\n\n{"text": "two"}\n')
    assert [row.id for row in text_rows(file)] == ["n.jsonl:1", "n.jsonl:3"]


@pytest.mark.parametrize(("suffix", "by"), [(".csv", ","), (".tsv", "\t")])
def test_tables_of_separated_values(tmp_path: Path, suffix: str, by: str) -> None:
    file = tmp_path / f"n{suffix}"
    file.write_text(f'id{by}text{by}label\n1{by}one{by}a\n2{by}"two\nlines"{by}\n')
    rows = text_rows(file)
    assert [(row.id, row.text, dict(row.fields)) for row in rows] == [
        ("1", "one", {"label": "a"}),
        ("2", "two\nlines", {}),
    ]


def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"id": [7, 8], "text": ["one", "two"], "label": ["a", None]})
    parquet.write_table(table, tmp_path / "n.parquet")
    rows = text_rows(tmp_path / "n.parquet")
    assert [(row.id, row.text, dict(row.fields)) for row in rows] == [
        ("7", "one", {"label": "a"}),
        ("8", "two", {}),
    ]


def test_a_folder_of_files_has_their_paths_as_ids_and_the_first_folder_as_label(
    tmp_path: Path,
) -> None:
    for name, text in {
        "a/one.txt": "one",
        "a/b/two.md": "two",
        "three.txt": "three",
        ".git/x.txt": "no",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = {row.id: (row.text, dict(row.fields)) for row in text_rows(tmp_path)}
    assert found == {
        "a/b/two.md": ("two", {"label": "a"}),
        "a/one.txt": ("one", {"label": "a"}),
        "three.txt": ("three", {}),
    }


@pytest.mark.parametrize(
    "content",
    [
        b'{"text": "a"}\n{"text": 3}\n',
        b'{"text": "a", "id": "x"}\n{"text": "b", "id": "x"}\n',
        b'{"body": "a"}\n',
        b"[1]\n",
        b"{\n",
        b'{"text": "\xff"}\n',
        b"",
        b'{"text": "a", "id": {}}\n',
        b"[" * 100_000 + b"\n",
    ],
)
def test_broken_lines_are_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "n.jsonl").write_bytes(content)
    with refuses(DataError, varies=r"maximum recursion depth.*"):
        text_rows(tmp_path / "n.jsonl")


def test_a_second_text_field_would_be_lost_so_it_is_refused(tmp_path: Path) -> None:
    file = jsonl(tmp_path / "n.jsonl", {"body": "one", "text": "short"})
    with refuses(DataError):
        text_rows(file, "body")


def test_files_in_another_encoding_are_named(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_bytes("id,text\n1,Grüße\n".encode("latin-1"))
    (tmp_path / "one.txt").write_bytes("Grüße".encode("latin-1"))
    with pytest.raises(DataError, match="not UTF-8"):
        text_rows(tmp_path / "n.csv")
    with pytest.raises(DataError, match="not UTF-8"):
        text_rows(tmp_path / "one.txt")


@pytest.mark.parametrize("name", ["none.jsonl", "photo.jpg", "empty"])
def test_what_is_no_file_of_texts_is_told_what_is(tmp_path: Path, name: str) -> None:
    (tmp_path / "photo.jpg").write_bytes(b"x")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FixstarError, match=r"jsonl|holds no texts"):
        text_rows(tmp_path / name)


def test_fields_do_not_go_with_a_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no fields"):
        text_rows(tmp_path, "body")


def test_labelled_texts_are_a_labelled_set(tmp_path: Path) -> None:
    file = jsonl(
        tmp_path / "n.jsonl",
        {"text": "one", "label": "a"},
        {"text": "two", "label": "b"},
        {"text": "x", "label": "a"},
    )
    found = open_images(file)
    assert found.has_texts
    assert found.counts() == {"a": 2, "b": 1}
    assert found.take([2]).images == ("x",)
    assert found.fingerprint() != found.take([0, 1]).fingerprint()
    assert found.load(Prompts()).images.images == ("one", "two", "x")
    with refuses(InputError):
        found.load(Preprocessing(size=(4, 4), mean=(0, 0, 0), std=(1, 1, 1)))


def test_a_text_without_a_label_is_named(tmp_path: Path) -> None:
    file = jsonl(
        tmp_path / "n.jsonl", {"text": "one", "label": "a"}, {"text": "two", "id": "second"}
    )
    with refuses(DataError):
        labelled_texts(file)


def test_empty_texts_of_a_labelled_set_are_left_out_or_refused(tmp_path: Path) -> None:
    file = jsonl(tmp_path / "n.jsonl", {"text": "one", "label": "a"}, {"text": " ", "label": "a"})
    kept = open_images(file).load(Prompts(), "skip")
    assert kept.images.images == ("one",)
    assert [error.index for error in kept.bad] == [1]
    with pytest.raises(DataError, match="it is empty"):
        open_images(file).load(Prompts())


# --- what is broken is left out, and the rest is read


def read_all(path: Path, text: str | None = None) -> tuple[list[TextRow], list[str]]:
    """The good rows, and what was said about the others."""
    told: list[DataError] = []
    rows = text_rows(path, text, on_bad=told.append)
    return rows, [str(error) for error in told]


@pytest.mark.parametrize(("suffix", "by"), [(".csv", ","), (".tsv", "\t")])
def test_a_cell_of_10_mb_is_read_and_the_rows_around_it_too(
    tmp_path: Path, suffix: str, by: str
) -> None:
    long = "word " * 2_000_000
    file = tmp_path / f"n{suffix}"
    file.write_text(f"id{by}text\n1{by}one\n2{by}{long}\n3{by}three\n")
    rows, told = read_all(file)
    assert [(row.id, len(row.text)) for row in rows] == [("1", 3), ("2", 10_000_000), ("3", 5)]
    assert told == []


def test_rows_of_a_table_that_are_broken_are_named_and_the_others_read(tmp_path: Path) -> None:
    file = tmp_path / "n.csv"
    file.write_bytes(b"id,text\n1,one\n2,two,more\n3,caf\xe9\n4,four\n5\n")
    rows, told = read_all(file)
    assert [row.id for row in rows] == ["1", "4"]
    assert [one.removeprefix(f"{file}, ") for one in told] == [
        "line 3: more cells than columns",
        "line 4: it is not UTF-8; save it as UTF-8",
        "line 6: no field 'text'; it has id. Say which field is the text",
    ]
    with pytest.raises(DataError, match="line 3: more cells"):
        text_rows(file)


def test_a_quote_that_is_never_closed_is_named_with_the_lines_that_it_took(tmp_path: Path) -> None:
    file = tmp_path / "n.csv"
    file.write_text('id,text\n1,one\n2,"two\n3,three\n4,four\n')
    rows, told = read_all(file)
    assert [row.id for row in rows] == ["1"]
    assert told == [
        f'{file}, lines 3 to 5: a quote (") is opened and never closed, so all of them are one row',
    ]
    file.write_text('id,text\n1,one\n2,"two\nlines"')  # no end of line after the last row
    rows, told = read_all(file)
    assert [row.text for row in rows] == ["one", "two\nlines"]
    assert told == []


def test_files_of_a_folder_that_are_broken_are_named_and_the_others_read(tmp_path: Path) -> None:
    (tmp_path / "good.txt").write_text("rain")
    (tmp_path / "latin.txt").write_bytes("Grüße".encode("latin-1"))
    (tmp_path / "wide.md").write_bytes("rain".encode("utf-16"))
    (tmp_path / "long.txt").write_text("ü" * 10_000_000, encoding="utf-8")
    (tmp_path / "middle.txt").write_text("x" * 100_001)
    rows, told = read_all(tmp_path)
    assert {row.id: len(row.text) for row in rows} == {"good.txt": 4, "middle.txt": 100_001}
    assert len(told) == 3
    assert (
        told[0]
        == f"{tmp_path / 'latin.txt'}: it is not UTF-8 (invalid start byte at byte 2); save it as UTF-8"
    )
    assert told[1].startswith(
        f"{tmp_path / 'long.txt'}: it has 10,000,000 characters, and a text may have 100,000"
    )
    assert (
        told[2]
        == f"{tmp_path / 'wide.md'}: it is UTF-16, not UTF-8, by its first bytes; save it as UTF-8"
    )
    with pytest.raises(DataError, match="not UTF-8"):
        text_rows(tmp_path)


def test_a_folder_with_nothing_but_broken_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes("Grüße".encode("latin-1"))
    with pytest.raises(DataError, match="not UTF-8"):
        read_all(tmp_path)


def test_a_huge_file_is_not_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "_MOST_COUNTED", 2 << 20)
    (tmp_path / "huge.txt").write_text("x" * (3 << 20))
    with pytest.raises(DataError, match="more than 2,097,152 characters"):
        text_rows(tmp_path / "huge.txt")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".txt"])
def test_a_file_that_says_it_is_utf_16_is_refused_as_a_whole(
    tmp_path: Path, encoding: str, suffix: str
) -> None:
    file = tmp_path / f"n{suffix}"
    file.write_bytes('{"text": "one"}\n{"text": "two"}\n'.encode(encoding))
    with pytest.raises(DataError, match=f"it is {encoding.upper()}, not UTF-8"):
        read_all(file)


def test_utf_16_without_its_mark_is_never_half_read(tmp_path: Path) -> None:
    file = tmp_path / "n.jsonl"
    file.write_bytes('{"text": "one"}\n{"text": "two"}\n'.encode("utf-16-le"))
    with pytest.raises(DataError, match="line 1"):
        read_all(file)


def test_a_mark_of_utf_8_is_no_part_of_a_text(tmp_path: Path) -> None:
    file = tmp_path / "n.jsonl"
    file.write_bytes('{"text": "one"}\n'.encode("utf-8-sig"))
    assert [row.text for row in text_rows(file)] == ["one"]


def test_a_line_of_json_that_is_too_long_is_named_and_the_next_one_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "_LONGEST_LINE", 1 << 20)
    file = tmp_path / "n.jsonl"
    lines = [
        json.dumps({"id": name, "text": name * count})
        for name, count in (("a", 1), ("b", 3 << 20), ("c", 1))
    ]
    file.write_text("\n".join(lines) + "\n")
    rows, told = read_all(file)
    assert [row.id for row in rows] == ["a", "c"]
    assert told == [f"{file}, line 2: it is longer than 1 MB"]
    file.write_text("\n".join(lines[:2]))  # the long line is the last one, and has no end
    rows, told = read_all(file)
    assert ([row.id for row in rows], len(told)) == (["a"], 1)
