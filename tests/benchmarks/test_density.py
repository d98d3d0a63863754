"""The counts of benchmarks/density.py on text counted by hand, and the limits that the package keeps."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "density.py"
TEXT = '''"""A module.

With two lines."""

a, b = 1, 2
(c, d), e = (1, 2), 3  # counts once
f = g = a if b else c


def h():
    """What it does."""
    return (
        a
        if b
        else c
    )


x, y = h()
'''


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("density_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # a dataclass looks for its module
    spec.loader.exec_module(module)
    return module


def test_counts_are_those_by_hand(script: ModuleType) -> None:
    characters = 11 + 36 + 21 + 8 + 8 + 1 + 4 + 6 + 1 + 10  # line by line
    assert script.density(TEXT) == script.Density(
        lines=10, characters=characters, tuples=2, conditionals=2
    )


def test_a_folder_is_counted_by_package(script: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "a.py").write_text("a = 1\n")
    (tmp_path / "b.py").write_text("a = 1\nbb = 2\n")
    found = script.by_package(tmp_path)
    assert {name: counted.lines for name, counted in found.items()} == {
        "one": 1,
        "(top)": 2,
        "total": 3,
    }
    assert found["total"].characters_per_line == pytest.approx((5 + 5 + 6) / 3)


def test_the_package_does_not_get_denser(script: ModuleType) -> None:
    total = script.by_package(script.SOURCE)["total"]
    assert total.lines > 30_000
    assert total.characters_per_line < 36.2  # what sentence-transformers has
    assert total.tuples_per_1000 < 1
    assert total.conditionals_per_1000 < 15
