"""fixstar gallery export, import, move."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from fixstar.cli.gallery_state import GalleryAddress, opened
from fixstar.cli.options import AsJson, WorkspacePath, print_json
from fixstar.errors import InputError

__all__ = ["COMMANDS", "EXAMPLES", "export_vectors", "import_vectors", "move"]

EXAMPLES = {
    "export": "Examples:  fixstar gallery export v1 v1.npz -w shop   |   fixstar gallery export v1 v1.parquet",
    "import": "Example:  fixstar gallery import old.parquet --as old-system -w shop",
    "move": "Example:  fixstar gallery move postgresql://host/db?gallery=shop -w shop",
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
        count = export_version(store, version, file, advance)
    print_json({"version": version, "items": count, "file": str(file)}) if as_json else print(
        f"{count:,} items in {file}"
    )


def import_vectors(
    file: Annotated[Path, typer.Argument(help="FILE.npz, FILE.npy or FILE.parquet with vectors.")],
    name: Annotated[str, typer.Option("--as", help="What to call the version that made them.")],
    workspace: WorkspacePath = Path(),
    gallery: GalleryAddress = None,
    as_json: AsJson = False,
) -> None:
    """Store vectors of any system and width as a version of their own. The file is checked before that."""
    from fixstar.gallery import import_version
    from fixstar.gallery.vector_files import VectorFile
    from fixstar.progress import progress_bar

    with opened(workspace, gallery) as store:
        total = VectorFile(file).count if file.suffix in (".npz", ".npy") else 0
        with progress_bar("importing", total, "items", show=not as_json) as advance:
            count = import_version(store, name, file, advance)
    print_json({"version": name, "items": count}) if as_json else print(f"{count:,} items stored as version {name}")


def move(
    target: Annotated[str, typer.Argument(help="Where the gallery shall be: a file, or a server's URL.")],
    workspace: WorkspacePath = Path(),
    gallery: GalleryAddress = None,
    as_json: AsJson = False,
) -> None:
    """Copy a gallery to another store; a workspace then uses the new one. The old one stays as it is.

    Stop whoever writes first. An interrupted move is repeated with the same command.
    """
    from fixstar.gallery import copy_gallery, open_gallery
    from fixstar.progress import progress_bar
    from fixstar.workspace.files import gallery_url, set_gallery

    source = gallery or gallery_url(workspace)
    target = target if "://" in target else str(Path(target).absolute())
    if source == target or ("://" not in source and Path(source).resolve() == Path(target).resolve()):
        raise InputError(f"the gallery is at {target} already")
    with opened(workspace, gallery) as old, open_gallery(target) as new:
        total = sum(old.count().values())
        with progress_bar("copying", total, "items", show=not as_json) as advance:
            count = copy_gallery(old, new, advance)
        if (there := {n: c for n, c in new.count().items() if c}) != {n: c for n, c in old.count().items() if c}:
            raise InputError(
                f"the target now counts {there}, the source {old.count()}: somebody wrote meanwhile, or the target was "
                "not empty. Nothing was switched over; run again when nobody writes"
            )
    if gallery is None:
        set_gallery(workspace, target)
    if as_json:
        print_json({"items": count, "from": source, "to": target})
        return
    print(f"{count:,} items copied to {target}" + ("" if gallery else "; the workspace uses it from now on"))


COMMANDS: dict[str, Callable[..., None]] = {"export": export_vectors, "import": import_vectors, "move": move}
