"""fixstar gallery export, import."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from fixstar.cli.gallery_state import GalleryAddress, opened
from fixstar.cli.options import AsJson, WorkspacePath, print_json
from fixstar.errors import InputError

__all__ = ["COMMANDS", "EXAMPLES", "OWN_NAME", "export_vectors", "import_vectors"]

OWN_NAME = re.compile(r"v[0-9]+")  # what a workspace calls its versions
EXAMPLES = {
    "export": "Examples:  fixstar gallery export v1 v1.npz -w shop   |   fixstar gallery export v1 v1.parquet",
    "import": "Examples:  fixstar gallery import old.parquet --as old-system -w shop   |   "
    "fixstar gallery import clip.parquet --as clip --id-column sku --vector-column embedding",
}


def export_vectors(
    version: Annotated[str, typer.Argument(help="The version whose vectors to write.")],
    file: Annotated[Path, typer.Argument(help="FILE.npz, FILE.npy or FILE.parquet.")],
    workspace: WorkspacePath = Path(),
    gallery: GalleryAddress = None,
    as_json: AsJson = False,
) -> None:
    """Write the vectors, ids and payloads of a version to a file."""
    from fixstar.gallery import export_version
    from fixstar.progress import progress_bar

    with (
        opened(workspace, gallery) as store,
        progress_bar("exporting", store.count().get(version, 0), "items", show=not as_json) as advance,
    ):
        count = export_version(store, version, file, advance, None if gallery else _origin(workspace, version))
    print_json({"version": version, "items": count, "file": str(file)}) if as_json else print(
        f"{count:,} items in {file}"
    )


def import_vectors(
    file: Annotated[Path, typer.Argument(help="FILE.npz, FILE.npy or FILE.parquet with vectors.")],
    name: Annotated[str, typer.Option("--as", help="What to call the version that made them.")],
    workspace: WorkspacePath = Path(),
    gallery: GalleryAddress = None,
    id_column: Annotated[str, typer.Option(help="The column of FILE.parquet that holds the ids.")] = "id",
    vector_column: Annotated[str, typer.Option(help="The column of FILE.parquet that holds the vectors.")] = "vector",
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Replace the vectors of items that other versions hold.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Store vectors of any system and width as a version of their own. The file is checked before that.

    Names such as v1 are for what the workspace makes: only its own exports come back under them. The name old@v1 says
    that the vectors lie in v1's space: they are then searched together with v1's.
    """
    from fixstar.gallery import import_version
    from fixstar.gallery.transfer import open_vectors
    from fixstar.progress import progress_bar

    with opened(workspace, gallery) as store:
        vectors = open_vectors(file, id_column, vector_column)
        if gallery is None:
            _demand_own(workspace, name, file, vectors.origin)
        with progress_bar("importing", len(vectors.ids), "items", show=not as_json) as advance:
            count = import_version(store, name, vectors, advance, take_over=take_over)
    print_json({"version": name, "items": count}) if as_json else print(f"{count:,} items stored as version {name}")


def _origin(workspace: Path, name: str) -> str | None:
    """What an export says about vectors that the workspace made: their version, and the checksum of the weights.

    None for vectors of other systems, and where the workspace has no such version.
    """
    if OWN_NAME.fullmatch(name) is None:
        return None
    kept, retired = workspace / "versions" / name / "card.json", workspace / "retired" / f"{name}.json"
    try:  # the card alone: reading it as the registry does would take torch
        card = json.loads((retired if retired.is_file() else kept).read_text(encoding="utf-8"))
        return f"{name} {card['weights']['sha256']}"
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _demand_own(workspace: Path, name: str, file: Path, origin: str | None) -> None:
    """Refuse vectors under a name that the workspace gives itself, unless they are what that name stands for."""
    if OWN_NAME.fullmatch(name) is None or (origin is not None and origin == _origin(workspace, name)):
        return
    if origin is None:
        seen = f"{file} does not say that it holds {name} of this workspace"
    else:
        made = origin.partition(" ")[0]
        seen = f"{file} holds {made}" + (" of another workspace" if made == name else "")
    raise InputError(
        f"{name!r} is a name that the workspace gives to vectors it made itself, and {seen}: they would pass as its "
        f"own. Give them another name, such as --as old-system, or old-system@{name} if they lie in its space. An "
        f"export by this workspace (fixstar gallery export {name} FILE.npz or FILE.parquet) comes back under its name"
    )


COMMANDS: dict[str, Callable[..., None]] = {"export": export_vectors, "import": import_vectors}
