"""The statements of a source file, without what is inside their expressions: a tenth of the nodes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path


def statements(path: Path) -> Iterator[ast.stmt]:
    """All statements of a file, nested ones too."""
    waiting: list[ast.AST] = [ast.parse(path.read_text())]
    while waiting:
        for node in ast.iter_child_nodes(waiting.pop()):
            if isinstance(node, ast.expr):
                continue  # an expression holds no statement
            waiting.append(node)
            if isinstance(node, ast.stmt):
                yield node
