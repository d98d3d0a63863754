"""The workspace itself: the verbs of the command line as methods.

Where a workspace stands.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Unpack

from fixstar.data.image_set import ImageSet
from fixstar.errors import InputError, UnknownNameError
from fixstar.evaluation import PROTOCOLS, CrossTest, VersionFeatures, cross_test
from fixstar.gallery import Gallery, SearchOptions, SearchRequest, SearchResult
from fixstar.gallery.addresses import without_secret
from fixstar.images import ImageSource
from fixstar.methods import Method, OldVectors
from fixstar.models import Encoder, resolve_device
from fixstar.progress import Advance
from fixstar.scenarios import Settings, Version, version_features
from fixstar.workspace.adapters.registry import AdapterBook
from fixstar.workspace.adapters.use import Adapted, AdaptOptions, adapt
from fixstar.workspace.backfill.planning import BackfillOptions, PlannedBackfill, backfill, plan_backfill
from fixstar.workspace.backfill.run import Backfilled
from fixstar.workspace.checks import Check, last_check
from fixstar.workspace.deployment import Move, Rollout, deploy, needed_versions
from fixstar.workspace.files import create_mark, gallery_url, open_workspace_gallery, read_mark
from fixstar.workspace.gate import GateRules, check_version
from fixstar.workspace.items import CatalogueItem, Embedder, ImageStore, Indexed, LocalEmbedder, Store, index_items
from fixstar.workspace.registry import Registry
from fixstar.workspace.search import Serving, Usage
from fixstar.workspace.training import UpgradeOptions, VersionTraining

__all__ = ["Status", "Workspace", "read_status"]


class Workspace:
    """Train, upgrade, index, search, check, deploy, backfill and roll back in one directory.

    Threads may share one. ``device`` is where queries and items are embedded; ``record_usage`` counts what searches
    find, for a backfill. Close it, or use it in a ``with``, when its gallery was used.
    """

    def __init__(self, path: str | Path, device: str = "auto", record_usage: bool = False) -> None:
        """Open an existing workspace."""
        self.path = Path(path)
        read_mark(self.path)
        self.device = device
        self.registry = Registry(self.path)
        self.rollout = Rollout(self.path)
        self.adapters = AdapterBook(self.path)
        self.images = ImageStore(self.path)
        self.usage = Usage(self.path) if record_usage else None
        self._training = VersionTraining(self.path)
        self._opening = threading.Lock()
        self._serving: Serving | None = None

    @classmethod
    def create(cls, path: str | Path, gallery: str | None = None, device: str = "auto") -> Workspace:
        """Make a new workspace; an existing one is left as it is, other content is refused.

        ``gallery`` is where vectors are kept: by default a file in the workspace, else an address that
        ``open_gallery`` takes.
        """
        create_mark(Path(path), gallery)
        return cls(path, device)

    # --- versions

    def versions(self) -> list[str]:
        """The finished versions, oldest first."""
        return self.registry.names()

    def encoder(self, name: str, device: str = "cpu") -> Encoder:
        """A finished version's encoder."""
        return self.registry.encoder(name, device)

    def newest(self) -> str:
        """The name of the newest version."""
        return self._training.newest()

    def settings(self) -> Settings:
        """What the newest version was trained with; its successor is trained alike."""
        return self._training.trained()[0]

    def train(
        self,
        images: ImageSet,
        settings: Settings,
        method: Method,
        progress: bool = True,
        old_vectors: OldVectors | None = None,
        hold_out: float = 0.0,
    ) -> Version:
        """Train v1. After a kill the same call goes on where the last one stopped.

        ``old_vectors`` are those of another system, which v1 is to stay compatible with. ``hold_out`` is the share of
        images that are kept for the gate instead of being trained on.
        """
        return self._training.first(images, settings, method, old_vectors, hold_out, progress)

    def upgrade(self, images: ImageSet, options: UpgradeOptions | None = None) -> Version:
        """Train the next version so that it stays compatible with all before it; the same call resumes.

        Settings and method are the previous version's unless given. A retraining method needs all images so far.
        """
        return self._training.upgrade(images, options or UpgradeOptions())

    def grow(self, count: int) -> tuple[int, ...]:
        """Make room for ``count`` more classes: the next version gets a second simplex, in new dimensions.

        Nothing stored changes: old vectors are zero there. All capacities added so far.
        """
        return self.registry.grow(count)

    def retire(self, name: str) -> None:
        """Give up a version's weights, once no vector of it lives and nothing needs it. Its card stays."""
        self.registry.retire(name, self.gallery.count(), needed_versions(self), self.deployed())

    # --- gallery

    @property
    def gallery(self) -> Gallery:
        """The vectors of all versions."""
        return self.serving.gallery

    @property
    def serving(self) -> Serving:
        """Encoders and gallery, ready for queries; opened when first asked for."""
        with self._opening:
            if self._serving is None:
                device = str(resolve_device(self.device))
                store = open_workspace_gallery(self.path)
                self._serving = Serving(self.registry, self.rollout, store, device, 3, self.usage, self.adapters)
            return self._serving

    def index(
        self,
        items: Iterable[CatalogueItem],
        embedder: Embedder | None = None,
        again: bool = False,
        progress: Advance | None = None,
        version: str | None = None,
        store: Store | None = None,
    ) -> Indexed:
        """Embed items with the deployed version, or the embedder's; those there with the same image are left alone."""
        version = version or self.deployed()
        encoder = self.serving.encoder(version)
        return index_items(self.gallery, version, embedder or LocalEmbedder(encoder), items, again, progress, store)

    def search(
        self,
        images: Sequence[ImageSource],
        request: SearchRequest | None = None,
        **options: Unpack[SearchOptions],
    ) -> SearchResult:
        """The k nearest items of each image, whatever version made their vectors; see ``Serving.search_vectors``."""
        self.deployed()
        return self.serving.search(images, request, **options)

    def like(self, item: str, request: SearchRequest | None = None, **options: Unpack[SearchOptions]) -> SearchResult:
        """The k items nearest to a stored one."""
        return self.serving.like(item, request, **options)

    # --- deployment

    def deployed(self) -> str:
        """The version that embeds queries and new items; the first one before any deployment."""
        self.newest()  # says so where there is none yet
        return self.rollout.current()

    def live(self) -> list[str]:
        """The versions whose vectors a query meets, and the one deployed."""
        found = [name for name, count in self.gallery.count().items() if count]
        return list(dict.fromkeys([*found, self.deployed()]))

    def met_by(self, version: str) -> list[str]:
        """The live versions whose vectors a version's queries meet as they are, without an adapter."""
        return [name for name in self.live() if name not in self.adapters.reached(version)]

    def last_check(self, version: str) -> Check | None:
        """What the gate last found out about a version."""
        return last_check(self.path, self.registry.checked(version))

    def check(
        self,
        version: str | None = None,
        images: ImageSet | None = None,
        confidence: float = 0.95,
        tolerance: float = 0.0,
        seed: int = 0,
        report: bool = True,
        progress: bool = True,
    ) -> Check:
        """Try the newest version, or another, against all live vectors, on labelled images that it has not learnt.

        Without ``images`` on those held out at training. See ``fixstar.workspace.gate``; the verdict is kept.
        """
        rules = GateRules(confidence, tolerance, seed)
        embed = partial(self.features, device=self.device, progress=progress)
        chosen = version or self.newest()
        return check_version(self.registry, chosen, self.met_by(chosen), embed, images, rules, report)

    def deploy(self, version: str, force: str | None = None, by: str = "", deployed: str | None = None) -> Move:
        """Let queries and new items use a version. Asks for a passed check, or for a reason to do without.

        Moves one pointer, whatever the gallery's size. Old vectors stay and are found by the new queries. Where
        ``deployed`` is given and another version is deployed now, nothing is moved: ``DeploymentMovedError``.
        """
        return deploy(self, version, force, by, deployed)

    def adapt(self, version: str, options: AdaptOptions | None = None, progress: bool = True) -> Adapted:
        """Let queries reach vectors of a model that was not trained together with theirs, if the gate allows it."""
        return adapt(self, version, options or AdaptOptions(), progress)

    def rollback(self, by: str = "", deployed: str | None = None, to: str | None = None) -> Move:
        """Back to the version deployed before, at once: from ``deployed`` and to ``to``, where given, or not at all."""
        self.deployed()
        if (before := self.rollout.before()) is not None:
            self.serving.encoder(self.registry.checked(before))
        return self.rollout.rollback(None, by, deployed, to)

    def plan_backfill(self, options: BackfillOptions | None = None) -> PlannedBackfill:
        """What ``backfill`` would re-embed, and what that will bring, as far as labels tell."""
        return plan_backfill(self, options or BackfillOptions())

    def backfill(self, options: BackfillOptions | None = None, progress: Advance | None = None) -> Backfilled:
        """Re-embed items of older versions with the deployed one, while serving; the same call resumes."""
        return backfill(self, options or BackfillOptions(), progress)

    def status(self) -> Status:
        """Where everything stands."""
        training = self._training.run.checkpoint(self.registry.next_number()).exists()
        return read_status(self.registry, self.rollout, self.gallery, gallery_url(self.path), training)

    # --- evaluation

    def features(
        self,
        queries: ImageSet,
        gallery: ImageSet,
        versions: Sequence[str] | None = None,
        device: str = "auto",
        progress: bool = True,
    ) -> list[VersionFeatures]:
        """Each version's short forms of the query and gallery images, made once."""
        made = []
        for name in self.versions() if versions is None else versions:
            encoder = self.encoder(name).to(resolve_device(device))
            made.append(version_features(name, encoder, queries, gallery, progress))
        return made

    def evaluate(
        self, queries: ImageSet, gallery: ImageSet, protocol: str = "image", device: str = "auto", progress: bool = True
    ) -> CrossTest:
        """The compatibility matrix of all versions on labelled images that can be read."""
        self.newest()  # says so where there is no version yet
        if queries.classes != gallery.classes:
            raise InputError("queries and gallery must be of the same classes")
        if protocol not in PROTOCOLS:
            raise UnknownNameError("protocol", protocol, PROTOCOLS)
        features = self.features(queries, gallery, None, device, progress)
        return cross_test(features, queries.labels, gallery.labels, protocol)

    def close(self) -> None:
        """Close the gallery. Closing twice is allowed."""
        with self._opening:
            if self._serving is not None:
                self._serving.close()
                self._serving = None

    def __enter__(self) -> Workspace:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True)
class Status:
    """Where a workspace stands: ``vectors`` counts items by the version that made them.

    ``adapters`` says for a gallery version with a space of its own which versions' queries reach it.
    """

    path: str
    deployed: str | None
    previous: str | None
    versions: tuple[str, ...]
    retired: tuple[str, ...]
    vectors: dict[str, int]
    gallery: str
    checks: Mapping[str, str]
    training: str | None
    adapters: Mapping[str, list[str]] = field(default_factory=dict)


def read_status(registry: Registry, rollout: Rollout, gallery: Gallery, url: str, training: bool) -> Status:
    """Look everything up; ``training`` says whether the next version has been begun."""
    names = registry.names()
    book = AdapterBook(registry.path)
    reached = {name: [by for by in names if name in book.reached(by)] for name in sorted(book.apart())}
    checks = {name: check.outcome for name in names if (check := last_check(registry.path, name)) is not None}
    return Status(
        str(registry.path),
        rollout.current() if names else None,
        rollout.before() if names else None,
        tuple(names),
        tuple(registry.retired()),
        gallery.count(),
        without_secret(url),
        checks,
        f"v{registry.next_number()}" if training else None,
        reached,
    )
