"""A translation as one file that works without fixstar: FILE.npz with plain arrays, a card in JSON, and maps as ONNX.

``np.load`` reads the arrays. The member card.json says what the translation is, what was measured, and how to apply it
in a few lines of NumPy. Its maps are the members forward.onnx, backward.onnx and whitening.onnx; ``unzip`` takes them
out. Nothing is pickled. A workspace keeps its translations in the same format, and a file from elsewhere can be put
there.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fixstar.durable import DAMAGED_ARCHIVE, replace_file, require_plausible_archive
from fixstar.errors import FixstarError, InputError, ModelError
from fixstar.translation.maps import Map
from fixstar.translation.translation import Translation, Uncertainty

_FORMAT = "fixstar-translation"
_VERSION = 2
_READ = (1, 2)  # 1 knows no whitening
_CARD = "card.json"
_OPSET = 17  # old enough for runtimes of 2022
_IR = 8
_MAPS = ("forward", "backward", "whitening")


def checked_path(path: str | Path) -> Path:
    """Where a translation may be written: FILE.npz that does not exist yet."""
    path = Path(path)
    if path.suffix != ".npz":
        raise InputError(f"{path}: a translation is saved as FILE.npz")
    if path.exists():
        raise InputError(
            f"{path} exists already, and a translation is never overwritten; choose another name"
        )
    return path


def save_translation(way: Translation, path: str | Path, onnx: bool = True) -> Path:
    """Write FILE.npz, whole or not at all, never over another file; with ONNX models if the package is installed."""
    path = checked_path(path)
    arrays = dict(_arrays(way))
    if onnx:
        models = {f"{side}.onnx": content for side, content in _onnx_models(way).items()}
    else:
        models = {}
    card: dict[str, Any] = {
        "format": _FORMAT,
        "format_version": _VERSION,
        "source": way.source,
        "target": way.target,
        "one": way.one,
        "two": way.two,
        "shared": way.shared,
        "whitened": way.whitened,
        "uncertain": None if way.uncertainty is None else way.uncertainty.offset,
        "about": dict(way.about),
        "numpy": numpy_lines(way, path.name),
        "onnx": sorted(models),
    }
    card["sha256"] = _checksum(card, arrays, models)

    def write(partial: Path) -> None:
        with zipfile.ZipFile(partial, "w") as archive:
            for name, array in arrays.items():
                content = io.BytesIO()
                np.lib.format.write_array(content, np.ascontiguousarray(array), allow_pickle=False)
                archive.writestr(f"{name}.npy", content.getvalue())
            archive.writestr(_CARD, json.dumps(card, indent=2))
            for name, model in models.items():
                archive.writestr(name, model)

    replace_file(path, write)
    return path


def load_translation(path: str | Path) -> Translation:
    """The translation in a file; anything that is not whole and unchanged is refused."""
    path = Path(path)
    if not path.is_file():
        raise ModelError(f"there is no translation {path}")
    try:
        require_plausible_archive(path)
        with np.load(path, allow_pickle=False) as file:
            if not isinstance(file, np.lib.npyio.NpzFile) or _CARD not in file.files:
                raise ModelError(f"it has no {_CARD}")
            members: Any = file  # those that are not arrays come as bytes
            card = json.loads(members[_CARD])
            models = {name: members[name] for name in file.files if name.endswith(".onnx")}
            arrays = {
                name: file[name] for name in file.files if name != _CARD and name not in models
            }
        kind = card.get("format")
        version = card.get("format_version")
        if kind != _FORMAT or version not in _READ:
            known = " and ".join(map(str, _READ))
            raise ModelError(
                f"its format is {kind!r}, version {version!r}; this fixstar reads {_FORMAT!r}, versions {known}"
            )
        if card.pop("sha256") != _checksum(card, arrays, models):
            raise ModelError("its checksum does not match its content")
        return _translation(card, arrays)
    except (FixstarError, OSError, *DAMAGED_ARCHIVE) as error:
        raise ModelError(
            f"{path} is damaged, or not a translation: {error}. Restore it from a copy, or fit it again"
        ) from error


def _arrays(way: Translation) -> dict[str, NDArray[np.float32]]:
    found: dict[str, NDArray[np.float32]] = {}
    for side in _MAPS:
        part: Map | None = getattr(way, side)
        if part is not None:
            found |= {f"{side}.{name}": array for name, array in part.named_arrays()}
    if way.uncertainty is not None:
        found["uncertainty"] = way.uncertainty.slope
    return found


def _translation(card: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Translation:
    maps: dict[str, Map | None] = {}
    for side in _MAPS:
        own = {
            name.removeprefix(f"{side}."): array
            for name, array in arrays.items()
            if name.startswith(f"{side}.")
        }
        maps[side] = Map.of_arrays(own) if own else None
    uncertainty = None
    if card["uncertain"] is not None:
        uncertainty = Uncertainty(
            np.asarray(arrays["uncertainty"], np.float32), float(card["uncertain"])
        )
    return Translation(
        card["source"],
        card["target"],
        forward=maps["forward"],
        backward=maps["backward"],
        one=card["one"],
        two=card["two"],
        shared=card["shared"],
        uncertainty=uncertainty,
        about=card["about"],
        whitening=maps["whitening"],
        whitened=card.get("whitened", False),
    )


def _checksum(
    card: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], models: Mapping[str, bytes]
) -> str:
    """Over the card, over name, type, shape and numbers of every array, and over the models."""
    digest = hashlib.sha256(json.dumps(card, sort_keys=True).encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.tobytes())
    for name in sorted(models):
        digest.update(name.encode())
        digest.update(models[name])
    return digest.hexdigest()


def numpy_lines(way: Translation, file: str = "translation.npz") -> list[str]:
    """How to score without fixstar: ``new`` [N, b] queries, ``old`` queries if two models ask, ``stored`` [M, a]."""
    lines = [
        f'f = np.load("{file}")',
        "unit = lambda v: v / np.linalg.norm(v, axis=1, keepdims=True)",
    ]
    for side in _MAPS:
        part: Map | None = getattr(way, side)
        if part is None:
            continue
        lines.append(f"def {side}(x):")
        lines.append("    x = unit(x)")
        for number, layer in enumerate(part.layers):
            here = f"{side}.{number}"
            value = f'x @ f["{here}.W"] + f["{here}.c"]'
            if layer.A is not None:
                value += f' + np.maximum(x @ f["{here}.A"] + f["{here}.e"], 0) @ f["{here}.B"]'
            lines.append(f"    x = unit({value})")
        lines.append("    return x")
    weight = way.weight
    asked = "backward(new)"
    if way.two is not None:
        asked = "unit(old)"
    if way.two is None and way.shared:
        asked = "unit(new)"
    back = f"{asked} @ unit(stored).T"
    if way.whitened:
        back = f"whitening({asked}) @ whitening(stored).T"
    if weight:
        lines.append(
            f"scores = {weight:g} * unit(new) @ forward(stored).T + {1 - weight:g} * {back}"
        )
    else:
        lines.append(f"scores = {back}")
    return lines


def _onnx_models(way: Translation) -> dict[str, bytes]:
    """The maps as ONNX models, input ``vectors`` and output ``mapped``; empty without the package onnx."""
    try:
        onnx = importlib.import_module("onnx")
    except ImportError:
        return {}
    parts = {side: getattr(way, side) for side in _MAPS}
    return {side: _onnx_model(onnx, part) for side, part in parts.items() if part is not None}


def _onnx_model(onnx: Any, part: Map) -> bytes:
    helper = onnx.helper
    nodes: list[Any] = []
    constants: list[Any] = []

    def node(kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"n{len(nodes)}"
        nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def constant(name: str, value: NDArray[np.float32]) -> str:
        constants.append(onnx.numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def at_unit_length(x: str) -> str:
        return node("LpNormalization", x, axis=1, p=2)

    x = at_unit_length("vectors")
    for number, layer in enumerate(part.layers):
        names = {
            name: constant(f"{number}.{name}", array) for name, array in layer.arrays().items()
        }
        y = node("Add", node("MatMul", x, names["W"]), names["c"])
        if layer.A is not None:
            hidden = node("Relu", node("Add", node("MatMul", x, names["A"]), names["e"]))
            y = node("Add", y, node("MatMul", hidden, names["B"]))
        x = at_unit_length(y)
    nodes.append(helper.make_node("Identity", [x], ["mapped"]))
    kind = onnx.TensorProto.FLOAT
    before, after = part.widths
    made = helper.make_model(
        helper.make_graph(
            nodes,
            "map",
            [helper.make_tensor_value_info("vectors", kind, ["N", before])],
            [helper.make_tensor_value_info("mapped", kind, ["N", after])],
            constants,
        ),
        opset_imports=[helper.make_opsetid("", _OPSET)],
        producer_name="fixstar",
    )
    made.ir_version = _IR
    onnx.checker.check_model(made)
    content: bytes = made.SerializeToString()
    return content
