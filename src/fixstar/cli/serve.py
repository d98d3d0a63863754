"""fixstar serve: a workspace behind HTTP, with a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fixstar.cli.options import Device, WorkspacePath
from fixstar.errors import MissingExtraError

__all__ = ["EXAMPLES", "NAME", "command"]

NAME = "serve"
EXAMPLES = (
    "Examples:  fixstar serve -w shop   |   fixstar serve -w shop --port 0   |   "
    "fixstar serve -w shop --name shop.example   |   fixstar serve -w shop --host 0.0.0.0 --rate 6000"
)


def command(
    workspace: WorkspacePath = Path(),
    host: Annotated[str, typer.Option(help="The address to listen at; others than loopback need keys.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 takes any that is free, and says which.")] = 8080,
    name: Annotated[
        list[str] | None, typer.Option(help="A host name that a proxy has for it; may be repeated, needs keys.")
    ] = None,
    rate: Annotated[int, typer.Option(help="Requests a minute for each key, or address.")] = 600,
    upload: Annotated[int, typer.Option(help="Megabytes that one image may have.")] = 20,
    pixels: Annotated[int, typer.Option(help="Megapixels that one image may have.")] = 50,
    batch: Annotated[int, typer.Option(help="Queries embedded together, at most.")] = 32,
    header_seconds: Annotated[float, typer.Option(help="Seconds that the headers of a request may take.")] = 20.0,
    access_log: Annotated[bool, typer.Option("--access-log", help="Write one line a request to the log.")] = False,
    device: Device = "auto",
) -> None:
    """Serve a workspace: an API under /v1, a page at /, figures at /metrics. Stops gracefully at Ctrl-C or SIGTERM."""
    try:
        from fixstar.service.serve import serve
        from fixstar.service.settings import ServiceSettings
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("fixstar"):
            raise
        raise MissingExtraError(error.name or "fastapi", "service", "fixstar serve") from error
    from fixstar.workspace import Workspace

    settings = ServiceSettings(
        host=host,
        port=port,
        names=tuple(one.lower() for one in name or ()),
        rate=rate,
        upload_bytes=upload << 20,
        pixels=pixels * 1_000_000,
        batch=batch,
        header_seconds=header_seconds,
        access_log=access_log,
    )
    with Workspace(workspace, device, record_usage=True) as space:  # a backfill may take what is found most often first
        serve(space, settings)
