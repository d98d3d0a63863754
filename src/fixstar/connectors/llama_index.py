"""A workspace as a LlamaIndex vector store of image or text nodes, and a retriever that takes images or texts.

store = FixstarVectorStore(Workspace("shop"))
store.add([ImageNode(image_path="photos/red.jpg", metadata={"label": "shoe"})])
FixstarRetriever(store, k=5, where={"label": "shoe"}).retrieve("query.jpg")
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fixstar.connectors.backend import (
    add_images,
    add_texts,
    delete_items,
    get_items,
    image_path,
    metadata,
    reads,
    search_original,
    search_vector,
    stored_text,
)
from fixstar.errors import InputError, MissingExtraError
from fixstar.gallery import Hit
from fixstar.gallery.filters import Where

try:
    from llama_index.core.base.base_retriever import BaseRetriever
    from llama_index.core.bridge.pydantic import PrivateAttr
    from llama_index.core.schema import BaseNode, ImageNode, NodeWithScore, QueryBundle, TextNode
    from llama_index.core.vector_stores.types import (
        BasePydanticVectorStore,
        FilterCondition,
        FilterOperator,
        MetadataFilters,
        VectorStoreQuery,
        VectorStoreQueryMode,
        VectorStoreQueryResult,
    )
except ImportError:
    raise MissingExtraError("llama-index-core", "llama-index", "the LlamaIndex connector") from None

if TYPE_CHECKING:
    from fixstar.connectors.backend import Backend, Picture

_DOCUMENT = "ref_doc_id"  # the payload field that names the document of a node
_CONDITIONS = {
    FilterOperator.EQ: "eq",
    FilterOperator.NE: "ne",
    FilterOperator.GT: "gt",
    FilterOperator.GTE: "ge",
    FilterOperator.LT: "lt",
    FilterOperator.LTE: "le",
    FilterOperator.IN: "in",
    FilterOperator.IS_EMPTY: "exists",
}


def to_where(filters: MetadataFilters | None) -> Where:
    """Convert LlamaIndex's filters; unsupported ones are refused."""
    where: dict[str, dict[str, Any]] = {}
    filters = filters or MetadataFilters(filters=[])
    for one in filters.filters:
        name = None if isinstance(one, MetadataFilters) else _CONDITIONS.get(one.operator)
        if name is None or filters.condition != FilterCondition.AND:
            known = ", ".join(operator.value for operator in _CONDITIONS)
            raise InputError(f"fixstar filters by {known}, all of which must hold; got {filters!r}")
        if name in where.setdefault(one.key, {}):
            raise InputError(f"the filter has {one.operator} twice for {one.key!r}")
        where[one.key][name] = False if name == "exists" else one.value
    return where


class FixstarVectorStore(BasePydanticVectorStore):
    """Images or texts of a workspace, or of a service's ``Client``, as nodes. The workspace's own model embeds."""

    stores_text: bool = True
    is_embedding_query: bool = False  # the query's text is a text, or the path of an image
    _backend: Backend = PrivateAttr()

    def __init__(self, backend: Backend) -> None:
        super().__init__()
        self._backend = backend

    @property
    def client(self) -> Backend:
        """The workspace, or the client of a service."""
        return self._backend

    def add(self, nodes: Sequence[BaseNode]) -> list[str]:
        """Embed and store the images or texts of nodes. Vectors that the nodes may have are not used."""
        has_texts = reads(self._backend) == "texts"
        if strange := [node for node in nodes if _is_text(node) != has_texts]:
            found = type(strange[0]).__name__
            raise InputError(
                f"this gallery stores {reads(self._backend)}; {strange[0].node_id} is a {found}"
            )
        payloads = []
        for node in nodes:
            payload = dict(node.metadata)
            if node.ref_doc_id is not None:
                payload[_DOCUMENT] = node.ref_doc_id
            payloads.append(payload)
        if has_texts:
            add_texts(self._backend, {node.node_id: node.get_content() for node in nodes}, payloads)
        else:
            images = {node.node_id: _image(node) for node in nodes if isinstance(node, ImageNode)}
            add_images(self._backend, images, payloads)
        return [node.node_id for node in nodes]

    def delete(self, ref_doc_id: str) -> None:
        """Delete all nodes of a document."""
        found = get_items(self._backend, where={_DOCUMENT: ref_doc_id})
        delete_items(self._backend, [ref_doc_id, *(item.id for item in found)])

    def delete_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None
    ) -> None:
        """Delete nodes by id, or by metadata, or those that pass both."""
        if node_ids is None and not (filters and filters.filters):
            raise InputError(
                "name the nodes to delete, or a filter; a whole gallery is not deleted from here"
            )
        found = get_items(self._backend, node_ids, to_where(filters))
        delete_items(self._backend, [item.id for item in found])

    def get_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None
    ) -> list[BaseNode]:
        """The stored nodes of these ids and with such metadata."""
        return [self._node(item) for item in get_items(self._backend, node_ids, to_where(filters))]

    def query(self, query: VectorStoreQuery, **options: Any) -> VectorStoreQueryResult:
        """The nearest nodes of the vector in a query, else of its text, which is the path where images are stored."""
        if query.mode != VectorStoreQueryMode.DEFAULT or query.node_ids or query.doc_ids:
            raise InputError(
                "fixstar searches images in the default mode, restricted by filters, not by ids"
            )
        asking: dict[str, Any] = {
            "k": query.similarity_top_k,
            "where": to_where(query.filters) or None,
            **options,
        }
        if query.query_embedding is not None:
            hits = search_vector(self._backend, query.query_embedding, **asking)
        else:
            hits = search_original(self._backend, query.query_str or "", **asking)
        return VectorStoreQueryResult(
            [self._node(hit) for hit in hits], [hit.score for hit in hits], [hit.id for hit in hits]
        )

    def _node(self, hit: Hit) -> TextNode:
        text = stored_text(self._backend, hit)
        if text is not None:
            return TextNode(id_=hit.id, text=text, metadata=metadata(self._backend, hit))
        path = image_path(self._backend, hit)
        if path is None:
            return ImageNode(id_=hit.id, metadata=metadata(self._backend, hit))
        return ImageNode(id_=hit.id, image_path=str(path), metadata=metadata(self._backend, hit))


class FixstarRetriever(BaseRetriever):
    """The nearest items of a query: a path, a text, or a ``QueryBundle`` with an ``image_path`` or an ``embedding``."""

    def __init__(self, store: FixstarVectorStore, k: int = 10, **options: Any) -> None:
        super().__init__()
        self._store = store
        self._k = k
        self._options = options

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        text = query_bundle.image_path or query_bundle.query_str
        query = VectorStoreQuery(query_bundle.embedding, self._k, query_str=text)
        found = self._store.query(query, **self._options)
        return [
            NodeWithScore(node=node, score=score)
            for node, score in zip(found.nodes, found.similarities, strict=True)
        ]


def _is_text(node: BaseNode) -> bool:
    """Whether a node holds a text; image nodes are text nodes too, for LlamaIndex."""
    return isinstance(node, TextNode) and not isinstance(node, ImageNode)


def _image(node: ImageNode) -> Picture:
    seen = node.resolve_image()
    return Path(seen) if isinstance(seen, (str, Path)) else seen.read()
