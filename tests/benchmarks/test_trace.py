"""benchmarks/trace.py: what it counts, and how much of fixstar a warm query and a first check pass at most."""

from __future__ import annotations

import importlib.util
import threading
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from shops import fitted, pictures, shop

from fixstar.geometry import unit
from fixstar.workspace import catalogue
from fixstar.workspace.deployment import Move, Rollout
from fixstar.workspace.registry import Registry

MOST = {
    "query": (19, 92),
    "check": (49, 439),
}  # files and functions; lower these when less is passed
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "trace.py"


@pytest.fixture(scope="module")
def trace() -> ModuleType:
    spec = importlib.util.spec_from_file_location("trace_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_functions_of_fixstar_are_counted_once_in_all_threads(trace: ModuleType) -> None:
    def work() -> None:
        unit(np.ones((1, 2)))
        unit(np.ones((1, 2)))
        thread = threading.Thread(target=lambda: Rollout(Path("none")))
        thread.start()
        thread.join()

    found = trace.passed(work)
    assert "geometry.py:unit" in found
    assert "workspace/deployment.py:Rollout.__init__" in found
    assert len(set(found)) == len(found)
    assert not any("<lambda>" in name or name.rpartition(":")[2] == "work" for name in found)
    assert trace.counts(["a.py:f", "a.py:g", "b.py:f"]) == {"a.py": 2, "b.py": 1}


def test_a_query_and_a_check_pass_no_more_of_fixstar_than_they_did(
    trace: ModuleType, tmp_path: Path
) -> None:
    found = trace.traced(tmp_path)
    passed = {name: (len(trace.counts(names)), len(names)) for name, names in found.items()}
    assert passed.keys() == MOST.keys() == trace.TARGETS.keys()
    for name, (files, functions) in passed.items():
        assert trace.TARGETS[name][0] <= files <= MOST[name][0], f"{name} passes {files} files"
        assert trace.TARGETS[name][1] <= functions <= MOST[name][1], (
            f"{name} passes {functions} functions"
        )


def test_a_warm_query_reads_the_deployment_once(
    trace: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = pictures(tmp_path / "photos")
    image = np.zeros((32, 32, 3), np.uint8)
    read = list[str]()
    with shop(tmp_path / "shop", free=True) as space:
        space.index(catalogue(photos))
        fitted(space)
        space.deploy("v2", force="to be measured")
        space.search([image], k=2)

        names = trace.passed(lambda: space.search([image], k=2))
        assert (
            "translation/translation.py:Translation.asks" in names
        )  # v1's vectors are asked through a translation

        history = Rollout.history

        def watched(rollout: Rollout) -> tuple[Move, ...]:
            read.append("deployment")
            return history(rollout)

        monkeypatch.setattr(Rollout, "history", watched)
        monkeypatch.setattr(
            Registry, "newest", lambda _: pytest.fail("versions are listed only to load a model")
        )
        space.search([image], k=2)
        assert read == ["deployment"]  # once per query: all of it is answered by one deployment
