"""The versions of one directory: immutable, each with a card. Numbers are never reused.

versions/v1, v2, ...     finished encoders: weights and card, never rewritten
retired/v1.json, ...     the cards of versions whose weights were deleted
growth.json              simplices that were added to the first one, for versions trained later
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fixstar.durable import document, exclusive, parse_document, read_document, replace_json
from fixstar.errors import InputError, ModelError, NextStep, UnknownNameError
from fixstar.texts import Reads
from fixstar.trust import import_path, remembered, trusting
from fixstar.versions import VersionFiles, home_of, version_name, version_number, version_numbers

if TYPE_CHECKING:
    from fixstar.models import Encoder

Card = Callable[[str], dict[str, Any]]  # a version's card by its name

_WAIT = 10.0  # seconds to wait for another process that retires a version
FIRST = (  # how a workspace gets its first version
    NextStep("add", {"model": "efficientnet-lite0"}, "photos: a small pre-trained network"),
    NextStep("train", {"data": ...}, "drawings and unusual images"),
    NextStep("add", {"model": "st:FOLDER"}, "texts: a sentence-transformers model"),
    NextStep(
        "add",
        {"model": "https://HOST/v1/embeddings?model=NAME"},
        "texts: a server that embeds them",
    ),
    NextStep("add", {"model": ...}, "a model that you have"),
)


class Registry:
    """The versions of a workspace, their origin, and which class owns which slot."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = VersionFiles(path)

    def names(self) -> list[str]:
        """The finished versions that still have weights, oldest first. A gap in the numbers means damage."""
        there, gone = self._numbers()
        if missing := sorted(set(range(1, max(there | gone, default=0) + 1)) - there - gone):
            raise ModelError(
                f"{self.files.finished} lacks {version_name(missing[0])}; restore it from a copy first"
            )
        return [version_name(number) for number in sorted(there - gone)]

    def newest(self) -> str:
        """The newest version."""
        if not (names := self.names()):
            training = self.unfinished()
            if training is not None:
                raise InputError(
                    f"{self.path} has no version yet: the training of {training} is running, or was interrupted. Wait "
                    "for it, or resume it by running the same training again",
                    NextStep("status", {}, "whether it is done"),
                )
            raise InputError(f"{self.path} has no version yet", *FIRST)
        return names[-1]

    def reads(self) -> Reads:
        """What the models of this directory read (images or texts); it is the same for all."""
        names = self.names()
        if not names:
            return "images"
        if self.card(names[-1])["preprocessing"].get("reads") == "texts":
            return "texts"
        return "images"

    def can_upgrade(self) -> bool:
        """Whether the newest version was trained here, so that an upgrade can start from it."""
        return "added" not in self.card(self.newest())["about"]

    def next_version(self, note: str = "") -> NextStep:
        """How to make the next version: an upgrade, or another model if the newest version was added."""
        if self.can_upgrade():
            return NextStep("upgrade", {"data": ...}, note)
        return NextStep("add", {"model": ...}, note)

    def next_number(self) -> int:
        """The number of the next version; numbers are never reused."""
        return max(set().union(*self._numbers()), default=0) + 1

    def unfinished(self) -> str | None:
        """The version that is being trained, or whose training was interrupted; None without one."""
        name = version_name(self.next_number())
        if any(self.path.glob(f"*-{name}*")):  # its checkpoint or short runs
            return name
        return None

    def retired(self) -> list[str]:
        """The versions whose weights were deleted, oldest first."""
        return [version_name(number) for number in sorted(self._numbers()[1])]

    def known(self) -> list[str]:
        """All versions, retired ones too, oldest first."""
        return sorted({*self.names(), *self.retired()}, key=version_number)

    def homes(self, names: Iterable[str]) -> dict[str, str]:
        """The version whose space vectors lie in, by the name that they are stored under.

        That is v1 for vectors called v1 or NAME@v1; vectors of another system have a space of their own.
        """
        known = self.known()
        return {name: home_of(name, known) or name for name in names}

    def _numbers(self) -> tuple[set[int], set[int]]:
        """Of finished and of retired versions."""
        there = {path.name for path in self.files.finished.glob("v*")}
        gone = {path.stem for path in self.files.retired.glob("v*.json")}
        return version_numbers(there), version_numbers(gone)

    def checked(self, name: str) -> str:
        """The name of a version that has weights; raises with the available names otherwise."""
        known = self.names()
        if name in known:
            return name
        if self.is_retired(name):
            raise ModelError(
                f"{name} was retired: its weights are gone. There are: {', '.join(known)}"
            )
        steps = () if known else FIRST
        raise UnknownNameError("version", name, known, "", *steps)

    def directory(self, name: str) -> Path:
        """Where a version's weights and card are."""
        return self.files.encoder(name)

    def directories(self) -> list[Path]:
        """The directories of versions on disk, without leftovers of a killed ``retire``."""
        return [
            path
            for path in sorted(self.files.finished.glob("v*"))
            if not self.is_retired(path.name)
        ]

    def card_file(self, name: str) -> Path:
        """The path of a version's card, which is kept when the version is retired."""
        if self.is_retired(name):
            return self.files.retired_card(name)
        return self.directory(name) / "card.json"

    def is_retired(self, name: str) -> bool:
        """Whether a version's weights were deleted, or are being deleted."""
        return self.files.retired_card(name).is_file()

    def card(self, name: str) -> dict[str, Any]:
        """A version's card, also of a retired one: backbone, classifier, slots, and its origin (``about``)."""
        if self.is_retired(name):
            return read_document(self.files.retired_card(name), "encoder")
        from fixstar.models.encoder import read_card

        return read_card(self.directory(self.checked(name)))

    def encoder(self, name: str, device: str = "cpu") -> Encoder:
        """A version's encoder."""
        from fixstar.models import Encoder

        with trusting(*remembered(self.path)):
            return Encoder.load(self.directory(self.checked(name)), device)

    def code(self) -> dict[str, str]:
        """The import path of each version's own code; versions without such code are left out."""
        made = {name: self.card(name)["backbone"] for name in self.names()}
        paths = {name: import_path(one["name"], one["options"]) for name, one in made.items()}
        return {name: path for name, path in paths.items() if path is not None}

    def lineage(self, name: str) -> list[str]:
        """The version and its ancestors, oldest first."""
        return lineage(self.card, name)

    def manifest(self) -> dict[str, Any]:
        """Which class owns which slot. The assignment never changes; other teams need it to stay interoperable."""
        newest = self.newest()
        slots = self.card(newest)["slots"]
        return {
            "format": "fixstar-slots",
            "version": newest,
            "capacity": slots["capacity"],
            "free": None
            if slots["capacity"] is None
            else slots["capacity"] - len(slots["by_class"]),
            "added": list(self.growth()),
            "by_class": dict(sorted(slots["by_class"].items(), key=lambda owner: owner[1])),
        }

    def growth(self) -> tuple[int, ...]:
        """The capacities of added simplices, oldest first; the next version is trained with them."""
        path = self.path / "growth.json"
        if not path.is_file():
            return ()
        added = parse_document(path, "growth", lambda content: tuple(content["added"]))
        if not all(isinstance(count, int) and count >= 2 for count in added):
            raise ModelError(f"{path} is damaged: it holds {added}; restore it from a copy")
        return added

    def grow(self, count: int) -> tuple[int, ...]:
        """Add a simplex of ``count`` classes in new dimensions for later versions; returns all added capacities."""
        from fixstar.training.run_directory import RunDirectory

        if isinstance(count, bool) or count < 2:
            raise InputError(f"a simplex is added for two classes or more, got {count}")
        if not (names := self.names()):
            raise InputError(
                f"{self.path} has no version that could grow yet; train the first with room for all later classes",
                NextStep("train", {"data": ..., "capacity": ...}),
            )
        card = self.card(names[-1])
        if card["slots"]["capacity"] is None:
            raise InputError(
                "this classifier has one output per class and needs no added capacity; upgrade with more classes"
            )
        if (kind := card["classifier"]["kind"]) != "simplex":
            raise InputError(
                f"only the simplex grows, and this is a {kind}; train with a larger capacity instead"
            )
        if card["about"].get("method", {}).get("options", {}).get("rotated"):
            raise InputError(
                f"{names[-1]} was trained with rotated classes. They take 8 slots per class of the first simplex, so "
                "room in a second one would not help. Without rotated classes all its slots are free",
                NextStep(
                    "upgrade",
                    {"data": ..., "option": "rotated=false"},
                    "the next version has no rotated classes",
                ),
            )
        run = RunDirectory(self.path)
        name = version_name(self.next_number())
        with run.locked():
            checkpoint = self.files.checkpoint(name)
            if checkpoint.exists():
                raise InputError(
                    f"the training of {name} was interrupted, and it could not resume with a larger capacity. "
                    f"Finish it first by repeating the upgrade, or discard it: delete {checkpoint}, then grow",
                    NextStep("upgrade", {"data": ...}, "the same as before: it resumes"),
                )
            added = (*self.growth(), count)
            replace_json(self.path / "growth.json", document("growth", {"added": list(added)}))
        return added

    def using(self, name: str) -> AbstractContextManager[None]:
        """A lock to hold while a version embeds and stores items: it cannot be retired meanwhile."""
        return self._held(self.checked(name), "it is being retired", shared=True)

    def unused(self, name: str) -> AbstractContextManager[None]:
        """A lock to hold while a version is retired: fails while items are being embedded with it."""
        return self._held(
            name,
            "items are being embedded with it. Wait until that is done, or stop it",
            shared=False,
        )

    @contextmanager
    def _held(self, name: str, busy: str, shared: bool) -> Iterator[None]:
        error = InputError(f"{name} is in use: {busy}")
        with exclusive(
            self.path / "state" / "in-use" / name,
            wait=_WAIT if shared else 0.0,
            busy=error,
            shared=shared,
        ):
            if shared:
                self.checked(name)  # it may have been retired before this
            yield

    def is_half_retired(self, name: str) -> bool:
        """Whether ``retire`` was killed before it finished."""
        return self.is_retired(name) and self.directory(name).is_dir()

    def retire(self, name: str) -> None:
        """Delete a version's weights and memory; its card stays."""
        if not self.is_retired(name):
            replace_json(self.files.retired_card(name), document("encoder", self.card(name)))
        self.files.memory(name).unlink(missing_ok=True)
        shutil.rmtree(self.directory(name))


def lineage(card: Card, name: str) -> list[str]:
    """The version and its ancestors by their cards, oldest first."""
    line = [name]
    while (parent := card(line[0])["about"].get("parent")) is not None and parent not in line:
        line.insert(0, parent)
    return line
