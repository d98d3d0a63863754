"""BiC, FAN, PODNet and FOSTER: their terms against slow code, and what each of their stages may change."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_lifelong_baselines import SETTINGS, blobs, lifelong_upgrade, two_versions
from test_methods import NEW, OLD, encoder, situation, terms
from torch import Tensor
from torch.nn import functional
from wording import refuses

from fixstar.data import class_stream
from fixstar.errors import InputError, ModelError
from fixstar.evaluation import cross_test
from fixstar.losses import (
    balanced_distillation,
    cross_entropy,
    feature_distillation,
    knowledge_distillation,
    neighbourhood_components,
    pooled_outputs,
)
from fixstar.methods import Objective, Step, Upgrade, create_method
from fixstar.methods.incremental import BiasCorrection, effective_weights
from fixstar.models import Adapter, Encoder, FrozenEncoder, LinearClassifier
from fixstar.training import (
    Training,
    TrainingContext,
    run_scenario,
    train,
    train_version,
    version_features,
)
from fixstar.training.checkpoint import save_checkpoint

STAGED = ("bic", "fan", "foster")


def state(model: torch.nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def changed(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    assert before.keys() == after.keys()
    return {name for name in before if not torch.equal(before[name], after[name])}


def unreached(loss: Tensor, parameter: Tensor) -> bool:
    """Whether no gradient of the loss flows there."""
    gradients: tuple[Tensor | None, ...] = torch.autograd.grad(loss, parameter, allow_unused=True)
    return gradients[0] is None


def with_held_out(upgrade: Upgrade) -> Upgrade:
    return replace(upgrade, held_out=upgrade.images)


class Watch:
    """Runs the real loop, and keeps the encoder as it is at the end of the main stage and before ``finish``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.loop = train
        self.runs: list[Training] = []
        self.after_main: list[dict[str, Tensor]] = []
        self.before_finish: list[dict[str, Tensor]] = []
        monkeypatch.setattr("fixstar.training.version.train", self)

    def __call__(self, run: Training) -> Any:
        self.runs.append(run)
        objective = run.objective
        if objective.then:
            (stage,) = objective.then

            def begin() -> None:
                self.after_main.append(state(run.encoder))
                if stage.begin is not None:
                    stage.begin()

            def finish() -> None:
                self.before_finish.append(state(run.encoder))
                if objective.finish is not None:
                    objective.finish()

            run.objective = replace(objective, then=(replace(stage, begin=begin),), finish=finish)
        return self.loop(run)


# BiC


def test_bic_weighs_answers_by_the_share_of_old_classes() -> None:
    values, _, step = terms(create_method("bic", temperature=3.0))
    assert step.old is not None
    lam = 3 / 5
    torch.testing.assert_close(
        values["ce"], (1 - lam) * cross_entropy(step.new.logits, step.targets)
    )
    answers = knowledge_distillation(step.new.logits[:, :3], step.old.logits, 3.0)
    torch.testing.assert_close(values["kd"], lam * answers)


def test_bic_learns_from_the_labels_of_old_classes_alone() -> None:
    """Without a new class the weight is that of one new class: at 0 the new images' labels would be ignored."""
    method = create_method("bic", temperature=3.0)
    upgrade, step = situation(method)
    values = method.objective(replace(upgrade, old_classes=OLD + NEW, new_classes=())).terms(step)
    torch.testing.assert_close(values["ce"], 1 / 6 * cross_entropy(step.new.logits, step.targets))


def test_the_correction_changes_new_logits_alone() -> None:
    correction = BiasCorrection(2)
    with torch.no_grad():
        correction.alpha.fill_(3.0)
        correction.beta.fill_(-1.0)
    torch.testing.assert_close(
        correction(torch.tensor([[1.0, 2.0, 3.0, 4.0]])), torch.tensor([[1.0, 2.0, 8.0, 11.0]])
    )


def test_folding_gives_the_head_the_corrected_logits() -> None:
    torch.manual_seed(0)
    head, correction, z = LinearClassifier(6, 5, bias=True), BiasCorrection(3), torch.randn(7, 6)
    with torch.no_grad():
        assert head.bias is not None
        head.bias.copy_(torch.randn(5))
        correction.alpha.fill_(0.7)
        correction.beta.fill_(-0.4)
    expected = correction(head(z)).detach()
    before = state(head)
    correction.fold_into(head)
    torch.testing.assert_close(head(z), expected)
    assert torch.equal(head.weight[:3], before["weight"][:3])


def test_the_correction_is_that_of_the_least_cross_entropy() -> None:
    """Against a fine grid around what was found."""
    torch.manual_seed(0)
    logits, targets = 3 * torch.randn(60, 5), torch.arange(60) % 5
    logits[torch.arange(60), targets] += 2
    logits[:, 3:] += 1.5  # the bias towards new classes
    correction = BiasCorrection(3)
    before = functional.cross_entropy(logits, targets)
    correction.fit(logits, targets)
    alpha, beta = correction.alpha.item(), correction.beta.item()

    def error(a: float, b: float) -> float:
        return functional.cross_entropy(
            torch.cat([logits[:, :3], a * logits[:, 3:] + b], 1), targets
        ).item()

    least = error(alpha, beta)
    assert least < before.item() - 0.05
    assert all(
        error(alpha + da, beta + db) >= least - 1e-6
        for da in (-0.05, 0, 0.05)
        for db in (-0.1, 0, 0.1)
    )


def test_bic_corrects_nothing_without_held_out_images_or_without_a_new_class() -> None:
    method = create_method("bic")
    upgrade, _ = situation(method)
    assert method.objective(upgrade).finish is None
    whole = FrozenEncoder(encoder(method, OLD + NEW, 0))
    same_classes = replace(
        with_held_out(upgrade), teacher=whole, old_classes=OLD + NEW, new_classes=()
    )
    assert method.objective(same_classes).finish is None


def test_the_correction_changes_the_new_rows_of_the_head_alone() -> None:
    method = create_method("bic")
    upgrade, step = situation(method)
    objective = method.objective(with_held_out(upgrade))
    before = state(upgrade.encoder)
    answers = step.new.logits.detach()
    assert objective.finish is not None
    objective.finish()
    correction = objective.module
    assert isinstance(correction, BiasCorrection)
    assert changed(before, state(upgrade.encoder)) == {"classifier.weight", "classifier.bias"}
    pixels = torch.from_numpy(np.asarray(upgrade.images.images)).permute(0, 3, 1, 2)
    torch.testing.assert_close(
        upgrade.encoder(pixels).logits, correction(answers), atol=1e-4, rtol=1e-4
    )
    expected = BiasCorrection(3)
    expected.fit(answers, step.targets)
    torch.testing.assert_close(correction.alpha, expected.alpha, atol=1e-2, rtol=1e-2)


def test_bic_trains_on_no_held_out_image(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(monkeypatch)
    two_versions("bic")
    run = watch.runs[
        1
    ]  # two new classes of 8 images, two remembered ones of 4; a tenth of 4 is less than one
    assert [len(lane.pixels) for lane in run.batches._sources] == [2 * 7, 2 * 3]


# FAN


def test_fan_holds_features_and_then_learns_the_adapter_with_the_rest_still() -> None:
    method = create_method("fan", lam=3.0, classify=2.0, hidden=2)
    values, upgrade, step = terms(method)
    assert step.old is not None
    torch.testing.assert_close(values["fd"], 3 * feature_distillation(step.new.z, step.old.z))
    objective = method.objective(upgrade)
    adapter = objective.module
    assert isinstance(adapter, Adapter)
    assert adapter.options == {"width": 6, "hidden": 12}
    later = objective.then[0].terms(step)
    adapted = adapter(functional.normalize(step.old.z))
    torch.testing.assert_close(
        later["adapt"], (1 - functional.cosine_similarity(adapted, step.new.z)).mean()
    )
    logits = adapted @ upgrade.encoder.classifier.get_parameter("weight").T
    torch.testing.assert_close(
        later["classify"], 2 * functional.cross_entropy(logits, step.targets)
    )
    backbone = upgrade.encoder.get_parameter("backbone.fc.weight")
    assert unreached(later["adapt"] + later["classify"], backbone)


def test_the_adapter_stage_leaves_the_encoder_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(monkeypatch)
    first, second = two_versions("fan")
    assert first.encoder.adapter is None
    assert second.encoder.adapter is not None
    assert changed(watch.after_main[0], watch.before_finish[0]) == set()
    fresh = create_method("fan").objective(
        Upgrade(second.encoder, FrozenEncoder(first.encoder), blobs(), ("0", "1"), ("2", "3"))
    )
    assert fresh.module is not None
    assert len(changed(state(fresh.module), state(second.encoder.adapter))) == 4


def test_galleries_pass_through_the_adapters_of_all_versions_since(tmp_path: Path) -> None:
    images = blobs()
    stream = class_stream(images, 2, 1)
    versions = list(
        run_scenario(stream, create_method("fan"), SETTINGS, tmp_path / "run", progress=False)
    )
    made = [version_features(v.name, v.encoder, images, images) for v in versions]
    matrix = cross_test(made, images.labels, images.labels, "image").matrix
    second, third = (v.encoder.adapter for v in versions[1:])
    assert second is not None
    assert third is not None
    stored = third.adapt(second.adapt(versions[0].encoder.encode(images.images)))
    found = (versions[2].encoder.encode(images.images) @ stored.T).argmax(axis=1)
    assert matrix[2, 0] == pytest.approx((images.labels[found] == images.labels).mean())
    again = list(
        run_scenario(stream, create_method("fan"), SETTINGS, tmp_path / "run", progress=False)
    )
    reread = [version_features(v.name, v.encoder, images, images) for v in again]
    np.testing.assert_array_equal(
        cross_test(reread, images.labels, images.labels, "image").matrix, matrix
    )


def test_an_adapter_is_not_handed_on_to_a_version_of_another_method() -> None:
    upgraded = two_versions("fan")[1].encoder
    next_one = train_version(
        3, blobs(), TrainingContext(upgraded), create_method("er"), SETTINGS, progress=False
    )
    assert next_one.encoder.adapter is None
    assert upgraded.adapter is not None


def test_fan_needs_features_of_one_width_without_a_projection() -> None:
    for upgrade in (
        situation(create_method("fan"), wider=9)[0],
        situation(create_method("hoc"))[0],
    ):
        with refuses(ModelError):
            create_method("fan").objective(upgrade)


# PODNet


def test_podnet_holds_maps_and_features_with_the_weight_of_the_class_counts() -> None:
    values, _, step = terms(create_method("podnet", spatial=2.0, flat=4.0))
    assert step.old is not None
    factor = math.sqrt(5 / 2)
    assert len(step.new.maps) == len(step.old.maps) == 3
    torch.testing.assert_close(
        values["nca"], neighbourhood_components(step.new.logits, step.targets)
    )
    torch.testing.assert_close(
        values["pod"], 2 * factor * pooled_outputs(step.new.maps, step.old.maps)
    )
    torch.testing.assert_close(
        values["flat"], 4 * factor * feature_distillation(step.new.h, step.old.h)
    )


def test_the_first_version_of_podnet_has_only_its_own_loss() -> None:
    values, _, step = terms(create_method("podnet"), first=True)
    torch.testing.assert_close(
        values, {"nca": neighbourhood_components(step.new.logits, step.targets)}
    )


def test_podnet_asks_the_loop_for_maps() -> None:
    _, second = two_versions("podnet")
    assert second.log[0].terms.keys() == {"nca", "pod", "flat"}
    assert second.encoder.classifier.options["proxies"] == 10


# FOSTER


def test_effective_weights_by_hand() -> None:
    """beta 1/2: 1, 2 and 3 images give 1/2 / (1/2, 3/4, 7/8) = 1, 2/3, 4/7, of mean 47/63."""
    weights = effective_weights(torch.tensor([1.0, 2.0, 3.0]), 0.5)
    expected = torch.tensor([1, 2 / 3, 4 / 7]) * 63 / 47
    torch.testing.assert_close(weights, expected)
    assert effective_weights(torch.tensor([5.0, 90.0]), 0.0).tolist() == [1.0, 1.0]
    assert torch.isfinite(effective_weights(torch.tensor([0.0, 100_000.0]), 0.999)).all()


SHOWN = [4 * 8 / 12] * 3 + [2 * 8 / 4] * 2


def boosting() -> tuple[Upgrade, Step, Objective]:
    """Two images of each new class stay, four of each old one are remembered: 4 and 12, each half of 16 in an epoch."""
    method = create_method("foster", boost_beta=0.5, compress_beta=0.8)
    upgrade, step = situation(method)
    upgrade = lifelong_upgrade(upgrade)
    upgrade = replace(upgrade, images=upgrade.images.take([0, 1, 4, 5]))
    return upgrade, step, method.objective(upgrade)


def test_boosting_joins_the_old_features_and_the_new() -> None:
    upgrade, step, objective = boosting()
    assert step.old is not None
    assert upgrade.teacher is not None
    assert objective.module is not None
    head = objective.module.get_parameter("head.weight")
    assert head.shape == (5, 12)
    torch.testing.assert_close(head[:3, :6], upgrade.teacher.classifier.get_parameter("weight"))
    logits = torch.stack(
        [head @ torch.cat([a, b]) for a, b in zip(step.old.z, step.new.z, strict=True)]
    )
    frequency = effective_weights(torch.tensor(SHOWN), 0.5)
    values = objective.terms(step)
    torch.testing.assert_close(
        values["ce"], functional.cross_entropy(logits / frequency, step.targets)
    )
    torch.testing.assert_close(
        values["enhance"], functional.cross_entropy(step.new.logits, step.targets)
    )
    torch.testing.assert_close(
        values["kd"], knowledge_distillation(logits[:, :3], step.old.logits, 2.0)
    )


def test_compression_starts_from_the_old_weights_and_follows_the_pair_as_it_was_learnt() -> None:
    upgrade, step, objective = boosting()
    assert objective.module is not None
    assert step.old is not None
    assert step.pixels is not None
    start = state(upgrade.encoder)
    with torch.no_grad():
        for parameter in upgrade.encoder.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))  # stands for boosting
    learnt, boosted = state(upgrade.encoder), upgrade.encoder(step.pixels).z.detach()
    (stage,) = objective.then
    assert stage.begin is not None
    assert stage.trains is upgrade.encoder
    stage.begin()
    assert changed(start, state(upgrade.encoder)) == set()
    copied = {
        name.removeprefix("boosted."): v
        for name, v in state(objective.module).items()
        if "boosted." in name
    }
    assert changed(learnt, copied) == set()
    assert all(
        not p.requires_grad
        for name, p in objective.module.named_parameters()
        if name.startswith("boosted")
    )
    answers = (
        torch.cat([step.old.z, boosted], dim=1) @ objective.module.get_parameter("head.weight").T
    )
    rarity = effective_weights(torch.tensor(SHOWN), 0.8)
    values = stage.terms(step)
    torch.testing.assert_close(
        values["compress"], balanced_distillation(step.new.logits, answers, rarity, 2.0)
    )
    assert unreached(values["compress"], objective.module.get_parameter("head.weight"))


def test_foster_needs_linear_classifiers() -> None:
    upgrade, _ = situation(create_method("lucir"))
    with refuses(ModelError):
        create_method("foster").objective(upgrade)
    with refuses(ModelError):
        create_method("bic").objective(situation(create_method("hoc"))[0])


# All of them


@pytest.mark.parametrize("name", STAGED)
@pytest.mark.parametrize("after", [1, 2, 3])
def test_an_interruption_in_any_stage_ends_with_the_same_weights(
    name: str, after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second version has two epochs of its main stage and two of the next, if there is one."""
    whole = two_versions(name)[1]
    assert len(whole.log) == {"bic": 2, "fan": 4, "foster": 4}[name]
    saved: list[Path] = []

    def save_and_stop(path: Path, *state: Any) -> None:
        save_checkpoint(path, *state)
        saved.append(path)
        if len(saved) == 2 + min(after, len(whole.log)):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("fixstar.training.loop.save_checkpoint", save_and_stop)
        with pytest.raises(KeyboardInterrupt):
            two_versions(name, tmp_path / "run")
    resumed = two_versions(name, tmp_path / "run")[1]
    assert changed(state(whole.encoder), state(resumed.encoder)) == set()
    assert resumed.log == whole.log


@pytest.mark.parametrize("name", [*STAGED, "podnet"])
def test_versions_are_read_back_as_they_were(name: str, tmp_path: Path) -> None:
    second = two_versions(name, tmp_path / "run")[1]
    again = Encoder.load(tmp_path / "run" / "versions" / "v2")
    assert changed(state(second.encoder), state(again)) == set()
    assert (again.adapter is not None) == (name == "fan")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("bic", {"hold_out": 1.0}),
        ("bic", {"temperature": 0.0}),
        ("fan", {"hidden": 0}),
        ("fan", {"hidden": 1.5}),
        ("fan", {"classify": -1.0}),
        ("podnet", {"flat": -1.0}),
        ("podnet", {"proxies": 1.5}),
        ("lucir", {"k": 1.5}),
        ("advbct-er", {"width": 1.5}),
        ("foster", {"boost_beta": 1.0}),
        ("foster", {"epochs": 0.0}),
    ],
)
def test_mistakes_are_told_with_what_is_allowed(name: str, options: dict[str, float]) -> None:
    with refuses(InputError):
        create_method(name, **options)
