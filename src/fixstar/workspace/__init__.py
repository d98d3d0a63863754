"""A workspace: versions, gallery, checks and deployment of one directory. The command line is thin over it.

Names are imported on first use, so commands that only read the gallery do not load torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fixstar.evaluation.verdicts import GateRules
    from fixstar.workspace.backfill.run import Backfilled
    from fixstar.workspace.checks import Check
    from fixstar.workspace.deployment import Move
    from fixstar.workspace.items import (
        CatalogueItem,
        ImageStore,
        Indexed,
        catalogue,
        labelled_items,
    )
    from fixstar.workspace.options import BackfillOptions, FitOptions, UpgradeOptions
    from fixstar.workspace.search import Examples
    from fixstar.workspace.workspace import Status, Workspace

_MODULES = {
    "backfill.run": ("Backfilled",),
    "checks": ("Check",),
    "deployment": ("Move",),
    "items": ("CatalogueItem", "ImageStore", "Indexed", "catalogue", "labelled_items"),
    "options": ("BackfillOptions", "FitOptions", "UpgradeOptions"),
    "search": ("Examples",),
    "workspace": ("Status", "Workspace"),
}
_HOMES = {name: f"{__name__}.{module}" for module, names in _MODULES.items() for name in names}
_HOMES["GateRules"] = "fixstar.evaluation.verdicts"

__all__ = [
    "BackfillOptions",
    "Backfilled",
    "CatalogueItem",
    "Check",
    "Examples",
    "FitOptions",
    "GateRules",
    "ImageStore",
    "Indexed",
    "Move",
    "Status",
    "UpgradeOptions",
    "Workspace",
    "catalogue",
    "labelled_items",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
