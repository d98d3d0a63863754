"""Training jobs: the first version, or an upgrade."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fixstar.data.formats import open_images_within
from fixstar.data.image_set import ImageSet
from fixstar.durable import document, read_document, replace_json
from fixstar.errors import InputError, NextStep, UnknownNameError
from fixstar.models import backbone_names
from fixstar.progress import reported_to
from fixstar.service.jobs.records import Result
from fixstar.service.jobs.running import RunningJob, StoppedError, await_predecessor
from fixstar.service.problems import Problem, to_step
from fixstar.workspace import UpgradeOptions, Workspace
from fixstar.workspace.options import FIRST_METHOD, held_out_share
from fixstar.workspace.pairs import known_label

if TYPE_CHECKING:
    from fixstar.training import Version


def require_no_training(space: Workspace) -> None:
    """Refuse to train while another training, such as one from the command line, is under way or was interrupted."""
    name = space.registry.unfinished()
    if name is not None:
        raise Problem(
            "training-unfinished", f"the training of {name} has begun and has not finished"
        )


def planned_training(
    space: Workspace, kind: str, wanted: Mapping[str, Any]
) -> Callable[[ImageSet, Callable[[str], object]], Version]:
    """The training that is asked for, ready to run; refused here if it cannot. It loads the training code."""
    backbone = wanted["backbone"]
    if backbone is not None and backbone not in backbone_names():
        raise UnknownNameError("backbone", backbone, backbone_names())
    names = space.versions()
    if kind == "train":
        if names:
            raise InputError(f"there is {names[-1]} already", NextStep("upgrade", {"data": ...}))
        return _planned_first(space, wanted)
    if not names:
        raise InputError("there is no version yet", NextStep("train", {"data": ...}))
    return _planned_upgrade(space, wanted)


def _planned_first(
    space: Workspace, wanted: Mapping[str, Any]
) -> Callable[[ImageSet, Callable[[str], object]], Version]:
    """The training of the first version."""
    from fixstar.methods import create_method
    from fixstar.training import Settings, paper_recipe

    method = create_method(wanted["method"] or FIRST_METHOD, **wanted["options"])
    recipe = paper_recipe(method.scenario)
    if wanted["epochs"] is not None:
        recipe = recipe.shortened(wanted["epochs"])
    if wanted["learning_rate"] is not None:
        recipe = replace(recipe, learning_rate=wanted["learning_rate"])
    settings = Settings(
        wanted["backbone"],
        capacity=wanted["capacity"],
        recipe=recipe,
        bad_images="skip",
        seed=wanted["seed"],
        device=space.device,
    )
    share = held_out_share(wanted["hold_out"], keeps_images=settings.replay_per_class > 0)
    return lambda images, _: space.train(images, settings, method, progress=False, hold_out=share)


def _planned_upgrade(
    space: Workspace, wanted: Mapping[str, Any]
) -> Callable[[ImageSet, Callable[[str], object]], Version]:
    """The training of the next version, with the last one's method and recipe unless others are asked for."""
    from fixstar.methods import create_method
    from fixstar.workspace.training import checked_trials

    last = space.method()
    name = wanted["method"]
    options = wanted["options"]
    if name is None:
        name = last.name
        options = {**last.options, **options}
    method = create_method(name, **options)  # refused here if it cannot be made
    settings = space.settings()
    recipe = None
    if wanted["epochs"] is not None:
        recipe = settings.recipe.shortened(wanted["epochs"])
    share = held_out_share(wanted["hold_out"], keeps_images=settings.replay_per_class > 0)
    is_other_method = wanted["method"] is not None or bool(wanted["options"])
    upgrade = UpgradeOptions(
        recipe=recipe,
        method=method if is_other_method else None,
        learning_rate=wanted["learning_rate"],
        seed=wanted["seed"],
        device=space.device,
        bad_images="skip",
        replace=wanted["backbone"],
        hold_out=share,
        progress=False,
    )
    trials = checked_trials(wanted["trials"])
    return lambda images, say: space.upgrade(images, upgrade, trials=trials, say=say)


def train(space: Workspace, running: RunningJob) -> Result:
    """Train the first version or the next one. A restart resumes with the same images after the last epoch."""
    from fixstar.training.run_directory import RunDirectory
    from fixstar.workspace.training import AlreadyTrainedError

    job = running.job()
    resumes = running.images.exists()
    await_predecessor(RunDirectory(space.path).locked, running)
    if not resumes:
        require_no_training(space)
        replace_json(
            running.images,
            document("training images", _training_images(space, job.parameters["data"])),
        )
    if not (
        job.kind == "train" and resumes and space.versions()
    ):  # else the kill came just after the training
        try:
            _run_training(space, running)
        except AlreadyTrainedError:
            if not resumes:
                raise
    name = space.newest()
    about = space.registry.card(name)["about"]
    running.note(message=f"{name} is trained")
    steps = []
    if job.kind == "upgrade":
        steps.append(to_step(NextStep("check", {"version": name})))
    return {
        "version": name,
        "images": about["data"]["images"],
        "classes": about["data"]["classes"],
        "loss": sum(about["loss"].values()),
        "trials": about.get("trials", []),
        "next_steps": steps,
    }


def _run_training(space: Workspace, running: RunningJob) -> None:
    """Train until the job is to end."""

    def report(title: str, done: int, total: int, note: str) -> None:
        if running.stopped():
            raise StoppedError("no version was made")
        running.note(done=done, total=total, message=": ".join(filter(None, (title, note))))

    def say(text: str) -> None:
        running.note(message=text)

    job = running.job()
    train = planned_training(space, job.kind, job.parameters)
    with reported_to(report):
        train(opened_images(running.images), say)


def _training_images(space: Workspace, folder: str | None) -> Result:
    """A folder, or the images of stored items by label: what is stored later is left out, also after a restart."""
    if folder is not None:
        return {"folder": folder}
    found = set()
    for item in space.gallery.iterate():
        label = known_label(item.payload.get("label"))
        if label is None:
            continue
        path = space.images.find(item)
        if path is not None:
            found.add((label, str(path.absolute())))
    if not found:
        raise InputError(
            "no stored item has a label and an image to train on",
            NextStep("upgrade", {"data": ...}),
        )
    return {"images": sorted(found)}


def opened_images(file: Path) -> ImageSet:
    """The images of a training job."""
    content = read_document(file, "training images")
    if "folder" in content:
        return open_images_within(content["folder"])
    labels, paths = zip(*content["images"], strict=True)
    classes = sorted(set(labels))
    numbers = {name: number for number, name in enumerate(classes)}
    targets = np.array([numbers[label] for label in labels], np.int64)
    return ImageSet(
        images=tuple(Path(path) for path in paths),
        labels=targets,
        classes=tuple(classes),
        name="stored items",
    )
