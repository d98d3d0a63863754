"""A workspace against a plain reference in memory, over long random sequences of operations, with kills.

An operation is a name, who does it, and a number that all its details are drawn from: ``index.killed.4711``. It is done
by one of two objects of this process (``own``, ``other``), by a second process (``process``), or by a second process
that kills itself (SIGKILL) at a random call into the system or the database (``killed``). After every operation
somebody else reads everything: ids, versions, payloads, vectors to the bit, deployments, retired versions, translations
and counts. Searches are compared with scores over the reference, w cos(q, F z) + (1 - w) cos(b, z) vector by vector,
and ``verify`` must find nothing. After a kill every write is there as a whole or not at all, and all that was
acknowledged is there. Now and then the gallery moves to another file or server.

A failure is shrunk: operations are left out as long as it still fails. What is left is printed as a command.

    python tests/support/workspace_model.py --operations 200000
    python tests/support/workspace_model.py --postgres --operations 2000
    python tests/support/workspace_model.py --trace "index.own.1 backfill.killed.7"

This is a small runner of its own, not Hypothesis: sequences are hundreds of operations long, further than its entropy
reaches, an operation costs milliseconds, and the same sequence must run from a command line.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import pairwise
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from forked import fork, kill_at_call
from numpy.typing import NDArray
from PIL import Image
from shops import CLASSES, shop

from fixstar.errors import FixstarError
from fixstar.gallery import Payload, copy_gallery, import_version, open_gallery
from fixstar.gallery.vector_files import FileRows
from fixstar.geometry import unit
from fixstar.models import Encoder
from fixstar.models.encoder import read_card
from fixstar.translation import Map, Translation
from fixstar.workspace import CatalogueItem, Workspace, items, registry
from fixstar.workspace.backfill import run as backfill_run
from fixstar.workspace.backfill.run import PlanFiles, budget_items
from fixstar.workspace.files import create_mark, gallery_url, set_gallery
from fixstar.workspace.items import IMAGE, LABEL, STAMP
from fixstar.workspace.options import BackfillOptions
from fixstar.workspace.registry import Registry
from fixstar.workspace.verify import verify_workspace

Vector = NDArray[np.float32]
VERSIONS, IMAGES, BROKEN = 5, 24, 0  # image number BROKEN cannot be read
IDS = [*(f"i{number}" for number in range(34)), "ü/1", "a'b", 'q"', "日本", "x\ny", "%_"]
WIDTH = 7  # of the versions' vectors
FOREIGN = {"shop": 5, "shop@v1": 7}  # imported versions, and the width of their vectors
EPISODE = 250  # operations on one workspace
SMALL_BATCH = 4  # items at a time, so that a kill finds some done and others not
WEIGHTS = {
    "index": 30,
    "delete": 12,
    "replace": 8,
    "import": 8,
    "deploy": 8,
    "rollback": 4,
    "backfill": 7,
    "fit": 5,
    "keep": 10,
    "retire": 2,
    "drop": 1,
    "prune": 2,
    "compact": 1,
    "build": 1,
    "race": 3,
    "patch": 8,
    "together": 4,
    "search": 6,
    "restart": 2,
    "abandon": 2,
    "move": 2,
}
ACTORS = {"own": 54, "other": 27, "process": 14, "killed": 5}


class MismatchError(AssertionError):
    """The workspace is not as the reference says."""


class Operation(NamedTuple):
    """What, by whom, and the number that the details are drawn from."""

    name: str
    by: str
    number: int

    def __str__(self) -> str:
        return ".".join(map(str, self))

    @classmethod
    def parse(cls, text: str) -> Operation:
        name, by, number = text.split(".")
        return cls(name, by, int(number))


def drawn_operations(seed: int, count: int) -> list[Operation]:
    """A random sequence."""
    rng = random.Random(seed)
    names, actors = (
        rng.choices(list(kinds), list(kinds.values()), k=count) for kinds in (WEIGHTS, ACTORS)
    )
    return [
        Operation(name, by, rng.randrange(10**6)) for name, by in zip(names, actors, strict=True)
    ]


# --- what everybody starts from


class Start(NamedTuple):
    """A workspace with versions, images, and the vector of each image by each version; made once for each process."""

    workspace: Path
    photos: tuple[Path, ...]
    vectors: Mapping[str, Vector]


@cache
def start() -> Start:
    folder = Path(tempfile.mkdtemp(prefix="fixstar-model-"))
    shop(folder / "shop", VERSIONS, free=True).close()
    rng, photos = np.random.default_rng(0), list[Path]()
    for number in range(IMAGES):
        photos.append(folder / f"{number}.png")
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)).resize((32, 32)).save(photos[-1])
    vectors = {}
    for name in (f"v{number}" for number in range(1, VERSIONS + 1)):
        vectors[name] = Encoder.load(folder / "shop" / "versions" / name).encode(
            photos, form="short"
        )
    photos[BROKEN].write_bytes(b"not an image")
    return Start(folder / "shop", tuple(photos), vectors)


# --- doing it

Plan = dict[str, Any]


class Imported:
    """Vectors to import, as if from a file."""

    name = "vectors"
    projection: Vector | None = None
    origin: str | None = None

    def __init__(self, ids: list[str], vectors: Vector, payloads: list[Mapping[str, Any]]) -> None:
        self.ids, self.width, self._vectors, self._payloads = (
            ids,
            vectors.shape[1],
            vectors,
            payloads,
        )

    def blocks(self, _: int) -> Iterator[FileRows]:
        yield FileRows(self.ids, self._vectors, self._payloads)


def perform(space: Workspace, plan: Plan) -> Any:
    """Do what a plan says; what came back, in a form that compares."""
    match plan["do"]:
        case "index":
            done = space.index(
                [_catalogue_item(space, *item) for item in plan["items"]], again=plan["again"]
            )
            return done.version, done.added, done.unchanged, len(done.bad)
        case "import":
            source = Imported(plan["ids"], plan["vectors"], plan["payloads"])
            return import_version(
                space.gallery, plan["version"], source, take_over=plan["take_over"]
            )
        case "delete":
            return space.gallery.delete(plan["ids"])
        case "deploy":
            return space.deploy(plan["version"], force="a trial", queries=plan["queries"]).version
        case "rollback":
            return space.rollback().version
        case "backfill":
            return space.backfill(BackfillOptions(plan["budget"], plan["order"])).done
        case "fit":
            return [
                (way.source, way.target)
                for way in space.fit_translations(plan["source"], plan["target"])
            ]
        case "keep":
            return space.translations.keep(plan["way"])
        case "retire":
            space.retire(plan["version"])
        case "drop":
            space.drop(plan["version"])
        case "prune":
            before = time.time() + 10
            used = [str(item.payload.get(IMAGE)) for item in space.gallery.iterate()]
            space.images.prune(space.images.unused(used, before), before)
        case "compact":
            getattr(space.gallery, "compact", space.gallery.flush)()
        case "build":
            space.gallery.build_index()
        case "patch":
            for changes in plan["changes"]:
                changed = space.update_payload(plan["id"], changes)
            return dict(changed.payload)
        case "move":
            with open_gallery(plan["target"]) as new:
                copied = copy_gallery(space.gallery, new)
            set_gallery(space.path, plan["target"])
            return copied
        case "rooms":
            return frozenset(home(room.name) for room in space.gallery.versions())
        case "read":
            return [
                (item.id, item.version, item.vector, dict(item.payload))
                for item in space.gallery.iterate()
            ]
    return None


def _catalogue_item(
    space: Workspace, name: str, photo: Path, kept: bool, payload: dict[str, Any]
) -> CatalogueItem:
    image = space.path / str(space.images.keep(photo.read_bytes())[IMAGE]) if kept else photo
    return CatalogueItem(name, image, payload)


class Outcome(NamedTuple):
    """What came of an operation: ``done`` with a value, ``refused`` with a reason, or ``killed``."""

    kind: str
    value: Any = None


def attempt(space: Workspace, plan: Plan) -> Outcome:
    """Do it, or be refused. Any other error is a failure."""
    try:
        return Outcome("done", perform(space, plan))
    except FixstarError as error:
        return Outcome("refused", str(error))


# --- a second process, which can be killed


@cache
def prepare(versions: Path) -> None:
    """In this process: small batches, and models and cards that are read once for all workspaces: they never change."""
    items.BATCH = backfill_run.BATCH = SMALL_BATCH
    cards = {path.name: read_card(path) for path in versions.iterdir()}
    registry.read_card = lambda directory: cards[directory.name]  # type: ignore[attr-defined]
    read = {name: Encoder.load(versions / name) for name in cards}
    Registry.encoder = lambda self, name, _="cpu": read[self.checked(name)]  # type: ignore[method-assign,assignment]


@contextmanager
def as_before() -> Iterator[None]:
    """What ``prepare`` changes in this process is as before afterwards: other tests run in it too."""
    kept = items.BATCH, backfill_run.BATCH, Registry.encoder
    try:
        yield
    finally:
        items.BATCH, backfill_run.BATCH, Registry.encoder = kept  # type: ignore[method-assign]
        registry.read_card = read_card  # type: ignore[attr-defined]
        prepare.cache_clear()


def work(path: Path, pipe: Connection) -> None:
    """The second process: does what it is told, and says what came of it."""
    pipe.send(os.getpid())
    space = Workspace(path, device="cpu")
    while (told := pipe.recv()) is not None:
        plan, kill_after = told
        if kill_after:
            sys.setprofile(kill_at_call(kill_after))
        try:
            answer: Any = attempt(space, plan)
        except BaseException as error:
            answer = error
        sys.setprofile(None)
        pipe.send(answer)
    space.close()


class Ended(NamedTuple):
    """How the second process ended."""

    status: int


def fork_workers(pipe: Connection, versions: Path) -> None:
    """A process that has everything imported and nothing open. It forks workers, one at a time, onto its own pipe.

    It runs no model itself: libgomp's threads do not survive a fork, and who waits for them hangs.
    """
    while True:
        try:
            path, cut = pipe.recv()
        except EOFError:  # nobody asks any more
            return
        child = os.fork()
        if not child:
            try:
                if (
                    cut is not None
                ):  # the folder, where syncs are noted, and the number of the last one
                    ctypes.CDLL(None).power_cut_begin(
                        *(os.fsencode(part) for part in cut[:2]), cut[2]
                    )
                prepare(versions)
                work(path, pipe)
                os._exit(0)
            finally:
                os._exit(1)
        pipe.send(Ended(os.waitpid(child, 0)[1]))


@cache
def _nursery(preload: Path | None = None) -> Connection:
    (pipe, end), versions = Pipe(), start().workspace / "versions"
    if preload is None:
        fork(fork_workers, end, versions)
    else:
        code = "from workspace_model import *; fork_workers(Connection(int(sys.argv[1])), Path(sys.argv[2]))"
        places = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
        known = {**os.environ, "LD_PRELOAD": str(preload), "PYTHONPATH": places}
        subprocess.Popen(
            [sys.executable, "-c", code, str(end.fileno()), str(versions)],
            env=known,
            pass_fds=[end.fileno()],
        )
    end.close()
    return pipe


class Worker:
    """A second process with the workspace open; there is one at a time."""

    def __init__(
        self, path: Path, preload: Path | None = None, cut: tuple[Path, Path, int] | None = None
    ) -> None:
        self._pipe = _nursery(preload)
        self._pipe.send((path, cut))
        self._process: int | None = self._pipe.recv()

    def do(self, plan: Plan, kill_after: int = 0) -> Outcome:
        """What came of it; ``killed`` if it did not live to say."""
        self._pipe.send((plan, kill_after))
        answer = self._pipe.recv()
        if isinstance(answer, BaseException):
            raise answer
        if isinstance(answer, Ended):
            self._process = None
            if answer.status != signal.SIGKILL:
                raise MismatchError(f"the process ended with status {answer.status}")
            return Outcome("killed")
        assert isinstance(answer, Outcome)
        return answer

    def end(self, kill: bool) -> None:
        """By SIGKILL, or as it likes."""
        if self._process is None:
            return
        if kill:
            os.kill(self._process, signal.SIGKILL)
        else:
            self._pipe.send(None)
        ended = self._pipe.recv()
        if ended != Ended(signal.SIGKILL if kill else 0):
            raise MismatchError(f"the process ended with {ended}")


# --- the reference


@dataclass(frozen=True, eq=False)
class Stored:
    """An item. ``sealed``: these are the bits that were stored; else what they should be, up to rounding."""

    version: str
    vector: Vector
    payload: dict[str, Any]
    sealed: bool = False

    def is_like(self, other: Stored) -> bool:
        if (self.version, self.payload) != (other.version, other.payload):
            return False
        if self.sealed:
            return self.vector.tobytes() == other.vector.tobytes()
        return self.vector.shape == other.vector.shape and bool(
            np.abs(self.vector - other.vector).max() < 1e-4
        )


class Way(NamedTuple):
    """A translation as its file says, or as a plan does. Maps are arrays by name, layer by layer: 0.W, 0.c, 1.W, ..."""

    source: str
    target: str
    forward: Mapping[str, Any]
    backward: Mapping[str, Any]
    one: float | None
    two: float | None
    shared: bool = False
    about: Mapping[str, Any] = MappingProxyType({})

    @classmethod
    def read(cls, file: Path) -> Way:
        with np.load(file) as members:
            card = json.loads(members["card.json"])
            arrays = {name: members[name] for name in members.files if name != "card.json"}
        return cls(
            source=card["source"],
            target=card["target"],
            forward=_side(arrays, "forward."),
            backward=_side(arrays, "backward."),
            one=card["one"],
            two=card["two"],
            shared=card["shared"],
            about=card["about"],
        )

    @classmethod
    def of(cls, way: Translation) -> Way:
        return cls(
            source=way.source,
            target=way.target,
            forward={} if way.forward is None else dict(way.forward.named_arrays()),
            backward={} if way.backward is None else dict(way.backward.named_arrays()),
            one=way.one,
            two=way.two,
            shared=way.shared,
            about=way.about,
        )

    @property
    def plain(self) -> bool:
        """One space, and nothing else."""
        return self.shared and not self.forward

    def scores_like(self, other: Way) -> bool:
        if self[:2] != other[:2] or self[4:7] != other[4:7]:
            return False
        return _same_arrays(self.forward, other.forward) and _same_arrays(
            self.backward, other.backward
        )

    def usable(self, models: Collection[str]) -> Way | None:
        """With the queries of some models: with one model if the source is not among them."""
        if self.two is None or self.source in models:
            return self
        return None if self.one is None else self._replace(two=None)

    def score(self, queries: Mapping[str, Vector], stored: Vector) -> float:
        """w cos(q, F z) + (1 - w) cos(b, z)."""
        new = queries[self.target]
        weight = self.one if self.two is None else self.two
        assert weight is not None
        if self.two is not None:
            asked: NDArray[Any] = queries[self.source]
        else:
            asked = new if self.shared else _mapped(self.backward, new)
        score = (1 - weight) * float(np.dot(asked.astype(np.float64), stored))
        if weight:
            score += weight * float(np.dot(new.astype(np.float64), _mapped(self.forward, stored)))
        return score

    def backwards(self) -> Way:
        """What the source's queries ask of the target's vectors."""
        if self.forward and self.backward:
            one = None if self.one is None else 1 - self.one
            two = None if self.two is None else 1 - self.two
            return Way(self.target, self.source, self.backward, self.forward, one, two, self.shared)
        return (
            between_shared(self.target, self.source)
            if self.shared
            else by_old_queries(self.target, self.source)
        )

    def then(self, after: Way) -> Way | None:
        """Two in a row; None if a map is missing."""
        shared = self.shared and after.shared
        forward = _in_a_row(self.forward, after.forward)
        backward = _in_a_row(after.backward, self.backward)
        if shared and not forward:
            return between_shared(self.source, after.target)
        if not forward or not (shared or backward):
            return None
        weights = [weight for weight in (self.one, after.one) if weight is not None]
        return Way(
            self.source,
            after.target,
            forward,
            backward,
            float(np.mean(weights or [0.6])),
            None,
            shared,
        )


def _side(arrays: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {
        name.removeprefix(prefix): array
        for name, array in arrays.items()
        if name.startswith(prefix)
    }


def between_shared(source: str, target: str) -> Way:
    return Way(source, target, {}, {}, 0.0, None, shared=True)


def by_old_queries(source: str, target: str) -> Way:
    return Way(source, target, {}, {}, None, 0.0)


def _mapped(part: Mapping[str, Any], vector: NDArray[Any]) -> NDArray[Any]:
    """A vector through the layers of a map."""
    x = vector.astype(np.float64)
    for layer in range(_layers(part)):
        y = x @ part[f"{layer}.W"] + part[f"{layer}.c"]
        if f"{layer}.A" in part:
            y = y + np.maximum(x @ part[f"{layer}.A"] + part[f"{layer}.e"], 0) @ part[f"{layer}.B"]
        x = y / np.linalg.norm(y)
    return x


def _layers(part: Mapping[str, Any]) -> int:
    return 1 + max((int(name.split(".")[0]) for name in part), default=-1)


def _in_a_row(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """The layers of two maps; nothing if one is missing."""
    if not first or not second:
        return {}
    later = {}
    for name, array in second.items():
        layer, kind = name.split(".")
        later[f"{int(layer) + _layers(first)}.{kind}"] = array
    return {**first, **later}


def _same_arrays(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return one.keys() == other.keys() and all(
        np.array_equal(one[name], other[name]) for name in one
    )


def home(version: str) -> str:
    """The version whose space vectors lie in: v1 for those called shop@v1."""
    return version.rpartition("@")[2]


class Moved(NamedTuple):
    """A move, with the files of the translations that it names, by the version whose vectors they carry."""

    version: str
    kind: str
    files: tuple[tuple[str, str], ...] = ()


class Pointers(NamedTuple):
    """What says who answers: moves, and retired versions."""

    moves: tuple[Moved, ...] = ()
    retired: tuple[str, ...] = ()

    @classmethod
    def of(cls, space: Workspace) -> Pointers:
        moves = space.rollout.history()
        made = tuple(
            Moved(move.version, move.kind, tuple(sorted(move.translations.items())))
            for move in moves
        )
        return cls(made, tuple(space.registry.retired()))

    @property
    def stack(self) -> list[Moved]:
        """The deployments that were not rolled back."""
        stack = [Moved("v1", "deploy")]
        for move in self.moves:
            if move.kind == "rollback":
                stack.pop()
            else:
                stack.append(move)
        return stack

    @property
    def current(self) -> Moved:
        return self.stack[-1]

    @property
    def deployed(self) -> str:
        return self.current.version

    @property
    def previous_move(self) -> Moved | None:
        """What a rollback restores."""
        earlier = self.stack[:-1]
        return earlier[-1] if earlier and earlier[-1].version not in self.retired else None

    @property
    def previous(self) -> str | None:
        """Where a rollback leads."""
        return None if self.previous_move is None else self.previous_move.version

    @property
    def versions(self) -> list[str]:
        return [
            name for name in (f"v{n}" for n in range(1, VERSIONS + 1)) if name not in self.retired
        ]


def without_moves_for(dropped: str, now: Pointers) -> Iterator[Pointers]:
    """Deployments that differ from the one before only in how a dropped version was asked are taken back."""
    while (before := now.previous_move) is not None and before.version == now.deployed:
        if any(name != dropped for name, _ in {*before.files} ^ {*now.current.files}):
            return
        now = now._replace(moves=(*now.moves, before._replace(kind="rollback")))
        yield now


Group = dict[str, Stored | None]  # what items become; None is gone


@dataclass
class Expected:
    """What an operation should do. Groups are written as a whole; of ``some`` so many (None: any) are written."""

    groups: Sequence[Group] = ()
    some: Mapping[str, Stored] = field(default_factory=dict)
    count: int | None = 0
    pointers: Sequence[Pointers] = ()  # the steps, the last one when it is done
    refused: bool | None = False  # None: it may be
    value: Any = ...
    kept: Sequence[tuple[str, str]] = ()  # translations from and to these may be kept
    way: Way | None = None  # the one that is kept, where that is known
    deploys: Mapping[str, Way] | None = None  # the translations that a move must name


class Reference:
    """What the workspace should hold, and what each operation should do to it."""

    def __init__(self, path: Path) -> None:
        self.path, self.items, self.pointers = path, dict[str, Stored](), Pointers()
        self.files: dict[
            str, tuple[str, Way]
        ] = {}  # digest and content of every translation, by its name
        self.rooms = frozenset[
            str
        ]()  # the versions that the gallery has room for: a deployed one without has no items

    # --- plans: details are drawn here, from what the reference knows

    def plan(self, name: str, rng: random.Random) -> tuple[Plan, Expected]:
        draw: Callable[[random.Random], tuple[Plan, Expected]] | None = getattr(
            self, f"_{name}", None
        )
        return ({"do": name}, Expected()) if draw is None else draw(rng)

    def _index(self, rng: random.Random, ids: Sequence[str] = IDS) -> tuple[Plan, Expected]:
        again, planned = rng.random() < 0.1, []
        for name in rng.sample(list(ids), min(len(ids), rng.choice([1, 1, 2, 5, 9]))):
            stored, number, kept = self.items.get(name), rng.randrange(IMAGES), rng.random() < 0.3
            payload = {
                LABEL: rng.choice(CLASSES),
                "price": rng.randrange(100),
                **_image_fields(number, kept),
            }
            if (
                stored is not None and IMAGE in stored.payload and rng.random() < 0.3
            ):  # the same image again
                payload |= {
                    field: stored.payload[field]
                    for field in (IMAGE, STAMP)
                    if field in stored.payload
                }
                number = _number_of(stored.payload)
                kept = not Path(payload[IMAGE]).is_absolute()
            planned.append((name, number, kept, payload))
        version, groups, added, unchanged, bad = self.pointers.deployed, list[Group](), 0, 0, 0
        for batch in (
            planned[first : first + SMALL_BATCH] for first in range(0, len(planned), SMALL_BATCH)
        ):
            fresh, fields = Group(), dict[str, Group]()
            for name, number, _, payload in batch:
                stored = self.items.get(name)
                if not again and stored is not None and _same_image(stored.payload, payload):
                    unchanged += 1
                    if stored.payload != payload:
                        changed = Stored(stored.version, stored.vector, payload, sealed=True)
                        fields.setdefault(stored.version, {})[name] = changed
                elif number == BROKEN:
                    bad += 1
                else:
                    added += 1
                    fresh[name] = Stored(version, start().vectors[version][number], payload)
            groups += [fresh, *fields.values()]
        plan = [
            (name, start().photos[number], kept, payload) for name, number, kept, payload in planned
        ]
        value = version, added, unchanged, bad
        return {"do": "index", "items": plan, "again": again}, Expected(groups, value=value)

    def _replace(self, rng: random.Random) -> tuple[Plan, Expected]:
        return self._index(rng, sorted(self.items) or IDS)

    def _delete(self, rng: random.Random) -> tuple[Plan, Expected]:
        ids = rng.sample(IDS, rng.choice([1, 2, 2, 4, 12]))
        group: Group = {name: None for name in ids if name in self.items}
        return {"do": "delete", "ids": ids}, Expected([group], value=len(group))

    def _import(self, rng: random.Random) -> tuple[Plan, Expected]:
        version, take_over = rng.choice(list(FOREIGN)), rng.random() < 0.5
        ids = rng.sample(IDS, rng.choice([1, 3, 6]))
        made = np.random.default_rng(rng.randrange(10**6)).standard_normal(
            (len(ids), FOREIGN[version])
        )
        vectors, payloads = unit(made).astype(np.float32), list[dict[str, Any]]()
        for _ in ids:
            image = _image_fields(rng.randrange(IMAGES), kept=False) if rng.random() < 0.5 else {}
            payloads.append({LABEL: rng.choice(CLASSES), "price": rng.randrange(100), **image})
        held = any(name in self.items and self.items[name].version != version for name in ids)
        group: Group = {
            name: Stored(version, *row) for name, *row in zip(ids, vectors, payloads, strict=True)
        }
        plan = {
            "do": "import",
            "version": version,
            "ids": ids,
            "vectors": vectors,
            "payloads": payloads,
        }
        return {**plan, "take_over": take_over}, Expected(
            [group], refused=held and not take_over, value=len(ids)
        )

    def _patch(self, rng: random.Random) -> tuple[Plan, Expected]:
        name = rng.choice([*self.items, *self.items, *IDS])
        changes = {
            "price": rng.randrange(100),
            "tag": rng.choice([None, "new", "ü"]),
            LABEL: rng.choice(CLASSES),
        }
        plan = {"do": "patch", "id": name, "changes": [changes]}
        if name not in self.items:
            return plan, Expected(refused=True)
        stored = self.items[name]
        merged = {**stored.payload, **changes}
        payload = {field: value for field, value in merged.items() if value is not None}
        after = Stored(stored.version, stored.vector, payload, sealed=True)
        return plan, Expected([{name: after}], value=payload)

    def _deploy(self, rng: random.Random) -> tuple[Plan, Expected]:
        version, now = f"v{rng.randint(1, VERSIONS)}", self.pointers
        queries = rng.choice(["checked", "checked", "checked", "one", "old"])
        plan = {"do": "deploy", "version": version, "queries": queries}
        ways = self._deployed_ways(version, queries)
        if version not in now.versions or ways is None:
            return plan, Expected(refused=True)
        if version == now.deployed:
            searched = self._searched(version)
            named = {
                name: self.files[file][1] for name, file in now.current.files if name in searched
            }
            if named.keys() == ways.keys() and all(
                ways[name].scores_like(named[name]) for name in ways
            ):
                return plan, Expected(refused=True)
        kept = [(way.source, way.target) for way in ways.values()]
        after = now._replace(moves=(*now.moves, Moved(version, "deploy")))
        return plan, Expected(pointers=[after], value=version, kept=kept, deploys=ways)

    def _searched(self, version: str) -> list[str]:
        """The spaces that queries of a version would search, without its own."""
        homes = {home(item.version) for item in self.items.values()} | {self.pointers.deployed}
        return sorted(homes - {version})

    def _deployed_ways(self, version: str, queries: str) -> dict[str, Way] | None:
        """The translations that a deployment must name; None if it must be refused."""
        found = {}
        for name in self._searched(version):
            way = self.answer(name, version) if name in self.rooms else None
            here = name in self.pointers.versions
            if queries == "old":
                if not here:
                    return None
                way = by_old_queries(name, version)
            if way is None or way.plain:
                continue
            if not here:
                way = way.usable([])
                if way is None:
                    continue
            if queries == "one" and way.two is not None:
                if way.one is None:
                    return None
                way = way._replace(two=None)
            found[name] = way
        return found

    def _rollback(self, _: random.Random) -> tuple[Plan, Expected]:
        now = self.pointers
        if now.previous_move is None:
            return {"do": "rollback"}, Expected(refused=True)
        after = now._replace(moves=(*now.moves, now.previous_move._replace(kind="rollback")))
        return {"do": "rollback"}, Expected(pointers=[after], value=now.previous)

    def _backfill(self, rng: random.Random) -> tuple[Plan, Expected]:
        budget, order = (
            rng.choice(["all", "all", "50%", "3"]),
            rng.choice(["random", "oldest", "certain"]),
        )
        target, files = self.pointers.deployed, PlanFiles(self.path)
        kept = {target, *(f"v{number}" for number in range(int(target[1:]) + 1, VERSIONS + 1))}
        old = {name: item for name, item in self.items.items() if item.version not in kept}
        found = {name: item for name, item in old.items() if IMAGE in item.payload}
        unfinished, most = files.plan(), budget_items(budget, len(old))
        if unfinished is not None and (unfinished.target, unfinished.budget, unfinished.order) == (
            target,
            budget,
            order,
        ):
            left = unfinished.ids[files.position(unfinished) :]
            if left:
                found = {name: found[name] for name in left if name in found}
                most = len(found)
        readable = {
            name: item for name, item in found.items() if _number_of(item.payload) != BROKEN
        }
        vectors = start().vectors[target]
        after = {
            name: Stored(target, vectors[_number_of(i.payload)], i.payload)
            for name, i in readable.items()
        }
        plan = {"do": "backfill", "budget": budget, "order": order}
        if most >= len(found):
            return plan, Expected([{name: item} for name, item in after.items()], value=len(after))
        count = most if len(readable) == len(found) else None
        return plan, Expected(some=after, count=count, value=... if count is None else count)

    def _fit(self, rng: random.Random) -> tuple[Plan, Expected]:
        """On the images of stored items, or on class means: refused where there are too few."""
        counts = Counter(home(item.version) for item in self.items.values())
        live = sorted(counts, key=lambda name: (counts[name], name)) or ["v1"]
        source = live[-1] if rng.random() < 0.8 else rng.choice(live)
        target = rng.choice([name for name in self.pointers.versions if name != source] or ["v1"])
        plan = {"do": "fit", "source": source, "target": target}
        return plan, Expected(refused=None, kept=[(source, target)])

    def _keep(self, rng: random.Random) -> tuple[Plan, Expected]:
        """A translation as fits make them, with maps that lead anywhere."""
        target = f"v{rng.randint(1, VERSIONS)}"
        source = rng.choice(
            [name for name in ("v1", "v2", "v3", "v4", "shop", "shop") if name != target]
        )
        numbers = np.random.default_rng(rng.randrange(10**6))
        a, b = FOREIGN.get(source, WIDTH), WIDTH
        about: dict[str, Any] = {"fit": f"{rng.randrange(10**9)}"}
        if rng.random() < 0.5:
            about |= {
                "scale": [rng.uniform(1, 5), rng.uniform(-2, 2)],
                "target_scale": [rng.uniform(1, 5), 0.0],
            }
        hidden = {
            "A": numbers.normal(size=(a, 3)),
            "e": numbers.normal(size=3),
            "B": numbers.normal(size=(3, b)),
        }
        arrays = {
            "W": numbers.normal(size=(a, b)),
            "c": numbers.normal(size=b),
            **(hidden if rng.random() < 0.5 else {}),
        }
        forward = Map.of_arrays(
            {f"0.{name}": array.astype(np.float32) for name, array in arrays.items()}
        )
        shared = source != "shop" and rng.random() < 0.5
        backward = (
            None if shared else Map.linear(numbers.normal(size=(b, a)), numbers.normal(size=a))
        )
        one, two = rng.choice([(0.6, 0.7), (0.4, None), (None, 0.3), (1.0, 0.0), (0.0, 1.0)])
        way = Translation(
            source,
            target,
            forward=forward,
            backward=backward,
            one=one,
            two=two,
            shared=shared,
            about=about,
        )
        return {"do": "keep", "way": way}, Expected(kept=[(source, target)], way=Way.of(way))

    def _retire(self, rng: random.Random, for_upgrades: bool = True) -> tuple[Plan, Expected]:
        version, now = f"v{rng.randint(1, VERSIONS)}", self.pointers
        needed = {now.deployed, now.previous}
        held = any(home(item.version) == version for item in self.items.values())
        if for_upgrades:
            needed.add(now.versions[-1])
            for move in (now.current, now.previous_move):
                way = (
                    self.answer(version, move.version, move) if move is not None and held else None
                )
                if way is not None and way.two is not None:
                    needed.add(version)
        elif held:
            needed.add(version)
        gone = version in now.retired
        half = gone and (self.path / "versions" / version).is_dir()
        after = now._replace(retired=tuple(sorted({*now.retired, version})))
        refused = (version in needed or gone) and not (half and for_upgrades)
        steps = [after] if for_upgrades else [after, *without_moves_for(version, after)]
        do = "retire" if for_upgrades else "drop"
        return {"do": do, "version": version}, Expected(pointers=steps, refused=refused, value=None)

    def _drop(self, rng: random.Random) -> tuple[Plan, Expected]:
        return self._retire(rng, for_upgrades=False)

    # --- what is there

    def accept(
        self, expected: Expected, outcome: Outcome, reader: Workspace, seen: Mapping[str, Stored]
    ) -> None:
        """Compare what is there with what should be, and take it over."""
        if outcome.kind == "refused" and expected.refused is False:
            raise MismatchError(f"it was refused: {outcome.value}")
        if outcome.kind == "done" and expected.refused is True:
            raise MismatchError(f"it was not refused, and answered {outcome.value!r}")
        if outcome.kind == "done" and expected.value is not ... and outcome.value != expected.value:
            raise MismatchError(f"it answered {outcome.value!r}, not {expected.value!r}")
        now, allowed = Pointers.of(reader), [self.pointers]
        files = self._accept_files(expected, outcome, reader)
        if outcome.kind == "done":
            allowed = list(expected.pointers[-1:]) or allowed
        elif outcome.kind == "killed":
            allowed += expected.pointers
        seen_now = now
        if expected.deploys is not None and len(now.moves) > len(self.pointers.moves):
            named = {name: files[file][1] for name, file in now.current.files}
            if named.keys() != expected.deploys.keys():
                raise MismatchError(f"the move names {named.keys()}, not {expected.deploys.keys()}")
            for name, way in expected.deploys.items():
                if not way.scores_like(named[name]):
                    raise MismatchError(f"the move names another translation for {name}")
            seen_now = now._replace(moves=(*now.moves[:-1], now.moves[-1]._replace(files=())))
        if seen_now not in allowed:
            raise MismatchError(f"{now} is not among {allowed}")
        self._accept_items(expected, outcome.kind, seen)
        self.pointers = now
        self.files = files

    def _accept_files(
        self, expected: Expected, outcome: Outcome, reader: Workspace
    ) -> dict[str, tuple[str, Way]]:
        """The translations there are: none is gone or changed, and new ones are whole and as expected."""
        found = {}
        for file in sorted((reader.path / "translations").glob("*.npz")):
            digest = hashlib.sha256(file.read_bytes()).hexdigest()
            known = self.files.get(file.name)
            if known is not None and known[0] != digest:
                raise MismatchError(f"{file.name} was changed")
            found[file.name] = known or (digest, Way.read(file))
        if gone := self.files.keys() - found.keys():
            raise MismatchError(f"{gone} are gone")
        new = [found[name][1] for name in sorted(found.keys() - self.files.keys())]
        allowed = [] if outcome.kind == "refused" else expected.kept
        for way in new:
            if (way.source, way.target) not in allowed:
                raise MismatchError(f"a translation from {way.source} to {way.target} was kept")
            if expected.way is not None and not (
                way.scores_like(expected.way) and way.about == expected.way.about
            ):
                raise MismatchError(f"another translation was kept than {expected.way}")
        fits = bool(expected.kept) and expected.deploys is None
        if outcome.kind == "done" and fits and not new:
            raise MismatchError("nothing was kept")
        return found

    def _accept_items(self, expected: Expected, kind: str, seen: Mapping[str, Stored]) -> None:
        wanted = dict(self.items)
        for group in expected.groups if kind != "refused" else ():
            done = {name for name, item in group.items() if _agrees(item, seen.get(name))}
            if kind == "done" or len(done) == len(group):
                for name, item in group.items():
                    wanted.pop(name, None)
                    if item is not None:
                        wanted[name] = item
            elif any(not _agrees(self.items.get(name), seen.get(name)) for name in group):
                raise MismatchError(
                    f"one write is there in part: {sorted(done)} of {sorted(group)}"
                )
        moved = [name for name, item in expected.some.items() if _agrees(item, seen.get(name))]
        if kind != "refused":
            wanted.update({name: expected.some[name] for name in moved})
        if kind == "done" and expected.count not in (None, len(moved)):
            raise MismatchError(f"{len(moved)} items were re-embedded, not {expected.count}")
        for name in sorted({*wanted, *seen}):
            if not _agrees(wanted.get(name), seen.get(name)):
                raise MismatchError(
                    f"{name!r} is {_shown(seen.get(name))}, and should be {_shown(wanted.get(name))}"
                )
        self.items = dict(seen)

    # --- what a search finds

    def answer(self, source: str, version: str, move: Moved | None = None) -> Way | None:
        """How queries of a version search the vectors of another space: the first way that there is.

        ``move`` is the deployment whose translations count, by default that of the version, if it is deployed.
        """
        if move is None and version == self.pointers.deployed:
            move = self.pointers.current
        named = {} if move is None else dict(move.files)
        if source == version:
            return between_shared(source, version)
        if source in named:
            return self.files[named[source]][1]
        direct = self._fitted(source, version)
        if direct is not None:
            return direct
        back = self._fitted(version, source)
        if back is not None:
            return back.backwards()
        through = self._through_others(source, version)
        if through is not None:
            return through
        return by_old_queries(source, version) if source in self.pointers.versions else None

    def _fitted(self, source: str, target: str) -> Way | None:
        """The first way of the newest fit."""
        ways = {}
        for name, (_, way) in self.files.items():
            if (way.source, way.target) == (source, target) and not way.about.get(
                "chosen by a check"
            ):
                ways[int(name.removesuffix(".npz").rpartition("-")[2])] = way
        if not ways:
            return None
        newest = ways[max(ways)].about["fit"]
        return ways[min(number for number, way in ways.items() if way.about["fit"] == newest)]

    def _through_others(self, source: str, version: str) -> Way | None:
        """The shortest row of fitted translations, in whichever direction, over four at most."""
        links = set()
        for _, way in self.files.values():
            if not way.about.get("chosen by a check"):
                links |= {(way.source, way.target), (way.target, way.source)}
        rows = [[source]]
        seen = {source}
        for _ in range(4):
            longer = []
            for row in rows:
                for start, end in sorted(links):
                    if start == row[-1] and end == version:
                        return self._composed([*row, end])
                    if start == row[-1] and end not in seen:
                        seen.add(end)
                        longer.append([*row, end])
            rows = longer
        return None

    def _composed(self, row: Sequence[str]) -> Way | None:
        found: Way | None = None
        for start, end in pairwise(row):
            step = self._fitted(start, end)
            if step is None:
                back = self._fitted(end, start)
                assert back is not None
                step = back.backwards()
            found = step if found is None else found.then(step)
            if found is None:
                return None
        return found

    def found(
        self, version: str, number: int, images: bool, where: int | None, rooms: Sequence[str]
    ) -> Found:
        """What a search with one image finds, by whom; without ``images``, with the vector of one version alone.

        ``rooms`` are the versions that the gallery has room for, in its order.
        """
        stored = {item.version for item in self.items.values()}
        answers = {name: self.answer(home(name), version) for name in stored}
        models = {version}
        if images:
            helping = {
                way.source for way in answers.values() if way is not None and way.two is not None
            }
            models |= helping & set(self.pointers.versions)
        ways = {}
        for name, way in answers.items():
            usable = None if way is None else way.usable(models)
            if usable is not None:
                ways[name] = usable
        queries = {name: start().vectors[name][number] for name in models}
        scales = self._scales(version, ways, rooms)
        ranked = []
        for name, item in self.items.items():
            if item.version not in ways or (where is not None and item.payload["price"] < where):
                continue
            score = ways[item.version].score(queries, item.vector)
            slope, offset = scales.get(item.version, (1.0, 0.0))
            ranked.append((slope * score + offset, score, name))
        used = {way.source for way in ways.values() if way.two is not None}
        if not ways or any(way.two is None or way.two > 0 for way in ways.values()):
            used.add(version)
        return Found(sorted(ranked, reverse=True), used, stored - ways.keys(), scales)

    def _scales(
        self, version: str, ways: Mapping[str, Way], rooms: Sequence[str]
    ) -> dict[str, tuple[float, float]]:
        """What standardises the scores, if it is known for all that are searched, with as many models per query."""
        if len(ways) < 2:
            return {}
        found = {}
        for name, way in ways.items():
            key = "scale_one" if way.two is None and "scale_one" in way.about else "scale"
            if name != version and key in way.about:
                found[name] = tuple(way.about[key])
        known = [self.answer(home(name), version) for name in rooms]
        own = [
            way.about["target_scale"]
            for way in known
            if way is not None and "target_scale" in way.about
        ]
        if own:
            found[version] = tuple(own[0])
        return found if ways.keys() <= found.keys() else {}


class Found(NamedTuple):
    """What a search finds: rank, score and name, best first; who asked; what was left out; what it ranks by."""

    ranked: list[tuple[float, float, str]]
    models: set[str]
    left_out: set[str]
    scales: Mapping[str, tuple[float, float]]

    def rank(self, version: str, score: float) -> float:
        slope, offset = self.scales.get(version, (1.0, 0.0))
        return slope * score + offset


def _agrees(wanted: Stored | None, seen: Stored | None) -> bool:
    return wanted is seen if wanted is None or seen is None else wanted.is_like(seen)


def _shown(item: Stored | None) -> str:
    if item is None:
        return "absent"
    return f"{item.version} {json.dumps(item.payload)} {hashlib.sha256(item.vector.tobytes()).hexdigest()[:8]}"


def _image_fields(number: int, kept: bool) -> dict[str, Any]:
    path = start().photos[number]
    if kept:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        return {IMAGE: f"images/{digest[:2]}/{digest}.png", STAMP: digest[:16]}
    seen = path.stat()
    return {IMAGE: str(path), STAMP: f"{seen.st_size}-{seen.st_mtime_ns}"}


@cache
def _numbers() -> dict[str, int]:
    return {
        _image_fields(number, kept)[IMAGE]: number
        for number in range(IMAGES)
        for kept in (False, True)
    }


def _number_of(payload: Mapping[str, Any]) -> int:
    return _numbers()[payload[IMAGE]]


def _same_image(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return all(one.get(field) == other.get(field) for field in (IMAGE, STAMP))


# --- running


class Trial:
    """One workspace, its users, and the reference."""

    def __init__(self, folder: Path, gallery: Callable[[], str] | None = None) -> None:
        prepare(start().workspace / "versions")
        self.path, self.counts, self._lost = folder / "shop", Counter[str](), list[Workspace]()
        self._new_gallery = gallery
        if gallery is None:
            shutil.copytree(start().workspace, self.path)
        else:
            create_mark(self.path, gallery())
            shutil.copytree(start().workspace / "versions", self.path / "versions")
        self.reference = Reference(self.path)
        self.users = {name: Workspace(self.path, device="cpu") for name in ("own", "other")}
        self._worker: Worker | None = None

    def step(self, operation: Operation) -> None:
        """Do one operation and compare everything."""
        rng, (name, by, _) = random.Random(operation.number), operation
        if name in ("restart", "abandon"):
            expected, outcome = Expected(), self._begin_again(name, by)
        elif name == "move":
            expected, outcome = self._move(by, rng)
        elif name in ("race", "together"):
            act = self._race if name == "race" else self._together
            expected, outcome = act(rng), Outcome("done")
        else:
            self.reference.rooms = perform(self.users["own"], {"do": "rooms"})
            plan, expected = self.reference.plan(name, rng)
            outcome = self._done(plan, by, rng)
        self.counts[outcome.kind] += 1
        reader = self.users["other" if by == "own" else "own"]
        from_process = self._worker is not None and rng.random() < 0.1
        rows = (
            self._process().do({"do": "read"}).value
            if from_process
            else perform(reader, {"do": "read"})
        )
        seen = {
            item: Stored(version, vector, payload, sealed=True)
            for item, version, vector, payload in rows
        }
        self.reference.accept(expected, outcome, reader, seen)
        self._compare(reader, rng, images=name == "search")
        if name == "prune" and outcome.kind == "done":
            kept = {
                path.relative_to(self.path).as_posix() for path in self.path.glob("images/??/[!.]*")
            }
            used = {item.payload[IMAGE] for item in seen.values() if IMAGE in item.payload}
            if kept != {image for image in used if not Path(image).is_absolute()}:
                raise MismatchError(f"after pruning there are {sorted(kept)}")

    def verify(self) -> None:
        """What ``verify`` finds."""
        if found := list(verify_workspace(self.path)):
            raise MismatchError(f"verify: {found}")

    def close(self) -> None:
        for space in (*self.users.values(), *self._lost):
            space.close()
        self._lost = []
        self._end_worker(kill=True)

    def _process(self) -> Worker:
        if self._worker is None:
            self._worker = Worker(self.path)
        return self._worker

    def _done(self, plan: Plan, by: str, rng: random.Random) -> Outcome:
        if by in self.users:
            return attempt(self.users[by], plan)
        if by == "process":
            return self._process().do(plan)
        most = 9 if plan["do"] == "fit" else 8  # it embeds before it writes
        outcome = self._process().do(plan, kill_after=int(2 ** rng.uniform(0, most)))
        self._end_worker(kill=True)
        return outcome

    def _end_worker(self, kill: bool) -> None:
        if self._worker is not None:
            self._worker.end(kill)
            self._worker = None

    def _begin_again(self, name: str, by: str) -> Outcome:
        """Close and open again; or leave it open, as a process does that hangs."""
        if by not in self.users:
            self._end_worker(kill=name == "abandon")
            return Outcome("done")
        if name == "restart":
            self.users[by].close()
        else:
            self._lost = [*self._lost, self.users[by]][-2:]  # the others are collected as garbage
        self.users[by] = Workspace(self.path, device="cpu")
        return Outcome("done")

    def _open_users(self) -> None:
        self.users = {name: Workspace(self.path, device="cpu") for name in self.users}

    def _move(self, by: str, rng: random.Random) -> tuple[Expected, Outcome]:
        """The gallery moves to a new file or schema; nobody else has it open. A kill leaves the old or the new one."""
        self.close()
        before = gallery_url(self.path)
        to_file = self._new_gallery is None or rng.random() < 0.3
        target = str(self.path / f"moved-{rng.randrange(10**9)}.db")
        if self._new_gallery is not None and not to_file:
            target = self._new_gallery()
        self._open_users()
        outcome = self._done({"do": "move", "target": target}, by, rng)
        self.close()
        now = gallery_url(self.path)
        if now != target and (now != before or outcome.kind == "done"):
            raise MismatchError(f"the gallery was moved to {target} and is at {now}")
        self._open_users()
        return Expected(value=len(self.reference.items)), outcome

    def _race(self, rng: random.Random) -> Expected:
        """Items are read, others delete and change some of them, then all get new vectors: only unchanged ones do."""
        own, other = self.users["own"].gallery, self.users["other"].gallery
        names = rng.sample(sorted(self.reference.items), min(6, len(self.reference.items)))
        if not names:
            return Expected()
        version = self.reference.pointers.deployed
        self.users["own"].serving.encoder(version)
        stale = list(own.get(names).values())
        group, new = Group(), start().vectors[version][1]
        for item in stale:
            fate = rng.choice(["delete", "write", "leave", "leave"])
            if fate == "delete":
                other.delete([item.id])
                group[item.id] = None
            elif fate == "write":
                vector = np.roll(item.vector, 1)
                other.upsert(item.version, [item.id], vector[None], [item.payload])
                group[item.id] = Stored(item.version, vector, dict(item.payload))
            else:
                group[item.id] = Stored(version, new, dict(item.payload))
        done = own.replace_vectors(version, stale, np.stack([new] * len(stale)))
        wanted = {name for name, item in group.items() if item is not None and item.vector is new}
        if set(done) - wanted:
            raise MismatchError(f"{done} were replaced, not {wanted}")
        return Expected([group])

    def _together(self, rng: random.Random) -> Expected:
        """Three set fields of one item at once, one of them from another process: all are kept.

        Sometimes a fourth writes the whole item meanwhile: then what it wrote is there, and which of the others'
        fields are depends on who came first.
        """
        if not self.reference.items:
            return Expected()
        name = rng.choice(sorted(self.reference.items))
        stored = self.reference.items[name]
        plans: dict[str, Plan] = {
            by: {
                "do": "patch",
                "id": name,
                "changes": [{f"{by} {step}": rng.randrange(100)} for step in range(4)],
            }
            for by in ("own", "other", "process")
        }
        fields = {
            field: value
            for plan in plans.values()
            for one in plan["changes"]
            for field, value in one.items()
        }
        written: Payload | None = None
        if rng.random() < 0.3:
            image = {
                field: stored.payload[field] for field in (IMAGE, STAMP) if field in stored.payload
            }
            written = {
                **image,
                LABEL: rng.choice(CLASSES),
                "price": rng.randrange(100),
                "written": rng.randrange(100),
            }
        with ThreadPoolExecutor() as pool:
            changing = [pool.submit(attempt, self.users[by], plans[by]) for by in ("own", "other")]
            if written is not None:
                gallery = self.users["own"].gallery
                writing = pool.submit(
                    gallery.upsert, stored.version, [name], stored.vector[None], [written]
                )
            outcomes = [self._process().do(plans["process"]), *(one.result() for one in changing)]
        if any(outcome.kind != "done" for outcome in outcomes):
            raise MismatchError(f"fields set at once: {outcomes}")
        if written is None:
            payload = {**stored.payload, **fields}
        else:
            writing.result()
            now = self.users["other"].gallery.get([name])[name].payload
            payload = {
                **written,
                **{field: value for field, value in fields.items() if field in now},
            }
        return Expected([{name: Stored(stored.version, stored.vector, payload, sealed=True)}])

    def _compare(self, space: Workspace, rng: random.Random, images: bool) -> None:
        """Counts, status, images that are kept, and a search."""
        reference, pointers = self.reference, self.reference.pointers
        counts = Counter(item.version for item in reference.items.values())
        if (
            told := {name: count for name, count in space.gallery.count().items() if count}
        ) != dict(counts):
            raise MismatchError(f"it counts {told} and holds {dict(counts)}")
        if rng.random() < 0.05:
            status = space.status()
            seen = status.deployed, status.previous, status.versions, status.retired
            if seen != (
                pointers.deployed,
                pointers.previous,
                tuple(pointers.versions),
                pointers.retired,
            ):
                raise MismatchError(f"status is {status}")
            lost = [
                item.id
                for item in space.gallery.iterate()
                if IMAGE in item.payload and not space.images.find(item)
            ]
            if lost:
                raise MismatchError(f"images of {lost} are gone")
        if images or rng.random() < 0.3:
            self._search(space, rng, images or rng.random() < 0.3)

    def _search(self, space: Workspace, rng: random.Random, images: bool) -> None:
        reference, version = self.reference, self.reference.pointers.deployed
        number, k = rng.randrange(1, IMAGES), rng.choice([1, 5, 60])
        where, exact = rng.choice([None, None, rng.randrange(100)]), rng.random() < 0.8
        filtered = None if where is None else {"price": {"ge": where}}
        if images:
            result = space.search([start().photos[number]], k=k, where=filtered, exact=exact)
        else:
            if rng.random() < 0.3:
                version = rng.choice(reference.pointers.versions)
            space.serving.encoder(version)
            query = start().vectors[version][number]
            result = space.serving.search_vectors(
                version, query[None], k=k, where=filtered, exact=exact
            )
        rooms = [one.name for one in space.gallery.versions()]
        (hits,), wanted = result.hits, reference.found(version, number, images, where, rooms)
        scores = {name: score for _, score, name in wanted.ranked}
        for hit in hits:
            item = reference.items.get(hit.id)
            if item is None or (hit.version, dict(hit.payload)) != (item.version, item.payload):
                raise MismatchError(f"a search found {hit}, and there is {_shown(item)}")
            if hit.id not in scores or abs(hit.score - scores[hit.id]) > 1e-4:
                raise MismatchError(
                    f"a search by {version} found {hit}, and its score is {scores.get(hit.id)}"
                )
        if result.version != version or len({hit.id for hit in hits}) != len(hits):
            raise MismatchError(f"a search by {version} answered {result}")
        if (set(result.models), set(result.left_out)) != (wanted.models, wanted.left_out):
            raise MismatchError(f"a search by {version} answered {result}, not {wanted}")
        ranks = [wanted.rank(hit.version, hit.score) for hit in hits]
        best = [rank for rank, *_ in wanted.ranked[:k]]
        rounding = 1e-4 * max((1.0, *(slope for slope, _ in wanted.scales.values())))
        if exact and (
            len(ranks) != len(best) or np.abs(np.subtract(ranks, best)).max(initial=0) > rounding
        ):
            raise MismatchError(
                f"a search by {version} for {k} found {ranks}, and the best are {best}"
            )


class Ran(NamedTuple):
    """A sequence that was run: how many operations, what came of them, and how it failed, if it did."""

    operations: int
    counts: Counter[str]
    failure: BaseException | None = None


def run_operations(
    operations: Sequence[Operation], gallery: Callable[[], str] | None = None
) -> Ran:
    """On a new workspace, until one fails. ``gallery`` makes the address of an empty gallery."""
    memory = Path("/dev/shm")  # a kill needs no disk, and a disk is slow
    place = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(
        prefix="fixstar-model-", dir=place, ignore_cleanup_errors=True
    ) as folder:
        trial, done = Trial(Path(folder), gallery), 0
        try:
            for operation in operations:
                done += 1
                trial.step(operation)
                if done % 100 == 0:
                    trial.verify()
            trial.verify()
        except Exception as error:
            return Ran(done, trial.counts, error)
        finally:
            trial.close()
    return Ran(done, trial.counts)


def shrunk(
    operations: Sequence[Operation],
    fails: Callable[[Sequence[Operation]], int | None],
    seconds: float = 120.0,
) -> list[Operation]:
    """The operations without those that a failure does not need. ``fails`` says at which one, None if not."""
    end = time.monotonic() + seconds
    left, size = list(operations), max(1, len(operations) // 2)
    while size and time.monotonic() < end:
        first = 0
        while first < len(left) and time.monotonic() < end:
            fewer = left[:first] + left[first + size :]
            if fewer and (at := fails(fewer)) is not None:
                left = fewer[:at]
            else:
                first += size
        size //= 2
    return left


@as_before()
def run_model(
    seed: int, count: int, gallery: Callable[[], str] | None = None, postgres: str = ""
) -> Counter[str]:
    """Run so many operations in episodes; a failure raises with the shrunk sequence and the command that repeats it."""
    counts = Counter[str]()
    for episode in range(-(-count // EPISODE)):
        operations = drawn_operations(
            seed * 1_000_003 + episode, min(EPISODE, count - episode * EPISODE)
        )
        ran = run_operations(operations, gallery)
        counts.update(ran.counts)
        if ran.failure is None:
            continue

        def fails(some: Sequence[Operation]) -> int | None:
            again = run_operations(some, gallery)
            return None if again.failure is None else again.operations

        left = shrunk(operations[: ran.operations], fails)
        words = " ".join(map(str, left))
        raise MismatchError(
            f"seed {seed}, episode {episode}, operation {ran.operations}: {ran.failure!r}\n"
            f"python tests/support/workspace_model.py {postgres}--trace '{words}'"
        ) from ran.failure
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--operations", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trace", help="the operations of a failure")
    parser.add_argument(
        "--postgres", action="store_true", help="the gallery is on a PostgreSQL server"
    )
    options = parser.parse_args()
    gallery: Callable[[], str] | None = None
    if options.postgres:
        sys.path.insert(0, str(Path(__file__).parents[1] / "gallery"))
        gallery = __import__("postgres_server").fresh_url
    if options.trace:
        ran = run_operations(list(map(Operation.parse, options.trace.split())), gallery)
        if ran.failure is not None:
            raise ran.failure
        print(f"{ran.operations} operations, no mismatch: {dict(ran.counts)}")
        return
    started, total, seed = time.monotonic(), Counter[str](), options.seed
    model = partial(run_model, gallery=gallery, postgres="--postgres " * options.postgres)
    while (left := options.operations - total.total()) > 0:
        total += model(seed, min(left, 4 * EPISODE))
        seed += 1
        print(
            f"{total.total():,} operations, {dict(total)}, {time.monotonic() - started:,.0f} s",
            flush=True,
        )
    print("no mismatch")


if __name__ == "__main__":
    main()
