"""LlamaIndex over a workspace and over its service: search, add, delete, filters, and an upgrade in between."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest
from backends import KINDS, backend, text_backend, upgrade, vector
from wording import refuses

from fixstar.errors import InputError

pytest.importorskip("llama_index.core", reason="the llama-index extra is not installed")

from llama_index.core import MockEmbedding, VectorStoreIndex
from llama_index.core.schema import (
    ImageNode,
    NodeRelationship,
    QueryBundle,
    RelatedNodeInfo,
    TextNode,
)
from llama_index.core.vector_stores import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
)

from fixstar.connectors.llama_index import FixstarRetriever, FixstarVectorStore, to_where


def nodes(folder: Path) -> list[ImageNode]:
    """Every photo, with its label, a price and the document of its class."""
    made = []
    for number, path in enumerate(sorted(folder.rglob("*.png"))):
        source = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id=f"{path.parent.name}-page")}
        fields = {"label": path.parent.name, "price": number}
        made.append(
            ImageNode(id_=f"{number}", image_path=str(path), metadata=fields, relationships=source)
        )
    return made


def only(key: str, value: Any, operator: FilterOperator = FilterOperator.EQ) -> MetadataFilters:
    return MetadataFilters(filters=[MetadataFilter(key=key, value=value, operator=operator)])


@pytest.mark.parametrize("kind", KINDS)
def test_images_are_added_found_filtered_and_deleted(kind: str, tmp_path: Path) -> None:
    with backend(kind, tmp_path) as (asked, space):
        store, given = FixstarVectorStore(asked), nodes(tmp_path / "photos")
        assert store.client is asked
        assert store.add(given) == [node.node_id for node in given]
        best, *others = FixstarRetriever(store, k=5).retrieve(given[4].image_path or "")
        assert best.node_id == "4"
        assert best.score == pytest.approx(1, abs=1e-5)
        assert best.metadata["model_version"] == "v1"
        assert isinstance(best.node, ImageNode)
        assert best.node.image_path == (given[4].image_path if kind == "workspace" else None)
        found = [best.node_id, *(one.node_id for one in others)]
        query = QueryBundle("", embedding=vector(space, Path(given[4].image_path or "")))
        assert [one.node_id for one in FixstarRetriever(store, k=5).retrieve(query)] == found
        shoes = FixstarRetriever(store, k=9, where={"label": "shoe"})
        assert {
            one.node_id for one in shoes.retrieve(QueryBundle("", image_path=given[4].image_path))
        } == {*"678"}
        assert [node.node_id for node in store.get_nodes(["4", "nothing"])] == ["4"]
        assert {
            node.node_id for node in store.get_nodes(filters=only("price", 6, FilterOperator.LT))
        } == {*"012345"}
        store.delete_nodes(["0"])
        store.delete_nodes(filters=only("price", [1, 3], FilterOperator.IN))
        store.delete("shoe-page")
        assert [item.id for item in space.gallery.iterate()] == ["2", "4", "5"]


@pytest.mark.parametrize("kind", KINDS)
def test_an_upgrade_needs_no_new_index(kind: str, tmp_path: Path) -> None:
    """Through LlamaIndex's own index; its embedding model is never asked."""
    with backend(kind, tmp_path) as (asked, space):
        store, (old, *_, new) = FixstarVectorStore(asked), nodes(tmp_path / "photos")
        index = VectorStoreIndex.from_vector_store(store, embed_model=MockEmbedding(embed_dim=1))
        retriever = index.as_retriever(similarity_top_k=2)
        store.add([old])
        upgrade(space)
        content = base64.b64encode(Path(new.image_path or "").read_bytes()).decode()
        store.add([ImageNode(id_="new", image=content)])
        made = {
            one.node_id: one.metadata["model_version"]
            for one in asyncio.run(retriever.aretrieve(old.image_path))
        }
        assert made == {"0": "v1", "new": "v2"}
        assert retriever.retrieve(new.image_path or "")[0].node_id == "new"


def test_filters_are_translated_or_refused() -> None:
    price = [
        MetadataFilter(key="price", value=number, operator=operator)
        for operator, number in (
            (FilterOperator.GTE, 1),
            (FilterOperator.LTE, 5),
            (FilterOperator.NE, 3),
        )
    ]
    sold = MetadataFilter(key="sold", value=None, operator=FilterOperator.IS_EMPTY)
    assert to_where(None) == {}
    assert to_where(MetadataFilters(filters=[*price, sold])) == {
        "price": {"ge": 1, "le": 5, "ne": 3},
        "sold": {"exists": False},
    }
    for wrong in (
        MetadataFilters(filters=price, condition=FilterCondition.OR),
        MetadataFilters(filters=[sold], condition=FilterCondition.NOT),
        MetadataFilters(filters=[MetadataFilters(filters=price)]),
        only("name", "x", FilterOperator.TEXT_MATCH),
    ):
        with refuses(InputError, varies=r"(?<=got ).*"):
            to_where(wrong)
    with pytest.raises(InputError, match="twice for 'price'"):
        to_where(MetadataFilters(filters=[price[0], price[0]]))


def test_wrong_input_is_named(tmp_path: Path) -> None:
    with backend("workspace", tmp_path) as (asked, _):
        store = FixstarVectorStore(asked)
        with refuses(InputError):
            FixstarRetriever(store).retrieve("red shoes")
        with pytest.raises(InputError, match="is a TextNode"):
            store.add([TextNode(text="red shoes")])
        with pytest.raises(InputError, match="a filter"):
            store.delete_nodes()
        index = VectorStoreIndex.from_vector_store(store, embed_model=MockEmbedding(embed_dim=1))
        with pytest.raises(InputError, match="default mode"):
            index.as_retriever(vector_store_query_mode="mmr").retrieve("x.png")


@pytest.mark.parametrize("kind", KINDS)
def test_text_nodes_are_stored_and_found(kind: str, tmp_path: Path) -> None:
    with text_backend(kind, tmp_path) as asked:
        store = FixstarVectorStore(asked)
        nodes = [
            TextNode(id_="a", text="return boots", metadata={"shop": "paris"}),
            TextNode(id_="b", text="rain storm"),
        ]
        assert store.add(nodes) == ["a", "b"]
        (best, *_) = FixstarRetriever(store, k=2).retrieve("return boots")
        assert (best.node.node_id, best.node.get_content()) == ("a", "return boots")
        assert best.node.metadata == {"shop": "paris", "model_version": "v1"}
        with pytest.raises(InputError, match="stores texts; c is a"):
            store.add([ImageNode(id_="c", image_path="photo.png")])
