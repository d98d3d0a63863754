"""The workspace itself: the verbs of the command line as methods."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, get_args

from fixstar.data.image_set import ImageSet, concatenate
from fixstar.errors import GateError, InputError, ModelError, NextStep, UnknownNameError, plural
from fixstar.evaluation import PROTOCOLS, CrossTest, VersionFeatures, cross_test
from fixstar.evaluation.features import version_features
from fixstar.evaluation.verdicts import GateRules
from fixstar.gallery import Gallery, SearchOptions, SearchRequest, SearchResult
from fixstar.gallery.addresses import without_secret
from fixstar.gallery.filters import Where
from fixstar.gallery.store import Item
from fixstar.images import Decode, ImageSource, Preprocessing
from fixstar.models import Encoder, resolve_device
from fixstar.progress import Advance
from fixstar.texts import Prompts
from fixstar.translation import Translation, load_translation
from fixstar.versions import version_number
from fixstar.workspace import checks
from fixstar.workspace.backfill import planning
from fixstar.workspace.backfill.planning import BackfillOutlook, PlannedBackfill
from fixstar.workspace.backfill.run import Backfilled
from fixstar.workspace.checks import Check
from fixstar.workspace.deployment import Move, Rollout, checked_reason
from fixstar.workspace.files import (
    create_mark,
    gallery_url,
    open_workspace_gallery,
    read_mark,
    require_writable,
)
from fixstar.workspace.gate import Features, check_relevance, check_version
from fixstar.workspace.held_out import pin_images
from fixstar.workspace.items import (
    CatalogueItem,
    Embedder,
    ImageStore,
    Indexed,
    LocalEmbedder,
    Store,
    count_items,
    index_items,
    update_payload,
)
from fixstar.workspace.options import BackfillOptions, FitOptions, UpgradeOptions
from fixstar.workspace.pairs import (
    Searched,
    fit,
    from_images,
    keep_fitted,
    searched_versions,
)
from fixstar.workspace.registry import Registry
from fixstar.workspace.relevant import KnownRelevant, known_relevant
from fixstar.workspace.search import Examples, Serving
from fixstar.workspace.translations import CHOSEN, Translations, sharing_space
from fixstar.workspace.usage import Usage

if TYPE_CHECKING:  # training code is loaded only to train
    from torch import nn

    from fixstar.methods import Method, OldVectors
    from fixstar.training import Settings, Version


Queries = Literal["checked", "one", "old"]
"""Which models embed queries for older vectors: those that a check chose, the new version, or their own models."""


def checked_queries(text: str) -> Queries:
    """Validate a value of ``Queries``; raises with the valid values."""
    for known in get_args(Queries):
        if text == known:
            found: Queries = known
            return found
    raise UnknownNameError("way to ask older vectors", text, get_args(Queries))


@dataclass(frozen=True)
class Status:
    """The state of a workspace: ``vectors`` counts items by the version that made them.

    ``searched_by`` names the models that embed queries for each version's vectors. ``left_out`` are versions whose
    vectors no search reaches.
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
    searched_by: Mapping[str, tuple[str, ...]]
    left_out: tuple[str, ...]


class Workspace:
    """Train, upgrade, index, search, check, deploy, backfill and roll back in one directory.

    Threads may share one. ``record_usage`` counts hits per item. Close it, or use it in a ``with`` statement.
    """

    def __init__(self, path: str | Path, device: str = "auto", record_usage: bool = False) -> None:
        """Open an existing workspace."""
        self.path = Path(path)
        read_mark(self.path)
        self.device = device
        self.registry = Registry(self.path)
        self.rollout = Rollout(self.path)
        self.images = ImageStore(self.path)
        self.usage = Usage(self.path) if record_usage else None
        self._opening = threading.Lock()
        self._serving: Serving | None = None

    @classmethod
    def create(
        cls, path: str | Path, gallery: str | None = None, device: str = "auto"
    ) -> Workspace:
        """Create a workspace with its gallery inside, or at an address of ``open_gallery``.

        An existing workspace is left unchanged; other content is refused.
        """
        create_mark(Path(path), gallery)
        return cls(path, device)

    # --- versions

    def versions(self) -> list[str]:
        """The finished versions, oldest first."""
        return self.registry.names()

    def newest(self) -> str:
        """The name of the newest version."""
        return self.registry.newest()

    def encoder(self, name: str, device: str = "cpu") -> Encoder:
        """A finished version's encoder."""
        return self.registry.encoder(self._with_encoder(name), device)

    def no_encoder(self, name: str) -> InputError | None:
        """The error for a version that never had an encoder, such as imported vectors; else None."""
        own = self.versions()
        if name in self.registry.known() or name not in (
            one.name for one in self.gallery.versions()
        ):
            return None
        if own:
            steps = [
                NextStep(
                    "check", {"version": self.deployed()}, "fits what is needed to search them"
                )
            ]
        else:
            steps = []
        return InputError(
            f"{name} has stored vectors and no encoder: it can be searched, but cannot embed anything. "
            f"Versions with an encoder: {', '.join(own) or 'none yet'}",
            *steps,
        )

    def _with_encoder(self, name: str) -> str:
        """The name of a version that has an encoder; raises otherwise."""
        if name not in self.registry.names() and (error := self.no_encoder(name)) is not None:
            raise error
        return self.registry.checked(name)

    def settings(self, version: str | None = None) -> Settings:
        """The settings of a version, the newest by default, which its successor is trained with."""
        from fixstar.workspace.training import trained_with

        return trained_with(
            self.registry, self.newest() if version is None else self.registry.checked(version)
        )[0]

    def method(self, version: str | None = None) -> Method:
        """The method of a version, the newest by default, which its successor is trained with."""
        from fixstar.workspace.training import trained_with

        return trained_with(
            self.registry, self.newest() if version is None else self.registry.checked(version)
        )[1]

    def train(
        self,
        images: ImageSet,
        settings: Settings,
        method: Method,
        progress: bool = True,
        old_vectors: OldVectors | None = None,
        hold_out: float = 0.0,
    ) -> Version:
        """Train v1. After a kill the same call resumes.

        v1 stays compatible with ``old_vectors`` of another system, if given. ``hold_out`` is the share of images for
        the gate.
        """
        from fixstar.workspace.training import train_first

        names = self.versions()
        if len(names) == 1 and not self._needs(names[0], for_upgrades=False)[0]:
            raise InputError(
                f"{self.path} has {names[0]} already, and nothing is indexed with it",
                self.registry.next_version(),
                NextStep("drop", {"version": names[0]}, "if it was a mistake: then train again"),
            )
        return train_first(
            self.registry,
            images=images,
            settings=settings,
            method=method,
            old_vectors=old_vectors,
            hold_out=hold_out,
            progress=progress,
        )

    def upgrade(
        self,
        images: ImageSet,
        options: UpgradeOptions | None = None,
        trials: int | Literal["auto"] = "auto",
        say: Callable[[str], object] = lambda _: None,
    ) -> Version:
        """Train the next version, and fit translations of older vectors; the same call resumes.

        ``trials`` is the number of settings that short runs compare first (see ``workspace.training``). "auto" takes as
        many as fit into a third of the training time, 0 none. ``say`` gets the plan and the outcome; the figures are in
        ``about["trials"]``.
        """
        from fixstar.training.distributed import on_rank_zero
        from fixstar.workspace.training import train_upgrade

        version = train_upgrade(
            self.registry,
            images=images,
            options=options or UpgradeOptions(),
            trials=trials,
            say=say,
        )
        on_rank_zero(lambda: self._fit_after_training(version, say))
        return version

    def _fit_after_training(self, version: Version, say: Callable[[str], object]) -> None:
        """Fit translations between a new version and older vectors, on the images that it was trained on."""
        target = version.name
        parent = self.registry.card(target)["about"].get("parent")
        sources = [name for name in self.versions() if name in (*self.serving.live(), parent)]
        for name in (*sources, target):
            self.serving.encoder(name)  # makes room for its vectors
        shared = sharing_space(self.registry, target, self.gallery.versions())
        augmentation = self.settings(target).augmentation
        for source in sources:
            if source == target or source in shared or version.images is None:
                continue
            say(f"Fitting how {target}'s queries search {source}'s vectors")
            sample = from_images(
                self.serving.encoder(source),
                self.serving.encoder(target),
                self._pair_images(version),
                origin=f"{target}'s training images",
                augmentation=augmentation,
            )
            keep_fitted(self.serving, sample=sample, source=source, target=target)

    def _pair_images(self, version: Version) -> ImageSet:
        """The images that a version was trained on, with those in the replay memory."""
        from fixstar.data.replay import ReplayMemory
        from fixstar.training.run_directory import RunDirectory

        assert version.images is not None
        kept = ReplayMemory.load(RunDirectory(self.path).memory(version.number)).images
        shown = version.images.load(version.encoder.preprocessing, "skip").images
        if kept is None:
            return shown
        return concatenate([shown, kept.load(version.encoder.preprocessing, "skip").images])

    def add_version(
        self,
        model: str | Path | nn.Module | Encoder,
        inputs: Preprocessing | Prompts | None = None,
        *,
        compatible_with: str | None = None,
        **options: Any,
    ) -> str:
        """Store any model as the next version; returns its name. ``Encoder.wrap`` lists what is accepted.

        ``compatible_with`` names a version whose vectors the model was trained to search directly. Without it the
        model has its own space, and a check fits translations to the other versions.
        """
        from fixstar.workspace.training import add_version

        if isinstance(model, Encoder):
            encoder = model
        else:
            encoder = Encoder.wrap(model, inputs, **options)
        if isinstance(model, (str, Path)):
            source = str(model)
        else:
            source = type(model).__name__
        return add_version(
            self.registry, encoder=encoder, compatible_with=compatible_with, source=source
        )

    def grow(self, count: int) -> tuple[int, ...]:
        """Add capacity for ``count`` classes in new dimensions, where old vectors are zero; returns all added ones."""
        return self.registry.grow(count)

    def retire(self, name: str) -> None:
        """Delete a version's weights if nothing needs them. Its card and its vectors are kept."""
        self._delete(name, "retired", half=self.registry.is_half_retired(name))

    def drop(self, name: str) -> None:
        """Delete an unused version, such as one that the gate refused; its name is not reused.

        The newest version may be deleted. The first one too, if it is the only one and nothing is stored with it.
        """
        self._delete(name, "dropped")

    def _delete(self, name: str, how: str, half: bool = False) -> None:
        if not half:
            self.registry.checked(name)
        with self.rollout.moving(), self.registry.unused(name):
            reasons: list[str] = []
            steps: list[NextStep] = []
            if not half:
                reasons, steps = self._needs(name, for_upgrades=how == "retired")
            if reasons:
                raise InputError(f"{name} cannot be {how}: {'. Also, '.join(reasons)}", *steps)
            self.registry.retire(name)
            if how == "dropped":
                self.rollout.forget(name)

    def _needs(self, name: str, for_upgrades: bool) -> tuple[list[str], list[NextStep]]:
        """Why a version's weights are still needed, and the steps, in order, after which they may be deleted."""
        reasons: list[str] = []
        steps: list[NextStep] = []
        deployed = self.deployed()
        previous = self.rollout.previous()
        if name == deployed and not for_upgrades and self._is_unused_start(name):
            return reasons, steps
        then: str | None = (
            deployed  # deployed after these steps; None: a version that does not exist yet
        )
        if name == deployed:
            reasons.append("it is deployed. It can go once two others have been deployed after it")
            if not for_upgrades and previous not in (None, name):
                then = previous
                reasons[-1] += f", or after a rollback to {previous}"
                steps.append(NextStep("rollback", {}, f"deploys {previous} again"))
            elif for_upgrades or self.versions() != [name] or self.rollout.history():
                steps.append(self._newer_step(name))
                then = None
        elif name == previous:
            reasons.append(
                f"a rollback from {deployed} leads to it. It can go once a version newer than {deployed} is deployed"
            )
            steps.append(self._newer_step(deployed))
            then = None
        elif for_upgrades and name == self.newest():
            reasons.append(
                "the next upgrade starts from it. It can go once there is a newer version"
            )
            steps.append(self.registry.next_version("a newer version"))
        stored = self._vectors_of(name)
        if not stored:
            return reasons, steps
        count = sum(stored.values())
        asks = self._asks_after(self.rollout.current_move(), name)
        would_ask = previous is not None and self._asks_after(self.rollout.previous_move(), name)
        if for_upgrades and not asks and not would_ask:
            return reasons, steps
        reasons.append(f"the gallery holds {plural(count, 'vector')} of {name}")
        if asks:
            reasons[-1] += ", and its own queries help to search them, which takes its weights"
        elif would_ask:
            reasons[-1] += (
                f", and after a rollback to {previous} its own queries would help to search them"
            )
        if then is None or version_number(then) > version_number(name):
            steps.append(
                NextStep("backfill", {"budget": "all"}, "re-embed them; then repeat this command")
            )
        elif then != name:
            reasons[-1] += f". A backfill to {then} never replaces newer vectors"
            note = f"embed them with {then}; then repeat this command"
            steps.append(NextStep("index", {"items": ..., "again": True}, note))
        for one in stored:
            steps.append(
                NextStep(
                    "delete-items",
                    {"version": one},
                    "or delete these items; then repeat this command",
                )
            )
        return reasons, steps

    def _newer_step(self, version: str) -> NextStep:
        """The step that deploys a newer version: the newest one, or one that must be made first."""
        newest = self.newest()
        if version_number(newest) > version_number(version):
            return self.deploy_step(newest, "then repeat this command")
        return self.registry.next_version(
            "a newer version; then check and deploy it, and repeat this command"
        )

    def _is_unused_start(self, name: str) -> bool:
        """Whether a version is deployed only because it is the first one, and nothing stored depends on it."""
        return (
            self.versions() == [name] and not self.rollout.history() and not self._vectors_of(name)
        )

    def _vectors_of(self, name: str) -> dict[str, int]:
        """The number of vectors in a version's space, by the version name that they are stored under."""
        counts = self.gallery.count()
        homes = self.registry.homes(counts)
        return {one: count for one, count in counts.items() if count and homes[one] == name}

    def _asks_after(self, move: Move, name: str) -> bool:
        """Whether searching a version's vectors under this deployment needs the version's own queries."""
        ways = self.translations.after(move)
        return any(one not in ways or name in ways[one].models for one in self._vectors_of(name))

    # --- gallery

    @property
    def gallery(self) -> Gallery:
        """The vectors of all versions."""
        return self.serving.gallery

    @property
    def translations(self) -> Translations:
        """How queries of a version search the vectors of other versions."""
        return self.serving.translations

    @property
    def serving(self) -> Serving:
        """Encoders and gallery, ready for queries; opened on first use."""
        with self._opening:
            if self._serving is None:
                device = str(resolve_device(self.device))
                store = open_workspace_gallery(self.path)
                self._serving = Serving(
                    registry=self.registry,
                    rollout=self.rollout,
                    gallery=store,
                    device=device,
                    usage=self.usage,
                )
            return self._serving

    def index(
        self,
        items: Iterable[CatalogueItem],
        embedder: Embedder | None = None,
        again: bool = False,
        progress: Advance | None = None,
        version: str | None = None,
        store: Store | None = None,
        decode: Decode | None = None,
    ) -> Indexed:
        """Embed items with the deployed version, or with ``embedder``; unchanged images are skipped."""
        version = version or self.deployed()
        encoder = self.serving.encoder(version)
        embedder = embedder or LocalEmbedder(encoder, decode)
        with self.registry.using(version):
            return index_items(
                self.gallery,
                version=version,
                embedder=embedder,
                items=items,
                again=again,
                progress=progress,
                store=store,
            )

    def search(
        self,
        images: Sequence[ImageSource],
        request: SearchRequest | None = None,
        *,
        fresh: int = 0,
        **options: Unpack[SearchOptions],
    ) -> SearchResult:
        """The k nearest items of each image or text, whatever version made their vectors; see ``Serving``.

        With ``fresh``, the best so many items are embedded by the deployed version first, and stay so.
        """
        return self.serving.search(images, request, fresh=fresh, **options)

    def like(
        self, item: str, request: SearchRequest | None = None, **options: Unpack[SearchOptions]
    ) -> SearchResult:
        """The k items nearest to a stored one."""
        return self.serving.like(item, request, **options)

    def search_examples(
        self,
        positive: Examples,
        negative: Examples | None = None,
        request: SearchRequest | None = None,
        decode: Decode | None = None,
        **options: Unpack[SearchOptions],
    ) -> SearchResult:
        """The k items most like the positive examples and unlike the negative ones; see ``Serving.by_examples``."""
        return self.serving.by_examples(positive, negative, request, decode, **options)

    def update_payload(
        self,
        item: str,
        changes: Mapping[str, Any],
        revision: int | None = None,
        max_bytes: int | None = None,
    ) -> Item:
        """Change payload fields of a stored item; its vector and image do not change. None removes a field.

        Concurrent changes to other fields are kept. With ``revision`` the item must still have that revision.
        ``max_bytes`` limits the size of the payload.
        """
        return update_payload(
            self.gallery, name=item, changes=changes, revision=revision, max_bytes=max_bytes
        )

    def count(self, where: Where | None = None, version: str | None = None) -> int:
        """The number of items whose payload matches."""
        return count_items(self.gallery, where, version).total

    def facets(
        self, field: str, where: Where | None = None, version: str | None = None
    ) -> dict[str, int]:
        """The number of items for each value of a payload field, most frequent first."""
        return dict(count_items(self.gallery, where=where, version=version, field=field).values)

    # --- deployment

    def deployed(self) -> str:
        """The version that embeds queries and new items; the first one before any deployment."""
        self.newest()  # raises without a version
        return self.rollout.current()

    def versions_to_check(self, version: str) -> list[str]:
        """The versions with vectors that queries of ``version`` search; a check must cover all of them."""
        homes = self.registry.homes(self.serving.live())
        return [name for name in dict.fromkeys(homes.values()) if name != version]

    def left_out_vectors(self, version: str) -> dict[str, int]:
        """The number of vectors that queries of a version cannot search, by the version that made them."""
        ways = self.translations.of(version)
        return {
            name: count
            for name, count in self.gallery.count().items()
            if count and name not in ways
        }

    def unchecked_vectors(self, version: str) -> dict[str, int]:
        """The number of vectors that queries of a version search without a check, by the version that made them."""
        try:
            check = self.last_check(version)
        except ModelError:  # a damaged check does not count, and must not prevent a rollback
            check = None
        seen = {version, *(() if check is None else check.against)}
        ways = self.translations.of(version)
        counts = self.gallery.count()
        return {
            name: count
            for name, count in counts.items()
            if count and name in ways and ways[name].source not in seen
        }

    def last_check(self, version: str) -> Check | None:
        """The current check of a version: a weaker check does not replace a stronger one."""
        return checks.last_check(self.path, self.registry.checked(version))

    def check_history(self, version: str) -> list[Check]:
        """All checks of a version, oldest first."""
        return checks.check_history(self.path, self.registry.checked(version))

    def check(
        self,
        version: str | None = None,
        images: ImageSet | None = None,
        rules: GateRules | None = None,
        *,
        fitting: FitOptions | None = None,
        data: str | None = None,
        report: bool = True,
        progress: bool = True,
        embed: Features | None = None,
        relevant: Sequence[str | Path] | Mapping[str, Mapping[str, float]] = (),
    ) -> Check:
        """Test a version (default: the newest) on all stored vectors, with labelled images that it was not trained on.

        These are the images named ``data``, else the pinned ones (``pin_images``), else those held out at training.
        Missing translations are fitted first, on the data in ``fitting`` and on items with an available image.
        ``embed`` makes the vectors of labelled images. See ``fixstar.workspace.gate``.

        With ``relevant``, these judge in place of labels: BEIR's queries.jsonl and a file of relevant stored items, or
        the text of each query with the grades of items.
        """
        chosen = self._with_encoder(version or self.newest())
        require_writable(self.path / "checks", "checks")  # before hours of work
        known = None
        if relevant:
            known = self._known_relevant(
                relevant, images is not None or data is not None, fitting, rules
            )
        serving = self.serving
        searched = searched_versions(serving, version=chosen, options=fitting, progress=progress)

        def features(
            queries: ImageSet, gallery: ImageSet, names: Sequence[str]
        ) -> list[VersionFeatures]:
            """By the models that serve: most are in memory already."""
            return [
                version_features(
                    name,
                    encoder=serving.encoder(name),
                    queries=queries,
                    gallery=gallery,
                    progress=progress,
                )
                for name in names
            ]

        if known is not None:
            return check_relevance(
                self.registry,
                version=chosen,
                searched=searched,
                features=embed or features,
                keep=serving.translations.keep,
                known=known,
                rules=rules,
            )
        return check_version(
            self.registry,
            self.rollout,
            version=chosen,
            searched=searched,
            features=embed or features,
            keep=serving.translations.keep,
            images=images,
            rules=rules,
            report=report,
            data=data,
        )

    def _known_relevant(
        self,
        relevant: Sequence[str | Path] | Mapping[str, Mapping[str, float]],
        labelled: bool,
        fitting: FitOptions | None,
        rules: GateRules | None,
    ) -> KnownRelevant:
        if labelled:
            raise InputError(
                "a check is judged by labels or by known relevant items; give one of them"
            )
        if self.registry.reads() != "texts":
            raise InputError(
                f"queries are texts, and the models of {self.path} read images; give labels"
            )
        most = (fitting or FitOptions()).sample
        return known_relevant(
            self.gallery, relevant=relevant, most=most, seed=(rules or GateRules()).seed
        )

    def searched_versions(
        self, version: str, fitting: FitOptions | None = None, progress: bool = False
    ) -> list[Searched]:
        """The versions whose vectors a version would search, with their translations; missing ones are fitted."""
        return searched_versions(self.serving, version=version, options=fitting, progress=progress)

    def fit_translations(
        self, source: str, target: str, fitting: FitOptions | None = None, progress: bool = False
    ) -> list[Translation]:
        """Fit translations for queries of ``target`` over vectors of ``source``; a check then chooses and judges."""
        self._with_encoder(target)
        return fit(self.serving, source=source, target=target, options=fitting, progress=progress)

    def install_translation(self, path: str | Path, source: str | None, target: str) -> str:
        """Copy a translation from a file, such as a bridge, into this workspace; a check then judges it.

        Its widths must match the vectors of ``source`` and ``target``. ``source`` defaults to the only version with
        vectors of that width. Returns the name of the new file.
        """
        way = load_translation(path)
        self.serving.encoder(self._with_encoder(target))  # makes room for its vectors
        if way.forward is None:
            raise InputError(f"{path} has no map of stored vectors, so there is nothing to install")
        seen = way.forward.widths
        if source is None:
            source = self._only_version(seen[0], target, Path(path))
        wanted = (self.gallery.space(source).width, self.gallery.space(target).width)
        if seen != wanted:
            raise InputError(
                f"{path} carries vectors of {seen[0]} components to {seen[1]}; those of {source} have {wanted[0]} and "
                f"those of {target} {wanted[1]}"
            )
        has_model = source in self.versions()
        two = way.two if has_model else None
        one = way.one if way.backward is not None else None
        about = {
            **way.about,
            "fit": uuid.uuid4().hex[:12],
            "fitted_on": f"installed from {Path(path).name}",
        }
        return self.translations.keep(
            replace(way, source=source, target=target, one=one, two=two, about=about)
        )

    def _only_version(self, width: int, target: str, path: Path) -> str:
        """The only version except ``target`` whose stored vectors have this width."""
        widths = {name: self.gallery.space(name).width for name in self.versions_to_check(target)}
        fitting = [name for name, found in widths.items() if found == width]
        if len(fitting) != 1:
            there = (
                ", ".join(f"{name} has {found}" for name, found in widths.items())
                or "no other version is stored"
            )
            raise InputError(
                f"{path} translates vectors of {width} components, and it is not clear whose they are: {there}. Name "
                "the version in Python: Workspace.install_translation(path, source, target)"
            )
        return fitting[0]

    def pin_images(
        self,
        name: str,
        path: str | Path | None = None,
        split: str = "train",
        label: str | None = None,
        text: str | None = None,
    ) -> None:
        """Use the labelled images of a name for all later checks: those at ``path``, or those already known by it.

        ``text`` names the field that holds the text, for texts.
        """
        place = None if path is None else Path(path)
        pin_images(self.path, name=name, path=place, split=split, label=label, text=text)

    def deploy(
        self,
        version: str,
        force: str | None = None,
        by: str = "",
        deployed: str | None = None,
        queries: Queries = "checked",
    ) -> Move:
        """Use a version for queries and new items. Requires a passed check, or ``force``: a reason to skip it.

        Moves one pointer. Old vectors do not change and are found through their translations. If ``deployed`` is given
        and is not the current version, nothing changes and ``DeploymentMovedError`` is raised. ``queries`` chooses the
        models that embed queries for old vectors: "checked" the models that the check chose, "one" the new version
        alone, "old" their own models alone. "old" finds the same as now and needs no check.
        """
        self._with_encoder(version)
        self.rollout.require_deployed(deployed)
        force = checked_reason(force, "a deployment")
        encoder = self.serving.encoder(
            version
        )  # so that a damaged model fails here and not at the first query
        if encoder.adapter is not None:
            raise GateError(
                f"{version} needs an adapter to read old vectors, and galleries are searched without one; "
                "deploy a version that was trained without an adapter"
            )
        if self.is_deployed(version, queries):
            raise InputError(f"{version} is deployed already")
        if queries == "old" or force is not None:
            check = self._strongest(version)
        else:
            check = self._passed(version, queries)
        ways = self._deployed_ways(version, check, queries)
        files = {name: self._kept(way, check) for name, way in ways.items()}
        models = [way.source for way in ways.values() if way.source in way.models]
        for name in models:
            self.serving.encoder(name)
        judged = check is not None and queries == "checked" and files == check.translations
        if check is not None and judged:
            fitted = check.calibrations
        else:
            fitted = {}
        return self.rollout.deploy(
            version,
            reason=force,
            by=by,
            deployed=deployed,
            translations=files,
            calibrations=fitted,
            models=models,
        )

    def deploy_step(self, version: str, note: str = "", queries: Queries = "checked") -> NextStep:
        """The step that deploys a version, with a reason if its check does not allow it."""
        step = NextStep("deploy", {"version": version}, note)
        if queries != "checked":
            step = replace(step, arguments={**step.arguments, "queries": queries})
        try:
            self._passed(version, queries)
        except (GateError, ModelError):
            step = replace(step, arguments={**step.arguments, "force": ...})
        return step

    def is_deployed(self, version: str, queries: Queries) -> bool:
        """Whether a deployment would change nothing: the version is already deployed with the same ``queries``."""
        move = self.rollout.current_move()
        if move.version != version:
            return False
        searched = self.versions_to_check(version)
        now = {
            name: self.translations.load(file)
            for name, file in move.translations.items()
            if name in searched
        }
        ways = self._deployed_ways(version, self._strongest(version), queries)
        return ways.keys() == now.keys() and all(ways[name].scores_like(now[name]) for name in now)

    def _strongest(self, version: str) -> Check | None:
        """The current check for a deployment of a version."""
        return checks.strongest_check(self.check_history(version), self.versions_to_check(version))

    def _passed(self, version: str, queries: Queries) -> Check:
        """The check that allows a deployment, or ``GateError``."""
        check = checks.require_passed_check(
            self._strongest(version), version, self.versions_to_check(version)
        )
        if queries == "one":
            checks.require_one_model(check, version)
        return check

    def _deployed_ways(
        self, version: str, check: Check | None, queries: Queries
    ) -> dict[str, Translation]:
        """The translations to deploy, by older version; versions of a shared space need none."""
        chosen = {} if check is None else check.translations
        ways = self.translations.of(version)
        found: dict[str, Translation] = {}
        for name in self.versions_to_check(version):
            way = ways.get(name)
            if name in chosen:
                way = self.translations.load(chosen[name])
            if queries == "old":
                if name not in self.versions():
                    raise InputError(
                        f"the model of {name} is not available, so it cannot embed queries"
                    )
                way = Translation.by_old_queries(name, version)
            if way is None or (way.shared and way.forward is None):
                continue
            if way.two is not None and name not in self.versions():  # its model was retired
                if way.one is None:
                    continue
                way = way.with_one_model()
            if queries == "one" and way.two is not None:
                way = way.with_one_model()
            found[name] = way
        return found

    def _kept(self, way: Translation, check: Check | None) -> str:
        """The file of a translation: an existing one (judged or deployed) if it scores the same, else a new one."""
        known = [*self.rollout.current_move().translations.values()]
        if check is not None:
            known = [*check.translations.values(), *known]
        for name in known:
            if way.scores_like(self.translations.load(name)):
                return name
        return self.translations.keep(replace(way, about={**way.about, CHOSEN: True}))

    def rollback(self, by: str = "", deployed: str | None = None, to: str | None = None) -> Move:
        """Return to the previously deployed version; if given, only from ``deployed`` and only to ``to``."""
        self.deployed()
        if (previous := self.rollout.previous()) is not None:
            self.serving.encoder(self.registry.checked(previous))
        return self.rollout.rollback(by=by, deployed=deployed, to=to)

    def backfill_outlook(self) -> BackfillOutlook:
        """What a backfill to the deployed version could re-embed."""
        return planning.backfill_outlook(self.serving)

    def plan_backfill(
        self, options: BackfillOptions | None = None, predict: bool = True
    ) -> PlannedBackfill:
        """What ``backfill`` would re-embed, with a prediction if there are labelled images."""
        return planning.plan_backfill(self.serving, options or BackfillOptions(), predict)

    def backfill(
        self,
        options: BackfillOptions | None = None,
        progress: Advance | None = None,
        judged: str | None = None,
    ) -> Backfilled:
        """Re-embed older items while serving; resumes. A predicted loss is refused unless ``judged`` (a token)."""
        return planning.backfill(self.serving, options or BackfillOptions(), progress, judged)

    def status(self) -> Status:
        """The state of the workspace."""
        names = self.registry.names()
        move, models = self.serving.asking()
        previous = self.rollout.previous()
        while self.rollout.current_move() is not move:  # the deployment changed in between
            move, models = self.serving.asking()
            previous = self.rollout.previous()
        if names and move.version not in names:
            raise ModelError(
                f"{move.version} is deployed, and its weights are gone: queries cannot be embedded. "
                "Deploy another version",
                NextStep("deploy", {"version": names[-1]}),
            )
        ways = self.translations.of(move.version) if names else {}
        counts = self.gallery.count()
        live = [name for name, count in counts.items() if count]
        return Status(
            path=str(self.path),
            deployed=move.version if names else None,
            previous=previous if names else None,
            versions=tuple(names),
            retired=tuple(self.registry.retired()),
            vectors=counts,
            gallery=without_secret(gallery_url(self.path)),
            checks={
                name: check.outcome
                for name in names
                if (check := checks.last_check(self.path, name)) is not None
            },
            training=self.registry.unfinished(),
            searched_by={
                name: tuple(model for model in ways[name].models if model in models)
                for name in live
                if name in ways
            },
            left_out=tuple(name for name in live if name not in ways),
        )

    # --- evaluation

    def features(
        self,
        queries: ImageSet,
        gallery: ImageSet,
        versions: Sequence[str] | None = None,
        device: str = "auto",
        progress: bool = True,
    ) -> list[VersionFeatures]:
        """Short features of the query and gallery images by each version, cached."""
        names = self.versions() if versions is None else versions
        models = ((name, self.encoder(name).to(resolve_device(device))) for name in names)
        return [
            version_features(
                name, encoder=encoder, queries=queries, gallery=gallery, progress=progress
            )
            for name, encoder in models
        ]

    def evaluate(
        self,
        queries: ImageSet,
        gallery: ImageSet,
        protocol: str = "image",
        device: str = "auto",
        progress: bool = True,
    ) -> CrossTest:
        """The compatibility matrix of all versions on labelled images that can be read."""
        self.newest()  # raises without a version
        if queries.classes != gallery.classes:
            raise InputError("queries and gallery must be of the same classes")
        if protocol not in PROTOCOLS:
            raise UnknownNameError("protocol", protocol, PROTOCOLS)
        features = self.features(queries, gallery, None, device, progress)
        return cross_test(
            features, query_labels=queries.labels, gallery_labels=gallery.labels, protocol=protocol
        )

    def close(self) -> None:
        """Close the gallery. Closing twice is allowed."""
        with self._opening:
            if self._serving is not None:
                self._serving.close()
                self._serving = None

    def __enter__(self) -> Workspace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
