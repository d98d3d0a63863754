"""Answering queries: the deployed version embeds them, and the vectors of all versions are searched.

Every result belongs to one version: the one that was deployed when the search began. ``translations`` decides how its
queries search the vectors of other versions. Some translations also need the query embedded by the older model. That
needs the image, and one more forward pass per older version with vectors. A vector from a client or from the gallery
is a query of a single model. Hits from several versions are ranked by probability if the last check has calibrations
for all of them, else by standardised scores.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Unpack

import numpy as np

from fixstar.errors import GalleryError, InputError
from fixstar.gallery import Gallery, Hit, Item, SearchOptions, SearchRequest, SearchResult, Vectors
from fixstar.gallery.ranking import Carrier
from fixstar.gallery.store import Question
from fixstar.geometry import unit
from fixstar.images import Decode, ImageSource
from fixstar.models import Encoder
from fixstar.models.backbones.endpoint import QUERY_SECONDS, answered_within
from fixstar.translation import Calibration, Translation
from fixstar.workspace.backfill.read_through import (
    DEPTH,
    ReadThrough,
    check_fresh,
    embed_again,
    require_passed_check,
)
from fixstar.workspace.deployment import Move, Rollout
from fixstar.workspace.items import ImageStore, ensure_version
from fixstar.workspace.registry import Registry
from fixstar.workspace.translations import Scales, Translations, usable
from fixstar.workspace.usage import Usage

UNSCALED = Calibration(slope=1.0, offset=0.0)
VERIFY_EVERY = 600.0  # seconds after which a model in memory is re-verified


class Serving:
    """Search with the deployed version. Keeps the ``keep`` last used encoders in memory. Threads may share it."""

    def __init__(
        self,
        registry: Registry,
        rollout: Rollout,
        gallery: Gallery,
        device: str = "cpu",
        keep: int = 3,
        usage: Usage | None = None,
    ) -> None:
        self.path = registry.path
        self.registry = registry
        self.rollout = rollout
        self.gallery = gallery
        self.translations = Translations(registry, rollout, gallery)
        self.device = device
        self._keep = keep
        self._usage = usage
        self.read_through: ReadThrough | None = None  # queues items that searches meet, if set
        self._carrier = Carrier(gallery.projection)
        self._encoders: OrderedDict[str, Encoder] = OrderedDict()
        self._verified: dict[str, float] = {}  # when each encoder was last verified
        self._needed = 0  # how many encoders a search needs, when it was last asked
        self._lock = threading.Lock()
        self._loading = threading.Lock()

    def deployed(self) -> str:
        """The version that embeds queries and new items; before any deployment, the first version."""
        self.registry.newest()  # raises without a version
        return self.rollout.current()

    def live(self) -> list[str]:
        """The versions with vectors in the gallery, and the deployed one."""
        found = [name for name, count in self.gallery.count().items() if count]
        return list(dict.fromkeys([*found, self.deployed()]))

    def encoder(self, version: str) -> Encoder:
        """A version's encoder, loaded once and verified every ten minutes. Registers the version in the gallery."""
        with self._lock:
            known = self._encoders.get(version)
            if known is not None:
                self._encoders.move_to_end(version)
        if known is None:
            return self._load(version)
        if time.monotonic() - self._verified[version] > VERIFY_EVERY:
            known.require_unchanged()
            self._verified[version] = time.monotonic()
        return known

    def _load(self, version: str) -> Encoder:
        with self._loading:
            known = self._encoders.get(version)
            if known is not None:  # another thread has loaded it
                return known
            self.registry.newest()  # raises without a version
            encoder = self.registry.encoder(version, self.device)
            ensure_version(self.gallery, version, encoder)
            with self._lock:
                self._encoders[version] = encoder
                self._verified[version] = time.monotonic()
                while len(self._encoders) > max(self._keep, self._needed):
                    self._encoders.popitem(last=False)
            return encoder

    def embed(
        self, version: str, images: Sequence[ImageSource], decode: Decode | None = None
    ) -> Vectors:
        """Query vectors [N, width] of a version; an unreadable image raises ``ImageError``.

        A server that embeds texts has ten seconds, because somebody waits for the answer.
        """
        encoder = self.encoder(version)
        with answered_within(QUERY_SECONDS):
            return encoder.encode(images, form="short", decode=decode, role="query")

    # --- searching

    def search(
        self,
        images: Sequence[ImageSource],
        request: SearchRequest | None = None,
        *,
        fresh: int = 0,
        **options: Unpack[SearchOptions],
    ) -> SearchResult:
        """The nearest items of each image, asked by all models that the deployment's translations need.

        ``fresh`` reads through before answering: of the best so many items of each query those with older vectors,
        whose images or texts are here, are embedded by the deployed version and stored. Then the query is asked again.
        An item costs one embedding when the first search meets it, and none later. If there are such items, the
        version's check must have passed.
        """
        move, models = self.asking()
        by_models = {name: self.embed(name, images) for name in models}
        if not fresh:
            return self.search_queries(move, by_models, request, **options)
        wanted = SearchRequest.of(request, **options)
        check_fresh(fresh, wanted.versions)
        first = self._search(
            move.version, by_models, replace(wanted, k=fresh, min_score=None), move
        )
        met = list({hit.id for found in first.hits for hit in found if hit.version != move.version})
        if met:
            require_passed_check(self)
        with answered_within(QUERY_SECONDS):
            embedded = embed_again(self, met)
        move, models = self.asking()  # vectors of the deployed version need its queries
        for name in models:
            if name not in by_models:
                by_models[name] = self.embed(name, images)
        return self.search_queries(move, by_models, wanted)._replace(embedded=embedded)

    def asking(self) -> tuple[Move, list[str]]:
        """The current deployment, and the versions that embed each query: the deployed one, then others.

        If all stored vectors are searched by their own models, the deployed version embeds no query.
        """
        move = self.rollout.current_move()
        models = list(self.translations.plan(move.version, move).embedding)
        self._needed = len({move.version, *models})
        return move, models

    def search_queries(
        self,
        move: Move,
        vectors: Mapping[str, Vectors],
        request: SearchRequest | None = None,
        **options: Unpack[SearchOptions],
    ) -> SearchResult:
        """The nearest items of queries, embedded by all versions of ``asking``, [N, width] each."""
        return self._counted(
            self._search(move.version, vectors, SearchRequest.of(request, **options), move)
        )

    def search_vectors(
        self,
        version: str,
        vectors: Vectors,
        request: SearchRequest | None = None,
        **options: Unpack[SearchOptions],
    ) -> SearchResult:
        """The nearest items of vectors that a version made: one model per query."""
        return self._counted(
            self._search(version, {version: vectors}, SearchRequest.of(request, **options))
        )

    def like(
        self, item: str, request: SearchRequest | None = None, **options: Unpack[SearchOptions]
    ) -> SearchResult:
        """The nearest neighbours of a stored item by its stored vector, without the item itself."""
        return self.by_examples(Examples(ids=(item,)), Examples(), request, **options)

    def by_examples(
        self,
        positive: Examples,
        negative: Examples | None = None,
        request: SearchRequest | None = None,
        decode: Decode | None = None,
        **options: Unpack[SearchOptions],
    ) -> SearchResult:
        """The nearest items of several examples, without the examples: like the positive, unlike the negative ones.

        The query is the positive mean minus half of the negative one. Stored vectors of one version are used as they
        are, otherwise the deployed version embeds all images.
        """
        negative = negative or Examples()
        wanted = SearchRequest.of(request, **options)
        if not positive.ids and not positive.images:
            raise InputError("a search by examples needs a positive one: an item's id, or an image")
        names = tuple(dict.fromkeys((*positive.ids, *negative.ids)))
        items = self.gallery.get(names)
        unknown = [name for name in names if name not in items]
        if unknown:
            raise GalleryError(f"the gallery has no item {unknown[0]!r}")
        more = SearchRequest.of(wanted, k=wanted.k + len(names))
        versions = {item.version for item in items.values()}
        if len(versions) == 1 and not positive.images and not negative.images:
            (version,) = versions
            sides = [[items[name].vector for name in side.ids] for side in (positive, negative)]
            result = self._search(version, {version: _combined(*sides)}, more)
        else:
            move, models = self.asking()
            pictures = [
                [*self._images_of(side.ids, items), *side.images] for side in (positive, negative)
            ]
            made = {}
            for name in models:
                sides = [list(self.embed(name, some, decode)) if some else [] for some in pictures]
                made[name] = _combined(*sides)
            result = self._search(move.version, made, more, move)
        if len(names) + len(positive.images) + len(negative.images) > 1:
            result = result._replace(thresholds={})  # thresholds were measured with single images
        found = [hit for hit in result.hits[0] if hit.id not in items][: wanted.k]
        return self._counted(result._replace(hits=[found]))

    def _images_of(self, names: Sequence[str], items: Mapping[str, Item]) -> list[ImageSource]:
        """The images of stored items; raises if one is missing."""
        store = ImageStore(self.path, self.registry.reads())
        found = {name: store.original(items[name]) for name in names}
        missing = [name for name, path in found.items() if path is None]
        if missing:
            raise GalleryError(
                f"{missing[0]!r} has no image or text here, so its vector, of {items[missing[0]].version}, cannot be "
                "combined with images or with vectors of other versions; use examples of one version, or leave it out"
            )
        return [path for path in found.values() if path is not None]

    def _search(
        self,
        version: str,
        by_models: Mapping[str, Vectors],
        request: SearchRequest,
        move: Move | None = None,
    ) -> SearchResult:
        """Search with queries of a version, and of other models where translations need them.

        ``move`` is the deployment that determined the models; default: the current one.
        """
        move = move or self.rollout.current_move()
        plan = self.translations.plan(
            version, move, frozenset(by_models), request.versions, request.calibrate
        )
        questions = [
            self._question(name, way, version, by_models, plan.scales)
            for name, way in plan.asked.items()
        ]
        noted = self.read_through
        if noted is not None and version != move.version:
            noted = None
        if noted is None:
            depth = request.k
        else:
            depth = max(request.k, DEPTH)
        plain = replace(request, k=depth, min_score=None, versions=None)
        if questions:
            hits = self.gallery.ask(questions, plain)
        else:
            hits = [[] for _ in next(iter(by_models.values()))]
        if noted is not None:
            for found in hits:
                noted.met(found[:DEPTH], version)
            hits = [found[: request.k] for found in hits]
        if plan.scales.calibrated:
            hits = [[_as_probability(hit, plan.scales) for hit in found] for found in hits]
        if request.min_score is not None:
            least = request.min_score
            hits = [[hit for hit in found if hit.score >= least] for found in hits]
        return SearchResult(
            version=version,
            hits=hits,
            left_out=plan.left_out,
            calibrated=plan.scales.calibrated,
            models=plan.models,
            thresholds=dict(plan.thresholds),
        )

    def _question(
        self,
        name: str,
        way: Translation,
        version: str,
        by_models: Mapping[str, Vectors],
        scales: Scales,
    ) -> Question:
        """What to ask the vectors of one version, with the scale of their scores."""
        scale = scales.by_version.get(name, UNSCALED)
        if version not in way.models:
            return Question(name, by_models[way.source], slope=scale.slope, offset=scale.offset)
        new = np.asarray(by_models[version], np.float32)
        if way.shared:
            carried = self.carried(version, name, new)
        else:
            carried = None
        own = way.asks(new, carried, by_models.get(way.source))
        if not way.weight:
            return Question(name, own, slope=scale.slope, offset=scale.offset)
        if way.whitened:
            return Question(
                name,
                own,
                new=way.joined(new, way.compared(own)),
                forward=way.joined_stored,
                key=way.key,
                weight=1.0,
                slope=scale.slope,
                offset=scale.offset,
            )
        return Question(
            name,
            own,
            new=new,
            forward=way.forward,
            key=way.key,
            weight=way.weight,
            slope=scale.slope,
            offset=scale.offset,
        )

    def carried(self, version: str, to: str, vectors: Vectors) -> Vectors:
        """Vectors of a version in the form of another version of the same space."""
        narrow = np.asarray(vectors, np.float32)
        return self._carrier.carried(narrow, self.gallery.space(version), self.gallery.space(to))

    def in_space_of(self, old: str, new: str, vectors: Vectors) -> Vectors | None:
        """Vectors of ``new`` as queries in the space of ``old``, one model per query; None without a translation."""
        way = usable(self.translations.of(new).get(old), {new})
        if way is None:
            return None
        if way.shared:
            carried = self.carried(new, old, vectors)
        else:
            carried = None
        return way.asks(np.asarray(vectors, np.float32), carried, None)

    def _counted(self, result: SearchResult) -> SearchResult:
        if self._usage is not None:
            self._usage.record(found[0].id for found in result.hits if found)
        return result

    def close(self) -> None:
        """Close the gallery and write the hit counts."""
        self.gallery.close()
        if self._usage is not None:
            self._usage.flush()


def _as_probability(hit: Hit, scales: Scales) -> Hit:
    return hit._replace(score=float(scales.by_version[hit.version].probability(hit.score)))


class Examples(NamedTuple):
    """Examples of what a search should and should not find: ids of stored items, and images."""

    ids: Sequence[str] = ()
    images: Sequence[ImageSource] = ()


def _combined(positive: Sequence[Vectors], negative: Sequence[Vectors]) -> Vectors:
    """One unit query [1, width]: the mean of the positive vectors minus half of the mean of the negative ones."""
    if len(positive) == 1 and not negative:
        return positive[0][None]
    query = np.mean(positive, axis=0, dtype=np.float64, keepdims=True)
    if negative:
        query = query - 0.5 * np.mean(negative, axis=0, dtype=np.float64, keepdims=True)
    if np.linalg.norm(query) < 1e-6:
        raise InputError(
            "the examples cancel each other out, so there is no direction to search; use other examples"
        )
    return unit(np.asarray(query)).astype(np.float32)
