"""A file that is parsed again only when another has taken its place."""

from __future__ import annotations

from pathlib import Path

from fixstar.durable import WatchedFile, replace_json


def test_a_file_is_parsed_once_and_again_when_it_was_replaced(tmp_path: Path) -> None:
    seen: list[str] = []

    def parse(path: Path) -> str:
        seen.append(path.read_text())
        return seen[-1].strip()

    file = WatchedFile(tmp_path / "a.json", parse, "nothing")
    assert file.content() == "nothing"
    replace_json(tmp_path / "a.json", 1)
    assert (file.content(), file.content()) == ("1", "1")
    replace_json(tmp_path / "a.json", 2)  # as many bytes, perhaps within one tick of the clock
    assert file.content() == "2"
    (tmp_path / "a.json").unlink()
    assert file.content() == "nothing"
    assert len(seen) == 2
