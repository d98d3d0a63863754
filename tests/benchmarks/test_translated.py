"""Translated runs: what is fitted on what, how it is measured and named, and that a killed run resumes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_benchmark
from forked import fork_instead_of_spawning
from small_benchmark import SEARCH, VERIFICATION
from wording import refuses

from fixstar.cli.bench import _command, _commands
from fixstar.data import ReplayMemory
from fixstar.errors import CheckpointError, InputError
from fixstar.evaluation import summary
from fixstar.models import Encoder
from fixstar.research.benchmarks import MethodChoice, RunResult, benchmark, translations
from fixstar.research.benchmarks.comparison import compare
from fixstar.research.benchmarks.jobs import Folders
from fixstar.research.benchmarks.ledger import setting_of
from fixstar.research.benchmarks.plan import Run, plan
from fixstar.research.benchmarks.runner import SearchedImages, run_benchmark
from fixstar.research.benchmarks.tables import tables_of, what_differs
from fixstar.research.benchmarks.translations import (
    Fitters,
    read_translation,
    translation_file,
)
from fixstar.translation import fit_map

SMALL = replace(
    SEARCH, capacity=120, ours={"vega": MethodChoice("vega", {"longer": 1.0}, epochs=1)}
)
NAMES = {
    "template",
    "image",
    "template, translated",
    "image, translated",
    "template, translated, two models",
    "image, translated, two models",
}


@pytest.fixture(scope="module", autouse=True)
def _known() -> Iterator[None]:
    small_benchmark.register()
    yield
    small_benchmark.unregister()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_benchmark.write_data(tmp_path_factory.mktemp("images"))


def run_of(method: str, **changes: Any) -> Run:
    return Run(SMALL, method, **{"class_order": 1, "epochs": 1, **changes})


@pytest.fixture(scope="module")
def held(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunResult, Path]:
    """HOC, whose versions share a space, translated; and its folder."""
    work = tmp_path_factory.mktemp("held")
    run = run_of("hoc", translate=True)
    return run_benchmark(run, data, work, "cpu", progress=False), work / run.name


@pytest.fixture(scope="module")
def free(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunResult, Path]:
    """Vega, which is translated unless it is declined; and its folder."""
    work = tmp_path_factory.mktemp("free")
    run = run_of("vega")
    return run_benchmark(run, data, work, "cpu", progress=False), work / run.name


def unit(vectors: Any) -> Any:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.mark.parametrize("which", ["held", "free"])
def test_cells_are_the_weighted_sums_of_both_cosines(
    which: str, data: Path, request: pytest.FixtureRequest
) -> None:
    """Both models on disk and the translation between them, by plain products of full features."""
    result, folder = request.getfixturevalue(which)
    assert set(result.protocols) == NAMES
    images = SearchedImages.open(SMALL, data)
    models = [Encoder.load(folder / "run" / "versions" / f"v{t}") for t in (1, 2, 3)]
    truth, labels = images.queries.labels, images.gallery.labels
    for t, k in ((1, 0), (2, 0), (2, 1)):
        way = read_translation(folder, k + 1, t + 1)
        assert (way.one, way.two) == (0.6, 0.6)
        assert way.shared == (which == "held")
        assert (way.backward is None) == way.shared
        assert way.forward is not None
        new = models[t].encode(images.queries.images, form="short")
        stored = models[k].encode(images.gallery.images, form="short")
        old = models[k].encode(images.queries.images, form="short")
        if way.backward is None:
            full = (
                models[t].encode(images.queries.images) @ models[k].encode(images.gallery.images).T
            )
        else:
            full = way.backward(new) @ stored.T
        ahead = new @ way.forward(stored).T
        for how, back in (("translated", full), ("translated, two models", old @ stored.T)):
            found = labels[(0.6 * ahead + 0.4 * back).argmax(axis=1)] == truth
            assert result.matrix(f"image, {how}")[t, k] == pytest.approx(
                found.mean(), abs=0.012
            )  # a tie of 90 queries
    for name in ("image", "template"):
        plain, one, two = (
            result.matrix(f"{name}{how}")
            for how in ("", ", translated", ", translated, two models")
        )
        assert np.array_equal(np.diag(plain), np.diag(one))
        assert np.array_equal(np.diag(plain), np.diag(two))
        assert not np.array_equal(np.tril(plain), np.tril(one))
        assert summary(np.nan_to_num(two)) == pytest.approx(
            result.metrics(f"{name}, translated, two models")
        )


def test_templates_are_means_of_the_long_vectors(held: tuple[RunResult, Path], data: Path) -> None:
    result, folder = held
    images = SearchedImages.open(SMALL, data)
    old, new = (Encoder.load(folder / "run" / "versions" / f"v{t}") for t in (1, 3))
    way = read_translation(folder, 1, 3)
    assert way.forward is not None
    stored = old.encode(images.gallery.images, form="short")
    both = np.hstack([way.forward(stored), stored])
    means = unit(
        np.stack([both[images.gallery.labels == label].mean(axis=0) for label in range(10)])
    )
    asked = [
        0.6 * new.encode(images.queries.images, form="short"),
        0.4 * old.encode(images.queries.images, form="short"),
    ]
    found = (np.hstack(asked) @ means.T).argmax(axis=1) == images.queries.labels
    assert result.matrix("template, translated, two models")[2, 0] == pytest.approx(
        found.mean(), abs=0.012
    )


def test_a_result_says_that_it_was_translated(held: tuple[RunResult, Path]) -> None:
    result, folder = held
    assert result.settings["translation"] == {"weight": 0.6, "views": 3}
    assert all(version["seconds_translating"] >= 0 for version in result.versions)
    assert not (folder / "features").exists()
    assert sorted(path.name for path in (folder / "translations" / "v3").iterdir()) == [
        "v1.npz",
        "v2.npz",
    ]
    about = read_translation(folder, 1, 2).about
    assert about["pairs"] == 4 * (
        3 * 6 + 4 * 2
    )  # the task's images and the memory, each four times


def test_only_the_tasks_images_and_the_memory_before_it_are_fitted_on(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[Any] = []

    def watched(version: Any, stream: Any, settings: Any, memories: Any) -> Any:
        images = at_hand(version, stream, settings, memories)
        shown.append((version.number, images, memories))
        return images

    at_hand = translations.images_at_hand
    monkeypatch.setattr(translations, "images_at_hand", watched)
    lifelong, retrained = run_of("hoc", translate=True), run_of("itm", translate=True)
    run_benchmark(lifelong, data, tmp_path, "cpu", progress=False)
    stream = lifelong.stream(data)
    assert [number for number, *_ in shown] == [2, 3]
    for number, images, memories in shown:
        task = np.asarray(stream[number - 1].images.images)
        memory = ReplayMemory.load(memories.memory(number - 1)).images
        assert memory is not None
        assert len(memory.classes) == {2: 4, 3: 7}[number]
        assert np.array_equal(images.images, np.concatenate([task, np.asarray(memory.images)]))
        names = [*stream[number - 1].images.classes, *memory.classes]
        assert [images.classes[label] for label in images.labels[len(task) :]] == [
            memory.classes[label] for label in memory.labels
        ]
        assert set(images.classes) == set(names)
    shown.clear()
    run_benchmark(retrained, data, tmp_path, "cpu", progress=False)
    assert [len(images) for _, images, _ in shown] == [7 * 6, 10 * 6]  # all images so far


def test_a_killed_run_fits_the_others_and_ends_with_the_same_figures(
    held: tuple[RunResult, Path], data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, fitted = run_of("hoc", translate=True), list[str]()

    def counted(kind: str, pairs: Any, **options: Any) -> Any:
        fitted.append(kind)
        if len(fitted) == 3:
            raise KeyboardInterrupt
        return fit_map(kind, pairs, **options)

    monkeypatch.setattr(translations, "fit_map", counted)
    with pytest.raises(KeyboardInterrupt):
        run_benchmark(run, data, tmp_path, "cpu", progress=False)
    folder = tmp_path / run.name
    assert translation_file(folder, 1, 3).exists()
    assert not translation_file(folder, 2, 3).exists()
    resumed = run_benchmark(run, data, tmp_path, "cpu", progress=False)
    assert fitted == ["residual"] * 4  # v2 from v1, v3 from v1, v3 from v2 twice
    assert resumed.protocols == held[0].protocols
    assert resumed.restarts == 1


# Beside the training


@pytest.fixture
def forked_fitters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fitters start at once, and know the small benchmark too; only ``PARENT`` spawns its own."""
    fork_instead_of_spawning(monkeypatch)
    monkeypatch.setattr(translations, "_end_with_parent", know_and_end_with_parent)


END_WITH_PARENT = translations._end_with_parent


def know_and_end_with_parent() -> None:
    small_benchmark.register()
    END_WITH_PARENT()


@pytest.mark.usefixtures("forked_fitters")
def test_fitted_beside_the_training_the_figures_are_the_same(
    held: tuple[RunResult, Path], data: Path, tmp_path: Path
) -> None:
    run = run_of("hoc", translate=True)
    beside = run_benchmark(run, data, tmp_path, "cpu", progress=False, fitters=2)
    assert beside.protocols == held[0].protocols
    assert all("seconds_translating" in version for version in beside.versions)
    names = [path.relative_to(held[1]) for path in (held[1] / "translations").rglob("*.npz")]
    assert len(names) == 3
    for name in names:
        mine, theirs = np.load(tmp_path / run.name / name), np.load(held[1] / name)
        assert all(np.array_equal(mine[key], theirs[key]) for key in theirs.files)


@pytest.mark.usefixtures("forked_fitters")
def test_what_fails_beside_the_training_fails_the_run_and_the_next_one_resumes(
    held: tuple[RunResult, Path], data: Path, tmp_path: Path
) -> None:
    run = run_of("hoc", translate=True)
    (tmp_path / run.name).mkdir()
    (tmp_path / run.name / "translations").write_text("not a folder")
    with pytest.raises(OSError, match="translations"):
        run_benchmark(run, data, tmp_path, "cpu", progress=False, fitters=1)
    (tmp_path / run.name / "translations").unlink()
    resumed = run_benchmark(run, data, tmp_path, "cpu", progress=False, fitters=1)
    assert resumed.protocols == held[0].protocols
    assert resumed.restarts == 1


def leave(part: tuple[int, int]) -> float:
    os._exit(part[0] + 1)


@pytest.mark.usefixtures("forked_fitters")
@pytest.mark.parametrize("notices", ["waiting", "looking", "beginning"])
def test_a_fitter_that_dies_says_what_to_do(notices: str) -> None:
    with Fitters(1) as beside:
        beside.begin(2, leave)
        (task,) = beside._tasks[2]
        if notices != "waiting":
            assert task.exception(timeout=60) is not None
        with refuses(CheckpointError):
            if notices == "beginning":
                beside.begin(3, leave)
            beside.seconds(wait=notices == "waiting")


def wait_for(file: Path, part: tuple[int, int]) -> float:
    eventually(file.exists)
    return part[0] + 1


@pytest.mark.usefixtures("forked_fitters")
def test_seconds_are_those_of_finished_versions_or_of_all(tmp_path: Path) -> None:
    with Fitters(2) as beside:
        assert beside.seconds(wait=True) == {}
        (tmp_path / "v2").touch()
        beside.begin(2, partial(wait_for, tmp_path / "v2"))
        assert beside.seconds(wait=True) == {2: 3}
        beside.begin(3, partial(wait_for, tmp_path / "v3"))
        assert beside.seconds(wait=False) == {2: 3}
        (tmp_path / "v3").touch()
        assert beside.seconds(wait=True) == {2: 3, 3: 3}


PARENT = """
import os, sys, time
from pathlib import Path
from fixstar.research.benchmarks.translations import Fitters

def stay(folder, part):
    (Path(folder) / str(os.getpid())).touch()
    time.sleep(600)

if __name__ == "__main__":
    from functools import partial
    with Fitters(2) as beside:
        beside.begin(2, partial(stay, sys.argv[1]))
        time.sleep(600)
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked up in /proc")
def test_fitters_end_with_a_killed_run(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    pids = tmp_path / "pids"
    pids.mkdir()
    parent = subprocess.Popen([sys.executable, script, pids])
    try:
        eventually(lambda: len(list(pids.iterdir())) == 2)
    finally:
        parent.kill()
        parent.wait()
    eventually(lambda: not any(runs(pid.name) for pid in pids.iterdir()))


def runs(pid: str) -> bool:
    """Whether a process runs; one that ended and that nobody has asked how does not."""
    try:
        state = Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def eventually(true: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_images_are_drawn_where_there_are_too_many(data: Path) -> None:
    images = run_of("hoc").stream(data)[0].images
    few = translations.drawn(images, 5, seed=1)
    assert len(few) == 5
    assert translations.drawn(images, len(images), seed=1) is images
    assert np.array_equal(few.labels, translations.drawn(images, 5, seed=1).labels)


# Names, plans, tables


def test_a_plan_translates_what_is_asked_for_and_free_methods() -> None:
    seven = benchmark("cifar100-10/7")
    plain, free = plan(seven, ["hoc", "vega"], [1])
    assert (plain.translated, free.translated) == (False, True)
    assert free.name == "cifar100-10_7__vega__order1__seed0"
    assert (free.settings().capacity, free.recipe.epochs) == (10_000, 40)
    (asked,) = plan(seven, ["hoc"], [1], translate=True, weight=0.7)
    assert asked.name == "cifar100-10_7__hoc__translated__w=0.7__order1__seed0"
    (declined,) = plan(seven, ["vega"], [1], translate=False)
    assert declined.name == "cifar100-10_7__vega__untranslated__order1__seed0"
    folders = Folders(Path(), Path(), Path())
    assert "--translate --weight 0.7" in " ".join(_command(asked, folders, "cpu"))
    assert "--no-translate" in _command(declined, folders, "cpu")
    assert "--fitters" not in _command(asked, folders, "cpu")
    assert "--fitters 2 --no-mps" in " ".join(_command(asked, folders, "cpu", fitters=2))
    assert "--fitters" not in _command(declined, folders, "cpu", fitters=2)
    assert setting_of(asked)["translated"] == 0.7
    assert "translated" not in setting_of(declined)


def test_the_chosen_setting_of_the_lifelong_protocol_has_a_name() -> None:
    for tasks in (2, 7, 16, 31):
        (run,) = plan(benchmark(f"cifar100-10/{tasks}"), ["polaris-translated"], [1])
        assert run.name == f"cifar100-10_{tasks}__polaris-translated__order1__seed0"
        options = {"hold": 3.0, "contrast": 2.0, "rate": 1.0, "fade": 0.0}
        assert options.items() <= run.create().options.items()
        assert (run.settings().capacity, run.recipe.epochs, run.translated, run.weight) == (
            10_000,
            40,
            True,
            0.6,
        )
        assert (
            setting_of(run)["method"] == "polaris"
        )  # looks at set-aside orders are of the method itself
    assert "polaris-translated" not in {
        run.method for run in plan(benchmark("cifar100-10/7"))
    }  # only if it is named
    shorter = Run(benchmark("cifar100-10/7"), "polaris-translated", 1, epochs=20, capacity=500)
    assert shorter.name == "cifar100-10_7__polaris-translated__K=500__order1__seed0__e20"


@pytest.mark.parametrize(
    "words",
    [
        {"translate": True, "weight": 1.5},
        {"weight": 0.5},
    ],
)
def test_wrong_weights_are_refused(words: dict[str, Any]) -> None:
    with refuses(InputError):
        plan(benchmark("cifar100-10/7"), ["hoc"], [1], **words)


def test_where_nothing_is_searched_there_is_nothing_to_translate() -> None:
    with refuses(InputError):
        plan(VERIFICATION, ["itm"], [1], translate=True)
    (run,) = plan(replace(VERIFICATION, capacity=120), ["vega"], [1])
    assert not run.translated


def test_translated_rows_have_a_table_that_says_what_they_see(
    held: tuple[RunResult, Path], free: tuple[RunResult, Path]
) -> None:
    other = replace(
        held[0], settings={**held[0].settings, "translation": {"weight": 0.7, "views": 3}}
    )
    comparison = compare(SMALL, [held[0], free[0], other])
    labels = [line.label for line in comparison.lines if line.runs]
    assert labels == ["hoc translated", "hoc translated w=0.7", "vega"]
    title, head, body = next(found for found in tables_of(comparison) if "translated" in found[0])
    assert "every older model" in title
    assert "no other image" in title
    assert head[3:6] == [
        "template, translated: AC",
        "template, translated: AA",
        "template, translated: ACA",
    ]
    assert len(head) == 3 + 4 * 3
    assert [row[0] for row in body] == labels
    assert not any("slerp" in found[0] for found in tables_of(comparison))
    assert "vega: vega with longer=1.0, epochs=1, a setting of ours." in what_differs(comparison)
    commands = "\n".join(_commands(comparison))
    assert "--method hoc --orders 1 --seeds 1 --epochs 1 --translate\n" in commands
    assert "--translate --weight 0.7" in commands
    assert asdict(free[0])["settings"]["translation"]["weight"] == 0.6
