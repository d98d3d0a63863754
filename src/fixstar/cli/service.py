"""fixstar serve, keys: serve a workspace over HTTP, with a page and API keys."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

import fixstar
from fixstar.cli.app import AsJson, Device, Verbs, WorkspacePath, app, verb
from fixstar.cli.output import print_json, print_result
from fixstar.errors import FixstarError, InputError, MissingExtraError

if TYPE_CHECKING:
    from fixstar.service.keys import Key, Keys, Role


@verb(
    "fixstar serve -w shop",
    "fixstar serve -w shop --port 0",
    "fixstar serve -w shop --name shop.example",
    "fixstar serve -w shop --host 0.0.0.0 --rate 6000",
    "fixstar serve -w shop --host 0.0.0.0 --shared",
    "fixstar serve -w shop -w museum=/data/museum",
)
def serve(
    workspace: Annotated[
        list[str] | None,
        typer.Option(
            "--workspace",
            "-w",
            help="The workspace directory. Repeat it, or write NAME=DIRECTORY, to serve several, each under /g/NAME.",
            show_default=".",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="The address to listen on; others than loopback need keys.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 takes a free one and prints it.")] = 8080,
    name: Annotated[
        list[str] | None,
        typer.Option(help="A host name that a proxy uses for it; may be repeated, needs keys."),
    ] = None,
    rate: Annotated[int, typer.Option(help="Requests per minute and key, or address.")] = 600,
    upload: Annotated[int, typer.Option(help="Maximum size of an image in megabytes.")] = 20,
    pixels: Annotated[int, typer.Option(help="Maximum size of an image in megapixels.")] = 50,
    memory: Annotated[
        int, typer.Option(help="Megabytes for the bodies of all requests at a time.")
    ] = 1024,
    batch: Annotated[int, typer.Option(help="Maximum number of queries embedded together.")] = 32,
    header_seconds: Annotated[
        float, typer.Option(help="Seconds allowed for the headers of a request.")
    ] = 20.0,
    snapshots: Annotated[
        Path | None,
        typer.Option(
            help="Target of POST /v1/snapshot: a folder, or FILE.tar.", show_default="none"
        ),
    ] = None,
    training_images: Annotated[
        Path | None,
        typer.Option(
            help="A folder of labelled sets that POST /v1/train and /v1/upgrade may use.",
            show_default="none",
        ),
    ] = None,
    read_through: Annotated[
        float | None,
        typer.Option(
            help="Re-embed items that searches meet: maximum number per hour.", show_default="none"
        ),
    ] = None,
    access_log: Annotated[
        bool, typer.Option("--access-log", help="Log one line per request.")
    ] = False,
    shared: Annotated[
        bool,
        typer.Option(
            "--shared",
            help="One of several services over this workspace; its gallery must be on a server.",
        ),
    ] = False,
    device: Device = "auto",
) -> None:
    """Serve workspaces: an API under /v1, a page at /, metrics at /metrics. Stops gracefully at Ctrl-C or SIGTERM."""
    try:
        from fixstar.service.serve import serve as serve_workspace
        from fixstar.service.settings import ServiceSettings
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("fixstar"):
            raise
        raise MissingExtraError(error.name or "fastapi", "service", "fixstar serve") from error
    settings = ServiceSettings(
        host=host,
        port=port,
        names=tuple(one.lower() for one in name or ()),
        rate=rate,
        upload_bytes=upload << 20,
        pixels=pixels * 1_000_000,
        memory_bytes=memory << 20,
        batch=batch,
        header_seconds=header_seconds,
        snapshots=snapshots,
        training_images=training_images,
        read_through=read_through,
        access_log=access_log,
        shared=shared,
        jobs_in_processes=True,
    )
    with contextlib.ExitStack() as opened:
        spaces = {
            name: opened.enter_context(
                fixstar.Workspace(path, device, record_usage=True)
            )  # for a backfill in that order
            for name, path in _galleries(workspace or ["."]).items()
        }
        serve_workspace(spaces.get("", spaces), settings)


def _galleries(given: list[str]) -> dict[str, Path]:
    """Directories by gallery name; a single directory needs no name."""
    found: dict[str, Path] = {}
    for text in given:
        name, equals, path = text.partition("=")
        if not equals or Path(text).is_dir():
            path = text
            name = ""
            if len(given) > 1:
                name = Path(text).resolve().name
        if name in found:
            raise InputError(
                f"two workspaces have the name {name!r}; give one another: -w NAME=DIRECTORY"
            )
        found[name] = Path(path)
    return found


keys = typer.Typer(
    cls=Verbs, help="API keys of the service: who may read, write, or deploy.", no_args_is_help=True
)
app.add_typer(keys, name="keys")
KeyName = Annotated[
    str,
    typer.Argument(help="Who the key is for; shown in lists and in the history of deployments."),
]


@verb(
    "fixstar keys add page --role read --days 90 -w shop",
    "fixstar keys add both --role read -w shop -w museum",
    group=keys,
    name="add",
)
def add_key(
    name: KeyName,
    role: Annotated[
        str,
        typer.Option(help="read: search; write: also items; admin: also check, deploy, backfill."),
    ],
    days: Annotated[
        float | None, typer.Option(help="Days until it expires.", show_default="never")
    ] = None,
    workspace: Annotated[
        list[Path] | None,
        typer.Option(
            "--workspace",
            "-w",
            help="A workspace that the key is valid for. Repeatable.",
            show_default=".",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create a key. It is printed once; only its hash is stored."""
    key = None
    kept = None
    done = []
    try:
        for book in [_keys(path) for path in workspace or [Path()]]:
            key = book.add(name, cast("Role", role), days=days, token=key)
            kept = book.find(key)
            done.append(book)
    except FixstarError:  # valid for all of them or none
        for book in done:
            book.remove(name)
        raise
    if as_json:
        print_json({"name": name, "role": role, "key": key, "expires": kept and kept.expires})
        return
    print(key)
    told = "This key is not shown again."
    if kept is not None:
        told += f" It {_expiry(kept)}."
    print(f"{told} Send it as: Authorization: Bearer KEY", file=sys.stderr)


@verb("fixstar keys list -w shop", group=keys, name="list")
def list_keys(workspace: WorkspacePath = Path(), as_json: AsJson = False) -> None:
    """List the keys with their names, roles and expiry dates."""
    found = _keys(workspace).all()
    content = [
        {field: getattr(key, field) for field in ("name", "role", "created", "expires")}
        for key in found
    ]
    lines = [f"{key.name}: {key.role}, since {key.created}, {_expiry(key)}" for key in found]
    print_result(as_json, content, *(lines or ["no keys: only this machine may use the service"]))


@verb("fixstar keys remove page -w shop", group=keys, name="remove")
def remove_key(name: KeyName, workspace: WorkspacePath = Path()) -> None:
    """Revoke a key, at once, also for a running service."""
    _keys(workspace).remove(name)
    print(f"the key of {name} is no longer valid")


def _expiry(key: Key) -> str:
    if key.expires is None:
        return "does not expire"
    if key.has_expired:
        return f"EXPIRED at {key.expires}"
    return f"expires at {key.expires}"


def _keys(workspace: Path) -> Keys:
    from fixstar.service.keys import Keys
    from fixstar.workspace.files import read_mark

    read_mark(workspace)
    return Keys(workspace)
