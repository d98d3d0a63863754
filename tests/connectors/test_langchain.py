"""LangChain over a workspace and over its service: search, add, delete, filters, and an upgrade in between."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from backends import KINDS, backend, text_backend, upgrade, vector
from PIL import Image
from wording import refuses

from fixstar.errors import FixstarError, InputError

pytest.importorskip("langchain_core", reason="the langchain extra is not installed")

from langchain_core.documents import Document

from fixstar.connectors.langchain import FixstarVectorStore


@pytest.mark.parametrize("kind", KINDS)
def test_images_are_added_found_filtered_and_deleted(kind: str, tmp_path: Path) -> None:
    with backend(kind, tmp_path) as (asked, space):
        store = FixstarVectorStore(asked)
        paths = [str(path) for path in sorted((tmp_path / "photos").rglob("*.png"))]
        labels = [{"label": Path(path).parent.name} for path in paths]
        assert store.add_texts(paths, labels) == paths
        ((best, score), *others) = store.similarity_search_with_score(paths[4], k=5)
        assert best.id == paths[4]
        assert best.metadata == {"label": "hat", "model_version": "v1"}
        assert score == pytest.approx(1, abs=1e-5)
        assert len(others) == 4
        assert [one.page_content == one.id for one, _ in others] == [True] * 4
        shoes = store.similarity_search(paths[4], k=9, where={"label": "shoe"})
        assert sorted(str(one.id) for one in shoes) == paths[6:]
        near = store.similarity_search_by_vector(vector(space, Path(paths[4])), k=5)
        assert near == [best, *(one for one, _ in others)]
        with Image.open(paths[4]) as image:
            assert store.similarity_search(image, k=1) == [best]
        assert store.get_by_ids([paths[4], "nothing"]) == [best]
        assert store.delete([paths[4]])
        assert not store.delete([paths[4], paths[5]])
        assert len(store.similarity_search(paths[4], k=20)) == len(paths) - 2


@pytest.mark.parametrize("kind", KINDS)
def test_an_upgrade_needs_no_new_store(kind: str, tmp_path: Path) -> None:
    with backend(kind, tmp_path) as (asked, space):
        old, new = (str(tmp_path / "photos" / name) for name in ("hat/0.png", "shoe/0.png"))
        retriever = FixstarVectorStore.from_texts([old], None, backend=asked).as_retriever(
            search_kwargs={"k": 2}
        )
        upgrade(space)
        retriever.add_documents([Document(new, id="new", metadata={"price": 3})])
        made = {
            one.id: one.metadata["model_version"] for one in asyncio.run(retriever.ainvoke(old))
        }
        assert made == {old: "v1", "new": "v2"}
        (again,) = retriever.invoke(new, k=1)
        assert again.metadata == {"price": 3, "model_version": "v2"}


def test_scores_below_a_threshold_are_left_out(tmp_path: Path) -> None:
    with backend("workspace", tmp_path) as (asked, _):
        store = FixstarVectorStore(asked)
        paths = store.add_texts(
            [str(path) for path in sorted((tmp_path / "photos").rglob("*.png"))]
        )
        exact = {"score_threshold": 0.99999, "k": 9}
        found = store.as_retriever(
            search_type="similarity_score_threshold", search_kwargs=exact
        ).invoke(paths[0])
        assert paths[0] in [one.id for one in found]
        assert len(found) < len(paths)


def test_wrong_input_is_named(tmp_path: Path) -> None:
    with backend("workspace", tmp_path) as (asked, space):
        store, good = FixstarVectorStore(asked), tmp_path / "photos" / "hat" / "0.png"
        with refuses(InputError):
            store.similarity_search("red shoes")
        with pytest.raises(TypeError, match="filter"):  # LangChain's other stores call it so
            store.similarity_search(str(good), filter={"label": "shoe"})
        with refuses(InputError):
            store.add_texts([good.read_bytes()])
        with pytest.raises(InputError, match="one id"):
            store.add_texts([str(good)], ids=["a", "b"])
        with pytest.raises(InputError, match="distinct"):
            store.add_texts([str(good)] * 2)
        with pytest.raises(InputError, match="name the ids"):
            store.delete()
        with pytest.raises(InputError, match="own model"):
            FixstarVectorStore.from_texts([], object(), backend=asked)  # type: ignore[arg-type]
        (tmp_path / "bad.png").write_bytes(b"not an image")
        with pytest.raises(FixstarError, match="broken"):
            store.add_texts([str(tmp_path / "bad.png"), good.read_bytes()], ids=["broken", "kept"])
        assert [item.id for item in space.gallery.iterate()] == ["kept"]
        (kept,) = store.get_by_ids(["kept"])
        assert Path(kept.page_content).read_bytes() == good.read_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_texts_are_added_found_and_read(kind: str, tmp_path: Path) -> None:
    with text_backend(kind, tmp_path) as asked:
        store = FixstarVectorStore(asked)
        (boots, rain) = store.add_texts(
            ["return boots", "rain storm cloud"], [{"shop": "paris"}, {}]
        )
        assert store.add_texts(["bread oven"], ids=["mine"]) == ["mine"]
        ((best, score), *others) = store.similarity_search_with_score("return boots", k=3)
        assert (best.id, best.page_content) == (boots, "return boots")
        assert best.metadata == {"shop": "paris", "model_version": "v1"}
        assert score == pytest.approx(1, abs=1e-5)
        assert {one.id for one, _ in others} == {rain, "mine"}
        assert store.get_by_ids([boots]) == [best]
        again = store.add_texts(["return boots"])  # without an id it is another document
        assert again != [boots]
        with pytest.raises(InputError, match="distinct"):
            store.add_texts(["a", "b"], ids=["x", "x"])
        with pytest.raises(InputError, match="holds texts"):
            store.similarity_search(b"bytes")
        with pytest.raises(FixstarError):
            store.add_texts([" "])
