"""A workspace of texts: index, search, check, deploy, backfill, roll back, all with models that read texts."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from text_models import FakeServer, bert_folder, own_settings, servers, topic_texts, write_jsonl
from wording import refuses

from fixstar.data import open_images
from fixstar.errors import GateError, InputError, ModelError, UntrustedCodeError
from fixstar.models import Encoder
from fixstar.models.backbones import endpoint
from fixstar.texts import Prompts
from fixstar.trust import trusting
from fixstar.workspace import Workspace, search
from fixstar.workspace.backfill.read_through import ReadThrough
from fixstar.workspace.items import text_catalogue, text_item, text_of, text_stamp
from fixstar.workspace.options import BackfillOptions
from fixstar.workspace.snapshot import restore_snapshot, take_snapshot

pytest.importorskip("httpx", reason="the endpoint extra is not installed")
__all__ = ["own_settings", "servers"]  # fixtures
pytestmark = pytest.mark.usefixtures("own_settings")


@pytest.fixture
def notes(tmp_path: Path, servers: tuple[FakeServer, FakeServer]) -> Iterator[Workspace]:
    """Texts by a noisy model; a better one is the second version."""
    with Workspace.create(tmp_path / "notes", device="cpu") as space:
        space.add_version(servers[0].url())
        space.index(text_catalogue(write_jsonl(tmp_path / "notes.jsonl", topic_texts(60))))
        space.add_version(servers[1].url("better"))
        yield space


def test_texts_are_found_by_what_they_say(notes: Workspace) -> None:
    stored = str(notes.gallery.get(["notes-7"])["notes-7"].payload["text"])
    (first, *others) = notes.search([stored], k=3).hits[0]
    assert text_of(first) == stored
    assert first.score == pytest.approx(1.0, abs=1e-5)
    assert all(text_of(hit) for hit in others)


def test_indexing_again_embeds_only_what_changed(notes: Workspace, tmp_path: Path) -> None:
    file = tmp_path / "notes.jsonl"
    lines = file.read_text().splitlines()
    changed = {**json.loads(lines[0]), "text": "rain storm"}
    labelled = {**json.loads(lines[1]), "label": "another"}
    file.write_text("\n".join([json.dumps(changed), json.dumps(labelled), *lines[2:]]) + "\n")
    done = notes.index(text_catalogue(file))
    assert (done.added, done.changed, done.updated, done.unchanged) == (1, 1, 1, 239)
    stored = notes.gallery.get(["notes-0", "notes-1"])
    assert stored["notes-0"].payload["text"] == "rain storm"
    assert stored["notes-0"].payload["stamp"] == text_stamp("rain storm")
    assert stored["notes-1"].payload["label"] == "another"


def test_bad_texts_are_named_and_the_others_stored(notes: Workspace) -> None:
    items = [
        text_item("empty", "  ", {}),
        text_item("good", "wet umbrella", {}),
        text_item("long", "x" * 200_000, {}),
    ]
    done = notes.index(items)
    assert done.added == 1
    assert {bad.name: bad.reason.split(", ")[0] for bad in done.bad} == {
        "empty": "it is empty",
        "long": "it has 200,000 characters",
    }


def test_a_search_waits_for_a_hanging_server_for_a_short_while_only(
    notes: Workspace, servers: tuple[FakeServer, FakeServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    def hanging(_: object) -> tuple[int, object]:
        time.sleep(1.0)
        return 503, b"too late"

    monkeypatch.setattr(search, "QUERY_SECONDS", 0.3)
    notes.search(["rain storm"])  # the model is in memory now
    servers[0].answers += [hanging] * 3
    started = time.monotonic()
    with pytest.raises(ModelError, match="time that a search may take"):
        notes.search(["rain storm"])
    assert time.monotonic() - started < 0.9
    servers[0].answers.clear()
    assert notes.search(["rain storm"]).hits[0]


def test_a_server_that_changed_its_model_is_noticed_while_it_is_in_use(
    notes: Workspace, servers: tuple[FakeServer, FakeServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [time.monotonic() + 1000]
    monkeypatch.setattr("fixstar.workspace.search.time.monotonic", lambda: now[0])
    notes.search(["rain storm"])
    servers[0].salt = "another model"
    now[0] += 599
    notes.search(["rain storm"])  # ten minutes are not over
    now[0] += 2
    with pytest.raises(ModelError, match="its server has another model under the same name"):
        notes.search(["rain storm"])
    with pytest.raises(ModelError, match="another model"):
        notes.search(["rain storm"])  # not only once
    servers[0].salt = "one"
    assert notes.search(["rain storm"]).hits[0]


def test_a_server_that_fails_in_the_middle_loses_nothing_and_the_rest_follows(
    notes: Workspace,
    servers: tuple[FakeServer, FakeServer],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from fixstar.workspace import items

    monkeypatch.setattr(items, "BATCH", 10)
    file = write_jsonl(tmp_path / "more.jsonl", topic_texts(10, seed=3))
    old = servers[0]
    usual = len(notes.gallery.get([f"more-{row}" for row in range(40)]))
    assert usual == 0
    old.answers += [old.usual, *[lambda _: (503, b"down")] * endpoint._ATTEMPTS]
    with pytest.raises(ModelError, match="repeat the command"):
        notes.index(text_catalogue(file))
    assert notes.gallery.count()["v1"] == 250
    done = notes.index(text_catalogue(file))
    assert (done.added, done.unchanged) == (30, 10)


def test_the_whole_upgrade(notes: Workspace, tmp_path: Path) -> None:
    labelled = open_images(write_jsonl(tmp_path / "held.jsonl", topic_texts(120, seed=7)))
    before = notes.gallery.get(["notes-5"])["notes-5"]
    check = notes.check("v2", labelled, progress=False)
    assert check.outcome == "pass"
    (cell,) = check.cells
    assert cell.cross_test > cell.self_test
    assert check.self_test is not None
    assert check.self_test > cell.cross_test
    notes.deploy("v2")
    result = notes.search(["dough crust oven"], k=5)
    assert result.version == "v2"
    assert {hit.version for hit in result.hits[0]} == {"v1"}
    np.testing.assert_array_equal(notes.gallery.get(["notes-5"])["notes-5"].vector, before.vector)
    done = notes.backfill(BackfillOptions(budget="50%"))
    assert done.done == 120
    assert notes.status().vectors == {"v1": 120, "v2": 120}
    assert {hit.version for hit in notes.search(["dough crust oven"], k=40).hits[0]} == {"v1", "v2"}
    notes.rollback()
    assert notes.search(["dough crust oven"], k=5).version == "v1"


def test_a_check_that_lacks_evidence_asks_for_texts(notes: Workspace, tmp_path: Path) -> None:
    few = open_images(write_jsonl(tmp_path / "few.jsonl", topic_texts(4, seed=9)))
    check = notes.check("v2", few, progress=False)
    assert check.outcome == "missing evidence"
    said = " ".join([*check.reasons, *check.notes, *(step.note for step in check.next_steps)])
    assert "labelled texts" in said
    assert "image" not in said
    without = notes.check("v2", progress=False)
    assert "image" not in " ".join(without.reasons)


def test_texts_without_labels_fit_a_translation(notes: Workspace, tmp_path: Path) -> None:
    from fixstar.workspace.options import FitOptions
    from fixstar.workspace.pairs import unlabelled_images

    file = tmp_path / "plain.jsonl"
    file.write_text(
        "".join(json.dumps({"text": text}) + "\n" for text, _ in topic_texts(50, seed=11))
    )
    ways = notes.fit_translations("v1", "v2", FitOptions(unlabelled_images(file)))
    assert any(way.forward is not None for way in ways)


def test_queries_get_the_prompt_of_queries(
    servers: tuple[FakeServer, FakeServer], tmp_path: Path
) -> None:
    with Workspace.create(tmp_path / "w", device="cpu") as space:
        space.add_version(servers[0].url(), Prompts(query="ask: ", item="say: "))
        space.index([text_item("a", "rain", {})])
        assert servers[0].requests[-1]["input"] == ["say: rain"]
        space.search(["rain"], k=1)
        assert servers[0].requests[-1]["input"] == ["ask: rain"]


def test_a_workspace_holds_one_kind(notes: Workspace, tmp_path: Path) -> None:
    with refuses(InputError, "init"):
        notes.add_version(Encoder.create("tiny", classes=["a", "b"], capacity=4))
    folder = bert_folder(tmp_path / "bert")
    assert notes.add_version(f"hf:{folder}") == "v3"


def test_another_prompt_makes_another_version(notes: Workspace, tmp_path: Path) -> None:
    folder = bert_folder(tmp_path / "bert")
    assert notes.add_version(f"hf:{folder}") == "v3"
    assert notes.add_version(f"hf:{folder}", Prompts(query="query : ")) == "v4"
    with refuses(InputError, "check"):
        notes.add_version(f"hf:{folder}", Prompts(query="query : "))


def test_one_server_is_not_added_twice_but_another_model_of_it_is(
    notes: Workspace, servers: tuple[FakeServer, FakeServer]
) -> None:
    with refuses(InputError, "check"):
        notes.add_version(servers[0].url())
    assert notes.add_version(servers[0].url("other")) == "v3"


def test_a_copy_of_a_workspace_asks_no_server(notes: Workspace, tmp_path: Path) -> None:
    import shutil

    notes.close()
    shutil.copytree(notes.path, tmp_path / "copy")
    with (
        Workspace(tmp_path / "copy", device="cpu") as copied,
        pytest.raises(UntrustedCodeError, match="not trusted"),
    ):
        copied.search(["rain"], k=1)


def test_the_text_of_an_item_is_not_changed_beside_its_vector(notes: Workspace) -> None:
    with refuses(InputError):
        notes.update_payload("notes-1", {"text": "something else"})
    assert notes.update_payload("notes-1", {"note": "fine"}).payload["note"] == "fine"


def test_examples_of_several_versions_are_embedded_again(notes: Workspace) -> None:
    from fixstar.workspace.search import Examples

    notes.deploy("v2", force="to have both")
    notes.backfill(BackfillOptions(budget="50%"))
    versions = {
        name: item.version
        for name, item in notes.gallery.get([f"notes-{row}" for row in range(60)]).items()
    }
    one = next(name for name, version in versions.items() if version == "v1")
    two = next(name for name, version in versions.items() if version == "v2")
    found = notes.search_examples(Examples(ids=(one, two)), k=3).hits[0]
    assert {hit.payload["label"] for hit in found} == {"shoes"}


def test_a_snapshot_of_texts_searches_and_backfills_as_the_workspace_does(
    notes: Workspace, servers: tuple[FakeServer, FakeServer], tmp_path: Path
) -> None:
    notes.deploy("v2", force="a try", queries="old")
    take_snapshot(notes.path, tmp_path / "copy")
    expected = notes.search(["rain storm"], k=5).hits[0]
    restore_snapshot(tmp_path / "copy", tmp_path / "again")
    with (
        trusting(*[server.address for server in servers]),
        Workspace(tmp_path / "again", device="cpu") as copy,
    ):
        assert copy.search(["rain storm"], k=5).hits[0] == expected
        done = copy.backfill(BackfillOptions("all", "random", anyway=True))
        assert (done.done, len(done.kept)) == (240, 0)  # the texts came with their items
        assert copy.gallery.count() == {"v1": 0, "v2": 240}
    assert notes.gallery.count() == {"v1": 240, "v2": 0}


def test_texts_that_searches_meet_are_embedded_again(
    notes: Workspace, servers: tuple[FakeServer, FakeServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fixstar.workspace.search.DEPTH", 7)
    notes.deploy("v2", force="a try", queries="old")
    reading = ReadThrough(notes.serving, per_hour=36_000)
    notes.serving.read_through = reading
    found = [hit.id for hit in notes.search(["rain storm"], k=7).hits[0]]
    servers[1].requests.clear()
    assert reading.work() == 7
    texts = {str(notes.gallery.get([name])[name].payload["text"]) for name in found}
    assert {text for body in servers[1].requests for text in body["input"]} == texts
    assert notes.gallery.count() == {"v1": 233, "v2": 7}
    stored = notes.gallery.get(found)
    for name in found:
        vector = notes.encoder("v2").encode([str(stored[name].payload["text"])], form="short")[0]
        np.testing.assert_allclose(stored[name].vector, vector, atol=1e-5)


def test_what_a_server_cannot_embed_while_it_is_down_is_met_again_by_the_next_search(
    notes: Workspace, servers: tuple[FakeServer, FakeServer]
) -> None:
    notes.deploy("v2", force="a try", queries="old")
    reading = ReadThrough(notes.serving, per_hour=36_000)
    notes.serving.read_through = reading
    notes.search(["rain storm"])
    servers[1].answers += [lambda _: (400, b"no")]
    with pytest.raises(ModelError, match="refused to embed"):
        reading.work()
    assert notes.gallery.count()["v1"] == 240
    notes.search(["rain storm"])
    assert reading.work() > 0


# --- reading through before answering


@pytest.fixture
def checked(notes: Workspace, tmp_path: Path) -> Workspace:
    """v2 has passed a check, and is deployed."""
    notes.check(
        "v2",
        open_images(write_jsonl(tmp_path / "held.jsonl", topic_texts(120, seed=7))),
        progress=False,
    )
    notes.deploy("v2")
    return notes


def test_a_search_embeds_its_best_items_first_and_none_of_them_again(
    checked: Workspace, servers: tuple[FakeServer, FakeServer]
) -> None:
    query = "rain storm umbrella wet cloud"
    best = [hit.id for hit in checked.search([query], k=20).hits[0]]
    servers[1].requests.clear()
    found = checked.search([query], k=5, fresh=20)
    assert found.embedded == 20
    assert len(found.hits[0]) == 5
    assert checked.gallery.count() == {"v1": 220, "v2": 20}
    stored = checked.gallery.get(best)
    texts = [str(stored[name].payload["text"]) for name in best]
    assert {item.version for item in stored.values()} == {"v2"}
    vectors = checked.encoder("v2").encode(texts, form="short")
    np.testing.assert_allclose(np.stack([stored[name].vector for name in best]), vectors, atol=1e-5)
    asked = checked.encoder("v2").encode([query], form="short", role="query")[0]
    by_new_model = [name for _, name in sorted(zip(-vectors @ asked, best, strict=True))]
    assert [hit.id for hit in found.hits[0]] == by_new_model[:5]
    servers[1].requests.clear()
    again = checked.search([query], k=5, fresh=20)
    assert again.embedded < 20  # others took the places of what turned out to be further away
    assert not {text for body in servers[1].requests for text in body["input"]} & set(texts)


def test_with_all_items_it_answers_as_if_everything_were_embedded_again(checked: Workspace) -> None:
    queries = [text for text, _ in topic_texts(3, seed=11)]
    found = checked.search(queries, k=10, fresh=240)
    assert checked.gallery.count() == {"v1": 0, "v2": 240}
    assert found.embedded == 240
    assert checked.search(queries, k=10).hits == found.hits


def test_a_filter_holds_for_what_is_embedded_too(checked: Workspace) -> None:
    found = checked.search(["rain storm"], k=3, fresh=1000, where={"label": "shoes"})
    assert found.embedded == 60
    assert {hit.payload["label"] for hit in found.hits[0]} == {"shoes"}
    assert {item.payload["label"] for item in checked.gallery.iterate("v2")} == {"shoes"}


def test_items_without_their_text_keep_their_vectors_and_are_found(checked: Workspace) -> None:
    (item,) = checked.gallery.get(["notes-3"]).values()
    checked.gallery.replace_vectors("v1", [item], item.vector[None], [{"label": "shoes"}])
    found = checked.search(["rain storm"], k=240, fresh=240)
    assert found.embedded == 239
    assert len(found.hits[0]) == 240
    assert checked.gallery.get(["notes-3"])["notes-3"].version == "v1"


def test_without_a_passed_check_nothing_is_embedded(notes: Workspace) -> None:
    notes.deploy("v2", force="a try", queries="old")
    with pytest.raises(GateError, match="no passed check"):
        notes.search(["rain storm"], fresh=10)
    assert notes.gallery.count()["v1"] == 240


def test_where_nothing_is_older_no_check_is_needed(notes: Workspace) -> None:
    assert notes.deployed() == "v1"
    found = notes.search(["rain storm"], fresh=10)
    assert (found.embedded, len(found.hits[0])) == (0, 10)


def test_a_server_that_is_down_costs_the_answer_and_nothing_else(
    checked: Workspace, servers: tuple[FakeServer, FakeServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "QUERY_SECONDS", 0.5)
    checked.search(["rain storm"])
    usual = servers[1].usual
    servers[1].answers += [
        usual,
        *[lambda _: (503, b"down")] * 50,
    ]  # the query is embedded, the items are not
    with pytest.raises(ModelError, match="time that a search may take"):
        checked.search(["rain storm"], fresh=10)
    servers[1].answers.clear()
    assert checked.gallery.count()["v1"] == 240
    assert checked.search(["rain storm"], fresh=10).embedded == 10


@pytest.mark.parametrize("fresh", [-1, 1001])
def test_so_many_items_cannot_be_embedded_before_an_answer(checked: Workspace, fresh: int) -> None:
    with pytest.raises(InputError, match="its best 1 to 1000 items"):
        checked.search(["rain storm"], fresh=fresh)


def test_a_search_of_some_versions_embeds_nothing(checked: Workspace) -> None:
    with pytest.raises(InputError, match="searches all versions"):
        checked.search(["rain storm"], fresh=10, versions=["v1"])
