"""What the client raises. Needs neither torch nor a web framework."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fixstar.errors import ACTIONS, FixstarError, NextStep
from fixstar.service.answers import Bad

__all__ = ["ImagesLeftOutError", "ServiceError"]

_NAMED = 5  # images that a message names


class ServiceError(FixstarError):
    """The service did not do it. ``status`` is that of HTTP; None where it could not be reached.

    ``problem`` is the problem's stable type, such as ``/problems/not-compatible``.
    """

    def __init__(
        self,
        title: str,
        detail: str = "",
        hint: str = "",
        status: int | None = None,
        problem: str = "about:blank",
        next_steps: Iterable[NextStep] = (),
    ) -> None:
        words = ". ".join(part for part in (": ".join(filter(None, (title, detail))), hint) if part)
        super().__init__(words, *next_steps)
        self.title, self.detail, self.hint, self.status, self.problem = title, detail, hint, status, problem

    @classmethod
    def of(cls, body: Mapping[str, Any], status: int | None = None) -> ServiceError:
        """The error that a problem+json document describes."""
        steps = [NextStep.from_json(step) for step in body.get("next_steps", ()) if step["action"] in ACTIONS]
        title, detail, hint = (str(body.get(name) or "") for name in ("title", "detail", "hint"))
        return ServiceError(title, detail, hint, body.get("status", status), body.get("type", "about:blank"), steps)


class ImagesLeftOutError(ServiceError):
    """Images cannot be used: ``bad`` names them with why. ``added`` are the ids of the others, which are stored."""

    def __init__(self, added: tuple[str, ...], bad: tuple[Bad, ...], status: int | None = 200) -> None:
        named = "; ".join(f"{one.called}: {one.reason}" for one in bad[:_NAMED])
        more = f"; and {len(bad) - _NAMED} more" if len(bad) > _NAMED else ""
        stored = f"the other {len(added):,} are stored" if added else "nothing was stored"
        hint = "send these again; add(..., leave_out=True) names them in its answer instead" if added else ""
        title = f"{len(bad):,} of {len(added) + len(bad):,} images cannot be used, {stored}"
        super().__init__(title, named + more, hint, status)
        self.added, self.bad = added, bad
