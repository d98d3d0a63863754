"""A workspace: versions, gallery, checks and deployment of one directory. The command line is thin over it.

``Workspace`` is imported when it is first asked for: commands that only look into the gallery do without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fixstar.workspace.adapting import Adapted, AdaptOptions
    from fixstar.workspace.backfilling import BackfillOptions
    from fixstar.workspace.training import UpgradeOptions
    from fixstar.workspace.workspace import Status, Workspace

__all__ = ["AdaptOptions", "Adapted", "BackfillOptions", "Status", "UpgradeOptions", "Workspace"]


def __getattr__(name: str) -> Any:
    if name == "UpgradeOptions":
        from fixstar.workspace.training import UpgradeOptions

        return UpgradeOptions
    if name in __all__:
        from fixstar.workspace import workspace

        return getattr(workspace, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
