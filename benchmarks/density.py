"""How dense the code is, per package: characters per line of code, tuple assignments and conditional expressions.

python benchmarks/density.py            of src/fixstar
python benchmarks/density.py FOLDER     of another package, such as one in site-packages

Lines of code are those with code on them: no comments, no docstrings, no empty lines.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "fixstar"


@dataclass
class Density:
    """Counts of one or more files."""

    lines: int = 0
    characters: int = 0
    tuples: int = 0
    conditionals: int = 0

    def add(self, other: Density) -> None:
        """Count another file too."""
        self.lines += other.lines
        self.characters += other.characters
        self.tuples += other.tuples
        self.conditionals += other.conditionals

    @property
    def characters_per_line(self) -> float:
        """Without the indentation."""
        return self.characters / max(1, self.lines)

    @property
    def tuples_per_1000(self) -> float:
        """Assignments of several values to several names in one statement."""
        return 1000 * self.tuples / max(1, self.lines)

    @property
    def conditionals_per_1000(self) -> float:
        """Expressions ``a if test else b``."""
        return 1000 * self.conditionals / max(1, self.lines)


def density(source: str) -> Density:
    """The counts of one file.

    >>> density("a, b = 1, 2  # both\\n")
    Density(lines=1, characters=19, tuples=1, conditionals=0)
    """
    tree = ast.parse(source)
    texts = source.splitlines()
    nodes = list(ast.walk(tree))
    lines = _code_lines(nodes, texts) - _docstring_lines(nodes)
    return Density(
        lines=len(lines),
        characters=sum(len(texts[line - 1].strip()) for line in lines),
        tuples=sum(_is_tuple_assignment(node) for node in nodes),
        conditionals=sum(isinstance(node, ast.IfExp) for node in nodes),
    )


def by_package(folder: Path) -> dict[str, Density]:
    """The counts of each package in a folder, and of everything as ``total``."""
    found: dict[str, Density] = defaultdict(Density)
    for path in sorted(folder.rglob("*.py")):
        place = path.relative_to(folder).parts
        package = place[0] if len(place) > 1 else "(top)"
        one = density(path.read_text())
        found[package].add(one)
        found["total"].add(one)
    return dict(found)


def _code_lines(nodes: list[ast.AST], texts: list[str]) -> set[int]:
    """Lines with more than a comment on them, and all lines of a text that spans several."""
    lines = {
        number
        for number, text in enumerate(texts, 1)
        if text.strip() and not text.lstrip().startswith("#")
    }
    for node in nodes:
        if isinstance(node, (ast.Constant, ast.JoinedStr)) and node.end_lineno is not None:
            lines.update(range(node.lineno, node.end_lineno + 1))
    return lines


def _docstring_lines(nodes: list[ast.AST]) -> set[int]:
    lines: set[int] = set()
    for node in nodes:
        if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if ast.get_docstring(node, clean=False) is not None:
            text = node.body[0]
            lines.update(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    return lines


def _is_tuple_assignment(node: ast.AST) -> bool:
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
        return False
    return any(isinstance(target, ast.Tuple) for target in node.targets)


def main(folder: Path) -> None:
    print(
        f"{'':14}{'lines':>8}{'characters':>12}{'tuples':>9}{'conditionals':>14}   the last two per 1,000 lines"
    )
    for package, counted in sorted(by_package(folder).items(), key=lambda item: item[1].lines):
        print(
            f"{package:14}{counted.lines:8}{counted.characters_per_line:12.1f}"
            f"{counted.tuples_per_1000:9.1f}{counted.conditionals_per_1000:14.1f}"
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else SOURCE)
