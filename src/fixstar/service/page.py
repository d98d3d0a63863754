"""The page: files of this package, served as they are. No build step, nothing from elsewhere."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from typing import Final, NamedTuple

from fastapi import FastAPI, Request, Response

from fixstar.service.problems import Problem

__all__ = ["mount_page"]

_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


class _Asset(NamedTuple):
    content: bytes
    media_type: str
    etag: str


def mount_page(app: FastAPI) -> None:
    """Serve the page at / and what it is made of under /static. Only names that the package has can be asked for."""
    assets = _assets()

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def page(request: Request) -> Response:
        return _answer(request, assets["index.html"])

    @app.api_route("/static/{name}", methods=["GET", "HEAD"], include_in_schema=False)
    async def static(request: Request, name: str) -> Response:
        if name not in assets:
            raise Problem("not-found", f"the page has no file {name!r}", "the page is at /")
        return _answer(request, assets[name])


def _assets() -> dict[str, _Asset]:
    """All files, read once: they are small, and a change of the package comes with a restart."""
    found = {}
    for file in (files("fixstar.service") / "page").iterdir():
        media_type = _TYPES.get(file.name.rpartition(".")[2])
        if media_type is not None and file.is_file():
            content = file.read_bytes()
            found[file.name] = _Asset(content, media_type, f'"{hashlib.sha256(content).hexdigest()[:24]}"')
    return found


def _answer(request: Request, asset: _Asset) -> Response:
    """The file, or 304 for who has it. Browsers keep it but ask each time, so that no two releases are mixed."""
    headers = {"ETag": asset.etag, "Cache-Control": "no-cache"}
    if asset.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(asset.content, media_type=asset.media_type, headers=headers)
