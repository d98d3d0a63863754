"""Backfill: killed at any moment, with images gone and others writing meanwhile, nothing is lost or done twice."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from forked import kill_at_call
from shops import passed, pictures, shop
from wording import refuses

from fixstar.data import from_arrays, open_images
from fixstar.errors import CheckpointError, ImageError, InputError, UnknownNameError
from fixstar.gallery import Gallery, MemoryGallery, SqliteGallery
from fixstar.geometry import unit
from fixstar.models import EmbeddedBatch
from fixstar.workspace import Backfilled, BackfillOptions, ImageStore, Workspace, catalogue
from fixstar.workspace.backfill.planning import gallery_accuracy
from fixstar.workspace.backfill.run import (
    BATCH,
    BackfillPlan,
    BackfillRun,
    KeptItem,
    Pace,
    PlanFiles,
    budget_items,
)

WIDTH, COUNT = 8, 200


def vector(item: str, version: str) -> Any:
    rng = np.random.default_rng([int(item), int(version[1:])])
    return unit(rng.standard_normal(WIDTH).astype(np.float32))


def filled(gallery: Gallery, folder: Path, count: int = COUNT) -> list[str]:
    """Items of v1 with an image file each, and room for v2."""
    names = [str(i) for i in range(count)]
    (folder / "images").mkdir()
    for name in names:
        (folder / "images" / name).write_text(name)
    for version in ("v1", "v2"):
        gallery.create_version(version, WIDTH)
    payloads = [{"image": f"images/{name}", "tag": f"t{name}"} for name in names]
    gallery.upsert("v1", names, np.stack([vector(name, "v1") for name in names]), payloads)
    return names


class Counting:
    """An embedder that notes every image it was given, and whose vectors say which image they are of."""

    def __init__(
        self, bad: Sequence[str] = (), between: Callable[[list[str]], object] = len
    ) -> None:
        self.seen: list[str] = []
        self._bad, self._between = bad, between

    def __call__(self, batches: Iterable[Sequence[Any]]) -> Iterator[EmbeddedBatch]:
        for batch in batches:
            names = [path.read_text() for path in batch]
            self.seen += names
            rows = np.stack([vector(name, "v2") for name in names])
            broken = [i for i, name in enumerate(names) if name in self._bad]
            rows[broken] = np.nan
            self._between(names)
            yield EmbeddedBatch(rows, tuple(ImageError(names[i], "damaged", i) for i in broken))


def run(
    gallery: Gallery, folder: Path, ids: Sequence[str], embedder: Any, **options: Any
) -> Backfilled:
    files = PlanFiles(folder)
    plan = files.plan()
    if plan is None:
        plan = BackfillPlan.made("v2", "random", "all", len(ids), ids)
        files.save(plan)
    now = {"deployed": lambda: "v2", "newer": lambda: ["v3"]}
    return BackfillRun(gallery, ImageStore(folder), files, plan, **{**now, **options}).run(embedder)


def check_all(gallery: Gallery, but: Sequence[str] = ()) -> None:
    for item in gallery.iterate():
        version = "v1" if item.id in but else "v2"
        assert item.version == version
        np.testing.assert_allclose(item.vector, vector(item.id, version), atol=1e-6)
        assert item.payload == {"image": f"images/{item.id}", "tag": f"t{item.id}"}


def test_all_items_get_the_new_vector_of_their_image_and_keep_their_payload(tmp_path: Path) -> None:
    gallery = MemoryGallery()
    ids = filled(gallery, tmp_path)
    moved: list[int] = []
    embedder = Counting()
    order = ids[::-1]
    done = run(gallery, tmp_path, order, embedder, progress=moved.append)
    assert (done.done, done.planned, done.left, done.kept, done.stopped) == (
        COUNT,
        COUNT,
        0,
        (),
        None,
    )
    assert sum(moved) == COUNT
    assert embedder.seen == order
    check_all(gallery)
    again = run(gallery, tmp_path, ids, embedder)
    assert (again.done, len(embedder.seen)) == (0, COUNT)


def test_without_its_cursor_the_gallery_says_what_is_done(tmp_path: Path) -> None:
    gallery, embedder = MemoryGallery(), Counting()
    ids = filled(gallery, tmp_path)
    run(gallery, tmp_path, ids, embedder, stop=lambda: len(embedder.seen) >= 2 * BATCH)
    (tmp_path / "state" / "backfill" / "cursor.json").unlink()
    done = run(gallery, tmp_path, ids, embedder)
    assert (done.done, done.done_before) == (COUNT - 2 * BATCH, 2 * BATCH)
    assert sorted(embedder.seen) == sorted(ids)


def test_missing_and_damaged_images_keep_their_old_vectors_and_are_told_over_interruptions(
    tmp_path: Path,
) -> None:
    gallery = MemoryGallery()
    ids = filled(gallery, tmp_path)
    (tmp_path / "images" / "3").unlink()
    (tmp_path / "images" / "150").unlink()
    embedder = Counting(bad=["7", "151"])
    first = run(gallery, tmp_path, ids, embedder, stop=lambda: bool(embedder.seen))
    assert (first.left, first.kept) == (
        COUNT - BATCH,
        (KeptItem("3", "its image is gone"), KeptItem("7", "damaged")),
    )
    assert first.stopped is not None
    with (tmp_path / "state" / "backfill" / "kept.jsonl").open("a") as file:
        file.write('["cut o')  # a kill in the middle of a line
    done = run(gallery, tmp_path, ids, embedder)
    assert {item.id for item in done.kept} == {"3", "7", "150", "151"}
    check_all(gallery, but=["3", "7", "150", "151"])


def test_a_stretch_of_missing_images_is_passed(tmp_path: Path) -> None:
    gallery = MemoryGallery()
    ids = filled(gallery, tmp_path)
    for name in ids[:180]:
        (tmp_path / "images" / name).unlink()
    done = run(gallery, tmp_path, ids, Counting())
    assert (done.done, done.left, len(done.kept)) == (20, 0, 180)
    again = run(gallery, tmp_path, ids, Counting())
    assert (again.done, len(again.kept)) == (0, 180)


def test_deleted_items_stay_deleted_and_newer_writes_stay(tmp_path: Path) -> None:
    gallery = MemoryGallery()
    ids = filled(gallery, tmp_path)
    gallery.delete(["0"])
    other = unit(np.ones((1, WIDTH), np.float32))

    def others_write(
        names: list[str],
    ) -> None:  # after the images were read, before anything is stored
        if "5" in names:
            gallery.delete(["5"])
            gallery.upsert("v1", ["6"], other, [{"image": "images/6"}])
            gallery.upsert("v2", ["8"], other, [{"image": "images/8"}])
            gallery.upsert(
                "v1", ["9"], vector("9", "v1")[None], [{"image": "images/9", "tag": "new"}]
            )

    done = run(gallery, tmp_path, ids, Counting(between=others_write))
    assert (done.done, done.deleted, done.rewritten) == (COUNT - 4, 2, 2)
    known = gallery.get(["0", "5", "6", "8", "9"])
    assert known.keys() == {"6", "8", "9"}
    assert (known["6"].version, known["8"].version) == ("v1", "v2")
    np.testing.assert_allclose(known["8"].vector, other[0], atol=1e-6)
    assert (known["9"].version, known["9"].payload["tag"]) == (
        "v2",
        "new",
    )  # same vector, same image: a newer payload


def test_vectors_of_a_newer_version_stay(tmp_path: Path) -> None:
    """v3 was deployed after the plan was made, embedded an item, and was rolled back."""
    gallery = MemoryGallery()
    ids = filled(gallery, tmp_path, 5)
    gallery.create_version("v3", WIDTH)
    gallery.upsert("v3", ["3"], vector("3", "v3")[None], [{"image": "images/3", "tag": "t3"}])
    done = run(gallery, tmp_path, ids, Counting())
    assert (done.done, done.rewritten, done.left) == (4, 1, 0)
    assert gallery.get(["3"])["3"].version == "v3"


def test_nothing_is_written_once_another_version_is_deployed(tmp_path: Path) -> None:
    gallery = MemoryGallery()
    ids = filled(gallery, tmp_path)
    deployed = ["v2"]
    embedder = Counting(between=lambda names: deployed.extend(["v1"] * ("70" in names)))
    done = run(gallery, tmp_path, ids, embedder, deployed=lambda: deployed[-1])
    assert done.stopped is not None
    assert done.stopped.startswith("v1 is deployed now")
    assert (done.done, done.left, gallery.count()) == (
        BATCH,
        COUNT - BATCH,
        {"v1": COUNT - BATCH, "v2": BATCH},
    )
    deployed.append("v2")
    assert run(gallery, tmp_path, ids, Counting(), deployed=lambda: deployed[-1]).left == 0
    check_all(gallery)


def test_the_rate_is_kept_and_a_wait_can_be_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    ticking = SimpleNamespace(
        monotonic=lambda: clock[-1], sleep=lambda seconds: clock.append(clock[-1] + seconds)
    )
    monkeypatch.setattr("fixstar.workspace.backfill.run.time", ticking)
    gallery = MemoryGallery()
    ids = filled(gallery, tmp_path, 30)
    done = run(gallery, tmp_path, ids, Counting(), rate=15.0)
    assert done.done == 30
    assert clock[-1] == pytest.approx(1.0)  # 15 at once, the others a second later
    assert Pace(3.0).batch == 3
    assert Pace(None).batch == BATCH
    pace, started = Pace(10.0), clock[-1]
    for _ in range(4):
        pace.wait(lambda: False)
        pace.count(1)
    assert clock[-1] - started == pytest.approx(0.3)
    slow, started = Pace(0.001), clock[-1]
    slow.wait(lambda: False)
    slow.count(1)
    slow.wait(lambda: True)  # would be 1000 s
    assert clock[-1] == started
    with pytest.raises(InputError, match="items per second"):
        Pace(0.0)


def test_only_one_process_works_on_a_plan(tmp_path: Path) -> None:
    gallery = MemoryGallery()
    ids = filled(gallery, tmp_path)
    refused: list[str] = []

    def second(_: list[str]) -> None:
        with pytest.raises(InputError, match="another process") as caught:
            run(gallery, tmp_path, ids, Counting())
        refused.append(str(caught.value))

    run(gallery, tmp_path, ids, Counting(between=second))
    assert refused


def test_searches_go_on_and_find_every_item_once(tmp_path: Path) -> None:
    with SqliteGallery(tmp_path / "gallery.db") as gallery:
        ids = filled(gallery, tmp_path)
        over, searched, wrong, searches = threading.Event(), threading.Event(), [], 0

        def search() -> None:
            nonlocal searches
            while not over.is_set():
                found = [
                    hit.id for hit in gallery.search("v2", vector("0", "v2")[None], k=2 * COUNT)[0]
                ]
                searches += 1
                searched.set()
                if sorted(found) != sorted(ids):
                    wrong.append(found)

        def wait_for_a_search(_: list[str]) -> None:
            searched.clear()
            assert searched.wait(60)

        thread = threading.Thread(target=search)
        thread.start()
        done = run(gallery, tmp_path, ids, Counting(between=wait_for_a_search))
        over.set()
        thread.join()
        assert (done.done, wrong) == (COUNT, [])
        assert searches > 1
        check_all(gallery)


def work_until_killed(folder: Path, ids: Sequence[str], log: Path) -> None:
    """The child: notes every image before its vector exists."""
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(names: list[str]) -> None:
        os.write(descriptor, "".join(f"{name}\n" for name in names).encode())

    with SqliteGallery(folder / "gallery.db") as gallery:
        run(gallery, folder, ids, Counting(between=note), rate=None)


def test_killed_again_and_again_it_ends_with_everything_done_and_nothing_stored_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fixstar.workspace.backfill.run.BATCH", 4)
    with SqliteGallery(tmp_path / "gallery.db") as gallery:
        ids = filled(gallery, tmp_path)
    rng = np.random.default_rng(0)
    log, kills, embedded = tmp_path / "log", 0, Counter[str]()
    status = 1
    while status:
        with SqliteGallery(tmp_path / "gallery.db") as gallery:
            stored = {item.id for item in gallery.iterate("v2")}
        log.unlink(missing_ok=True)
        calls, child = int(2 ** rng.uniform(4, 9)), os.fork()
        if child == 0:
            try:
                if kills < 12:  # then it may come to its end
                    sys.setprofile(kill_at_call(calls))
                work_until_killed(tmp_path, ids, log)
                os._exit(0)
            finally:
                os._exit(1)
        status = os.waitpid(child, 0)[1]
        kills += status != 0
        seen = log.read_text().split() if log.exists() else []
        assert not stored & set(seen), "an item that was stored was embedded again"
        embedded.update(seen)
        assert status in (0, signal.SIGKILL)
    assert kills >= 3
    assert embedded.keys() == set(ids)
    assert sum(embedded.values()) <= COUNT + 4 * kills  # of each kill at most the batch under way
    with SqliteGallery(tmp_path / "gallery.db") as gallery:
        check_all(gallery)
        assert gallery.count() == {"v1": 0, "v2": COUNT}


@pytest.mark.parametrize(
    ("budget", "items"),
    [("10%", 20), ("0.1%", 1), ("100%", 200), ("7", 7), ("999", 200), ("ALL", 200)],
)
def test_budgets(budget: str, items: int) -> None:
    assert budget_items(budget, 200) == items


@pytest.mark.parametrize("budget", ["", "ten", "-5", "120%", "1.5", "%", "0", "0%", "0.0%"])
def test_a_budget_that_is_none_is_refused(budget: str) -> None:
    with refuses(InputError):
        budget_items(budget, 200)


def test_a_plan_survives_odd_ids_and_a_damaged_one_is_told(tmp_path: Path) -> None:
    files = PlanFiles(tmp_path)
    plan = BackfillPlan.made("v2", "gain", "10%", 50, ["a\nb", 'q"', "ü\u2028x", "\r"])
    files.save(plan)
    assert files.plan() == plan
    assert files.position(plan) == 0
    files.move(plan, 3, {"done": 2, "deleted": 1})
    assert files.position(plan) == 3
    assert files.counts(plan) == {"done": 2, "deleted": 1}
    other = BackfillPlan.made("v3", "gain", "10%", 50, ["a"])
    files.save(other)
    assert files.position(other) == 0  # the cursor of another plan does not count
    path = files.directory / "plan.jsonl"
    path.write_bytes(path.read_bytes()[:20])
    with refuses(CheckpointError):
        files.plan()


def upgraded(folder: Path, per_class: int = 6) -> tuple[Workspace, Path]:
    """A shop whose items were embedded by v1, with v2 deployed."""
    photos = pictures(folder / "photos", per_class)
    space = shop(folder / "shop")
    space.index(catalogue(photos))
    passed(space, "v2", "v1")
    space.deploy("v2")
    return space, photos


def test_a_workspace_plans_predicts_re_embeds_and_measures(tmp_path: Path) -> None:
    space, photos = upgraded(tmp_path)
    with space:
        options = BackfillOptions("50%", data=open_images(photos))
        planned = space.plan_backfill(options)
        assert (len(planned.plan.ids), planned.plan.old, planned.share) == (9, 18, 0.5)
        assert planned.predicted is not None
        assert planned.predicted.planned.shares.tolist() == planned.predicted.random.shares.tolist()
        assert planned.predicted.planned.accuracy[-1] == pytest.approx(
            planned.predicted.self_tests[1]
        )
        done = space.backfill(options)
        assert (done.version, done.done, done.left) == ("v2", 9, 0)
        assert space.gallery.count() == {"v1": 9, "v2": 9}
        assert [item.id for item in space.gallery.iterate("v2")] == sorted(planned.plan.ids)
        assert done.measured[0].share == 0
        assert done.measured[-1].share == 0.5
        names = list(planned.plan.ids)
        stored = np.stack([item.vector for item in space.gallery.get(names).values()])
        np.testing.assert_allclose(
            stored, space.serving.embed("v2", [photos / name for name in names]), atol=1e-5
        )
        rest = space.backfill(BackfillOptions("all", order="oldest"))
        assert (rest.done, space.gallery.count()) == (9, {"v1": 0, "v2": 18})
        assert space.backfill(BackfillOptions("all")).planned == 0


def test_accuracy_is_measured_where_an_interrupted_backfill_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fixstar.workspace.backfill.run.BATCH", 3)
    space, photos = upgraded(tmp_path)
    with space:
        data, asked = open_images(photos), [0]

        def after_two() -> bool:
            asked[0] += 1
            return asked[0] > 2

        first = space.backfill(BackfillOptions("all", "classes", data=data, stop=after_two))
        second = space.backfill(BackfillOptions("all", data=data))  # goes on, whatever order it was
        assert (first.done + second.done, second.left) == (18, 0)
        assert second.measured[0].share == pytest.approx(first.done / 18)
        assert second.measured[-1].share == 1.0


def test_an_interrupted_backfill_resumes_and_other_options_plan_again(tmp_path: Path) -> None:
    space, _ = upgraded(tmp_path)
    with space:
        first = space.plan_backfill(BackfillOptions("all", "random"))
        assert space.plan_backfill(BackfillOptions("all", "random")).plan == first.plan
        assert space.plan_backfill(BackfillOptions("5", "random")).plan.ids == first.plan.ids[:5]
        stopped = space.backfill(BackfillOptions("5", "random", stop=lambda: True))
        assert (stopped.done, stopped.left) == (0, 5)
        assert stopped.stopped is not None
        assert space.backfill(BackfillOptions("5", "random")).done == 5
        space.rollback()
        back = space.plan_backfill(BackfillOptions("all", "random"))
        assert (back.plan.target, back.plan.ids) == ("v1", ())  # v2's vectors are newer: they stay


@pytest.mark.parametrize("name", ["v²", "v٣", "v9", "v03", "v"])
def test_a_foreign_name_that_looks_like_a_newer_version_is_none(tmp_path: Path, name: str) -> None:
    space, _ = upgraded(tmp_path)
    with space:
        item = next(iter(space.gallery.iterate("v1")))
        space.gallery.create_version(name, len(item.vector), space.gallery.projection("v1"))
        space.gallery.upsert(name, [item.id], item.vector[None], [item.payload])
        done = space.backfill(BackfillOptions("all", "random"))
        assert (done.planned, done.done, done.rewritten) == (18, 18, 0)
        assert space.plan_backfill(BackfillOptions("all", "random")).plan.ids == ()


def test_vectors_of_a_newer_version_stay_also_when_it_was_retired(tmp_path: Path) -> None:
    space, _ = upgraded(tmp_path)
    with space:
        (tmp_path / "shop" / "retired").mkdir()
        (tmp_path / "shop" / "retired" / "v3.json").write_text(
            (tmp_path / "shop" / "versions" / "v2" / "card.json").read_text()
        )
        item = next(iter(space.gallery.iterate("v1")))
        space.gallery.create_version("v3", len(item.vector), space.gallery.projection("v1"))
        space.plan_backfill(BackfillOptions("all", "random"))
        space.gallery.upsert("v3", [item.id], item.vector[None], [item.payload])
        done = space.backfill(BackfillOptions("all", "random"))
        assert (done.planned, done.done, done.rewritten) == (18, 17, 1)
        assert space.plan_backfill(BackfillOptions("all", "random")).plan.ids == ()


def test_wrong_options_are_told_before_anything_is_done(tmp_path: Path) -> None:
    space, _ = upgraded(tmp_path)
    with space:
        with pytest.raises(UnknownNameError, match="order"):
            space.backfill(BackfillOptions("all", "best"))
        with pytest.raises(InputError, match="a budget is"):
            space.backfill(BackfillOptions("some"))
        with refuses(InputError):
            space.backfill(BackfillOptions("all", "queried"))
        assert space.gallery.count() == {"v1": 18, "v2": 0}


def test_accuracy_on_the_gallery_counts_only_classes_it_knows(tmp_path: Path) -> None:
    axes = np.eye(7, dtype=np.float32)
    images = from_arrays(np.zeros((3, 8, 8, 3), np.uint8), np.array([0, 0, 1]), ["a", "b"])
    made = {"v1": np.stack([axes[0], axes[1], 0.6 * axes[0] + 0.8 * axes[1]])}
    with shop(tmp_path / "shop") as space:
        space.serving.encoder("v1")  # makes room for its vectors
        assert gallery_accuracy(space.serving, "v1", images, made) is None
        space.gallery.upsert("v1", ["x", "y"], axes[:2], [{"label": "a"}, {"label": "c"}])
        assert gallery_accuracy(space.serving, "v1", images, made) == 0.5
        assert (
            gallery_accuracy(space.serving, "v2", images, made) is None
        )  # another version is deployed
