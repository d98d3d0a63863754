"""Files of texts, good and bad."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from wording import refuses

from fixstar.data import open_images
from fixstar.data.texts import labelled_texts, text_rows
from fixstar.errors import DataError, FixstarError, InputError
from fixstar.images import Preprocessing
from fixstar.texts import Prompts


def jsonl(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_json_lines_have_texts_ids_and_other_fields(tmp_path: Path) -> None:
    file = jsonl(tmp_path / "n.jsonl", {"url": "a", "body": "one", "year": 3}, {"url": "b", "body": "two"})
    rows = text_rows(file, "body", "url")
    assert [(row.id, row.text, dict(row.fields)) for row in rows] == [("a", "one", {"year": 3}), ("b", "two", {})]


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
    assert [(row.id, row.text, dict(row.fields)) for row in rows] == [("7", "one", {"label": "a"}), ("8", "two", {})]


def test_a_folder_of_files_has_their_paths_as_ids_and_the_first_folder_as_label(tmp_path: Path) -> None:
    for name, text in {"a/one.txt": "one", "a/b/two.md": "two", "three.txt": "three", ".git/x.txt": "no"}.items():
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
        tmp_path / "n.jsonl", {"text": "one", "label": "a"}, {"text": "two", "label": "b"}, {"text": "x", "label": "a"}
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
    file = jsonl(tmp_path / "n.jsonl", {"text": "one", "label": "a"}, {"text": "two", "id": "second"})
    with refuses(DataError):
        labelled_texts(file)


def test_empty_texts_of_a_labelled_set_are_left_out_or_refused(tmp_path: Path) -> None:
    file = jsonl(tmp_path / "n.jsonl", {"text": "one", "label": "a"}, {"text": " ", "label": "a"})
    kept = open_images(file).load(Prompts(), "skip")
    assert kept.images.images == ("one",)
    assert [error.index for error in kept.bad] == [1]
    with pytest.raises(DataError, match="it is empty"):
        open_images(file).load(Prompts())
