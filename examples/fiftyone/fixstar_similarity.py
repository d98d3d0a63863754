"""A workspace as a FiftyOne similarity backend: samples are items of its gallery, by their ids.

Copy this file beside your program. A test runs it with FiftyOne's similarity classes and a list of samples, where
FiftyOne is installed. It has not run with a real dataset, which needs MongoDB, nor in the App.

from fixstar_similarity import FixstarSimilarityConfig

index = fob.compute_similarity(
    dataset, embeddings=False, backend=FixstarSimilarityConfig, workspace="shop", brain_key="fixstar"
)
index.add_samples(dataset)
dataset.sort_by_similarity(dataset.first().id, k=10, brain_key="fixstar")
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from fiftyone.brain.similarity import Similarity, SimilarityConfig, SimilarityIndex

from fixstar.connectors.backend import add_images
from fixstar.errors import InputError
from fixstar.gallery import Hit
from fixstar.workspace import Examples, Workspace


class FixstarSimilarityConfig(SimilarityConfig):
    """``workspace`` is the directory of a workspace, whose own model embeds."""

    def __init__(self, workspace: str | Path | None = None, **kwargs: Any) -> None:
        if workspace is None:
            raise InputError("give workspace=, the directory of a fixstar workspace")
        if kwargs.get("patches_field") is not None:
            raise InputError("fixstar embeds whole images; leave patches_field out")
        super().__init__(**kwargs)
        self.workspace = str(Path(workspace).absolute())

    @property
    def method(self) -> str:
        """The name of this backend."""
        return "fixstar"

    @property
    def max_k(self) -> None:
        """There is no limit."""

    @property
    def supports_least_similarity(self) -> bool:
        """Only the nearest are found."""
        return False

    @property
    def supported_aggregations(self) -> tuple[str, ...]:
        """Several examples are averaged."""
        return ("mean",)


class FixstarSimilarity(Similarity):
    """Makes the index of a dataset."""

    def initialize(self, samples: Any, brain_key: str) -> FixstarSimilarityIndex:
        """The index over a workspace."""
        return FixstarSimilarityIndex(samples, self.config, brain_key, backend=self)


class FixstarSimilarityIndex(SimilarityIndex):
    """Samples of a dataset in a workspace's gallery. Vectors of all versions are searched together."""

    def __init__(
        self, samples: Any, config: FixstarSimilarityConfig, brain_key: str, backend: Any = None
    ) -> None:
        self.workspace = Workspace(config.workspace)
        super().__init__(samples, config, brain_key, backend=backend)

    @classmethod
    def _from_dict(
        cls,
        d: Any,  # noqa: ARG003
        samples: Any,
        config: Any,
        brain_key: str,
    ) -> FixstarSimilarityIndex:
        return cls(samples, config, brain_key)

    @property
    def total_index_size(self) -> int:
        """How many samples of the dataset are in the gallery."""
        return len(self.workspace.gallery.get(self._samples.values("id")))

    def add_samples(self, samples: Any) -> None:
        """Embed the images of samples with the deployed version, and store them; unchanged ones are skipped."""
        ids, paths = samples.values(["id", "filepath"])
        add_images(self.workspace, dict(zip(ids, paths, strict=True)), [{}] * len(ids))
        self.reload()

    def add_to_index(self, *_: Any, **__: Any) -> None:
        """Refused: the vectors must be those of the workspace's model. See ``add_samples``."""
        raise InputError(
            "the workspace's own model embeds images: pass embeddings=False, then call add_samples(samples)"
        )

    def remove_from_index(
        self,
        sample_ids: Sequence[str] | None = None,
        label_ids: Sequence[str] | None = None,
        allow_missing: bool = True,
        reload: bool = True,
        **_: Any,
    ) -> None:
        """Delete samples from the gallery."""
        ids = _sample_ids(sample_ids, label_ids)
        if not allow_missing:
            self._require(ids)
        self.workspace.gallery.delete(ids)
        if reload:
            self.reload()

    def get_embeddings(
        self,
        sample_ids: Sequence[str] | None = None,
        label_ids: Sequence[str] | None = None,
        allow_missing: bool = True,
        **_: Any,
    ) -> tuple[Any, Any, None]:
        """Stored vectors [N, width] in their short form, and their sample ids. All must be of one version."""
        ids = (
            self._samples.values("id") if sample_ids is None else _sample_ids(sample_ids, label_ids)
        )
        if not allow_missing:
            self._require(ids)
        found = self.workspace.gallery.get(ids)
        if len(versions := {item.version for item in found.values()}) > 1:
            raise InputError(
                f"these vectors are of {', '.join(sorted(versions))}, which are not one space; "
                "ask for the samples of one version"
            )
        return np.array([item.vector for item in found.values()]), np.array(list(found)), None

    def cleanup(self) -> None:
        """Delete the samples of the dataset from the gallery; other items stay."""
        self.workspace.gallery.delete(self._samples.values("id"))

    def _require(self, ids: Sequence[str]) -> None:
        known = self.workspace.gallery.get(ids)
        if missing := [name for name in ids if name not in known]:
            raise InputError(
                f"{len(missing)} of {len(ids)} samples are not in the workspace, such as {missing[0]}"
            )

    def _parse_query(self, query: Any) -> Any:
        """As FiftyOne does, but the path of an image is a query too."""
        if isinstance(query, (str, Path)) and Path(query).is_file():
            return self.workspace.serving.embed(self.workspace.deployed(), [query])[0]
        return super()._parse_query(query)

    def _kneighbors(
        self,
        query: Any = None,
        k: int | None = None,
        reverse: bool = False,
        aggregation: str | None = None,
        return_dists: bool = False,
    ) -> Any:
        if query is None or reverse or aggregation not in (None, "mean"):
            raise InputError(
                "fixstar finds the nearest samples of a query, and averages several examples"
            )
        single = isinstance(query, str) or (isinstance(query, np.ndarray) and query.ndim == 1)
        examples = [query] if single else list(query)
        groups = [examples] if single or aggregation else [[one] for one in examples]
        found = [self._nearest(group, k) for group in groups]
        ids, dists = ([[pair[part] for pair in pairs] for pairs in found] for part in (0, 1))
        answer = (ids[0], None, dists[0]) if single or aggregation else (ids, None, dists)
        return answer if return_dists else answer[:2]  # None: there are no labels

    def _nearest(self, examples: list[Any], k: int | None) -> list[tuple[str, float]]:
        """Ids and cosine distances. Examples that are samples come first, as in FiftyOne's own backends."""
        serving, space = self.workspace.serving, self.workspace
        if isinstance(examples[0], str):
            self._require(examples)
            own = [Hit(name, 1.0, "", {}) for name in examples]
            return self._in_view(
                k, own, lambda most: space.search_examples(Examples(ids=examples), k=most).hits[0]
            )
        mean = np.mean(np.asarray(examples, dtype=np.float32), axis=0)
        vector = (mean / np.linalg.norm(mean))[None]
        version = space.deployed()
        return self._in_view(
            k, [], lambda most: serving.search_vectors(version, vector, k=most).hits[0]
        )

    def _in_view(
        self, k: int | None, own: list[Hit], search: Callable[[int], list[Hit]]
    ) -> list[tuple[str, float]]:
        """The first k hits that are in the view: asks for more as long as too many are not."""
        view, total = set(self.current_sample_ids), sum(self.workspace.gallery.count().values())
        wanted = total if k is None else k
        most = min(max(wanted, 1), total)
        while True:
            found = [hit for hit in (*own, *search(most)) if hit.id in view][:wanted]
            if len(found) == wanted or most >= total:
                return [(hit.id, 1 - hit.score) for hit in found]
            most = min(4 * most, total)


def _sample_ids(sample_ids: Sequence[str] | None, label_ids: Sequence[str] | None) -> list[str]:
    if sample_ids is None or label_ids is not None:
        raise InputError("fixstar stores whole images: give sample_ids, and no label_ids")
    return [str(name) for name in sample_ids]
