"""Modules and servers that a workspace may use: those that its operator trusts. The list is outside of all workspaces.

A version may need the user's own code. Its card then has an import path, ``package.module:name``, and cards are files
that may come from anyone. So nothing is imported unless its module, or a parent package, is trusted. A version may also
be a server that embeds texts, ``https://host``: no text and no key is sent there unless it is trusted.

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
_LIBRARIES = ("hf:", "open_clip:", "st:")  # names of models without code of their own
ADDRESSES = ("http://", "https://")
_WAIT = 10.0  # seconds to wait for another process that changes the list
_named: ContextVar[frozenset[str]] = ContextVar("named", default=frozenset())


def import_path(backbone: str, options: Mapping[str, Any]) -> str | None:
    """The code or server that embeds; None for a backbone that is only data, or one of fixstar's own.

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
    """The module of an import path; a server is returned unchanged.

    >>> module_of("shop.models:build"), module_of("https://host")
    ('shop.models', 'https://host')
    """
    if source.startswith(ADDRESSES):
        return source
    return source.partition(":")[0]


def trusted_modules() -> frozenset[str]:
    """The trusted modules: those of FIXSTAR_TRUST, and those that callers named."""
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
    """Whether a module, or a parent package, is trusted."""
    return any(module == known or module.startswith(f"{known}.") for known in trusted_modules())


def require_trusted(source: str) -> None:
    """Raise unless the module of an import path, or a server, is trusted; call this before running or sending."""
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
    """Raise unless a function or class of a trusted module is also defined in a trusted module.

    If a module does ``from subprocess import run``, ``shop.models:run`` must not be usable.
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
    """Trust the code that a caller named for a version of a workspace, if any."""
    if code is None:
        return
    try:
        remember(workspace, module_of(code))
    except InputError:
        if not is_trusted(module_of(code)):  # otherwise FIXSTAR_TRUST already names it
            raise


def forget(workspace: Path) -> None:
    """Trust nothing in a workspace any more: it is about to be replaced."""
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
        with exclusive(
            file.parent,
            _WAIT,
            InputError(f"another process has been changing {file} for {_WAIT:.0f} s"),
        ):
            listed = {**_by_workspace(), str(workspace.resolve()): sorted(modules)}
            kept = {path: names for path, names in listed.items() if names}
            replace_json(file, document("trusted", {"workspaces": kept}), mode=0o600)
    except OSError as error:
        raise InputError(
            f"{file}, the list of trusted code, cannot be written ({error.strerror or error}). Set the environment "
            f"variable {VARIABLE} instead, wherever the workspace is used"
        ) from error
