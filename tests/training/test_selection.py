"""Model selection (CoReS, eq. 11): of the epochs that are compatible, the one with the highest self-test is kept."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from test_replacement import pretrained
from test_scenarios import stripes
from test_stages import cut_off
from test_training_loop import same, training, weights
from torch import Tensor

from fixstar.evaluation import kfold_accuracy, sample_pairs
from fixstar.methods import Objective, Stage, Step, Terms
from fixstar.models import Encoder
from fixstar.training import Recipe, Training, Validation, train
from fixstar.training.run import ValidationScores, selected_epoch

RECIPE = Recipe(epochs=5, learning_rate=0.05, milestones=(), batch_size=8)

GOOD, BETTER = ValidationScores(0.5, 0.3, 0.2), ValidationScores(0.6, 0.3, 0.2)
TIED, DRIFTED = ValidationScores(0.9, 0.2, 0.2), ValidationScores(1.0, 0.0, 1.0)


@pytest.mark.parametrize(
    ("scores", "chosen"),
    [
        ([], None),
        ([DRIFTED, TIED], None),  # compatible means strictly greater (eq. 2)
        ([GOOD, BETTER, DRIFTED], 1),
        ([BETTER, GOOD, BETTER], 0),  # the earliest of equals
        ([DRIFTED, GOOD], 1),
    ],
)
def test_the_selected_epoch(scores: list[ValidationScores], chosen: int | None) -> None:
    assert selected_epoch(scores) == chosen


class Judge:
    """Gives the scores one after another, and keeps the weights it was shown."""

    def __init__(self, scores: list[ValidationScores]) -> None:
        self.left = list(scores)
        self.shown: list[dict[str, Tensor]] = []

    def __call__(self, encoder: Encoder) -> ValidationScores:
        self.shown.append(weights(encoder))
        return self.left.pop(0)


def selecting(judge: Judge, checkpoint: Path | None = None) -> Training:
    return training(RECIPE, select=judge, checkpoint=checkpoint)


@pytest.mark.parametrize(
    ("scores", "kept"),
    [
        ([DRIFTED, GOOD, BETTER, GOOD, DRIFTED], 2),
        ([BETTER, GOOD, GOOD, GOOD, GOOD], 0),
        ([TIED, DRIFTED, TIED, DRIFTED, DRIFTED], 4),  # none is compatible: the last one
        ([GOOD, GOOD, GOOD, GOOD, BETTER], 4),
    ],
)
def test_the_best_compatible_epoch_is_kept(scores: list[ValidationScores], kept: int) -> None:
    judge = Judge(scores)
    run = selecting(judge)
    log = train(run)
    assert [entry.scores for entry in log] == scores
    assert same(weights(run.encoder), judge.shown[kept])


@pytest.mark.parametrize("after", range(1, 6))
def test_the_best_epoch_survives_an_interruption(
    after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = [DRIFTED, GOOD, BETTER, GOOD, DRIFTED]
    judge = Judge(scores)
    whole = selecting(judge)
    log = train(whole)
    cut_off(selecting(Judge(scores), tmp_path / "c.safetensors"), after, monkeypatch)
    resumed = selecting(Judge(scores[after:]), tmp_path / "c.safetensors")
    assert train(resumed) == log
    assert same(weights(resumed.encoder), judge.shown[2])


def test_later_stages_go_on_from_the_selected_epoch_and_are_not_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepared(
        judge: Judge, checkpoint: Path | None = None
    ) -> tuple[Training, list[dict[str, Tensor]]]:
        run, starts = selecting(judge, checkpoint), []

        torch.manual_seed(3)
        extra = torch.nn.Linear(run.encoder.feature_dim, 1)

        def terms(step: Step) -> Terms:
            return {"z": step.new.z.square().mean()}

        def beside(step: Step) -> Terms:
            return {"extra": extra(step.new.z.detach()).square().mean()}

        def begin() -> None:
            starts.append(weights(run.encoder))

        stage = Stage(beside, "then", epochs=0.4, trains=extra, begin=begin)
        run.objective = Objective(terms, extra, then=(stage,))
        return run, starts

    scores = [GOOD, BETTER, GOOD, DRIFTED, DRIFTED]
    judge = Judge(scores)
    whole, starts = prepared(judge)
    log = train(whole)
    assert same(starts[0], judge.shown[1])
    assert [entry.scores is None for entry in log] == [False] * 5 + [True] * 2
    for after in (5, 6, 7):
        path = tmp_path / f"{after}.safetensors"
        cut_off(prepared(Judge(scores), path)[0], after, monkeypatch)
        resumed, _ = prepared(Judge([]), path)
        train(resumed)
        assert same(weights(resumed.encoder), weights(whole.encoder))


def test_where_a_later_stage_makes_the_encoder_its_epochs_are_judged() -> None:
    """FOSTER: what counts is the compressed network, not the boosted one before it."""
    judge = Judge([GOOD, BETTER, DRIFTED])
    run = selecting(judge)

    def terms(step: Step) -> Terms:
        return {"z": step.new.z.square().mean()}

    run.objective = Objective(
        terms, then=(Stage(terms, "compression", epochs=0.6, trains=run.encoder),)
    )
    log = train(run)
    assert [entry.scores is None for entry in log] == [True] * 5 + [False] * 3
    assert same(weights(run.encoder), judge.shown[1])


def test_judging_leaves_the_training_itself_alone() -> None:
    def curious(encoder: Encoder) -> ValidationScores:
        torch.rand(3)
        encoder.encode(torch.zeros(2, 32, 32, 1, dtype=torch.uint8).numpy())
        return DRIFTED

    plain, judged = training(RECIPE), training(RECIPE, select=curious)
    train(plain)
    train(judged)
    assert same(weights(plain.encoder), weights(judged.encoder))


def test_epochs_are_judged_by_the_pairs_of_the_benchmark() -> None:
    """Eq. 11 with M the verification accuracy: every score against cosines of full features."""
    images = stripes(4)
    pairs = sample_pairs(images.labels, 20, 20)
    old, new = (pretrained(["0", "1"], seed=seed) for seed in (0, 1))
    scores = Validation(images, images, "verification", pairs).select(old)(new)
    features = {"old": old.encode(images.images), "new": new.encode(images.images)}

    def accuracy(first: str, second: str) -> float:
        cosines = (features[first][pairs.first] * features[second][pairs.second]).sum(axis=1)
        return kfold_accuracy(cosines, pairs.same).mean

    assert scores.self_test == pytest.approx(accuracy("new", "new"), abs=0.026)  # one pair of 40
    assert scores.cross_test == pytest.approx(accuracy("new", "old"), abs=0.026)
    assert scores.old_self_test == pytest.approx(accuracy("old", "old"), abs=0.026)
    other = Validation(images, images, "verification", sample_pairs(images.labels, 20, 20, seed=1))
    assert other.fingerprint() != Validation(images, images, "verification", pairs).fingerprint()
