"""Documents of a workspace, changed as nothing in fixstar would change them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from fixstar.durable import document, replace_json


def rewrite(path: Path, change: Callable[..., object], *values: object) -> None:
    """Change the content of a document in place; its digest is right afterwards."""
    content = json.loads(path.read_text(encoding="utf-8"))
    name, version = content.pop("format").removeprefix("fixstar-"), content.pop("format_version")
    del content["digest"]
    change(content, *values)
    replace_json(path, document(name, content, version))
