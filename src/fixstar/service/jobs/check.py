"""Check jobs: the gate's verdict on a version."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fixstar.data.image_set import ImageSet
from fixstar.progress import reported_to
from fixstar.service.jobs.records import Result
from fixstar.service.jobs.running import RunningJob, StoppedError
from fixstar.service.problems import to_step
from fixstar.workspace import FitOptions, GateRules, Workspace

if TYPE_CHECKING:
    from fixstar.evaluation import VersionFeatures


def check(space: Workspace, running: RunningJob) -> Result:
    """Check a version against all live vectors, on images of a name, held-out ones, or by relevant items."""
    wanted = running.job().parameters
    rules = GateRules(
        confidence=wanted["confidence"],
        tolerance=wanted["tolerance"],
        seed=wanted["seed"],
        weight=wanted["weight"],
    )

    def require_more() -> None:
        if running.stopped():
            raise StoppedError("nothing was decided")

    def embed(queries: ImageSet, gallery: ImageSet, names: Sequence[str]) -> list[VersionFeatures]:
        features: list[VersionFeatures] = []
        images = len(queries) + len(gallery)
        steps = len(names) + 1  # the last one is the comparison

        def begin(step: int, message: str) -> None:
            require_more()
            running.note(done=step, total=steps, message=message)

        for step, name in enumerate(names):
            begin(step, f"embedding {images:,} {space.registry.reads()} with {name}")
            features += space.features(
                queries, gallery, [name], device=space.device, progress=False
            )
        begin(len(names), "comparing")
        return features

    fitting = FitOptions(
        refit=wanted["refit"],
        sample=wanted["sample"],
        seed=wanted["seed"],
    )
    with reported_to(
        lambda *_: require_more()
    ):  # it ends after a batch, also where it embeds to fit
        check = space.check(
            wanted["version"],
            rules=rules,
            fitting=fitting,
            data=wanted["data"],
            progress=False,
            embed=embed,
            relevant={one["text"]: one["items"] for one in wanted.get("relevant") or ()},
        )
    running.note(done=running.job().total or 0, message=f"{check.version}: {check.outcome}")
    return {
        "version": check.version,
        "outcome": check.outcome,
        "reasons": list(check.reasons),
        "next_steps": [to_step(step) for step in check.next_steps],
    }
