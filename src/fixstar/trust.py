"""What a workspace may run or ask: modules and servers that its operator named. The list is outside of every workspace.

A version may be made by code of the user's own. Its card then has an import path, ``package.module:name``, and a card
is a file that may come from anybody. So nothing is imported unless its module, or a package above it, is trusted. A
version may also be a server that embeds texts, ``https://host``: no text and no key is sent there unless it is trusted.

FIXSTAR_TRUST     modules and servers for this process, separated by commas
trusted.json      the same by workspace, in $XDG_CONFIG_HOME/fixstar (~/.config/fixstar): written when a version is
                  added by its import path or address. It names the workspace by its path, so a copy of it starts with
                  nothing trusted
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import BuiltinFunctionType, FunctionType
from typing import Any
from urllib.parse import urlsplit

from fixstar.durable import document, exclusive, read_document, replace_json
from fixstar.errors import InputError, UntrustedCodeError

VARIABLE = "FIXSTAR_TRUST"
_LIBRARIES = ("hf:", "open_clip:", "st:")  # names of models that bring no code
ADDRESSES = ("http://", "https://")
_WAIT = 10.0  # seconds for another process that changes the list
_named: ContextVar[frozenset[str]] = ContextVar("named", default=frozenset())


def import_path(backbone: str, options: Mapping[str, Any]) -> str | None:
    """The code or the server that makes vectors; None for a backbone that is data, or one of fixstar's own.

    >>> import_path("shop.models:build", {}), import_path("module", {"source": "shop.models:build"})
    ('shop.models:build', 'shop.models:build')
    >>> import_path("https://host/v1/embeddings?model=small", {})
    'https://host'
    >>> import_path("hf:facebook/dinov2-small", {}), import_path("resnet18", {})
    (None, None)
    """
    if backbone == "module":
        return str(options["source"])
    if backbone == "endpoint":
        return server_of(str(options["url"]))
    if backbone.startswith(ADDRESSES):
        return server_of(backbone)
    if ":" not in backbone or backbone.endswith(".onnx") or backbone.startswith(_LIBRARIES):
        return None
    return backbone


def server_of(address: str) -> str:
    """Scheme, host and port of an address.

    >>> server_of("https://host:8000/v1/embeddings?model=small")
    'https://host:8000'
    """
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def module_of(source: str) -> str:
    """The module of an import path; a server is named as it is.

    >>> module_of("shop.models:build"), module_of("https://host")
    ('shop.models', 'https://host')
    """
    if source.startswith(ADDRESSES):
        return source
    return source.partition(":")[0]


def trusted_modules() -> frozenset[str]:
    """What is trusted here: the modules of FIXSTAR_TRUST, and those that callers named."""
    given = os.environ.get(VARIABLE, "").split(",")
    return _named.get() | {module.strip() for module in given if module.strip()}


@contextmanager
def trusting(*modules: str) -> Iterator[None]:
    """Let code of these modules run within the context, in this thread.

    >>> with trusting("shop"):
    ...     require_trusted("shop.models:build")
    """
    before = _named.set(_named.get() | set(modules))
    try:
        yield
    finally:
        _named.reset(before)


def is_trusted(module: str) -> bool:
    """Whether a module, or a package above it, is trusted here."""
    return any(module == known or module.startswith(f"{known}.") for known in trusted_modules())


def require_trusted(source: str) -> None:
    """Raise unless the module of an import path, or a server, is trusted. Nothing is run or sent before this."""
    module = module_of(source)
    if is_trusted(module):
        return
    if module.startswith(ADDRESSES):
        raise UntrustedCodeError(
            f"{module} would get texts, queries and a key, and it is not trusted here: only servers that you named are "
            f"asked. If you know it, and where the model's card comes from, set the environment variable "
            f"{VARIABLE}={module}"
        )
    raise UntrustedCodeError(
        f"{source!r} is code, and the module {module!r} is not trusted here: only code that you named is run. "
        f"If you know it, and where the model comes from, set the environment variable {VARIABLE}={module}"
    )


def require_own(source: str, made_by: object) -> None:
    """Raise unless a function or class of a trusted module is defined in one.

    A module that does ``from subprocess import run`` must not make ``shop.models:run`` a command.
    """
    home = getattr(made_by, "__module__", None)
    if isinstance(made_by, (type, FunctionType, BuiltinFunctionType)) and not is_trusted(str(home)):
        raise UntrustedCodeError(
            f"{source!r} is defined in {home}, which is not trusted here. If you know it, name it there, and set the "
            f"environment variable {VARIABLE}={home}"
        )


# --- by workspace


def remembered(workspace: Path) -> frozenset[str]:
    """The modules that are trusted in a workspace."""
    return frozenset(_by_workspace().get(str(workspace.resolve()), ()))


def remember(workspace: Path, module: str) -> None:
    """Trust a module in a workspace from now on."""
    if module not in remembered(workspace):
        _change(workspace, remembered(workspace) | {module})


def remember_named(workspace: Path, code: str | None) -> None:
    """Trust the code that a caller named for a version of a workspace, if it is code at all."""
    if code is None:
        return
    try:
        remember(workspace, module_of(code))
    except InputError:
        if not is_trusted(module_of(code)):  # otherwise FIXSTAR_TRUST names it
            raise


def forget(workspace: Path) -> None:
    """Trust nothing in a workspace: another one is about to take its place."""
    if remembered(workspace):
        _change(workspace, frozenset())


def _list() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "fixstar" / "trusted.json"


def _by_workspace() -> dict[str, list[str]]:
    if not _list().is_file():
        return {}
    listed: dict[str, list[str]] = read_document(_list(), "trusted")["workspaces"]
    return listed


def _change(workspace: Path, modules: frozenset[str]) -> None:
    file = _list()
    try:
        with exclusive(file.parent, _WAIT, InputError(f"another process has been changing {file} for {_WAIT:.0f} s")):
            listed = {**_by_workspace(), str(workspace.resolve()): sorted(modules)}
            kept = {path: names for path, names in listed.items() if names}
            replace_json(file, document("trusted", {"workspaces": kept}), mode=0o600)
    except OSError as error:
        raise InputError(
            f"{file}, the list of trusted code, cannot be written ({error.strerror or error}). Set the environment "
            f"variable {VARIABLE} instead, wherever the workspace is used"
        ) from error
