"""Moves of the deployment, retired versions and running work exclude each other where they must."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from shops import pictures, shop
from wording import refuses

from fixstar.errors import FixstarError, InputError, ModelError
from fixstar.images import ImageSource
from fixstar.models import EmbeddedBatch
from fixstar.workspace import Workspace, catalogue
from fixstar.workspace.items import LocalEmbedder


@pytest.fixture
def space(tmp_path: Path) -> Iterator[Workspace]:
    with shop(tmp_path / "shop", versions=3) as made:
        yield made


def test_a_version_is_not_deployed_while_it_is_retired(
    space: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[FixstarError] = []

    def deploy() -> None:
        try:
            Workspace(space.path).deploy("v2", force="a race")
        except FixstarError as error:
            refused.append(error)

    racing = threading.Thread(target=deploy)
    needs = space._needs

    def slowly(*words: Any, **named: Any) -> Any:
        found = needs(*words, **named)
        racing.start()
        racing.join(1)  # whatever it does by then, it may not have moved the pointer
        return found

    monkeypatch.setattr(space, "_needs", slowly)
    space.retire("v2")
    racing.join()
    assert "v2" not in space.versions()
    assert space.deployed() == "v1"
    assert "retired" in str(refused[0])


def test_a_version_is_not_retired_while_items_are_embedded_with_it(
    space: Workspace, tmp_path: Path
) -> None:
    space.deploy("v2", force="to index")
    space.deploy("v3", force="so that v2 could go")
    space.deploy("v1", force="and is not where a rollback leads")
    refused: list[str] = []

    class Slow(LocalEmbedder):
        def __call__(self, batches: Iterable[Sequence[ImageSource]]) -> Iterator[EmbeddedBatch]:
            for batch in super().__call__(batches):
                with refuses(InputError) as caught:
                    Workspace(space.path).retire("v2")
                refused.append(str(caught.value))
                yield batch

    embedder = Slow(space.encoder("v2"))
    done = space.index(catalogue(pictures(tmp_path / "photos")), embedder, version="v2")
    assert refused
    assert space.gallery.count()["v2"] == done.added > 0


def test_nothing_is_stored_by_a_version_that_was_retired_meanwhile(
    space: Workspace, tmp_path: Path
) -> None:
    space.serving.encoder("v2")
    Workspace(space.path).retire("v2")
    with pytest.raises(ModelError, match="v2 was retired"):
        space.index(catalogue(pictures(tmp_path / "photos")), version="v2")
    assert not space.gallery.count().get("v2")


def test_status_says_that_the_deployed_version_is_gone(space: Workspace) -> None:
    space.deploy("v2", force="to lose it")
    space.registry.retire("v2")
    with refuses(ModelError, "deploy") as caught:
        space.status()
    (step,) = caught.value.next_steps
    assert step.action == "deploy"
    space.deploy(str(step.arguments["version"]), force="what it says")
    assert space.status().deployed == "v3"
