"""Items: found in a folder, a list or a labelled set, embedded batch by batch, and stored in the gallery.

The payload of an indexed item names its image (``image``: a path, relative to the workspace for images that the
workspace keeps) or holds its text (``text``). Its ``stamp`` identifies the content. A backfill uses them to find the
original. Stored batches are kept, so a repeated call resumes.
"""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import itertools
import json
import os
import re
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, cast

import numpy as np

from fixstar.data.formats import (
    IMAGE_EXTENSIONS,
    below,
    folder_label,
    list_images,
    other_labels,
    warn_skipped,
)
from fixstar.data.image_set import ImageSet
from fixstar.data.texts import TEXT, OnBad, text_rows
from fixstar.durable import replace_file
from fixstar.errors import DataError, GalleryError, InputError, ItemError, NextStep
from fixstar.gallery import Gallery, Hit
from fixstar.gallery.filters import Payload, Where, conditions, payload_test
from fixstar.gallery.store import Item, Vectors
from fixstar.gallery.transfer import made_or_same
from fixstar.images import (
    Decode,
    DecodeProcesses,
    ImageSource,
    Pixels,
    Preprocessing,
    read_pixels,
)
from fixstar.models import EmbeddedBatch, Encoder
from fixstar.progress import Advance
from fixstar.texts import Reads, Role

IMAGE = "image"  # a payload field, as are the next two
LABEL = "label"
STAMP = "stamp"
_TEXT_STAMP = "text-"  # prefix of a text's stamp: other items may have a field called "text"

BATCH = 256
FIRST_BATCH = 32
WAIT = 2.0  # approximate seconds between writes of vectors
DECODE_SECONDS = 60.0  # of CPU time for one image; a photo takes some milliseconds

_FIELDS = 5  # number of filter fields to look up when a filter finds nothing
_NUMBER = re.compile(r"-?(0|[1-9]\d{0,14})(\.\d{1,15})?")


@dataclass(frozen=True)
class CatalogueItem:
    """An item to index. ``image`` is the encoder's input: an image, or a text."""

    id: str
    image: ImageSource
    payload: Payload = dataclasses.field(default_factory=dict)


def catalogue(source: Path, prefix: str = "", label: str | None = None) -> Iterator[CatalogueItem]:
    """The items of a folder (all images below it), of a CSV list (``path`` and any other columns), or of one image.

    The id is the path below the folder, or the path as written in the list, which may have a column ``id`` instead.
    Subfolders give the label, as in ``image_folder``: by default the top folder, with a warning if another level may be
    intended. ``prefix`` is put before every id.
    """
    if not source.exists():
        raise InputError(
            f"{source} does not exist; give a folder of images, a list (.csv with a column path), or one image"
        )
    if source.is_dir():
        return _folder(source, prefix, label)
    if source.suffix.lower() == ".csv":
        return _listed(source, prefix)
    if source.suffix.lower() in IMAGE_EXTENSIONS:
        return iter([_from_file(prefix + source.name, source, {})])
    raise InputError(
        f"{source} is not a folder of images, a list (.csv with a column path) or an image "
        f"({', '.join(sorted(IMAGE_EXTENSIONS))})"
    )


def _folder(folder: Path, prefix: str, label: str | None) -> Iterator[CatalogueItem]:
    images, others = list_images(folder)
    warn_skipped(folder, others)
    if not images:
        raise DataError(f"{folder} holds no images ({', '.join(sorted(IMAGE_EXTENSIONS))})")
    if label is None and (seen := other_labels(folder, images)):
        warnings.warn(f"{folder}: {seen}. The top folder is taken as the label", stacklevel=2)
    for path in images:
        parts = below(folder, path)
        named = {}
        if len(parts) > 1:
            named[LABEL] = folder_label(parts, label or "top")
        yield _from_file(prefix + "/".join(parts), path, named)


def _listed(path: Path, prefix: str) -> Iterator[CatalogueItem]:
    seen: dict[str, int] = {}
    for line, row in _rows(path):  # the whole list is checked before anything is indexed
        if not row.get("path"):
            raise DataError(
                f"{path}, line {line}: no path; it has {list(filter(None, row.values()))[:3]}"
            )
        name = row.get("id") or str(row["path"])
        if seen.setdefault(name, line) != line:
            raise DataError(
                f"{path}, line {line}: duplicate id {name!r} (first used on line {seen[name]}). Ids must be distinct; "
                "give every row one in a column id"
            )
    seen.clear()
    for _, row in _rows(path):
        where = str(row.pop("path"))
        name = row.pop("id", None) or where
        payload = {
            key: _value(key, text) for key, text in row.items() if key and text not in (None, "")
        }
        yield _from_file(prefix + name, path.parent / where, payload)


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of a list, each with the number of its last line."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file)
            columns = rows.fieldnames or ()
            if "path" not in columns:
                raise DataError(
                    f"{path} needs a column named path; it has: {', '.join(columns) or 'nothing'}"
                )
            if reserved := {IMAGE, STAMP} & set(columns):
                raise DataError(
                    f"{path}: the column {min(reserved)} is reserved; give yours another name"
                )
            for row in rows:
                yield rows.line_num, row
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8"
        ) from error
    except csv.Error as error:
        raise DataError(f"{path} is not a list of comma-separated values: {error}") from error


def _value(column: str, text: str) -> str | int | float:
    """The value as a number if possible, so that filters can compare it; labels stay text."""
    if column == LABEL or not _NUMBER.fullmatch(text):
        return text
    if text.lstrip("-").isdigit():
        return int(text)
    return float(text)


def text_catalogue(
    source: Path,
    prefix: str = "",
    text: str | None = None,
    key: str | None = None,
    on_bad: OnBad | None = None,
) -> Iterator[CatalogueItem]:
    """The items of a file or folder of texts; see ``data.texts``. ``prefix`` is put before every id."""
    for row in text_rows(source, text=text, key=key, on_bad=on_bad):
        if reserved := {IMAGE, STAMP} & row.fields.keys():
            raise DataError(
                f"{source}: the field {min(reserved)} is reserved; give yours another name"
            )
        yield text_item(prefix + row.id, row.text, row.fields)


def text_item(name: str, text: str, payload: Payload) -> CatalogueItem:
    """An item for a text, which is stored in its payload."""
    return CatalogueItem(name, text, {**payload, TEXT: text, STAMP: text_stamp(text)})


def text_stamp(text: str) -> str:
    """The stamp that identifies a text."""
    return _TEXT_STAMP + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def text_of(item: Item | Hit) -> str | None:
    """The text that was embedded for an item; None for other items."""
    text = item.payload.get(TEXT)
    is_text = str(item.payload.get(STAMP, "")).startswith(_TEXT_STAMP)
    return text if is_text and isinstance(text, str) else None


def _from_file(name: str, path: Path, payload: Payload) -> CatalogueItem:
    absolute = path.absolute()
    return CatalogueItem(name, absolute, {**payload, IMAGE: str(absolute), STAMP: _stamp(absolute)})


def _stamp(path: Path) -> str:
    try:
        seen = path.stat()
    except OSError:
        return "absent"  # reading it later raises an error with its name
    return f"{seen.st_size}-{seen.st_mtime_ns}"


def labelled_items(images: ImageSet, prefix: str = "") -> Iterator[CatalogueItem]:
    """The items of a labelled set: files by their path, pixels by their number."""
    for row, label in enumerate(images.labels.tolist()):
        payload = {LABEL: images.classes[label]}
        source = images.images[row]
        if isinstance(source, str):
            yield text_item(f"{prefix}{row}", source, payload)
        elif isinstance(source, Path):
            yield _from_file(prefix + _below_class(source, images.classes[label]), source, payload)
        else:
            yield CatalogueItem(f"{prefix}{row}", source, payload)


def _below_class(path: Path, label: str) -> str:
    """CLASS/.../NAME if a parent folder is named after the class, else the whole path, so that ids are distinct."""
    folders = path.parts[:-1]
    if label not in folders:
        return path.as_posix()
    return "/".join(path.parts[len(folders) - 1 - folders[::-1].index(label) :])


class ImageStore:
    """Images that arrived as bytes or pixels, stored as images/ab/abcd....png, named by their SHA-256.

    ``reads`` is the input of the workspace's models: images or texts.
    """

    def __init__(self, path: Path, reads: Reads = "images") -> None:
        self.path = path
        self.reads = reads

    def keep(self, image: bytes | ImageSource, suffix: str = ".png") -> Payload:
        """Store an image; returns payload fields that point to it. Pixels are stored as PNG, bytes unchanged."""
        if isinstance(image, bytes):
            content = image
        else:
            content = _png(image)
        digest = hashlib.sha256(content).hexdigest()
        name = f"images/{digest[:2]}/{digest}{suffix}"
        try:
            os.utime(
                self.path / name
            )  # already stored and now used again: ``prune`` must not delete it
            whole = (self.path / name).is_file() and (self.path / name).read_bytes() == content
        except FileNotFoundError:
            whole = False
        if not whole:
            replace_file(self.path / name, lambda partial: partial.write_bytes(content))
        return {IMAGE: name, STAMP: digest[:16]}

    def unused(self, used: Iterable[str], before: float) -> list[Path]:
        """Stored images older than ``before`` and not in ``used``, which must be collected after ``before``."""
        old = {
            path
            for path in self.path.glob("images/??/*")
            if path.is_file() and path.stat().st_mtime < before
        }
        return sorted(old - {self.path / name for name in used})

    def prune(self, unused: Iterable[Path], before: float) -> tuple[int, int]:
        """Delete unused images; returns their number and bytes. Images that were stored again since are kept."""
        images = 0
        total = 0
        for path in unused:
            aside = path.with_name(f".{path.name}.pruned")
            try:
                path.rename(aside)  # from now on ``keep`` writes it again
            except FileNotFoundError:
                continue
            seen = aside.stat()
            if seen.st_mtime >= before:
                aside.rename(path)
            else:
                aside.unlink()
                images += 1
                total += seen.st_size
        return images, total

    def original(self, item: Item) -> Path | str | None:
        """The original of an item for re-embedding: its image or its text; None if it is gone."""
        if self.reads == "texts":
            return text_of(item)
        return self.find(item)

    def place(self, item: Item) -> str:
        """The location of an item's original, for a later ``has``: a path, or its payload; "" if unknown."""
        if self.reads == "texts":
            return "" if text_of(item) is None else TEXT
        return _image_name(item)

    def has(self, place: str) -> bool:
        """Whether the original still exists at this location."""
        if self.reads == "texts":
            return place == TEXT
        return self._file(place) is not None

    def find(self, item: Item) -> Path | None:
        """The path of an item's image; None if unknown or gone."""
        return self._file(_image_name(item))

    def _file(self, name: str) -> Path | None:
        if not name:
            return None
        if Path(name).is_absolute():
            path = Path(name)
        else:
            path = self.path / name
            kept = (self.path / "images").resolve()
            if not path.resolve().is_relative_to(kept):
                return None  # not an image that the workspace keeps
        if not path.is_file():
            return None
        return path


def _image_name(item: Item) -> str:
    """The path of an item's image in its payload; "" without one."""
    name = item.payload.get(IMAGE)
    return name if isinstance(name, str) else ""


def _png(image: Any) -> bytes:
    from PIL import Image

    if isinstance(image, Image.Image):
        picture = image
    else:
        picture = Image.fromarray(image)
    buffer = BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()


class Embedder(Protocol):
    """Embeds with one version. Batches may be embedded in parallel; results keep the order of the batches."""

    def __call__(self, batches: Iterable[Sequence[ImageSource]]) -> Iterator[EmbeddedBatch]:
        """One result per batch."""


class LocalEmbedder:
    """An encoder in this process.

    ``decode`` reads one image. By default threads of this process do, and for a model on a GPU, which would wait for
    them, one process per core.
    """

    def __init__(self, encoder: Encoder, decode: Decode | None = None) -> None:
        self._encoder = encoder
        self._decode = decode

    def __call__(self, batches: Iterable[Sequence[ImageSource]]) -> Iterator[EmbeddedBatch]:
        """One result per batch. The next batch is fetched and decoded while the model works on the current one."""
        decode = self._decode
        if decode is None and self._encoder.device.type != "cpu":
            decode = in_processes()
        return self._encoder.encode_batches(batches, form="short", decode=decode)

    def one(self, images: Sequence[ImageSource], role: Role = "item") -> EmbeddedBatch:
        """The vectors of one batch, to be stored or to search with."""
        bad: list[ItemError] = []
        vectors = self._encoder.encode(
            images, form="short", bad="skip", on_bad=bad.append, decode=self._decode, role=role
        )
        return EmbeddedBatch(vectors, tuple(bad))


def in_processes(first: int = BATCH) -> Decode:
    """Reads images as ``read_pixels`` does: the ``first`` ones here, later ones in one process per core.

    Starting the processes takes as long as decoding some hundred photos.
    """
    number = itertools.count()
    processes = DecodeProcesses(os.cpu_count() or 1, seconds=DECODE_SECONDS)

    def decode(image: ImageSource, preprocessing: Preprocessing) -> Pixels:
        if next(number) < first:
            return read_pixels(image, preprocessing)
        return processes.pixels(image, preprocessing)

    return decode


def ensure_version(gallery: Gallery, name: str, encoder: Encoder) -> None:
    """Register a version in the gallery; raises if the name belongs to another model."""
    projection = encoder.projection_matrix()
    width = min(encoder.feature_dim, encoder.backbone.feature_dim)
    if not made_or_same(gallery, name=name, width=width, projection=projection):
        raise GalleryError(
            f"the gallery holds vectors of another model under the name {name!r}; each workspace needs its own "
            "gallery, and imported vectors need a different name",
            NextStep("init", {"path": ...}, "a workspace with its own gallery"),
        )


Store = Callable[[str, Sequence[str], Vectors, Sequence[Payload]], object]  # as Gallery.upsert


@dataclass(frozen=True)
class Indexed:
    """Counts of embedded, unchanged and unreadable items.

    Of the embedded items, ``changed`` have new content and ``replaced`` have another image. Of the unchanged items
    (image and vector), ``updated`` got a new payload, such as another label.
    """

    version: str
    added: int
    unchanged: int
    bad: tuple[ItemError, ...]
    changed: int = 0
    replaced: int = 0
    updated: int = 0


class _ChangedItems(NamedTuple):
    """Items to embed, the stored items with the same ids, and how many items were read from the source."""

    items: list[CatalogueItem]
    known: dict[str, Item]
    taken: int


def index_items(
    gallery: Gallery,
    version: str,
    embedder: Embedder,
    items: Iterable[CatalogueItem],
    again: bool = False,
    progress: Advance | None = None,
    store: Store | None = None,
) -> Indexed:
    """Embed items with a version and store them; unchanged images keep their vector unless ``again``.

    ``store`` replaces ``Gallery.upsert``, for callers that must not overwrite concurrent changes.
    """
    unchanged = 0
    updated = 0
    counts = Counter[str]()
    bad: list[ItemError] = []
    waiting: deque[_ChangedItems] = deque()
    size = min(BATCH, FIRST_BATCH)
    stepped = time.monotonic()

    def step(taken: int) -> None:
        """The next batch size after ``taken`` items. Batches that are already in progress keep their size."""
        nonlocal size, stepped
        now = time.monotonic()
        size = next_size(taken, now - stepped)
        stepped = now

    def batches() -> Iterator[list[object]]:
        nonlocal unchanged, updated
        source = iter(items)
        while came := list(
            {item.id: item for item in islice(source, size)}.values()
        ):  # the last item of each id
            taken = size
            batch = [item for item in came if _is_unicode(item.id)]
            shown = (
                item.id.encode("utf-8", "backslashreplace").decode()
                for item in came
                if not _is_unicode(item.id)
            )
            bad.extend(ItemError(name, "its name is not valid UTF-8; rename it") for name in shown)
            known = gallery.get([item.id for item in batch])
            if again:
                same = []
            else:
                same = [item for item in batch if _same_image(known.get(item.id), item)]
            updated += _store_fields(gallery, known, same)
            kept = {item.id for item in same}
            fresh = [item for item in batch if item.id not in kept]
            unchanged += len(batch) - len(fresh)
            if progress is not None:
                progress(len(came) - len(fresh))
            if fresh:
                waiting.append(_ChangedItems(fresh, known, taken))
                yield [item.image for item in fresh]
            else:
                step(taken)

    for vectors, unread in embedder(batches()):  # type: ignore[arg-type]
        batch, known, taken = waiting.popleft()
        good = np.flatnonzero(~np.isnan(vectors).any(axis=1)).tolist()
        kept = [batch[i] for i in good]
        if kept:
            write = store or gallery.upsert
            write(
                version, [item.id for item in kept], vectors[good], [item.payload for item in kept]
            )
        counts.update(_before(known.get(item.id), item) for item in kept)
        bad += [ItemError(batch[image.index].id, image.reason, image.index) for image in unread]
        if progress is not None:
            progress(len(batch))
        step(taken)
    return Indexed(
        version=version,
        added=counts.total(),
        unchanged=unchanged,
        bad=tuple(bad),
        changed=counts["changed"],
        replaced=counts["replaced"],
        updated=updated,
    )


def next_size(size: int, seconds: float) -> int:
    """The next batch size, given the last one and its duration, so that a slow model also stores often.

    >>> next_size(32, 0.1), next_size(32, 1.5), next_size(32, 9.0), next_size(BATCH, 0.1)
    (64, 32, 16, 256)
    """
    if seconds > WAIT:
        return max(1, size // 2)
    if seconds < WAIT / 2:
        return min(BATCH, 2 * size)
    return size


def _before(stored: Item | None, item: CatalogueItem) -> Literal["new", "changed", "replaced"]:
    """Whether an item is new, changed, or replaces another image. A moved file counts as the same image."""
    if stored is None:
        return "new"
    if text_of(stored) is not None and isinstance(item.image, str):
        return "changed"  # another text with the same id, like new content in the same file
    same = any(stored.payload.get(name) == item.payload.get(name) for name in (IMAGE, STAMP))
    return "changed" if same else "replaced"


def replaced_items(gallery: Gallery, items: Iterable[CatalogueItem]) -> list[str]:
    """The ids of items whose stored image is a different one."""
    found = list[str]()
    source = iter(items)
    while came := list(islice(source, BATCH)):
        batch = {item.id: item for item in came if _is_unicode(item.id)}
        known = gallery.get(list(batch))
        found += [
            name for name, item in batch.items() if _before(known.get(name), item) == "replaced"
        ]
    return found


def vanished_items(
    gallery: Gallery, folder: Path, prefix: str, items: Iterable[CatalogueItem]
) -> list[str]:
    """The ids of stored items from a folder, with this prefix, that are no longer among its ``items``."""
    named = {item.id for item in items}
    root = folder.absolute()
    return [
        item.id
        for item in gallery.iterate()
        if item.id not in named
        and item.payload.get(IMAGE) == str(root / item.id.removeprefix(prefix))
    ]


def _is_unicode(name: str) -> bool:
    """Whether a name is valid Unicode. File names that are not UTF-8 have lone surrogates, which stores reject."""
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


def _store_fields(gallery: Gallery, known: dict[str, Item], items: list[CatalogueItem]) -> int:
    """Update the payload of stored items; returns their number. Items deleted in the meantime stay deleted."""
    items = [item for item in items if dict(known[item.id].payload) != dict(item.payload)]
    count = len(items)
    while items:
        done: set[str] = set()
        for version in {known[item.id].version for item in items}:
            changed = [item for item in items if known[item.id].version == version]
            stored = [known[item.id] for item in changed]
            vectors = np.stack([one.vector for one in stored])
            done.update(
                gallery.replace_vectors(
                    version, stored, vectors, [item.payload for item in changed]
                )
            )
        known = gallery.get(
            [item.id for item in items if item.id not in done]
        )  # changed by others: try again
        items = [item for item in items if item.id in known]
    return count


def _same_image(stored: Item | None, item: CatalogueItem) -> bool:
    if stored is None or item.payload.get(STAMP) is None:
        return False
    return all(stored.payload.get(name) == item.payload.get(name) for name in (IMAGE, STAMP))


# --- stored items


def update_payload(
    gallery: Gallery,
    name: str,
    changes: Mapping[str, Any],
    revision: int | None = None,
    max_bytes: int | None = None,
) -> Item:
    """Change payload fields of a stored item, None removes one. See ``Gallery.update_payload``."""
    if reserved := {IMAGE, STAMP} & changes.keys():
        raise InputError(
            f"the payload field {min(reserved)!r} is reserved: it holds the path of the item's image"
        )
    if TEXT in changes:
        stored = gallery.get([name]).get(name)
        if stored is not None and text_of(stored) is not None:
            raise InputError(
                f"the vector of {name!r} was made from this text; store the item again to change it"
            )
    return gallery.update_payload(name, changes, revision, max_bytes)


class Counted(NamedTuple):
    """Number of matching items, counts per value of a field, items examined, and where to continue."""

    total: int
    values: tuple[tuple[str, int], ...]
    looked_at: int
    next: str | None


def count_items(
    gallery: Gallery,
    where: Where | None = None,
    version: str | None = None,
    field: str | None = None,
    after: str | None = None,
    most: int | None = None,
    most_characters: int | None = None,
) -> Counted:
    """Count items by payload, up to ``most`` per call. Text values are used unchanged, others as JSON.

    The count stops when the values together exceed ``most_characters``; it can continue after the last item.
    """
    if not where and field is None and after is None:
        counts = gallery.count()
        if version:
            total = counts.get(version, 0)
        else:
            total = sum(counts.values())
        return Counted(total=total, values=(), looked_at=0, next=None)
    passes = payload_test(where or {})
    seen = Counter[str]()
    count = 0
    looked_at = 0
    characters = 0
    last = after
    with closing(cast(Any, gallery.iterate(version, after))) as source:
        for item in cast(Iterator[Item], source):
            if looked_at == most or (most_characters is not None and characters > most_characters):
                break
            looked_at += 1
            last = item.id
            if passes(item.payload):
                count += 1
                if field is not None and (value := item.payload.get(field)) is not None:
                    if isinstance(value, str):
                        text = value
                    else:
                        text = json.dumps(value, sort_keys=True)
                    characters += 0 if text in seen else len(text)
                    seen[text] += 1
        else:
            last = None
    return Counted(total=count, values=tuple(seen.most_common()), looked_at=looked_at, next=last)


def unknown_fields(gallery: Gallery, where: Where) -> list[str]:
    """The fields of a filter that no item has, to explain an empty result. Looks up only a few: each costs a search.

    A field counts as known if any item has it. Fields that must be absent are not looked up.
    """
    wanted = dict.fromkeys(
        name for name, *condition in conditions(where) if condition != ["exists", False]
    )
    return [name for name in islice(wanted, _FIELDS) if not _has_field(gallery, name)]


def _has_field(gallery: Gallery, field: str) -> bool:
    """Whether any item has the field: a search with an arbitrary query, where only the filter matters."""
    present: Where = {field: {"exists": True}}
    return any(
        gallery.search(
            space.name, np.eye(1, space.width), k=1, where=present, versions=[space.name]
        )[0]
        for space in gallery.versions()
    )
