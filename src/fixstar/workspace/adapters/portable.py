"""A bridge as one file that works without fixstar: FILE.npz with plain arrays, a card in JSON, and the map as ONNX.

``np.load`` reads the arrays. The member card.json says what the bridge is, what was measured, and how to apply it in a
few lines of NumPy. The member bridge.onnx is the same map; ``unzip`` takes it out. Nothing is pickled.
"""

from __future__ import annotations

import importlib
import io
import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fixstar.durable import replace_file
from fixstar.errors import FixstarError, InputError, ModelError
from fixstar.geometry import slerp, unit
from fixstar.workspace.adapters.maps import APPLIED, Applied, VectorAdapter, weights_checksum

_FORMAT = {"format": "fixstar-bridge", "format_version": 1}
_CARD, _ONNX = "card.json", "bridge.onnx"
_OPSET, _IR = 17, 8  # old enough for runtimes of 2022
_MAPPED = {
    "procrustes": 'x @ f["W"] + f["c"]',
    "ridge": 'x @ f["W"] + f["c"]',
    "low-rank": 'x @ f["A"] @ f["B"] + f["c"]',
    "mlp": 'x @ f["W"] + f["c"] + np.maximum(x @ f["A"] + f["e"], 0) @ f["B"]',
    "slerp": 'slerp(unit(x @ f["R"]), unit(x @ f["W"] + f["c"]), f["t"])',
}


@dataclass(frozen=True, eq=False)
class Bridge:
    """A way to search vectors of an old model with a new one's queries.

    On queries it maps the new model's into the old space, then goes ``alpha`` of the way from the old model's query to
    that; on stored vectors it maps the old model's into the new space. ``card`` says how it was made and judged.
    """

    adapter: VectorAdapter
    applied: Applied = "queries"
    alpha: float | None = None
    card: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.applied not in APPLIED:
            raise ModelError(f"a bridge is applied to {' or '.join(APPLIED)}, not to {self.applied!r}")
        if self.alpha is not None and not (0 <= self.alpha <= 1 and self.applied == "queries"):
            raise ModelError(f"alpha blends queries, from 0 (old query) to 1 (new query); got {self.alpha!r}")

    def __call__(self, vectors: ArrayLike, old: ArrayLike | None = None) -> NDArray[np.float32]:
        """Unit vectors [N, b] of vectors [N, a]; ``old`` [N, b] are the old model's queries of the same images."""
        mapped = self.adapter(unit(np.asarray(vectors, np.float32)))
        if self.alpha is None:
            if old is not None:
                raise InputError("this bridge needs no queries by the old model; pass the new one's alone")
            return mapped
        if old is None or np.shape(old) != mapped.shape:
            raise InputError(
                f"this bridge blends queries by two models: pass the old one's too, {mapped.shape}; got "
                f"{None if old is None else np.shape(old)}"
            )
        return slerp(unit(np.asarray(old, np.float32)), mapped, self.alpha).astype(np.float32)

    def numpy_lines(self, file: str = "bridge.npz") -> list[str]:
        """How to apply it without fixstar: ``new`` [N, a] (or ``old``, if stored vectors are mapped) to ``result``."""
        lines = [f'f = np.load("{file}")', "unit = lambda v: v / np.linalg.norm(v, axis=1, keepdims=True)"]
        if self.alpha is not None or self.adapter.kind == "slerp":
            angle = "np.arccos((p * q).sum(1, keepdims=True).clip(-1, 1)).clip(1e-4)"
            lines.append(f"slerp = lambda p, q, t: unit(np.sin((1 - t) * (w := {angle})) * p + np.sin(t * w) * q)")
        lines.append(f"x = unit({'new' if self.applied == 'queries' else 'old'})")
        mapped = f"unit({_MAPPED[self.adapter.kind]})"
        lines.append(f"result = {mapped}" if self.alpha is None else f'result = slerp(unit(old), {mapped}, f["alpha"])')
        return lines


def save_bridge(bridge: Bridge, path: str | Path) -> Path:
    """Write FILE.npz, whole or not at all, never over another file; with an ONNX model if onnx is installed."""
    path = checked_path(path)
    arrays: dict[str, NDArray[np.float32]] = dict(bridge.adapter.weights)
    if bridge.alpha is not None:
        arrays["alpha"] = np.array([bridge.alpha], np.float32)
    model = onnx_model(bridge)
    a, b = bridge.adapter.widths
    card: dict[str, Any] = {
        **_FORMAT,
        "kind": bridge.adapter.kind,
        "applied": bridge.applied,
        "alpha": bridge.alpha,
        "source": bridge.adapter.source,
        "target": bridge.adapter.target,
        "widths": [a, b],
        "about": dict(bridge.adapter.about),
        "numpy": bridge.numpy_lines(path.name),
        "onnx": None if model is None else _ONNX,
        **bridge.card,
    }
    card["sha256"] = _checksum(card, arrays, model)

    def write(partial: Path) -> None:
        with zipfile.ZipFile(partial, "w") as archive:
            for name, array in arrays.items():
                content = io.BytesIO()
                np.lib.format.write_array(content, np.ascontiguousarray(array), allow_pickle=False)
                archive.writestr(f"{name}.npy", content.getvalue())
            archive.writestr(_CARD, json.dumps(card, indent=2))
            if model is not None:
                archive.writestr(_ONNX, model)

    replace_file(path, write)
    return path


def checked_path(path: str | Path) -> Path:
    """Where a bridge may be written: FILE.npz that does not exist yet."""
    path = Path(path)
    if path.suffix != ".npz":
        raise InputError(f"{path}: a bridge is saved as FILE.npz")
    if path.exists():
        raise InputError(f"{path} exists already, and a bridge is never overwritten; choose another name")
    return path


def load_bridge(path: str | Path) -> Bridge:
    """The bridge in a file; anything that is not whole and unchanged is refused."""
    path = Path(path)
    if not path.is_file():
        raise ModelError(f"there is no bridge {path}")
    try:
        with np.load(path, allow_pickle=False) as file:
            if not isinstance(file, np.lib.npyio.NpzFile) or _CARD not in file.files:
                raise ModelError(f"it has no {_CARD}")
            members: Any = file  # those that are not arrays come as bytes
            card = json.loads(members[_CARD])
            model = members[_ONNX] if _ONNX in file.files else None
            arrays = {name: file[name] for name in file.files if name not in (_CARD, _ONNX)}
        if (seen := {key: card.get(key) for key in _FORMAT}) != _FORMAT:
            raise ModelError(f"its format is {seen}; this fixstar reads {_FORMAT}")
        if card.pop("sha256") != _checksum(card, arrays, model):
            raise ModelError("its checksum does not match its content")
        if card["alpha"] is not None:
            arrays.pop("alpha")
        adapter = VectorAdapter(card["kind"], arrays, card["source"], card["target"], card["about"])
        return Bridge(adapter, card["applied"], card["alpha"], card)
    except (FixstarError, OSError, EOFError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ModelError(
            f"{path} is damaged, or not a bridge: {error}. Restore it from a copy, or make it again"
        ) from error
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError) as error:
        raise ModelError(f"{path} is damaged: {error}. Restore it from a copy, or make it again") from error


def _checksum(card: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], model: bytes | None) -> str:
    text = json.dumps(card, sort_keys=True)
    return weights_checksum(text, {**arrays, _ONNX: np.frombuffer(model or b"", np.uint8)})


def onnx_model(bridge: Bridge) -> bytes | None:
    """The map as an ONNX model, inputs ``new`` and ``old`` as far as it needs them; None without the package onnx."""
    try:
        onnx = importlib.import_module("onnx")
    except ImportError:
        return None
    graph, adapter = _Graph(onnx), bridge.adapter
    constants = {name: graph.constant(array, name) for name, array in adapter.weights.items() if name != "t"}
    a, b = adapter.widths
    one = "new" if bridge.applied == "queries" else "old"
    inputs = {one: a}
    x = graph.unit(one)

    def affine() -> str:
        return graph.node("Add", graph.node("MatMul", x, constants["W"]), constants["c"])

    if adapter.kind == "low-rank":
        inner = graph.node("MatMul", x, constants["A"])
        mapped = graph.node("Add", graph.node("MatMul", inner, constants["B"]), constants["c"])
    elif adapter.kind == "mlp":
        hidden = graph.node("Relu", graph.node("Add", graph.node("MatMul", x, constants["A"]), constants["e"]))
        mapped = graph.node("Add", affine(), graph.node("MatMul", hidden, constants["B"]))
    elif adapter.kind == "slerp":
        rotated = graph.unit(graph.node("MatMul", x, constants["R"]))
        mapped = graph.slerp(rotated, graph.unit(affine()), float(adapter.weights["t"][0]))
    else:
        mapped = affine()
    mapped = graph.unit(mapped)
    if bridge.alpha is not None:
        inputs["old"] = b
        mapped = graph.slerp(graph.unit("old"), mapped, bridge.alpha)
    graph.node("Identity", mapped, output="result")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    made = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "bridge",
            [helper.make_tensor_value_info(name, kind, ["N", width]) for name, width in inputs.items()],
            [helper.make_tensor_value_info("result", kind, ["N", b])],
            graph.constants,
        ),
        opset_imports=[helper.make_opsetid("", _OPSET)],
        producer_name="fixstar",
    )
    made.ir_version = _IR
    onnx.checker.check_model(made)
    content: bytes = made.SerializeToString()
    return content


class _Graph:
    """Nodes and constants of an ONNX graph, named by their number."""

    def __init__(self, onnx: Any) -> None:
        self._helper, self._from_array = onnx.helper, onnx.numpy_helper.from_array
        self.nodes, self.constants = list[Any](), list[Any]()

    def node(self, kind: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        name = output or f"n{len(self.nodes)}"
        self.nodes.append(self._helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def constant(self, value: NDArray[Any], name: str | None = None) -> str:
        name = name or f"k{len(self.constants)}"
        self.constants.append(self._from_array(value, name))
        return name

    def unit(self, x: str) -> str:
        return self.node("LpNormalization", x, axis=1, p=2)

    def slerp(self, p: str, q: str, t: float) -> str:
        """unit(sin((1 - t) w) p + sin(t w) q), with w the angle between p and q, kept away from 0."""
        low, high, least = (self.constant(np.array(number, np.float32)) for number in (-1, 1, 1e-4))
        cosine = self.node("ReduceSum", self.node("Mul", p, q), self.constant(np.array([1])), keepdims=1)
        angle = self.node("Max", self.node("Acos", self.node("Clip", cosine, low, high)), least)
        shares = (self.constant(np.array(share, np.float32)) for share in (1 - t, t))
        parts = [
            self.node("Mul", self.node("Sin", self.node("Mul", angle, share)), end)
            for share, end in zip(shares, (p, q), strict=True)
        ]
        return self.unit(self.node("Add", *parts))
