"""The versions of one directory: immutable, with a card each, numbered for ever.

versions/v1, v2, ...     finished encoders: weights and card, never rewritten
retired/v1.json, ...     the cards of versions whose weights were given up
growth.json              simplices that were added to the first one, for versions trained later
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fixstar.durable import replace_json
from fixstar.errors import InputError, ModelError, UnknownNameError
from fixstar.models import Encoder
from fixstar.models.encoder import read_card
from fixstar.scenarios.run_directory import RunDirectory

__all__ = ["Registry"]


class Registry:
    """Which versions there are, where they come from, and which class owns which slot."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def names(self) -> list[str]:
        """The finished versions whose weights are here, oldest first. A number missing in between is damage."""
        there = _numbers((self.path / "versions").glob("v*"))
        gone = _numbers((self.path / "retired").glob("v*.json"))
        if missing := sorted(set(range(1, max(there | gone, default=0) + 1)) - there - gone):
            raise ModelError(f"{self.path / 'versions'} lacks v{missing[0]}; restore it from a copy before going on")
        return [f"v{number}" for number in sorted(there - gone)]

    def next_number(self) -> int:
        """The number of the next version; numbers are never used again."""
        every = _numbers((self.path / "versions").glob("v*")) | _numbers((self.path / "retired").glob("v*.json"))
        return max(every, default=0) + 1

    def retired(self) -> list[str]:
        """The versions whose weights were given up, oldest first."""
        return [f"v{number}" for number in sorted(_numbers((self.path / "retired").glob("v*.json")))]

    def checked(self, name: str) -> str:
        """A version whose weights are here, or an error that names those."""
        if name in (known := self.names()):
            return name
        if (self.path / "retired" / f"{name}.json").is_file():
            raise ModelError(f"{name} was retired: its weights are gone. There are: {', '.join(known)}")
        raise UnknownNameError("version", name, known, "" if known else "Train the first with: fixstar train IMAGES")

    def directory(self, name: str) -> Path:
        """Where a version's weights and card are."""
        return self.path / "versions" / name

    def card(self, name: str) -> dict[str, Any]:
        """What a version is: backbone, classifier, slots, and ``about``, where it comes from. Retired ones too."""
        tombstone = self.path / "retired" / f"{name}.json"
        if tombstone.is_file():
            card: dict[str, Any] = json.loads(tombstone.read_text())
            return card
        return read_card(self.directory(self.checked(name)))

    def encoder(self, name: str, device: str = "cpu") -> Encoder:
        """A version's encoder."""
        return Encoder.load(self.directory(self.checked(name)), device)

    def parent(self, name: str) -> str | None:
        """The version that this one was trained from, or to agree with."""
        parent: str | None = self.card(name)["about"].get("parent")
        return parent

    def lineage(self, name: str) -> list[str]:
        """The version and its ancestors, oldest first."""
        line = [name]
        while (parent := self.parent(line[0])) is not None and parent not in line:
            line.insert(0, parent)
        return line

    def manifest(self) -> dict[str, Any]:
        """Which class owns which slot, for ever: what a separate team needs to stay interoperable."""
        names = self.names()
        if not names:
            raise InputError(f"{self.path} has no version yet, so no class owns a slot")
        slots = read_card(self.directory(names[-1]))["slots"]
        return {
            "format": "fixstar-slots",
            "version": names[-1],
            "capacity": slots["capacity"],
            "free": None if slots["capacity"] is None else slots["capacity"] - len(slots["by_class"]),
            "added": list(self.growth()),
            "by_class": dict(sorted(slots["by_class"].items(), key=lambda owner: owner[1])),
        }

    def growth(self) -> tuple[int, ...]:
        """The capacities of the simplices added to the first, oldest first; the next version is trained with them."""
        path = self.path / "growth.json"
        if not path.is_file():
            return ()
        try:
            added = tuple(json.loads(path.read_text())["added"])
        except (ValueError, KeyError, TypeError) as error:
            raise ModelError(f"{path} is damaged ({error}); restore it from a copy") from error
        if not all(isinstance(count, int) and count >= 2 for count in added):
            raise ModelError(f"{path} is damaged: it holds {added}; restore it from a copy")
        return added

    def grow(self, count: int) -> tuple[int, ...]:
        """Add a simplex of ``count`` classes in new dimensions for the versions to come; all that were added so far."""
        if isinstance(count, bool) or count < 2:
            raise InputError(f"a simplex is added for two classes or more, got {count}")
        if not (names := self.names()):
            raise InputError(
                f"{self.path} has no version that could grow yet; train the first with room for all classes to come: "
                f"fixstar train IMAGES --capacity N -w {self.path}"
            )
        card = self.card(names[-1])
        if card["slots"]["capacity"] is None:
            raise InputError(
                "this classifier has an output for every class and grows by itself; upgrade with more classes"
            )
        if (kind := card["classifier"]["kind"]) != "simplex":
            raise InputError(f"only the simplex grows, and this is a {kind}; train with a larger --capacity instead")
        run = RunDirectory(self.path)
        with run.held():  # one that is being trained has begun without it
            self._refuse_unfinished(run.checkpoint(self.next_number()))
            added = (*self.growth(), count)
            replace_json(self.path / "growth.json", {"added": list(added)})
        return added

    def _refuse_unfinished(self, checkpoint: Path) -> None:
        """Growth changes what the next version is trained with: one that was begun could not go on."""
        if checkpoint.exists():
            raise InputError(
                f"the training of v{self.next_number()} was interrupted and could not go on with more room. Finish it "
                "first: the same upgrade command goes on. Or give it up: delete "
                f"{checkpoint}, then grow"
            )

    def retire(self, name: str, live: Mapping[str, int], needed: Mapping[str, str], deployed: str) -> None:
        """Give up a version's weights and memory; its card stays. Refused while its vectors live or it is needed.

        ``live`` counts vectors by version, ``needed`` says of versions why they must stay.
        """
        tombstone = self.path / "retired" / f"{name}.json"
        if not (tombstone.is_file() and self.directory(name).is_dir()):  # else an earlier call was killed half way
            self.checked(name)
            reasons = [needed[name]] if name in needed else []
            if live.get(name):
                reasons.append(f"{live[name]:,} vectors of {name} live in the gallery. {_to_be_rid_of(name, deployed)}")
            if reasons:
                raise InputError(f"{name} cannot be retired: {'. Besides, '.join(reasons)}")
            replace_json(tombstone, self.card(name))
        (self.path / "memory" / f"{name}.safetensors").unlink(missing_ok=True)
        shutil.rmtree(self.directory(name))


def _to_be_rid_of(name: str, deployed: str) -> str:
    """How the vectors of a version go. A backfill replaces those older than the version deployed, no others."""
    delete = f"or delete these items: fixstar gallery delete --version {name}"
    if int(deployed[1:]) > int(name[1:]):
        return f"Re-embed them (fixstar backfill --budget all), {delete}"
    if deployed == name:
        return f"Re-embed them once a newer version is deployed (fixstar backfill --budget all), {delete}"
    return (
        f"A backfill to {deployed}, which is deployed, never replaces newer vectors: deploy {name} again "
        f"(fixstar deploy {name}), {delete}"
    )


def _numbers(paths: Any) -> set[int]:
    stems = (path.name.removesuffix(".json") for path in paths)
    return {int(stem[1:]) for stem in stems if stem[1:].isascii() and stem[1:].isdigit()}
