"""The table of nouns in CONTRIBUTING.md is what the code says: one word per thing, one file that owns it."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from source_statements import statements

import fixstar

SOURCE = Path(fixstar.__file__).parent
CONTRIBUTING = SOURCE.parents[1] / "CONTRIBUTING.md"
JSON = "service/schemas.py"  # the class of a noun is its JSON there
CENTRAL = {
    "Workspace",
    "Serving",
    "Registry",
    "Rollout",
    "Translations",
}  # what every other part goes through: the attributes of a workspace
MOST_NOUNS = 25
LEAST_READERS = 2  # files outside its own part that name a noun
NAMED_BY_OTHERS = {"FixstarVectorStore"}  # one per connected library, as each calls such a class


@cache
def definitions(folder: Path, private: bool = False) -> dict[str, list[str]]:
    """The files that define each public class, or each private one; those of JSON left out."""
    found = defaultdict(list)
    for path in sorted(folder.rglob("*.py")):
        place = path.relative_to(folder).as_posix()
        if place == JSON:
            continue
        for node in statements(path):
            if isinstance(node, ast.ClassDef) and node.name.startswith("_") == private:
                found[node.name].append(place)
    return dict(found)


def aliases(folder: Path) -> dict[str, list[str]]:
    """The files that give each name of a type, such as ``Vectors = ...``; those of constants left out."""
    found = defaultdict(list)
    for path in sorted(folder.rglob("*.py")):
        for node in statements(path):
            targets = (
                node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            )
            for target in targets:
                if (
                    isinstance(target, ast.Name)
                    and target.id[0].isupper()
                    and not target.id.isupper()
                ):
                    found[target.id].append(path.relative_to(folder).as_posix())
    return dict(found)


def nouns(text: str) -> list[tuple[str, str]]:
    """Noun and owner of each row of the table."""
    section = text.partition("\n## Nouns\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| `(\w+)` \| `([\w/.]+)` \| \S", section, flags=re.MULTILINE)


def wrong_owners(table: list[tuple[str, str]], defined: Mapping[str, list[str]]) -> list[str]:
    return [
        f"{noun} is said to be in {owner}, and is defined in {defined.get(noun, [])}"
        for noun, owner in table
        if defined.get(noun, []) != [owner]
    ]


def shared_names(defined: Mapping[str, list[str]]) -> list[str]:
    return [
        f"{name} has several meanings: {files}" for name, files in defined.items() if len(files) > 1
    ]


def readers(folder: Path) -> dict[tuple[str, str], set[str]]:
    """The files outside of a part that import a name from it, by part and name; those of JSON do not count."""
    found = defaultdict(set)
    for path in sorted(folder.rglob("*.py")):
        place = path.relative_to(folder).as_posix()
        for node in statements(path):
            if not isinstance(node, ast.ImportFrom) or node.module == "fixstar.service.schemas":
                continue
            part = (node.module or "").partition(".")[2].partition(".")[0]
            if part and part != part_of(place):
                for alias in node.names:
                    found[part, alias.name].add(place)
    return dict(found)


def part_of(place: str) -> str:
    return place.partition("/")[0].removesuffix(".py")


def nouns_of_one_part(
    table: list[tuple[str, str]], readers: Mapping[tuple[str, str], set[str]]
) -> list[str]:
    """The nouns that hardly any file outside of their own part names."""
    return [
        f"{noun} is a word of {part_of(owner)} alone: explain it there"
        for noun, owner in table
        if len(readers.get((part_of(owner), noun), ())) < LEAST_READERS
    ]


def test_every_noun_is_a_word_of_several_parts() -> None:
    table = [row for row in nouns(CONTRIBUTING.read_text()) if row[0] not in CENTRAL]
    wrong = nouns_of_one_part(table, readers(SOURCE))
    assert not wrong, "\n".join(wrong)


def test_a_noun_of_one_part_is_seen(tmp_path: Path) -> None:
    for place, line in {
        "part/one.py": "class Local: ...\nclass Shared: ...",
        "part/two.py": "from fixstar.part.one import Local, Shared",
        "other/three.py": "from fixstar.part import Local, Shared",
        "four.py": "def f():\n    from fixstar.part.one import Shared",
    }.items():
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_text(line)
    table = [("Local", "part/one.py"), ("Shared", "part/one.py")]
    assert nouns_of_one_part(table, readers(tmp_path)) == [
        "Local is a word of part alone: explain it there"
    ]


def test_every_noun_is_defined_by_its_owner_and_nowhere_else() -> None:
    table = nouns(CONTRIBUTING.read_text())
    assert 20 <= len(table) <= MOST_NOUNS
    assert len(dict(table)) == len(table)
    assert dict(table).keys() >= CENTRAL
    wrong = wrong_owners(table, definitions(SOURCE))
    assert not wrong, "\n".join(wrong)
    assert not aliases(SOURCE).keys() & dict(table).keys()


def test_no_class_name_has_two_meanings() -> None:
    defined = definitions(SOURCE)
    assert defined.keys() >= NAMED_BY_OTHERS
    wrong = shared_names(
        {name: files for name, files in defined.items() if name not in NAMED_BY_OTHERS}
    )
    assert not wrong, "\n".join(wrong)


def test_no_private_class_has_the_name_of_another() -> None:
    wrong = shared_names(definitions(SOURCE, private=True))
    assert not wrong, "\n".join(wrong)


def test_names_of_types_are_seen(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(
        "Evidence = dict[str, int]\nMOST = 3\nwhole: int = 1\nVectors: TypeAlias = list\n"
    )
    assert aliases(tmp_path) == {"Evidence": ["one.py"], "Vectors": ["one.py"]}


def test_a_second_meaning_and_a_wrong_owner_are_seen(tmp_path: Path) -> None:
    (tmp_path / "service").mkdir()
    for name in ("one.py", "two.py", JSON):
        (tmp_path / name).write_text("class Part: ...\nclass _Own: ...\n")
    defined = definitions(tmp_path)
    assert defined == {"Part": ["one.py", "two.py"]}
    assert definitions(tmp_path, private=True) == {"_Own": ["one.py", "two.py"]}
    assert shared_names(defined) == ["Part has several meanings: ['one.py', 'two.py']"]
    rows = "| `Part` | `one.py` | a part |\n| `Gone` | `one.py` | gone |"
    table = nouns(f"# A\n## Nouns\n| noun |\n|---|\n{rows}\n## B\n| `X` | `y.py` | another table |")
    assert table == [("Part", "one.py"), ("Gone", "one.py")]
    assert len(wrong_owners(table, defined)) == 2
