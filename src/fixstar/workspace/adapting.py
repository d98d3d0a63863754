"""Adapters in a workspace: fitted on its own gallery, gated like any upgrade, then used by every search."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from fixstar.errors import GalleryError, InputError, UnknownNameError
from fixstar.lifecycle import Check, GateRules, save_check
from fixstar.lifecycle.adapter_gate import BothSpaces, check_adapter, without_evidence
from fixstar.lifecycle.adapter_maps import VectorAdapter
from fixstar.lifecycle.adapter_pairs import ClassPairs
from fixstar.lifecycle.adapter_use import APPLIED, Applied, adapt_gallery
from fixstar.lifecycle.adapters import ADAPTERS, Ranked, best_adapter, fit_adapter
from fixstar.progress import progress_bar
from fixstar.workspace.adapter_samples import class_pairs, gallery_sample, pairs_of_file, unlike

if TYPE_CHECKING:
    from fixstar.workspace.workspace import Workspace

__all__ = ["AdaptOptions", "Adapted", "adapt"]

_LARGER = "Take a larger --sample, of {:,} items that can be used"
_ENOUGH_CLASSES = 20  # to choose a kind by searching for classes that were not fitted


@dataclass(frozen=True)
class AdaptOptions:
    """How an adapter is fitted, judged and used.

    ``queries_by`` is the version whose queries it serves, the deployed one if not given; ``kind`` one of ``ADAPTERS``,
    the best on held-out pairs if not given. ``pairs`` is a file of vectors by both models; without it, images of the
    gallery are embedded, ``sample`` at most. The share ``held_out`` of them is for the gate, which ``force``, a reason,
    passes over.
    """

    queries_by: str | None = None
    kind: str | None = None
    pairs: Path | None = None
    applied: Applied = "queries"
    force: str | None = None
    sample: int = 8000
    held_out: float = 0.4
    rules: GateRules = field(default_factory=GateRules)

    def __post_init__(self) -> None:
        if self.kind is not None and self.kind not in ADAPTERS:
            raise UnknownNameError("adapter", self.kind, ADAPTERS)
        if self.applied not in APPLIED:
            raise UnknownNameError("use of an adapter", self.applied, APPLIED)
        if self.sample < 1:
            raise InputError(f"a sample is one item or more, got {self.sample}")
        if not 0 < self.held_out < 1:
            raise InputError(f"the share held out for the gate lies between 0 and 1, such as 0.4; got {self.held_out}")


@dataclass(frozen=True)
class Adapted:
    """What came of it. ``in_use`` says whether searches go through it now, or its vectors are stored.

    ``fitted_on`` says what the pairs were, ``ranked`` how the kinds did on held-out pairs: top-1 and mean cosine.
    ``moved`` counts vectors that were replaced, ``into`` names their version.
    """

    version: str
    queries_by: str
    kind: str
    applied: str
    fitted_on: str
    pairs: int
    ranked: tuple[tuple[str, float, float], ...]
    check: Check | None
    in_use: bool
    forced: str | None = None
    moved: int = 0
    into: str | None = None


@dataclass(frozen=True, eq=False)
class _Material:
    """What to fit on, in words too, and what to judge by; None where nothing can be measured, ``lacking`` says why.

    ``more`` says how to come by more to judge by.
    """

    words: str
    pairs: BothSpaces | ClassPairs
    held_out: BothSpaces | None
    lacking: str = ""
    more: str = ""


def adapt(space: Workspace, version: str, options: AdaptOptions, progress: bool = True) -> Adapted:
    """Fit an adapter between a gallery version and a version's queries, try it, and use it if it passes.

    Applied to queries nothing stored changes. Applied to stored vectors they move to a version of their own,
    VERSION@QUERIES; the same call goes on after an interruption, with the adapter that it began with.
    """
    from fixstar.workspace.deploying import checked_reason

    force = checked_reason(options.force, "an adapter")
    queries_by = space.registry.checked(options.queries_by or space.deployed())
    if version == queries_by:
        raise InputError(f"queries of {version} meet vectors of {version} as they are; an adapter is for another model")
    if not space.gallery.count().get(version):
        live = ", ".join(name for name, count in space.gallery.count().items() if count) or "nothing"
        raise GalleryError(f"the gallery holds no vectors of {version!r}; it holds those of: {live}")
    space.serving.encoder(queries_by)  # the gallery has room for its vectors then
    if options.applied == "stored" and (begun := space.adapters.find(version, queries_by, "stored")) is not None:
        done = Adapted(
            version, queries_by, begun.kind, "stored", "an earlier run", begun.about["pairs"], (), None, True
        )
        return _moved(space, done, begun, progress)
    material = _material(space, version, queries_by, options, progress)
    ranked, adapter = _fitted(material.pairs, version, queries_by, options)
    check = _checked(space, adapter, material, version, queries_by, options)
    done = Adapted(
        version,
        queries_by,
        adapter.kind,
        options.applied,
        material.words,
        len(material.pairs.old if isinstance(material.pairs, BothSpaces) else material.pairs.X),
        tuple((one.adapter.kind, one.held_out.top1, one.held_out.mean_cosine) for one in ranked),
        check,
        check.outcome == "pass" or force is not None,
        force if check.outcome != "pass" else None,
    )
    if not done.in_use:
        return done
    adapter = replace(adapter, about={**adapter.about, "check": check.outcome, "forced": done.forced})
    space.adapters.use(adapter, options.applied)
    return done if options.applied == "queries" else _moved(space, done, adapter, progress)


def _moved(space: Workspace, done: Adapted, adapter: VectorAdapter, progress: bool) -> Adapted:
    """Bring the stored vectors through the adapter, as many as are left."""
    into, total = f"{done.version}@{done.queries_by}", space.gallery.count()[done.version]
    with progress_bar("adapting stored vectors", total, "items", show=progress) as advance:
        moved = adapt_gallery(space.gallery, done.version, adapter, into, like=done.queries_by, progress=advance)
    if not space.gallery.count()[done.version]:
        space.adapters.end(done.version, done.queries_by, "stored")
    return replace(done, moved=moved, into=into)


def _material(space: Workspace, version: str, queries_by: str, options: AdaptOptions, progress: bool) -> _Material:
    """Pairs from the file; else from images of the gallery; else class means."""
    seed = options.rules.seed
    if options.pairs is not None:
        file, given = options.pairs.name, pairs_of_file(options.pairs, space.gallery, version, queries_by)
        if any(label is not None for label in given.labels):
            more = f"Put more images with a label into {file}"
            return _divided(given, f"pairs of {file}", options, more)
        drawn = gallery_sample(space, version, queries_by, options.sample, seed, progress, labelled=True)
        more = f"Give {file} the array labels" if drawn.of <= options.sample else _LARGER.format(drawn.of)
        lacking = f"{file} has no labels, and no labelled image of the gallery can be found"
        held = unlike(drawn.both, given) if len(drawn.both) else None
        return _Material(f"{len(given):,} pairs of {file}", given, held, lacking, more)
    drawn = gallery_sample(space, version, queries_by, options.sample, seed, progress)
    if len(drawn.both):
        all_used = (
            f"All {drawn.of:,} items of {version} whose image can be found were used: add labels (payload field "
            "label) or images to others, or give more pairs by both models (--pairs FILE.npz)"
        )
        more = all_used if drawn.of <= options.sample else _LARGER.format(drawn.of)
        return _divided(drawn.both, "items of the gallery", options, more)
    pairs = class_pairs(space, version, queries_by, options.sample, seed)
    if options.applied == "stored":
        pairs = pairs._replace(X=pairs.Y, Y=pairs.X)
    words = f"the means of {len(pairs.classes):,} classes: no image of {version}'s items can be found"
    return _Material(words, pairs, None, "Class means alone do not tell: the same images by both models would")


def _divided(both: BothSpaces, words: str, options: AdaptOptions, more: str) -> _Material:
    """Most to fit on, the others, with labels, to judge by; an image that is there twice is on one side only."""
    order = np.random.default_rng(options.rules.seed).permutation(len(both))
    out = round(options.held_out * len(both))
    fitted, held = both.take(np.sort(order[out:])), both.take(np.sort(order[:out]))
    return _Material(f"{len(fitted):,} {words}", fitted, unlike(held, fitted), more=more)


def _fitted(
    pairs: BothSpaces | ClassPairs, version: str, queries_by: str, options: AdaptOptions
) -> tuple[tuple[Ranked, ...], VectorAdapter]:
    """The adapter, with the comparison that its kind was chosen by."""
    ends = (queries_by, version) if options.applied == "queries" else (version, queries_by)
    known: dict[str, Any] = {"seed": options.rules.seed, "source": ends[0], "target": ends[1]}
    if isinstance(pairs, ClassPairs):
        X, Y, known["weights"] = pairs.X, pairs.Y, pairs.weights
    else:
        X, Y = (pairs.new, pairs.old) if options.applied == "queries" else (pairs.old, pairs.new)
        known["groups"] = _groups(pairs)
    if options.kind is not None:
        return (), fit_adapter(options.kind, X, Y, **known)
    compared = best_adapter(X, Y, **known)
    return compared.ranked, fit_adapter(compared.best.kind, X, Y, **known)


def _groups(pairs: BothSpaces) -> NDArray[np.int64] | None:
    """The classes, where all are known and there are enough to choose by classes that were not fitted."""
    classes, codes = pairs.coded()
    return codes if len(classes) >= _ENOUGH_CLASSES and (codes >= 0).all() else None


def _checked(
    space: Workspace,
    adapter: VectorAdapter,
    material: _Material,
    version: str,
    queries_by: str,
    options: AdaptOptions,
) -> Check:
    """The gate's verdict, kept in checks/adapter-VERSION.json."""
    if material.held_out is None:
        check = without_evidence(version, queries_by, material.lacking, options.rules)
    else:
        ends = (version, queries_by, options.applied)
        check = check_adapter(adapter, material.held_out, *ends, options.rules, material.more)
    about = {"adapter": adapter.kind, "applied": options.applied, "fitted_on": material.words}
    forced = options.force if check.outcome != "pass" else None
    check = replace(check, data={**about, "forced": forced}, when=datetime.now(UTC).isoformat(timespec="seconds"))
    save_check(space.path, check, f"adapter-{quote(version, safe='@')}")
    return check
