"""A workspace as a LangChain vector store: of texts, or of images, whose texts are then their paths.

store = FixstarVectorStore(Workspace("shop"))
store.add_texts(["photos/red.jpg"], [{"label": "shoe"}])
store.as_retriever(search_kwargs={"k": 5, "where": {"label": "shoe"}}).invoke("query.jpg")

notes = FixstarVectorStore(Workspace("notes"))
notes.add_texts(["Shoes can be returned within 30 days."], [{"label": "returns"}])
notes.as_retriever().invoke("how do I return shoes")
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

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

try:
    from langchain_core.documents import Document
    from langchain_core.vectorstores import VectorStore
except ImportError:
    raise MissingExtraError("langchain-core", "langchain", "the LangChain connector") from None

if TYPE_CHECKING:
    from fixstar.connectors.backend import Backend, Picture


class FixstarVectorStore(VectorStore):
    """What a workspace, or a service's ``Client``, stores, as documents: the content is the text, or the path or id.

    The workspace's own model embeds. Keyword arguments of all searches are those of ``SearchRequest``.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    def add_texts(
        self,
        texts: Iterable[Picture],
        metadatas: Sequence[Mapping[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
    ) -> list[str]:
        """Embed and store texts or images.

        An id is a new one for a text, and the path for an image; bytes and PIL images need one.
        """
        images = list(texts)
        if len(images) != len(ids or images) or len(images) != len(metadatas or images):
            raise InputError("give one id and one metadata dictionary per text or image, or none")
        if reads(self.backend) == "texts":
            return self._add_texts(
                images, metadatas or [{}] * len(images), ids or [None] * len(images)
            )
        names = [
            name or _path(image)
            for name, image in zip(ids or [None] * len(images), images, strict=True)
        ]
        if len(set(names)) < len(names):
            raise InputError("the ids must be distinct")
        add_images(
            self.backend, dict(zip(names, images, strict=True)), metadatas or [{}] * len(images)
        )
        return names

    def _add_texts(
        self,
        texts: Sequence[Picture],
        metadatas: Sequence[Mapping[str, Any]],
        ids: Sequence[str | None],
    ) -> list[str]:
        named: dict[str, str] = {}
        for name, text in zip(ids, texts, strict=True):
            if not isinstance(text, str):
                raise InputError(f"this gallery holds texts, got a {type(text).__name__}")
            named[name or str(uuid.uuid4())] = text
        if len(named) < len(texts):
            raise InputError("the ids must be distinct")
        add_texts(self.backend, named, metadatas)
        return list(named)

    def delete(self, ids: Sequence[str] | None = None) -> bool:
        """Delete items by id; returns whether all existed."""
        if ids is None:
            raise InputError("name the ids to delete; a whole gallery cannot be deleted here")
        return delete_items(self.backend, ids) == len(set(ids))

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """The stored documents with these ids."""
        return [self._document(item) for item in get_items(self.backend, ids)]

    def similarity_search(self, query: Picture, k: int = 4, **options: Any) -> list[Document]:
        """The documents nearest to a text, or to an image: a path, the bytes of a file, or a PIL image."""
        return [found for found, _ in self.similarity_search_with_score(query, k, **options)]

    def similarity_search_with_score(
        self, query: Picture, k: int = 4, **options: Any
    ) -> list[tuple[Document, float]]:
        """The nearest documents with their scores, best first; higher is nearer."""
        hits = search_original(self.backend, query, k=k, **options)
        return [(self._document(hit), hit.score) for hit in hits]

    def similarity_search_by_vector(
        self, embedding: Sequence[float], k: int = 4, version: str | None = None, **options: Any
    ) -> list[Document]:
        """The documents nearest to a vector that a version made, the deployed one by default."""
        hits = search_vector(self.backend, embedding, version, k=k, **options)
        return [self._document(hit) for hit in hits]

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        return lambda score: min(max(score, 0.0), 1.0)

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: None,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        backend: Backend,
    ) -> Self:
        """A store over ``backend`` with these texts or images added. ``embedding`` must be None."""
        if embedding is not None:
            raise InputError("the workspace's own model embeds; pass embedding=None")
        store = cls(backend)
        store.add_texts(texts, metadatas, ids=ids)
        return store

    def _document(self, hit: Hit) -> Document:
        content = stored_text(self.backend, hit) or str(image_path(self.backend, hit) or hit.id)
        return Document(id=hit.id, page_content=content, metadata=metadata(self.backend, hit))


def _path(image: Picture) -> str:
    if isinstance(image, (str, Path)):
        return str(image)
    raise InputError(
        f"an image that is not given by its path needs an id; got a {type(image).__name__}"
    )
