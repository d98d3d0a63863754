"""Every kind of next step is reached as a user reaches it, and the command that is printed is typed."""

from __future__ import annotations

import ast
import math
import re
import shlex
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import pytest
from onnx_models import image_model
from PIL import Image
from predictions import predicted
from shops import CLASSES, foreign, passed_with_two_models, pictures, shop
from typed import Typed, typed

import fixstar
from fixstar.cli import next_steps
from fixstar.errors import ACTIONS, NextStep
from fixstar.models import Encoder
from fixstar.models.backbones.pretrained import PRETRAINED, at_hand
from fixstar.training import loop
from fixstar.training.loop import EpochLog
from fixstar.translation import Map, Translation, save_translation
from fixstar.workspace import Workspace, catalogue
from fixstar.workspace.options import BackfillOptions

Shape = tuple[str, ...]  # the action, and the names of its arguments in order
TRAIN = "--backbone tiny --method hoc --capacity 20 --epochs 1 --batch-size 8 --hold-out 0"
NOT_TYPED: dict[Shape, str] = {
    ("install", "extra"): "pip runs it: tests install nothing",
    ("repeat", "alias"): "needs a database server: test_migrate_command types it",
}


class Case(NamedTuple):
    """What a user types last, after ``prepare``, and the kinds of steps that are suggested then."""

    words: str
    suggests: tuple[str, ...]
    prepare: Callable[[], object] = lambda: None


# --- what was done before


def trained() -> None:
    """A workspace whose v1 was trained here, once for all tests."""
    shutil.copytree(_made / "trained", "shop")


def indexed() -> None:
    """Two trained versions that share a space, and photos stored by v1."""
    shutil.copytree(_made / "pair", "shop")
    with Workspace(Path("shop"), "cpu") as space:
        space.index(catalogue(Path("photos")))


def the_same_twice() -> None:
    """v2 is v1 once more: it wins no query and loses none, on every machine."""
    with shop(Path("shop"), versions=1) as space:
        space.index(catalogue(Path("photos")))
    again = Encoder.load(Path("shop/versions/v1"))
    again.about = {**again.about, "version": "v2", "parent": "v1"}
    again.save(Path("shop/versions/v2"))


def unrelated() -> None:
    """v1 made all vectors; v2 is a model from elsewhere."""
    trained()
    with Workspace(Path("shop"), "cpu") as space:
        space.index(catalogue(Path("photos")))
        space.add_version(
            Encoder.create("tiny", classes=list(CLASSES), capacity=7)
        )  # as wide as MODEL.onnx


def connected_by_nothing() -> None:
    """The images of v1's items are gone, and so is what would say how v2 searches them."""
    unrelated()
    shutil.copytree("photos", "moved")
    with Workspace(Path("shop"), "cpu") as space:
        for item in list(space.gallery.iterate()):
            space.gallery.upsert(
                "v1", [item.id], item.vector[None], [{"label": item.payload["label"]}]
            )
    pairs(old=19, new=6)


def imported() -> None:
    indexed()
    with Workspace(Path("shop"), "cpu") as space:
        foreign(space)
    pairs(old=5, new=19)


def pairs(old: int, new: int) -> None:
    """Vectors of the same items by two models, of so many components."""
    rng = np.random.default_rng(0)
    widths = {"old": old, "new": new}
    arrays = {
        name: rng.normal(size=(40, width)).astype(np.float32) for name, width in widths.items()
    }
    np.savez("FILE.npz", **arrays)  # type: ignore[arg-type]


def deployed_by_force() -> None:
    indexed()
    typed("deploy", "v2", "--force", "a test", "-w", "shop")


def rolled_back_after_a_backfill() -> None:
    deployed_by_force()
    with Workspace(Path("shop"), "cpu") as space:
        space.backfill(BackfillOptions(budget="all", anyway=True))
        space.rollback()


def losing(monkeypatch: pytest.MonkeyPatch) -> None:
    deployed_by_force()
    monkeypatch.setattr(
        "fixstar.workspace.backfill.planning.predicted_curve", lambda *_, **__: predicted(lost=30)
    )


def two_models() -> None:
    indexed()
    with Workspace(Path("shop"), "cpu") as space:
        passed_with_two_models(space)


def named_and_changed() -> None:
    indexed()
    typed("check", "v2", "--data", "photos", "--name", "season", "--no-report", "-w", "shop")
    shutil.copy("photos/hat/0.png", "photos/hat/new.png")


def damaged_item() -> None:
    indexed()
    with sqlite3.connect("shop/gallery.db") as db:
        db.execute("UPDATE items SET digest = zeroblob(8) WHERE id = 'hat/0.png'")


def more_classes() -> None:
    trained()
    for number in range(20):
        shutil.copytree("photos/hat", f"many/class-{number}")


def rotated() -> None:
    typed("init", "shop")
    words = "--backbone tiny --method vega --capacity 80 --epochs 1 --batch-size 8"
    typed("train", "photos", "-w", "shop", *shlex.split(words))


def interrupted_first() -> None:
    typed("init", "shop")
    Path("shop/checkpoint-v1.safetensors").touch()


def without_gallery() -> None:
    indexed()
    shutil.copy("shop/gallery.db", "copy.db")
    Path("shop/gallery.db").unlink()


def vectors() -> None:
    indexed()
    ids = np.array([f"hat/{number}.png" for number in range(3)])
    np.savez("old.npz", vectors=np.eye(3, 8, dtype=np.float32), ids=ids)


def other_vectors() -> None:
    indexed()
    np.savez("old.npz", vectors=np.eye(3, 8, dtype=np.float32), ids=np.array(["a", "b", "c"]))


def columns() -> None:
    arrow = pytest.importorskip("pyarrow")
    indexed()
    table = arrow.table({"ID_COLUMN": ["a", "b"], "vector": [[1.0, 0.0], [0.0, 1.0]]})
    pytest.importorskip("pyarrow.parquet").write_table(table, "old.parquet")


def a_file_of_pairs() -> None:
    indexed()
    words = "--protocol verification --pairs-file SPLIT.npz --no-report"
    shown = typed(
        "evaluate", "photos", "-w", "shop", *shlex.split(words.replace(" --no-report", ""))
    )
    assert Path("SPLIT.npz").exists(), shown.err


def features_without_labels() -> None:
    np.savez("features.npz", queries=np.eye(4), gallery=np.eye(4))
    np.savez("LABELS", query_labels=np.arange(4), gallery_labels=np.arange(4))
    Path("LABELS.npz").rename("labels.npz")


def unreadable_image() -> None:
    typed("init", "shop")
    Path("photos/hat/broken.png").write_bytes(b"no image")


def folders_in_folders() -> None:
    typed("init", "shop")
    for season in ("spring", "autumn"):
        shutil.copytree("photos", f"nested/{season}")


def other_images_of_the_same_ids() -> None:
    indexed()
    for file in Path("photos").rglob("*.png"):
        other = Path("others") / file.relative_to("photos")
        other.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (32, 32), "red").save(other)


def fresh() -> None:
    typed("init", "shop")


def snapshot() -> None:
    indexed()
    typed("snapshot", "shop.tar", "-w", "shop")
    shop(Path("other"), versions=1).close()


def pairs_to_bridge() -> None:
    rng = np.random.default_rng(0)
    ids = np.array([f"{number}" for number in range(60)])
    labels = np.array([f"c{number % 12}" for number in range(60)])
    photos = np.array([f"{name}/{number}.png" for name in CLASSES for number in range(8)])
    np.savez("photos.npz", vectors=rng.normal(size=(24, 8)).astype(np.float32), ids=photos)
    for name in ("one.npz", "two.npz"):
        np.savez(name, vectors=rng.normal(size=(60, 8)).astype(np.float32), ids=ids, labels=labels)


def migration() -> None:
    """Vectors of items and queries by both models, which are as wide here, and of items in a space of their own."""
    rng = np.random.default_rng(0)
    items = [f"item-{number}" for number in range(60)]
    queries = [f"query-{number}" for number in range(20)]
    widths = {"old.npz": 8, "new.npz": 8, "migrated.npz": 8, "narrow.npz": 5}
    for name, width in widths.items():
        np.savez(name, vectors=rng.normal(size=(60, width)).astype(np.float32), ids=np.array(items))
    for name, width in {"FILE.npz": 8, "asked.npz": 8, "asked-narrow.npz": 5}.items():
        np.savez(
            name, vectors=rng.normal(size=(20, width)).astype(np.float32), ids=np.array(queries)
        )
    labels = [
        f"{name},{place % 5}" for names in (items, queries) for place, name in enumerate(names)
    ]
    Path("labels.csv").write_text("\n".join(["id,label", *labels]) + "\n")
    relevant = [
        f"{name},item-{place + 20}"
        for names in (items[:20], queries)
        for place, name in enumerate(names)
    ]
    Path("relevant.csv").write_text("\n".join(["query,item", *relevant]) + "\n")


def measured_translation(difference: float) -> None:
    """way.npz, which was measured to gain so much, vectors for it, and a file that no migration made."""
    rng = np.random.default_rng(0)
    ahead = {"difference": difference, "low": difference - 0.01, "high": difference + 0.01}
    about = {"measured": {"stored mapped forward": ahead}}
    way = Translation(
        "old", "new", forward=Map.linear(rng.standard_normal((8, 6))), two=0.6, about=about
    )
    save_translation(way, "way.npz", onnx=False)
    np.savez("stored.npz", vectors=rng.normal(size=(30, 8)).astype(np.float32))
    np.savez("mine.npz", vectors=np.ones((2, 2), np.float32))


CASES = {
    "no version yet": Case("index photos -w shop", ("train data", "add model"), fresh),
    "the first training is under way": Case("index photos -w shop", ("status",), interrupted_first),
    "growing nothing": Case("grow 20 -w shop", ("train data capacity",), fresh),
    "old vectors without their method": Case(
        f"train photos -w shop {TRAIN.replace('hoc', 'bct-vectors')}",
        ("train data method old_vectors",),
        fresh,
    ),
    "trained already": Case(
        f"train photos -w shop {TRAIN}", ("upgrade data", "drop version"), trained
    ),
    "an upgrade of an added model": Case(
        "upgrade photos -w shop", ("add model compatible_with", "add model"), unrelated
    ),
    "more classes than fit": Case("upgrade many -w shop --try off", ("grow count",), more_classes),
    "rotated classes do not grow": Case("grow 20 -w shop", ("upgrade data option",), rotated),
    "never checked": Case("deploy v2 -w shop", ("check version", "deploy version force"), indexed),
    "undecided": Case(
        "check v2 --data photos --no-report -w shop",
        ("check version data", "deploy version queries"),
        indexed,
    ),
    "nothing won and nothing lost": Case(
        "check v2 --data photos --no-report -w shop",
        ("check data tolerance version",),
        the_same_twice,
    ),
    "no held-out images": Case(
        "check v2 -w shop", ("check version data", "upgrade data hold_out"), indexed
    ),
    "no images and no labels in common": Case(
        "check v2 --data moved --no-report -w shop",
        ("check version images", "check version pairs"),
        connected_by_nothing,
    ),
    "vectors of a model that is not here": Case(
        "check v2 --data photos --no-report -w shop", ("check version pairs",), imported
    ),
    "named images that changed": Case(
        "check v2 --name season -w shop", ("check data name",), named_and_changed
    ),
    "one model per query": Case(
        "deploy v2 --queries one -w shop",
        ("deploy version", "deploy version queries force"),
        two_models,
    ),
    "deployed": Case('deploy v2 --force "a test" -w shop', ("backfill", "rollback"), indexed),
    "vectors of a newer version": Case(
        "drop v2 -w shop",
        ("index items again", "delete-items version"),
        rolled_back_after_a_backfill,
    ),
    "a needed version": Case(
        "drop v1 -w shop", ("backfill budget", "delete-items version"), deployed_by_force
    ),
    "a damaged item": Case("search photos/hat/1.png -w shop", ("delete-items id",), damaged_item),
    "a missing gallery": Case("status -w shop", ("use-gallery address",), without_gallery),
    "a damaged gallery": Case("snapshot s.tar -w shop", ("verify-gallery",), damaged_item),
    "vectors are no model": Case(
        "add old.npz -w shop", ("import-vectors file name",), other_vectors
    ),
    "ids that others hold": Case(
        "gallery import old.npz --as old -w shop",
        ("import-vectors file name prefix", "import-vectors file name take_over"),
        vectors,
    ),
    "no column of this name": Case(
        "gallery import old.parquet --as old -w shop",
        ("import-vectors file id_column name",),
        columns,
    ),
    "a model of one's own": Case("add MODEL.onnx --size 32 -w shop", ("index items",), fresh),
    "no workspace": Case("status -w nowhere", ("init path",)),
    "a workspace of a similar name": Case(
        "status -w shpo", ("repeat workspace", "init path"), indexed
    ),
    "nothing to measure": Case("evaluate -w shop", ("evaluate data",), indexed),
    "a report of one version": Case(
        "evaluate photos --report report -w shop", ("upgrade data",), trained
    ),
    "a file of another kind": Case(
        "evaluate photos --split-file SPLIT.npz -w shop",
        ("evaluate data protocol pairs_file",),
        a_file_of_pairs,
    ),
    "features without labels": Case(
        "evaluate --features v1=features.npz", ("repeat labels",), features_without_labels
    ),
    "an unreadable image": Case(
        f"train photos -w shop {TRAIN}", ("repeat bad_images",), unreadable_image
    ),
    "which folder is the class": Case(
        f"train nested -w shop {TRAIN}", ("repeat label",), folders_in_folders
    ),
    "a model that only runs": Case(
        "train photos -w shop --backbone MODEL.onnx --size 32 --epochs 1 --batch-size 8 --capacity 100",
        ("repeat frozen",),
        fresh,
    ),
    "a model that says nothing of its images": Case(
        "train photos -w shop --backbone MODEL.onnx --frozen --epochs 1 --batch-size 8 --capacity 100",
        ("repeat size",),
        fresh,
    ),
    "code that is not trusted": Case(
        "add own_models:small --size 16 -w shop", ("repeat trust",), fresh
    ),
    "another backbone": Case(
        "upgrade photos --backbone tiny -w shop", ("repeat replace",), trained
    ),
    "images under ids that are taken": Case(
        "index others -w shop", ("repeat replace", "repeat prefix"), other_images_of_the_same_ids
    ),
    "a place that is taken": Case("restore shop.tar -w other", ("repeat replace",), snapshot),
    "all held out": Case(
        "bridge one.npz two.npz --held-out 1 --out bridge.npz",
        ("repeat held_out",),
        pairs_to_bridge,
    ),
    "a model to bridge from": Case(
        "bridge 'MODEL.onnx?size=32' photos.npz --out bridge.npz",
        ("repeat images",),
        pairs_to_bridge,
    ),
}
MIGRATE = "migrate run stored.npz way.npz"
CASES |= {
    "a migration that loses": Case(
        f"{MIGRATE} --to moved.npz",
        ("init path", "repeat anyway"),
        lambda: measured_translation(-0.05),
    ),
    "a migration to a file of others": Case(
        f"{MIGRATE} --to mine.npz", ("repeat to",), lambda: measured_translation(0.05)
    ),
}
JUDGE = "judge --old old.npz"
CASES |= {
    "a migration without queries of the new model": Case(
        f"{JUDGE} --migrated migrated.npz --labels labels.csv",
        ("repeat queries_new queries_old", "repeat new"),
        migration,
    ),
    "a migration with queries by one model": Case(
        f"{JUDGE} --migrated migrated.npz --queries-old asked.npz --relevant relevant.csv",
        ("repeat queries_new",),
        migration,
    ),
    "a migration to a space of its own": Case(
        f"{JUDGE} --migrated narrow.npz --queries-old asked.npz --queries-new asked.npz --relevant relevant.csv",
        ("repeat queries_migrated",),
        migration,
    ),
    "a migration without right answers": Case(
        f"{JUDGE} --migrated migrated.npz --new new.npz",
        ("repeat relevant", "repeat labels"),
        migration,
    ),
}
DIVERGES = Case(f"train photos -w shop {TRAIN} --learning-rate 1", ("repeat learning_rate",), fresh)
LOSES = Case(
    "backfill --budget 10% --data photos -w shop",
    ("backfill budget", "backfill plan_only", "backfill anyway"),
)


# --- typing what is suggested


_made = Path()


@pytest.fixture(scope="module", autouse=True)
def made(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Files that a user brings along, and a trained workspace."""
    global _made  # what is prepared above needs no argument
    _made = tmp_path_factory.mktemp("suggested")
    pictures(_made / "photos", 8)
    bring_files(_made)
    typed("init", _made / "trained")
    shown = typed("train", _made / "photos", "-w", _made / "trained", *shlex.split(TRAIN))
    assert shown.code == 0, shown.err
    shutil.copytree(_made / "trained", _made / "pair")
    words = "--epochs 1 --try off --hold-out 0 --seed 1"
    shown = typed("upgrade", _made / "photos", "-w", _made / "pair", *shlex.split(words))
    assert shown.code == 0, shown.err


def bring_files(folder: Path) -> None:
    """What the placeholders of commands stand for."""
    rng = np.random.default_rng(0)
    old = rng.normal(size=(24, 5)).astype(np.float32)
    ids = np.array([f"{name}/{number}.png" for name in CLASSES for number in range(8)])
    labels = np.repeat(np.array(CLASSES), 8)
    np.savez(folder / "FILE.npz", vectors=old, ids=ids)
    np.savez(folder / "OLD.npz", vectors=old, classes=labels)
    onnx.save(image_model(0, side=32, width=6), folder / "MODEL.onnx")


BROUGHT = {
    "ADDRESS": ["copy.db"],
    "CAPACITY": ["100"],
    "FILE": ["FILE.npz"],
    "IMAGES": ["photos"],
    "LABELLED_IMAGES": ["photos"],
    "LABELS": ["labels.npz"],
    "MODEL": ["MODEL.onnx", "--size", "32"],
    "NAME": ["another"],
    "NEW": ["new.npz"],
    "PAIRS_FILE": ["new-pairs.npz"],
    "PREFIX": ["old/"],
    "QRELS.tsv": ["relevant.csv"],
    "QUERIES_MIGRATED": ["asked-narrow.npz"],
    "SIZE": ["32"],
    "SPLIT_FILE": ["new-split.npz"],
    "TO": ["another.npz"],
    "WORKSPACE": ["another"],
}
SHORT = {
    "check": ["--no-report"],
    # a short training, where nothing else is asked for
    "train": ["--backbone tiny", "--epochs 1", "--batch-size 8", "--capacity 100"],
    "upgrade": ["--epochs 1", "--try off"],
}
MAY_END = {  # all of them are answers
    ("bridge",): (2, 3),  # refused, or evidence is missing
    ("check",): (2, 3),
    ("judge",): (2, 3),
    ("gallery", "verify"): (1,),  # what is damaged
}


def shape_of(step: NextStep) -> str:
    given = [name for name, value in step.arguments.items() if value is not False]
    return " ".join([step.action, *sorted(given)])


def sorted_shape(text: str) -> str:
    action, *names = text.split()
    return " ".join([action, *sorted(names)])


def words_of(step: NextStep, command: str, before: str) -> list[str]:
    """What a user types for a step: the placeholders filled in, "the same command" written out."""
    if step.action == "repeat":
        instead = (
            step.note.removeprefix("in place of ") if step.note.startswith("in place of ") else None
        )
        before = re.sub(rf"{instead} \S+", "", before) if instead else before
        command = f"fixstar {before} {command.removeprefix('the same command with')}"
    _, *words = shlex.split(command)
    if "--old-vectors" in words:
        words = [{"FILE.npz": "OLD.npz"}.get(word, word) for word in words]
    if words[0] == "judge":
        words = [{"LABELS": "labels.csv"}.get(word, word) for word in words]
    words += (
        ["--yes"] if words[:3] == ["gallery", "delete", "--version"] else []
    )  # a question that is answered
    for word in SHORT.get(words[0], []):
        words += [] if word.split()[0] in words else word.split()
    return [part for word in words for part in BROUGHT.get(word, [word])]


def suggested(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> tuple[Typed, list[tuple[NextStep, str]]]:
    """What the last command of a case prints, and the steps with their commands."""
    told: list[tuple[NextStep, str]] = []
    real = next_steps.command_of

    def noted(step: NextStep, *rest: object) -> str:
        command = real(step, *rest)  # type: ignore[arg-type]
        told.append((step, command))
        return command

    with monkeypatch.context() as patched:
        patched.setattr(next_steps, "command_of", noted)
        shown = typed(*shlex.split(case.words))
    said = " ".join((shown.out + shown.err).split())
    assert all(" ".join(command.split()) in said for _, command in told), said
    return shown, told


def place(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with what a user has, and the user in it."""
    folder.mkdir()
    shutil.copytree(_made / "photos", folder / "photos")
    for name in ("FILE.npz", "MODEL.onnx", "OLD.npz"):
        shutil.copy(_made / name, folder)
    monkeypatch.chdir(folder)


def try_all(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place(tmp_path / "seen", monkeypatch)
    case.prepare()
    shutil.copytree(tmp_path / "seen", tmp_path / "before")
    shown, told = suggested(case, monkeypatch)
    assert {sorted_shape(one) for one in case.suggests} <= {shape_of(step) for step, _ in told}, (
        shown,
        told,
    )
    wrong = []
    for number, (command, step) in enumerate({command: step for step, command in told}.items()):
        if step.arguments.get("model") in PRETRAINED and not at_hand(str(step.arguments["model"])):
            continue  # the extra encoder is not installed
        if str(step.arguments.get("model")).startswith(("st:", "https:")):
            continue  # needs a model of texts or a server: tests/models add them
        folder = shutil.copytree(
            tmp_path / ("before" if step.action == "repeat" else "seen"), tmp_path / f"{number}"
        )
        monkeypatch.chdir(folder)
        words = words_of(step, command, case.words)
        ended = typed(*words)
        answers = any(
            words[: len(start)] == list(start) and ended.code in codes
            for start, codes in MAY_END.items()
        )
        if (
            not (ended.code == 0 or answers)
            or "Traceback" in ended.err
            or ended.err.startswith("fixstar: ")
        ):
            wrong.append(f"{command} -> {ended.code}: {ended.err[-600:]}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", CASES)
def test_what_is_suggested_can_be_typed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try_all(CASES[name], tmp_path, monkeypatch)


def test_what_is_suggested_instead_of_a_losing_backfill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try_all(LOSES._replace(prepare=lambda: losing(monkeypatch)), tmp_path, monkeypatch)


def test_what_is_suggested_for_a_training_that_diverges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = loop._require_converging

    def diverging(entry: EpochLog, checkpoint: Path | None, learning_rate: float) -> None:
        terms = {"ce": math.inf} if learning_rate == 1 else entry.terms
        real(replace(entry, terms=terms), checkpoint, learning_rate)

    monkeypatch.setattr(loop, "_require_converging", diverging)
    try_all(DIVERGES, tmp_path, monkeypatch)


# --- nothing is forgotten


def kinds_in_source() -> Iterator[tuple[str, str]]:
    """Every kind of step that the source makes for the command line, and where."""
    root = Path(fixstar.__file__).parent
    for path in root.rglob("*.py"):
        place = str(path.relative_to(root))
        source = path.read_text()
        if place.startswith("service/") or "NextStep(" not in source:
            continue  # a service answers with requests
        for node in ast.walk(ast.parse(source)):
            if not (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "NextStep"
            ):
                continue
            action = node.args[0]
            given = node.args[1] if len(node.args) > 1 else ast.Dict([], [])
            keys = given.keys if isinstance(given, ast.Dict) else [None]  # computed as a whole
            names = [key.value if isinstance(key, ast.Constant) else "?" for key in keys]
            verb = action.value if isinstance(action, ast.Constant) else "?"
            yield sorted_shape(" ".join(map(str, [verb, *names]))), f"{place}:{node.lineno}"


COMPUTED = {  # kinds with parts that are computed, or with what was typed, as one of the cases has them
    "? ? tolerance": "check data tolerance version",
    "repeat ?": "repeat queries_new",
    "evaluate ? ? data": "evaluate data pairs_file protocol",
    "import-vectors ? file": "import-vectors file id_column name",
}


def test_every_kind_of_step_has_a_case() -> None:
    tried = {
        sorted_shape(one) for case in (*CASES.values(), DIVERGES, LOSES) for one in case.suggests
    }
    tried |= {sorted_shape(" ".join(one)) for one in NOT_TYPED}
    missing = [
        f"{kind} ({place})"
        for kind, place in kinds_in_source()
        if COMPUTED.get(kind, kind) not in tried
    ]
    assert not missing, "reach these in CASES:\n" + "\n".join(missing)
    assert {
        one.split()[0] for one in tried
    } == ACTIONS  # an action that nothing suggests is not needed
