"""What a fitted adapter does to vectors: a few products in NumPy, so that serving needs no torch; and its file.

An adapter maps unit vectors x of one space, [N, a], to unit vectors of another, [N, b]:

    affine      unit(x W + c)                                     W [a, b], c [b]
    low rank    unit((x A) B + c)                                 A [a, r], B [r, b]
    perceptron  unit(x W + c + relu(x A + e) B)                   A [a, h], e [h], B [h, b]: the residual
    slerp       slerp(unit(x R), unit(x W + c), t)                R [a, b] semi-orthogonal

On disk it is one safetensors file with a card and a checksum in its header.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fixstar.durable import WatchedFile, document, exclusive, read_document, replace_file, replace_json
from fixstar.errors import FixstarError, InputError, ModelError, UnknownNameError
from fixstar.geometry import slerp, unit

Floats = NDArray[np.floating[Any]]
Weights = Mapping[str, Floats]
Applied = Literal["queries", "stored"]

APPLIED = ("queries", "stored")
"""What an adapter can be applied to."""
_BLOCK = 8192  # rows at a time
_FORMAT = {"format": "fixstar-adapter", "format_version": 1}


def _affine(w: Weights, x: Floats) -> Floats:
    return x @ w["W"] + w["c"]


class _Map(NamedTuple):
    """How arrays are applied, and which they are: dimensions by letter, a and b those of the two spaces."""

    apply: Callable[[Weights, Floats], Floats]
    shapes: Mapping[str, str]


_AFFINE = {"W": "ab", "c": "b"}
MAPS: dict[str, _Map] = {
    "procrustes": _Map(_affine, _AFFINE),
    "ridge": _Map(_affine, _AFFINE),
    "low-rank": _Map(lambda w, x: (x @ w["A"]) @ w["B"] + w["c"], {"A": "ar", "B": "rb", "c": "b"}),
    "mlp": _Map(
        lambda w, x: _affine(w, x) + np.maximum(x @ w["A"] + w["e"], 0) @ w["B"],
        {**_AFFINE, "A": "ah", "e": "h", "B": "hb"},
    ),
    "slerp": _Map(
        lambda w, x: slerp(unit(x @ w["R"]), unit(_affine(w, x)), float(w["t"][0])),
        {**_AFFINE, "R": "ab", "t": "1"},
    ),
}
"""What each kind of adapter does, by the name it is fitted and saved under."""


@dataclass(frozen=True, eq=False)
class VectorAdapter:
    """A fitted map of unit vectors [N, a] of ``source`` to [N, b] of ``target``; ``about`` is JSON on the fit."""

    kind: str
    weights: Mapping[str, NDArray[np.float32]]
    source: str = ""
    target: str = ""
    about: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in MAPS:
            raise UnknownNameError("adapter", self.kind, MAPS)
        object.__setattr__(self, "weights", MappingProxyType(dict(_checked_weights(self.kind, self.weights))))

    @property
    def widths(self) -> tuple[int, int]:
        """The components of vectors that go in, a, and of those that come out, b."""
        return len(self.weights["A" if self.kind == "low-rank" else "W"]), len(self.weights["c"])

    def __repr__(self) -> str:
        ends = f" from {self.source} to {self.target}" if self.source and self.target else ""
        return f"{self.kind} adapter{ends}, {self.widths[0]} to {self.widths[1]} components"

    def __call__(self, vectors: ArrayLike) -> NDArray[np.float32]:
        """The vectors [N, a] in the other space: float32 [N, b], of length 1."""
        array = np.asarray(vectors)
        a, b = self.widths
        if array.ndim != 2 or array.shape[1] != a or array.dtype.kind not in "fiu":
            ends = f" of {self.source}, and maps them to {self.target}" if self.source and self.target else ""
            raise InputError(f"this adapter takes vectors [N, {a}]{ends}; got {array.dtype} {array.shape}")
        adapted = np.empty((len(array), b), np.float32)
        for start in range(0, len(array), _BLOCK):
            rows = array[start : start + _BLOCK].astype(np.float32, copy=False)
            adapted[start : start + _BLOCK] = unit(MAPS[self.kind].apply(self.weights, rows))
        lost = np.flatnonzero(~(np.abs(np.linalg.norm(adapted, axis=1) - 1) < 1e-3)).tolist()
        if lost:
            raise InputError(
                f"vector {lost[0]} has no direction after this {self.kind} adapter; is it of length 1, and not NaN?"
            )
        return adapted


def _checked_weights(kind: str, weights: Mapping[str, ArrayLike]) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Read-only copies whose shapes fit each other."""
    shapes = MAPS[kind].shapes
    if set(weights) != set(shapes):
        raise ModelError(f"a {kind} adapter has the arrays {sorted(shapes)}, got {sorted(weights)}")
    sizes: dict[str, int] = {"1": 1}
    for name, letters in shapes.items():
        array = np.array(weights[name], dtype=np.float32)  # always a copy
        fits = array.ndim == len(letters) and 0 not in array.shape
        if not fits or any(sizes.setdefault(d, n) != n for d, n in zip(letters, array.shape, strict=True)):
            raise ModelError(f"array {name} of a {kind} adapter is [{', '.join(letters)}], got shape {array.shape}")
        if not np.isfinite(array).all():
            raise ModelError(f"array {name} of a {kind} adapter holds NaN or infinity")
        array.setflags(write=False)
        yield name, array


def save_adapter(adapter: VectorAdapter, path: str | Path) -> Path:
    """Write FILE.safetensors, whole or not at all; an existing file is never overwritten."""
    from safetensors.numpy import save_file

    path = Path(path)
    if path.suffix != ".safetensors":
        raise ModelError(f"{path}: an adapter is saved as FILE.safetensors")
    if path.exists():
        raise ModelError(f"{path} exists already, and a saved adapter is never overwritten; choose another name")
    weights = {name: np.ascontiguousarray(array) for name, array in adapter.weights.items()}
    ends = {"kind": adapter.kind, "source": adapter.source, "target": adapter.target}
    card = json.dumps({**_FORMAT, **ends, "about": dict(adapter.about)})
    metadata = {"card": card, "sha256": weights_checksum(card, weights)}
    replace_file(path, lambda partial: save_file(weights, partial, metadata))
    return path


def load_adapter(path: str | Path) -> VectorAdapter:
    """The adapter in a file; anything that is not whole and unchanged is refused."""
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not path.is_file():
        raise ModelError(f"there is no adapter {path}; save one with save_adapter(adapter, path)")
    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        card = json.loads(metadata["card"])
        if metadata["sha256"] != weights_checksum(metadata["card"], weights):
            raise ModelError("its checksum does not match its content")
        if (seen := {key: card.get(key) for key in _FORMAT}) != _FORMAT:
            raise ModelError(f"its format is {seen}; this fixstar reads {_FORMAT}")
        return VectorAdapter(card["kind"], weights, card["source"], card["target"], card["about"])
    except (FixstarError, SafetensorError, OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ModelError(
            f"{path} is damaged, or not an adapter: {error}. Restore it from a copy, or fit it again"
        ) from error


def weights_checksum(card: str, weights: Weights) -> str:
    """Over the card, and over name, type, shape and numbers of every array."""
    digest = hashlib.sha256(card.encode())
    for name in sorted(weights):
        array = np.ascontiguousarray(weights[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


# --- the adapters in use: adapters/registry.json, replaced as a whole; adapters/*.safetensors, never rewritten

_WAIT = 10.0  # seconds for another process that writes here


class AdapterEntry(NamedTuple):
    """One adapter in use between vectors of ``version`` and queries of ``queries_by``; ``file`` holds it."""

    version: str
    queries_by: str
    applied: Applied
    file: str


class AdapterRegistry:
    """Which adapters are in use; a gallery version with one is isolated. Threads and processes may share it."""

    def __init__(self, path: Path) -> None:
        self._directory = path / "adapters"
        self._file = self._directory / "registry.json"
        self._entries: WatchedFile[tuple[AdapterEntry, ...]] = WatchedFile(self._file, _parse_entries, ())
        self._loaded: dict[str, VectorAdapter] = {}
        self._lock = threading.Lock()

    def entries(self) -> tuple[AdapterEntry, ...]:
        """All adapters in use, oldest first."""
        return self._entries.content()

    def isolated(self) -> set[str]:
        """The gallery versions with a space of their own."""
        return {entry.version for entry in self.entries()}

    def find(self, version: str, queries_by: str, applied: Applied = "queries") -> VectorAdapter | None:
        """The adapter in use between a gallery version and queries of a version, loaded the first time."""
        for entry in self.entries():
            if entry[:3] == (version, queries_by, applied):
                with self._lock:
                    if entry.file not in self._loaded:
                        self._loaded[entry.file] = load_adapter(self._directory / entry.file)
                    return self._loaded[entry.file]
        return None

    def use(self, adapter: VectorAdapter, applied: Applied = "queries") -> AdapterEntry:
        """Keep an adapter and use it from now on, in the place of the one between the same versions."""
        ends = adapter.target, adapter.source
        version, queries_by = ends if applied == "queries" else ends[::-1]
        with self._locked():
            number = 1 + len(list(self._directory.glob("*.safetensors")))
            file = f"{quote(version, safe='@')}-{quote(queries_by, safe='')}-{number}.safetensors"
            save_adapter(adapter, self._directory / file)
            entry = AdapterEntry(version, queries_by, applied, file)
            self._write([*(e for e in self.entries() if e[:3] != entry[:3]), entry])
        return entry

    def remove(self, version: str, queries_by: str, applied: Applied) -> None:
        """Stop using an adapter; its file stays."""
        with self._locked():
            self._write([e for e in self.entries() if e[:3] != (version, queries_by, applied)])

    def _write(self, entries: list[AdapterEntry]) -> None:
        replace_json(self._file, document("adapters", {"in_use": [entry._asdict() for entry in entries]}))

    def _locked(self) -> AbstractContextManager[None]:
        seen = f"another process has been writing in {self._directory} for {_WAIT:.0f} s; try again when it is done"
        return exclusive(self._directory, _WAIT, InputError(seen))


def _parse_entries(file: Path) -> tuple[AdapterEntry, ...]:
    try:
        return tuple(AdapterEntry(**entry) for entry in read_document(file, "adapters")["in_use"])
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{file} is damaged ({error}); restore it from a copy") from error
