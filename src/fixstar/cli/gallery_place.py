"""fixstar gallery move, use: where the vectors of a workspace are kept."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fixstar.cli.gallery_files import OWN_NAME
from fixstar.cli.gallery_items import agreed
from fixstar.cli.gallery_state import GalleryAddress, opened
from fixstar.cli.options import AsJson, WorkspacePath, print_json
from fixstar.errors import FixstarError, InputError

if TYPE_CHECKING:
    from fixstar.gallery import Gallery

__all__ = ["COMMANDS", "EXAMPLES", "move", "use"]

EXAMPLES = {
    "move": "Example:  fixstar gallery move postgresql://host/db?gallery=shop -w shop",
    "use": "Example:  fixstar gallery use shop/gallery.db -w shop",
}
Counts = Mapping[str, int]


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
    from fixstar.gallery.addresses import without_secret
    from fixstar.progress import progress_bar
    from fixstar.workspace.files import gallery_url, refuse_secret, set_gallery

    source, target = gallery or gallery_url(workspace), _address(target)
    if gallery is None:
        refuse_secret(target)
    if _same(source, target):
        raise InputError(f"the gallery is at {without_secret(target)} already")
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
        set_gallery(workspace, _kept(workspace, target))
    if as_json:
        print_json({"items": count, "from": without_secret(source), "to": without_secret(target)})
        return
    print(f"{count:,} items copied to {without_secret(target)}", end="" if gallery is None else "\n")
    if gallery is None:
        print("; the workspace uses it from now on")
        back = shlex.join(["fixstar", "gallery", "use", without_secret(source), "-w", str(workspace)])
        print(f"The old one stays as it is. Back to it: {back}")


def use(
    target: Annotated[str, typer.Argument(help="A gallery that is there already: a file, or a server's URL.")],
    workspace: WorkspacePath = Path(),
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask first where it holds less.")] = False,
    as_json: AsJson = False,
) -> None:
    """Let a workspace use another gallery, such as the one that it was moved from. Copies and deletes nothing.

    It must hold vectors of the workspace's versions. What it lacks is told first, as far as the gallery used until now
    can be asked. Start a service that is running again afterwards.
    """
    from fixstar.gallery import open_gallery
    from fixstar.gallery.addresses import without_secret
    from fixstar.workspace.files import gallery_url, refuse_secret, set_gallery

    before, target = gallery_url(workspace), _address(target)
    refuse_secret(target)
    if _same(before, target):
        raise InputError(f"the workspace uses {without_secret(target)} already")
    with open_gallery(target, create=False, read_only=True) as chosen:
        own, there = _own_versions(workspace, chosen), _counted(chosen)
    until_now, silent = _until_now(before)
    differences = _differences(own, there, until_now)
    if differences:
        agreed(yes, f"{target} has {'; '.join(differences)}. Use it all the same? What is elsewhere stays there.")
    set_gallery(workspace, _kept(workspace, target))
    if as_json:
        told = {"vectors": there, "compared": not silent, "differences": differences}
        print_json({"gallery": target, "before": without_secret(before), **told})
        return
    counted = [f"{count:,} items of {name}" for name, count in there.items()]
    print(f"the workspace uses {target} from now on: {', '.join(counted) or 'no items yet'}")
    if silent:
        print(f"The gallery used until now could not be compared: {silent}")
        print("What was written only there is not here: it comes back with that gallery, or when you index it again")


def _address(target: str) -> str:
    """A server's URL as it is, a file by its whole path."""
    if target == ":memory:":
        raise InputError("a gallery in memory is gone with the command; name a file, or a server's URL")
    return target if "://" in target else str(Path(target).absolute())


def _same(one: str, other: str) -> bool:
    if "://" in one or "://" in other:
        return one == other
    return Path(one).resolve() == Path(other).resolve()


def _kept(workspace: Path, target: str) -> str:
    """What workspace.json shall say: a file inside the workspace by its place there, so that both can be moved."""
    if "://" not in target and Path(target).resolve().is_relative_to(workspace.resolve()):
        return str(Path(target).resolve().relative_to(workspace.resolve()))
    return target


def _own_versions(workspace: Path, gallery: Gallery) -> list[str]:
    """The versions of a workspace, after seeing that a gallery holds no vectors of other models under their names."""
    from fixstar.workspace.items import ensure_version
    from fixstar.workspace.registry import Registry

    registry, held = Registry(workspace), {space.name for space in gallery.versions()}
    for name in registry.names():
        if name in held:
            ensure_version(gallery, name, registry.encoder(name))  # refuses another space
    return [*registry.retired(), *registry.names()]


def _counted(gallery: Gallery) -> dict[str, int]:
    return {name: count for name, count in gallery.count().items() if count}


def _until_now(address: str) -> tuple[Counts | None, str]:
    """What the gallery in use counts, or why it cannot be asked."""
    from fixstar.gallery import open_gallery

    try:
        with open_gallery(address, create=False, read_only=True) as gallery:
            return _counted(gallery), ""
    except FixstarError as error:
        return None, str(error)


def _differences(own: Sequence[str], there: Counts, until_now: Counts | None) -> list[str]:
    """What a gallery lacks, compared with the one used until now, or else with the versions; and what is strange in it.

    ``until_now`` is None where the gallery used until now cannot be asked.
    """
    found = []
    if until_now is not None:
        for name in (name for name, count in until_now.items() if there.get(name, 0) < count):
            found.append(f"{there.get(name, 0):,} items of {name}, and the gallery used until now {until_now[name]:,}")
    elif own and not set(own) & there.keys():
        found.append(f"no vectors of this workspace's versions ({', '.join(own)})")
    strange = [name for name in there if OWN_NAME.fullmatch(name) and name not in own]
    return found + [f"vectors of {name}, a version that this workspace does not have" for name in strange]


COMMANDS: dict[str, Callable[..., None]] = {"move": move, "use": use}
