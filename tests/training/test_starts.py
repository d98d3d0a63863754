"""Where versions start from, and which of their epochs is kept: pre-trained weights and validation data."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_replacement import pretrained
from test_scenarios import SETTINGS, same_weights, stream, stripes
from wording import refuses

from fixstar.data import ImageSet, TaskStream, from_arrays, sample_stream
from fixstar.errors import CheckpointError, InputError, ModelError
from fixstar.evaluation import cross_test
from fixstar.methods import Method, OldVectors, create_method
from fixstar.models import Encoder
from fixstar.training import (
    Recipe,
    Settings,
    TrainingContext,
    Validation,
    Version,
    run_scenario,
    train_version,
    version_features,
)
from fixstar.training.checkpoint import load_checkpoint, save_checkpoint
from fixstar.training.run import ValidationScores, selected_epoch
from fixstar.training.version import VersionPlan

STILL = Settings(
    **{**vars(SETTINGS), "recipe": Recipe(epochs=1, learning_rate=1e-12, batch_size=8)}
)


def first_layer(encoder: Encoder) -> torch.Tensor:
    return encoder.get_parameter("backbone.fc.weight")


# Pre-trained


@pytest.mark.parametrize("name", ["cores", "itm", "cl2r-ub"])
def test_every_version_starts_from_the_given_weights(name: str) -> None:
    """At a learning rate of almost nothing, versions are what they started from."""
    given = pretrained(["p", "q"], seed=5, classifier="linear" if name == "itm" else "simplex")
    before = {key: value.clone() for key, value in given.state_dict().items()}
    versions = list(
        run_scenario(
            stream(),
            create_method(name),
            STILL,
            progress=False,
            pretrained=given,
            scenario="retraining",
        )
    )
    for version in versions:
        torch.testing.assert_close(
            first_layer(version.encoder), first_layer(given), atol=1e-6, rtol=0
        )
        assert {"p": 0, "q": 1}.items() <= version.encoder.slots.by_class.items()
    assert [len(version.encoder.slots) for version in versions] == [4, 6, 8]
    for older, newer in itertools.pairwise(versions):
        assert older.encoder.slots.by_class.items() <= newer.encoder.slots.by_class.items()
    assert all(
        torch.equal(value, before[key]) for key, value in given.state_dict().items()
    )  # it is copied


def test_a_method_that_goes_on_from_the_last_weights_starts_there_only_once() -> None:
    given = pretrained([], seed=5, classifier="simplex")
    method = create_method("cores", initialisation="previous")
    versions = list(
        run_scenario(
            stream(), method, SETTINGS, progress=False, pretrained=given, scenario="retraining"
        )
    )
    still = train_version(
        3,
        stripes(),
        TrainingContext(versions[1].encoder, pretrained=given),
        method,
        STILL,
        progress=False,
    )
    torch.testing.assert_close(
        first_layer(still.encoder), first_layer(versions[1].encoder), atol=1e-6, rtol=0
    )
    assert (first_layer(versions[1].encoder) - first_layer(given)).abs().max() > 1e-3


def test_a_run_with_other_pretrained_weights_is_refused(tmp_path: Path) -> None:
    def run(seed: int | None) -> list[Encoder]:
        given = None if seed is None else pretrained([], seed=seed)
        versions = run_scenario(
            stream(),
            create_method("cores"),
            SETTINGS,
            tmp_path / "run",
            progress=False,
            pretrained=given,
        )
        return [version.encoder for version in versions]

    assert all(same_weights(a, b) for a, b in zip(run(1), run(1), strict=True))
    for other in (2, None):
        with pytest.raises(CheckpointError, match="pretrained was"):
            run(other)


# Model selection


def faint(per_class: int, seed: int) -> ImageSet:
    """Stripes under so much noise that a version is wrong more often than not, and the next one can do better."""
    rng = np.random.default_rng(seed)
    patterns = np.stack([((np.arange(32) // (k + 2)) % 2) * 20 for k in range(6)])
    labels = np.repeat(np.arange(6), per_class)
    noise = rng.integers(0, 200, (len(labels), 32, 32))
    return from_arrays((patterns[labels][:, None, :] + noise).astype(np.uint8), labels)


def growing() -> TaskStream:
    """All classes from the start, more images of each with every task."""
    return sample_stream(faint(12, 0), [0.34, 0.33, 0.33])


def validation(seed: int = 1) -> Validation:
    return Validation(faint(8, seed), faint(8, 2))


def steady(epochs: int) -> Settings:
    recipe = Recipe(epochs=epochs, learning_rate=0.05, milestones=(), batch_size=8)
    return Settings(**{**vars(SETTINGS), "recipe": recipe})


def chosen(version: Version) -> int:
    """The epoch that was to be kept."""
    scores = [entry.scores for entry in version.log]
    best = selected_epoch([one for one in scores if one is not None])
    return len(scores) - 1 if best is None else best


def test_the_kept_model_has_the_standing_that_was_measured() -> None:
    """What is measured again on the finished versions is the log's line of the epoch that eq. 11 chooses."""
    data = validation()
    versions = list(
        run_scenario(growing(), create_method("cores"), steady(5), progress=False, validation=data)
    )
    assert all(entry.scores is None for entry in versions[0].log)  # nothing to be compatible with
    for older, newer in itertools.pairwise(versions):
        made = [
            version_features(v.name, v.encoder, data.queries, data.gallery) for v in (older, newer)
        ]
        matrix = cross_test(made, data.queries.labels, data.gallery.labels).matrix
        again = ValidationScores(matrix[1, 1], matrix[1, 0], matrix[0, 0])
        assert newer.log[chosen(newer)].scores == pytest.approx(again)


def test_selection_keeps_another_model_than_the_last_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """An epoch is judged compatible as this test likes it; the same run cut short ends at that epoch."""
    turns = iter(
        [ValidationScores(0.5, 1, 0), ValidationScores(0.9, 1, 0), ValidationScores(1, 0, 0)]
    )
    monkeypatch.setattr(Validation, "select", lambda *_: lambda _: next(turns))
    first = train_version(
        1, stripes(2), TrainingContext(), create_method("cores"), steady(3), progress=False
    ).encoder

    def second(epochs: int, data: Validation | None) -> Encoder:
        method = create_method("cores")
        return train_version(
            2, stripes(), TrainingContext(first), method, steady(epochs), None, False, data
        ).encoder

    assert same_weights(second(3, validation()), second(2, None))


@pytest.mark.long
def test_a_run_with_selection_is_read_back_and_resumes_to_the_same_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(directory: Path | None, data: Validation | None = None) -> list[Version]:
        given = validation() if data is None else data
        return list(
            run_scenario(
                growing(), create_method("cores"), steady(4), directory, False, validation=given
            )
        )

    whole = run(None)
    saved: list[Path] = []

    def save_and_stop(path: Path, *state: Any) -> None:
        save_checkpoint(path, *state)
        saved.append(path)
        if len(saved) == 7:  # the third epoch of the second version
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("fixstar.training.loop.save_checkpoint", save_and_stop)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "run")
    resumed = run(tmp_path / "run")
    assert all(same_weights(a.encoder, b.encoder) for a, b in zip(whole, resumed, strict=True))
    assert resumed[1].log == whole[1].log
    with pytest.raises(CheckpointError, match="validation was"):
        run(tmp_path / "run", validation(seed=7))


def test_queries_and_gallery_must_name_their_classes_alike() -> None:
    data = stripes(3)
    with refuses(InputError):
        Validation(data, data.of_classes(["2", "1", "0"]))


# Stored vectors decide too whether a run may go on


def test_a_checkpoint_of_other_stored_vectors_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors, labels = np.random.default_rng(0).standard_normal((8, 64)), np.arange(8) % 2
    prints: list[str] = []

    def note(path: Path, model: torch.nn.Module, fingerprint: str, **parts: Any) -> Any:
        prints.append(fingerprint)
        return load_checkpoint(path, model, fingerprint, **parts)

    monkeypatch.setattr("fixstar.training.loop.load_checkpoint", note)
    data: ImageSet = stripes(2)
    for number, stored in enumerate(
        (
            OldVectors(vectors, labels, ("0", "1")),
            OldVectors(vectors.copy(), labels.copy(), ("0", "1")),
            OldVectors(vectors + 1, labels, ("0", "1")),
            OldVectors(vectors, 1 - labels, ("0", "1")),
            OldVectors(vectors, labels, ("1", "0")),
        )
    ):
        past, path = TrainingContext(old_vectors=stored), tmp_path / f"{number}.safetensors"
        train_version(1, data, past, create_method("bct-vectors"), STILL, path, progress=False)
    assert prints[0] == prints[1]
    assert len(set(prints)) == 4


# Other models along the way


def widths(versions: list[Version]) -> list[int]:
    return [version.encoder.backbone.feature_dim for version in versions]


def wider(feature_dim: int) -> Settings:
    options = {**SETTINGS.backbone_options, "feature_dim": feature_dim}
    return Settings(**{**vars(SETTINGS), "backbone_options": options})


@pytest.mark.long
def test_a_simplex_stays_comparable_while_the_backbone_changes(tmp_path: Path) -> None:
    """CoReS, section 6.6: the feature is as wide as the simplex, whatever stands before it."""
    small = {"backbone": "lenet++", "backbone_options": {"feature_dim": 5}}
    later = {2: wider(12), 3: Settings(**{**vars(SETTINGS), **small})}

    def run(later: dict[int, Settings]) -> list[Version]:
        method = create_method("cores")
        return list(
            run_scenario(
                stream(),
                method,
                SETTINGS,
                tmp_path / "run",
                progress=False,
                later=later,
                scenario="retraining",
            )
        )

    versions = run(later)
    assert widths(versions)[1:] == [12, 5]
    assert len({version.encoder.feature_dim for version in versions}) == 1
    images = stripes()
    features = [
        version_features(version.name, version.encoder, images, images) for version in versions
    ]
    matrix = cross_test(features, images.labels, images.labels).matrix
    assert np.isfinite(matrix[np.tril_indices(3)]).all()
    assert widths(run(later)) == widths(versions)
    with pytest.raises(CheckpointError, match=r"later\.3"):
        run({2: later[2]})


@pytest.mark.parametrize("more", [(4, 9), (-8, 4)])
def test_bct_chains_three_models_of_different_width(more: tuple[int, int]) -> None:
    """Each is judged by its predecessor's classifier; a narrower one is zero in what it lacks."""
    base = widths(list(run_scenario(stream(), create_method("itm"), STILL, progress=False)))[0]
    later = {2: wider(base + more[0]), 3: wider(base + more[1])}
    versions = list(
        run_scenario(stream(), create_method("bct"), SETTINGS, progress=False, later=later)
    )
    assert widths(versions) == [base, base + more[0], base + more[1]]
    assert [set(version.log[-1].terms) for version in versions] == [
        {"ce"},
        {"ce", "influence"},
        {"ce", "influence"},
    ]
    images = stripes()
    made = [version_features(version.name, version.encoder, images, images) for version in versions]
    features = [replace(version, shared_components=True) for version in made]
    result = cross_test(features, images.labels, images.labels)
    assert np.isfinite(result.matrix[np.tril_indices(3)]).all()


def test_what_goes_on_from_the_last_weights_cannot_change_its_backbone() -> None:
    with refuses(InputError):
        run_scenario(stream(), create_method("ift"), SETTINGS, progress=False, later={2: wider(12)})


@pytest.mark.parametrize(
    ("polytope", "capacity"), [("polygon", 20), ("cube", 16), ("orthoplex", 13), ("simplex", 13)]
)
def test_prototypes_do_not_move_under_classes_that_have_them(polytope: str, capacity: int) -> None:
    first, method = replace(SETTINGS, capacity=10), create_method("cores", polytope=polytope)
    previous = VersionPlan(1, stripes(2), TrainingContext(), method, first).starting_encoder()
    assert (
        VersionPlan(2, stripes(), TrainingContext(previous), method, first)
        .starting_encoder()
        .slots.capacity
        == 10
    )
    later = replace(first, capacity=capacity)
    with refuses(ModelError):
        list(
            run_scenario(
                stream(), method, first, progress=False, later={2: later}, scenario="retraining"
            )
        )


# Heads that do not go on from one another


def started(old: Method, new: Method, **past: Encoder) -> Encoder:
    """Where the second version of ``new`` starts after a first of ``old``."""
    settings = replace(SETTINGS, side="right")
    previous = VersionPlan(1, stripes(2), TrainingContext(), old, settings).starting_encoder()
    previous.about["version"] = "v1"
    context = TrainingContext(previous, **past)  # type: ignore[arg-type]
    return VersionPlan(2, stripes(), context, new, settings).starting_encoder()


@pytest.mark.parametrize(
    ("old", "new", "kinds"),
    [
        ("er", "hoc", ("simplex", "linear")),
        ("hoc", "er", ("linear", "simplex")),
        ("cores", "itm", ("linear", "simplex")),
        ("itm", "cores", ("simplex", "linear")),
        ("er", "lucir", ("cosine", "linear")),
    ],
)
def test_a_method_does_not_follow_another_kind_of_classifier(
    old: str, new: str, kinds: tuple[str, str]
) -> None:
    told = f"method '{new}' trains a {kinds[0]} classifier and v1 has a {kinds[1]} one. Methods that train that kind"
    with pytest.raises(ModelError, match=told):
        started(create_method(old), create_method(new))


def test_prototypes_of_another_polytope_are_not_followed() -> None:
    with refuses(ModelError):
        started(create_method("cores"), create_method("cores", polytope="cube"))


def test_replacements_and_pretrained_models_have_the_classifier_of_the_method() -> None:
    given = pretrained(["p"], classifier="linear")
    with refuses(ModelError):
        started(create_method("hoc"), create_method("hoc"), replacement=given)
    with refuses(ModelError):
        started(create_method("cores"), create_method("cores"), pretrained=given)


def test_a_version_trained_again_may_have_another_trainable_head() -> None:
    """BCT, tables 3 and 7: the old head judges the new features, whatever the new head."""
    old, new = create_method("bct", head="norm-softmax"), create_method("bct", head="softmax")
    first = train_version(1, stripes(2), TrainingContext(), old, SETTINGS, progress=False).encoder
    second = train_version(2, stripes(), TrainingContext(first), new, SETTINGS, progress=False)
    assert (first.classifier.kind, second.encoder.classifier.kind) == ("cosine", "linear")
    assert second.encoder.slots.by_class == {str(label): label for label in range(6)}
    assert set(second.log[-1].terms) == {"ce", "influence"}
