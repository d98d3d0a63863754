"""The statements of a source file, without what is inside their expressions: a tenth of the nodes."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path


def statements(path: Path) -> tuple[ast.stmt, ...]:
    """All statements of a file, nested ones too."""
    return _statements(path.read_text())


@cache
def _statements(text: str) -> tuple[ast.stmt, ...]:
    found = list[ast.stmt]()
    waiting: list[ast.AST] = [ast.parse(text)]
    while waiting:
        for node in ast.iter_child_nodes(waiting.pop()):
            if isinstance(node, ast.expr):
                continue  # an expression holds no statement
            waiting.append(node)
            if isinstance(node, ast.stmt):
                found.append(node)
    return tuple(found)
