"""A report: can the new version be deployed over the old gallery, and how is that known?

``Report.of`` takes one cross-test or several (methods side by side) and adds what follows from them: the evidence for
every cell, the flips of the newest version, the curves. ``write`` makes a folder of it: report.html, one page that
needs nothing beside it; the pictures; report.json, which holds every number.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fixstar.durable import replace_file, replace_json
from fixstar.errors import InputError, UnknownNameError
from fixstar.evaluation.cross_test import CrossTest
from fixstar.evaluation.curves import accuracy_curves, backfill_curves, metric_curve, roc_curves
from fixstar.evaluation.evidence import Difference, Flips, flips, found_before_after, needed_resamples, verdicts
from fixstar.evaluation.features import VersionFeatures
from fixstar.evaluation.mixed import BackfillCurve
from fixstar.evaluation.pictures import side_by_side
from fixstar.evaluation.report_numbers import numbers
from fixstar.evaluation.report_page import page

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from PIL import Image

__all__ = ["LostQuery", "RateTable", "Report", "Thumbnails", "lost_queries"]

Cell = tuple[int, int]
Labels = NDArray[np.integer[Any]]
Roc = tuple[ArrayLike, ArrayLike]

SHOWN = 8  # lost queries with their pictures


class LostQuery(NamedTuple):
    """A negative flip: the query's row, and the gallery rows found by the old version and by the new one."""

    query: int
    before: int
    after: int


class Thumbnails(NamedTuple):
    """Images by their row: of the queries, and of the gallery."""

    query: Callable[[int], Image.Image]
    gallery: Callable[[int], Image.Image]


@dataclass(frozen=True)
class RateTable:
    """Fractions to print, such as Rank-k or TAR at some FAR: a name and one fraction a column in each row."""

    caption: str
    columns: tuple[str, ...]
    rows: Mapping[str, tuple[float, ...]]

    def __post_init__(self) -> None:
        for name, values in self.rows.items():
            if len(values) != len(self.columns):
                raise InputError(f"row {name!r} has {len(values)} values for the columns {', '.join(self.columns)}")


@dataclass(frozen=True, eq=False)
class Report:
    """What was measured, by method; make it with ``Report.of``.

    ``flips[method][t, k]`` are those of the newest version t on every older gallery k; empty where answers are not
    simply right or wrong, or the queries' classes are not known.
    """

    title: str
    tests: Mapping[str, CrossTest]
    evidence: Mapping[str, Mapping[Cell, Difference]]
    flips: Mapping[str, Mapping[Cell, Flips]]
    confidence: float
    by_class: bool
    classes: Mapping[int, str] = field(default_factory=dict)
    lost: Mapping[str, Sequence[LostQuery]] = field(default_factory=dict)
    thumbnails: Thumbnails | None = None
    backfill: Mapping[str, BackfillCurve] = field(default_factory=dict)
    rocs: Mapping[str, Roc] = field(default_factory=dict)
    tables: Sequence[RateTable] = ()
    replacements: Sequence[int] = ()
    facts: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        tests: CrossTest | Mapping[str, CrossTest],
        *,
        title: str = "Compatibility report",
        query_labels: Labels | None = None,
        classes: Sequence[str] | Mapping[int, str] = (),
        confidence: float = 0.95,
        by_class: bool = False,
        seed: int = 0,
        lost: Mapping[str, Sequence[LostQuery]] | None = None,
        thumbnails: Thumbnails | None = None,
        backfill: Mapping[str, BackfillCurve] | None = None,
        rocs: Mapping[str, Roc] | None = None,
        tables: Sequence[RateTable] = (),
        replacements: Sequence[int] = (),
        facts: Mapping[str, str] | None = None,
    ) -> Report:
        """The report of one cross-test, or of several by method.

        ``query_labels`` [N] and ``classes``, their names, allow flips by class. ``by_class`` draws whole classes for
        the evidence: for claims about classes other than these. ``lost`` (see ``lost_queries``) and ``backfill`` are by
        method, ``rocs`` by any name. ``facts`` say how it was measured, in the order in which they are printed.
        """
        named = {"": tests} if isinstance(tests, CrossTest) else dict(tests)
        _check(named, query_labels, by_class)
        for whose, given in (("lost queries", lost), ("a backfill curve", backfill)):
            if odd := sorted(set(given or ()) - named.keys()):
                raise UnknownNameError(f"method of {whose}", odd[0], named)
        clusters = query_labels if by_class else None
        settings: dict[str, Any] = {"confidence": confidence, "resamples": needed_resamples(confidence), "seed": seed}
        return cls(
            title,
            named,
            {name: verdicts(test, clusters=clusters, **settings) for name, test in named.items()},
            {name: _newest_flips(test, query_labels) for name, test in named.items()},
            confidence,
            by_class,
            dict(classes) if isinstance(classes, Mapping) else dict(enumerate(classes)),
            lost or {},
            thumbnails,
            backfill or {},
            rocs or {},
            tables,
            replacements,
            facts or {},
        )

    def class_name(self, label: int) -> str:
        """The name of a class, or its number."""
        return self.classes.get(label, str(label))

    def figures(self) -> dict[str, Figure]:
        """The pictures by file name, as far as there is something to draw: curves need three versions."""
        matrices = {name: test.matrix for name, test in self.tests.items()}
        versions = {test.names for test in self.tests.values()}
        names = list(versions.pop()) if len(versions) == 1 else None
        drawn = {"matrix.png": side_by_side(matrices, names=names, verdicts=self.evidence)}
        if max(map(len, matrices.values())) > 2:
            for metric in ("AA", "BC"):
                series = {name or metric: metric_curve(C, metric) for name, C in matrices.items()}
                drawn[f"{metric}.png"] = accuracy_curves(series, None, self.replacements, metric=metric)
        if self.backfill:
            shown = {
                name: name or "{1} over {0}'s gallery".format(*self.tests[name].names[-2:]) for name in self.backfill
            }
            ends = {shown[name]: matrices[name].diagonal()[-2:].tolist() for name in self.backfill}
            curves = {shown[name]: curve for name, curve in self.backfill.items()}
            drawn["backfill.png"] = backfill_curves(curves, None, ends)
        if self.rocs:
            drawn["roc.png"] = roc_curves(self.rocs)
        return drawn

    def write(self, folder: str | Path) -> list[Path]:
        """Write report.html, the pictures and report.json; files of those names are replaced."""
        folder = Path(folder)
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder} is a file; a report is a folder. Choose another name")
        pictures = {name: _png(figure) for name, figure in self.figures().items()}
        for name, content in {"report.html": page(self, pictures).encode(), **pictures}.items():
            _write(folder / name, content)
        replace_json(folder / "report.json", numbers(self))
        return [folder / name for name in ("report.html", *pictures, "report.json")]


def lost_queries(
    found: Flips,
    query_labels: Labels,
    old: VersionFeatures,
    new: VersionFeatures,
    shown: int = SHOWN,
    *,
    shared_components: bool = False,
) -> list[LostQuery]:
    """Up to ``shown`` negative flips with what was found: one of each class in turn, heaviest net loss first."""
    labels = np.asarray(query_labels)[found.negative]
    place = {row.label: number for number, row in enumerate(found.classes)}
    turn: dict[int, int] = {}
    keys = []
    for label in labels.tolist():
        turn[label] = turn.get(label, -1) + 1
        keys.append((turn[label], place[label]))
    chosen = found.negative[sorted(range(len(keys)), key=keys.__getitem__)[:shown]]
    rows = found_before_after(chosen, old, new, shared_components=shared_components)
    return [
        LostQuery(*three)
        for three in zip(chosen.tolist(), rows.before[:, 0].tolist(), rows.after[:, 0].tolist(), strict=True)
    ]


def _check(tests: Mapping[str, CrossTest], query_labels: Labels | None, by_class: bool) -> None:
    if not tests:
        raise InputError("a report needs at least one cross-test: {method: cross_test(...)}")
    if len(protocols := {test.protocol for test in tests.values()}) > 1:
        raise InputError(f"a report compares methods by one protocol, got {', '.join(sorted(protocols))}")
    if by_class and query_labels is None:
        raise InputError("by_class draws whole classes; pass query_labels")
    for name, test in tests.items():
        if len(test.names) < 2:
            raise InputError(f"a report needs two versions or more; {name or 'the cross-test'} has {len(test.names)}")


def _newest_flips(test: CrossTest, query_labels: Labels | None) -> dict[Cell, Flips]:
    """The flips of the newest version on every older gallery, where answers are right or wrong."""
    newest = len(test.names) - 1
    if query_labels is None or test.protocol == "verification" or test.hits[newest, newest].dtype != np.bool_:
        return {}
    return {(newest, k): flips(test.hits[k, k], test.hits[newest, k], query_labels) for k in range(newest)}


def _png(figure: Figure) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=figure.dpi)
    return file.getvalue()


def _write(path: Path, content: bytes) -> None:
    replace_file(path, lambda partial: partial.write_bytes(content))
