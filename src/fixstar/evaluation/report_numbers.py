"""Every number of a report as plain JSON: fractions, names and counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from fixstar.evaluation.cross_test import CrossTest
from fixstar.evaluation.curves import metric_curve
from fixstar.evaluation.evidence import Difference, Flips, cell_evidence

if TYPE_CHECKING:
    from fixstar.evaluation.report import Report

__all__ = ["evidence_numbers", "lower_triangle", "numbers"]

Cell = tuple[int, int]


def numbers(report: Report) -> dict[str, Any]:
    """The content of report.json."""
    backfill = {
        name: {"shares": _plain(curve.shares), "accuracy": _plain(curve.accuracy), "runs": _plain(curve.runs)}
        for name, curve in report.backfill.items()
    }
    return {
        "title": report.title,
        "protocol": next(iter(report.tests.values())).protocol,
        "confidence": report.confidence,
        "by_class": report.by_class,
        "methods": {name: _method(report, name) for name in report.tests},
        "backfill": backfill,
        "roc": {name: {"far": _plain(far), "tar": _plain(tar)} for name, (far, tar) in report.rocs.items()},
        "tables": [asdict(table) for table in report.tables],
        "replacements": list(report.replacements),
        "facts": dict(report.facts),
    }


def lower_triangle(test: CrossTest) -> list[list[float]]:
    """The matrix as rows of 1, 2, ..., T cells."""
    return [[float(value) for value in row[: t + 1]] for t, row in enumerate(test.matrix)]


def evidence_numbers(test: CrossTest, evidence: Mapping[Cell, Difference]) -> list[dict[str, Any]]:
    """One entry a cross-test: its accuracy, the old self-test, their difference and its interval."""
    return [
        {
            "query": test.names[t],
            "gallery": test.names[k],
            "cross": float(test.matrix[t, k]),
            "old": float(test.matrix[k, k]),
            "difference": cell.mean,
            "low": cell.low,
            "high": cell.high,
            "verdict": cell.verdict,
            "differing": cell.differing,
        }
        for (t, k), cell in evidence.items()
    ]


def _method(report: Report, name: str) -> dict[str, Any]:
    test, evidence = report.tests[name], report.evidence[name]
    counted = cell_evidence(evidence)
    return {
        "versions": list(test.names),
        "answers": len(next(iter(test.hits.values()))),
        "matrix": lower_triangle(test),
        "summary": test.summary(),
        "evidence": {**counted._asdict(), "ac_range": list(counted.ac_range)},
        "cells": evidence_numbers(test, evidence),
        "curves": {metric: _plain(metric_curve(test.matrix, metric)) for metric in ("AA", "AC", "ACA", "BC")},
        "flips": [_flips(report, test, cell, found) for cell, found in report.flips[name].items()],
        "lost": [lost._asdict() for lost in report.lost.get(name, ())],
    }


def _flips(report: Report, test: CrossTest, cell: Cell, found: Flips) -> dict[str, Any]:
    return {
        "query": test.names[cell[0]],
        "gallery": test.names[cell[1]],
        "queries": found.queries,
        "negative": found.negative.tolist(),
        "positive": found.positive.tolist(),
        "negative_rate": found.negative_rate,
        "positive_rate": found.positive_rate,
        "classes": [{"name": report.class_name(row.label), **row._asdict(), "net": row.net} for row in found.classes],
    }


def _plain(values: ArrayLike) -> Any:
    """Lists of numbers, None where there is none: JSON knows no NaN."""
    array = np.asarray(values, dtype=np.float64)
    return np.where(np.isfinite(array), array, np.array(None)).tolist()
