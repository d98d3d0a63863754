"""What a version's weights depend on, as digests: the whole says whether a run may go on, the parts what differs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from fixstar.data.image_set import ImageSet
from fixstar.methods import Method, OldVectors
from fixstar.scenarios.settings import Settings
from fixstar.scenarios.start import Past, weights_digest
from fixstar.scenarios.validation import Validation

__all__ = ["Fingerprint", "fingerprint_of"]

_SHORT = 12  # hexadecimal digits of a part's digest
_WORDS = {  # where the name of a setting is not what its user calls it
    "grown": "growth (fixstar grow)",
    "previous": "the previous version",
    "replacement": "the model that replaces it",
    "pretrained": "the pre-trained model",
    "version": "the version's number",
    "images": "images (files, or the share held out)",
    "memory": "replayed images",
    "validation": "validation images",
    "replay_per_class": "replayed images a class",
    "bad_images": "what is done with bad images",
    "side": "the side that slots are taken from",
}


class Fingerprint(NamedTuple):
    """A digest of everything, and a short one for each part, by its name in words."""

    whole: str
    parts: dict[str, str]


def fingerprint_of(
    number: int,
    images: ImageSet,
    past: Past,
    method: Method,
    settings: Settings,
    validation: Validation | None,
) -> Fingerprint:
    """Digests of all that the weights of version ``number`` depend on."""
    memory, vectors = past.memory.images, past.old_vectors
    content: dict[str, Any] = {
        "previous": None if past.previous is None else weights_digest(past.previous),
        "replacement": None if past.replacement is None else weights_digest(past.replacement),
        "first": None if past.first is None else weights_digest(past.first),
        "pretrained": None if past.pretrained is None else weights_digest(past.pretrained),
        "old vectors": None if vectors is None else _vectors_digest(vectors),
        "version": number,
        "images": images.fingerprint(),
        "memory": None if memory is None else memory.fingerprint(),
        "validation": None if validation is None else validation.fingerprint(),
        "method": [method.name, dict(method.options), method.initialisation],
        "settings": settings.to_json(),
    }
    way = {"method": method.name, "method options": dict(method.options), "starting weights": method.initialisation}
    named = {**content, **way, "classes": list(images.classes)}
    named |= _flat(named.pop("settings"))
    return Fingerprint(
        _digest(content), {_WORDS.get(n, n.replace("_", " ")): _digest(v)[:_SHORT] for n, v in named.items()}
    )


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings one by one; those of the recipe and of the augmentation have names of their own."""

    def each() -> Iterator[tuple[str, Any]]:
        for name, value in settings.items():
            yield from value.items() if name in ("recipe", "augmentation") else [(name, value)]

    return dict(each())


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _vectors_digest(stored: OldVectors) -> str:
    digest = hashlib.sha256(json.dumps([stored.classes, stored.vectors.shape, str(stored.vectors.dtype)]).encode())
    digest.update(stored.vectors.tobytes() + stored.labels.astype("int64").tobytes())
    return digest.hexdigest()
