"""A workspace: the versions of one directory, and what they were trained with. The command line is thin over it.

workspace.json               marks the directory
versions/v1, v2, ...         finished encoders, never rewritten
memory/v1.safetensors, ...   the replay memory after each version
checkpoint-vN.safetensors    the version being trained, after its last whole epoch
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from fixstar.data.image_set import ImageSet
from fixstar.data.replay import ReplayMemory
from fixstar.durable import is_vacant, replace_json
from fixstar.errors import CheckpointError, InputError, ModelError, UnknownNameError
from fixstar.evaluation import PROTOCOLS, CrossTest, VersionFeatures, cross_test
from fixstar.methods import Method, OldVectors, create_method
from fixstar.models import Encoder
from fixstar.models.device import resolve_device
from fixstar.models.storage import read_card
from fixstar.scenarios import Past, Settings, Version, train_version, version_features
from fixstar.scenarios.run_directory import RunDirectory
from fixstar.scenarios.sequences import remember
from fixstar.training import Recipe

__all__ = ["Workspace"]

Bad = Literal["refuse", "skip"]

_MARK = {"format": "fixstar-workspace", "format_version": 1}


class Workspace:
    """Train the first version, upgrade it, and measure every version against every older one's gallery."""

    def __init__(self, path: str | Path) -> None:
        """Open an existing workspace."""
        self.path = Path(path)
        mark = self.path / "workspace.json"
        if not mark.is_file():
            raise InputError(f"{self.path} is not a workspace; make one with: fixstar init {self.path}")
        try:
            content = json.loads(mark.read_text())
        except ValueError as error:
            raise InputError(f"{mark} is not valid JSON ({error}); restore it from a copy") from error
        if content != _MARK:
            raise InputError(f"{mark} is not of a workspace that this fixstar can open (found {content})")
        self._run = RunDirectory(self.path)

    @classmethod
    def create(cls, path: str | Path) -> Workspace:
        """Make a new workspace; an existing one is left as it is, other content is refused."""
        path = Path(path)
        if (path / "workspace.json").exists():
            return cls(path)
        if not is_vacant(path):
            raise InputError(f"{path} is not empty; choose a new directory for the workspace")
        replace_json(path / "workspace.json", _MARK)
        return cls(path)

    def versions(self) -> list[str]:
        """The finished versions, oldest first."""
        found = sorted(int(p.name[1:]) for p in (self.path / "versions").glob("v*") if p.name[1:].isdigit())
        if missing := sorted(set(range(1, len(found) + 1)) - set(found)):
            raise ModelError(f"{self.path / 'versions'} lacks v{missing[0]}; restore it from a copy before going on")
        return [f"v{number}" for number in found]

    def encoder(self, name: str, device: str = "cpu") -> Encoder:
        """A finished version's encoder."""
        if name not in self.versions():
            raise UnknownNameError("version", name, self.versions())
        return Encoder.load(self.path / "versions" / name, device)

    def newest(self) -> str:
        """The name of the newest version."""
        if not self.versions():
            raise InputError(
                f"{self.path} has no version yet; train the first with: fixstar train IMAGES -w {self.path}"
            )
        return self.versions()[-1]

    def settings(self) -> Settings:
        """What the newest version was trained with; its successor is trained alike."""
        return self._training()[0]

    def _training(self) -> tuple[Settings, Method, dict[str, Any]]:
        """How the newest version was trained, from its card alone: settings, method, and what else it says."""
        name = self.newest()
        try:
            about: dict[str, Any] = read_card(self.path / "versions" / name)["about"]
            method = create_method(about["method"]["name"], **about["method"]["options"])
            return Settings.from_json(about["settings"]), method, about
        except (AttributeError, KeyError, TypeError) as error:
            raise ModelError(f"the card of {name} does not say how it was trained (missing or odd: {error})") from error

    def train(
        self,
        images: ImageSet,
        settings: Settings,
        method: Method,
        progress: bool = True,
        old_vectors: OldVectors | None = None,
    ) -> Version:
        """Train v1. After a kill the same call goes on where the last one stopped.

        ``old_vectors`` are those of another system, which v1 is to stay compatible with.
        """
        if (old_vectors is not None) != ("old vectors" in method.needs):
            raise InputError(
                f"method {method.name!r} trains without old vectors; take --method bct-vectors for them"
                if old_vectors is not None
                else f"method {method.name!r} needs the vectors to stay compatible with: give --old-vectors FILE.npz"
            )
        if self.versions():
            raise InputError(
                f"{self.path} has {self.versions()[-1]} already; train its successor with: "
                f"fixstar upgrade IMAGES -w {self.path}"
            )
        past = Past(None, ReplayMemory(settings.replay_per_class), old_vectors=old_vectors)
        return self._next(images, past, settings, method, progress)

    def upgrade(
        self,
        images: ImageSet,
        recipe: Recipe | None = None,
        method: Method | None = None,
        device: str = "auto",
        bad_images: Bad = "refuse",
        progress: bool = True,
    ) -> Version:
        """Train the next version so that it stays compatible with all before it.

        Settings and method are the previous version's unless given. A retraining method needs all images so far.
        """
        settings, last_method, about = self._training()
        settings = replace(settings, device=device, bad_images=bad_images, recipe=recipe or settings.recipe)
        method = method or last_method
        if self._is_done(images, method, settings, about):
            raise InputError(
                f"{self.newest()} was trained on exactly these images in exactly this way; the upgrade is done"
            )
        previous = self.encoder(self.newest())
        if method.classifier != previous.classifier.kind:
            raise ModelError(
                f"method {method.name!r} trains a {method.classifier} classifier and {self.versions()[-1]} has a "
                f"{previous.classifier.kind} one; choose a method that goes on with it"
            )
        missing = [name for name in previous.slots.classes if name not in images.classes]
        if missing and "all images" in method.needs:
            raise InputError(
                f"method {method.name!r} retrains on all images so far, and {len(missing)} classes of "
                f"{self.versions()[-1]} are not among these ({', '.join(missing[:5])}, ...). "
                "Give a folder with old and new classes, or take a lifelong method such as hoc"
            )
        memory = ReplayMemory.load(self._run.memory(len(self.versions())))
        return self._next(images, Past(previous, memory), settings, method, progress)

    @staticmethod
    def _is_done(images: ImageSet, method: Method, settings: Settings, about: dict[str, Any]) -> bool:
        """Whether the newest version is what this upgrade would make: a retried command must not make another."""
        same_way = about["method"]["name"] == method.name and about["method"]["options"] == dict(method.options)
        return (
            about.get("parent") is not None
            and same_way
            and about["settings"]["recipe"] == settings.to_json()["recipe"]
            and about.get("data", {}).get("fingerprint") == images.fingerprint()
        )

    def _next(
        self,
        images: ImageSet,
        past: Past,
        settings: Settings,
        method: Method,
        progress: bool,
    ) -> Version:
        number = len(self.versions()) + 1
        shown = past if method.scenario == "lifelong" else replace(past, memory=ReplayMemory(0))
        with self._run.held():
            if self._run.finished(number):
                raise CheckpointError(f"another process has just finished v{number} in {self.path}; run again")
            checkpoint = self._run.checkpoint(number)
            version = train_version(number, images, shown, method, settings, checkpoint, progress)
            self._run.finish(number, version.encoder, remember(past.memory, version, settings))
        return version

    def features(
        self, queries: ImageSet, gallery: ImageSet, device: str = "auto", progress: bool = True
    ) -> list[VersionFeatures]:
        """Each version's short forms of the query and gallery images, made once."""
        made = []
        for name in self.versions():
            encoder = self.encoder(name).to(resolve_device(device))
            made.append(version_features(name, encoder, queries, gallery, progress))
        return made

    def evaluate(
        self,
        queries: ImageSet,
        gallery: ImageSet,
        protocol: str = "image",
        device: str = "auto",
        progress: bool = True,
    ) -> CrossTest:
        """The compatibility matrix of all versions on labelled images that can be read."""
        self.newest()  # says so where there is no version yet
        if queries.classes != gallery.classes:
            raise InputError("queries and gallery must be of the same classes")
        if protocol not in PROTOCOLS:
            raise UnknownNameError("protocol", protocol, PROTOCOLS)
        features = self.features(queries, gallery, device, progress)
        return cross_test(features, queries.labels, gallery.labels, protocol)
