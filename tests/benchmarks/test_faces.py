"""benchmarks/faces.py: nobody is fitted and judges, a carried threshold means the same, unknown people are counted."""

from __future__ import annotations

import doctest
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from fixstar.evaluation import VersionFeatures
from fixstar.evaluation.verification import threshold_at_far
from fixstar.geometry import unit
from fixstar.translation import Calibration, fit_calibration

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import faces
from faces import Best

PEOPLE = np.array(
    [f"Person_{number}" for number in np.repeat(np.arange(200), np.arange(200) % 4 + 1)]
)


def photos(people: list[str]) -> list[str]:
    """Ids as LFW has them: the photos of a person are counted from 1."""
    return [
        f"{person}/{person}_{people[: row + 1].count(person):04}.jpg"
        for row, person in enumerate(people)
    ]


def save_faces(folder: Path) -> None:
    """Two models; the new one sees what the old one sees, turned, with less noise. 40 pairs of each kind."""
    rng = np.random.default_rng(0)
    (folder / "lfw").mkdir()
    numbers = np.unique(PEOPLE, return_inverse=True)[1]
    meant = rng.normal(size=(200, 16))[numbers]
    turned = np.linalg.qr(rng.normal(size=(16, 16)))[0]
    for model, noise in (("dlib", 0.5), ("mobilefacenet", 0.2)):
        seen = meant + noise * rng.normal(size=meant.shape)
        vectors = unit((seen @ turned if model == "dlib" else seen).astype(np.float32))
        np.savez(
            folder / "lfw" / f"{model}.npz",
            vectors=vectors,
            ids=photos(PEOPLE.tolist()),
            labels=PEOPLE,
        )
    several = [number for number in range(200) if number % 4]
    lines = [f"Person_{number}\t1\t2" for number in several]
    lines += [f"Person_{number}\t1\tPerson_{(number + 7) % 200}\t1" for number in range(200)]
    (folder / "lfw" / "pairs.txt").write_text("10\t15\n" + "\n".join(lines) + "\n")


def test_pairs_are_read_as_lfw_writes_them() -> None:
    ids = photos(["Ann", "Ann", "Bob", "Bob", "Bob"])
    found = faces.read_pairs("1\t1\nAnn\t1\t2\nAnn\t2\tBob\t3\n", ids)
    assert found.first.tolist() == [0, 1]
    assert found.second.tolist() == [1, 4]
    assert found.same.tolist() == [True, False]


def test_nobody_is_fitted_labelled_and_judging_at_once() -> None:
    drawn = faces.draw(PEOPLE, 3)
    assert sorted(np.concatenate(drawn).tolist()) == list(range(len(PEOPLE)))
    fitted, labelled, judging = (set(PEOPLE[rows]) for rows in drawn)
    assert not fitted & labelled
    assert not fitted & judging
    assert not labelled & judging
    assert (len(fitted), len(labelled), len(judging)) == (50, 50, 100)
    assert faces.draw(PEOPLE, 4).judging.tolist() != drawn.judging.tolist()


def test_one_photo_of_each_person_is_enrolled_and_whoever_has_one_stays_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(faces, "PHOTOS", 2)
    rows = np.flatnonzero(np.isin(PEOPLE, np.unique(PEOPLE)[::2]))
    found = faces.enrol(PEOPLE, rows, 0)
    every = np.concatenate(found)
    assert len(set(every.tolist())) == len(every)
    assert set(every.tolist()) <= set(rows.tolist())
    counts = {person: int((person == PEOPLE).sum()) for person in set(PEOPLE[rows].tolist())}
    several = sorted(person for person, count in counts.items() if count > 1)
    assert sorted(PEOPLE[found.enrolled].tolist()) == several
    for person, count in counts.items():
        asked = int((PEOPLE[found.known] == person).sum())
        assert asked == min(count - 1, 2)
        assert int((PEOPLE[found.unknown] == person).sum()) == (1 if count == 1 else 0)


def test_pairs_of_people_who_do_not_judge_are_left_out() -> None:
    pairs = faces.read_pairs(
        "1\t1\nAnn\t1\t2\nAnn\t2\tBob\t3\nBob\t1\t2\n", photos(["Ann"] * 2 + ["Bob"] * 3)
    )
    kept = faces.within(pairs, np.array([2, 3, 4]))
    assert (kept.first.tolist(), kept.second.tolist(), kept.same.tolist()) == ([2], [3], [True])


@pytest.mark.parametrize("rate", [0.0, 0.01, 0.1, 0.25])
def test_a_threshold_accepts_no_more_unknown_people_than_it_may(rate: float) -> None:
    rng = np.random.default_rng(1)
    unknown = rng.normal(size=200).round(1)  # many are equal
    found = faces.threshold(unknown, rate)
    assert (unknown >= found).mean() <= rate
    lower = [score for score in np.unique(unknown) if score < found]
    assert (unknown >= max(lower)).mean() > rate  # the next one would be too many
    everybody = np.append(unknown, 9.0)
    assert found == threshold_at_far(everybody, everybody == 9.0, rate)


def test_rates_are_those_of_counting_one_by_one() -> None:
    rng = np.random.default_rng(2)
    enrolled = np.array([f"p{number}" for number in range(30)])
    asked = np.array(
        [f"p{number}" for number in rng.integers(45, size=150)]
    )  # a third is not enrolled
    meant = rng.normal(size=(45, 4))
    numbers = [int(person[1:]) for person in asked]
    view = VersionFeatures(
        "v", unit(meant[numbers] + 0.5 * rng.normal(size=(150, 4))), unit(meant[:30])
    )
    known = np.isin(asked, enrolled)
    limit = 0.95
    accepted = 0
    identified = 0
    first = 0
    for query, person in zip(view.queries, asked, strict=True):
        scores = [float(query @ stored) for stored in view.gallery]
        who = enrolled[scores.index(max(scores))]
        if person not in enrolled:
            accepted += max(scores) >= limit
        elif who == person:
            first += 1
            identified += max(scores) >= limit
    found = faces.best(view, asked, enrolled)
    mine = Best(found.scores[known], found.right[known])
    others = Best(found.scores[~known], found.right[~known])
    rates = faces.rates(mine, others, limit)
    assert 0 < identified < first
    assert 0 < accepted < (~known).sum()
    assert rates.false_accepts == accepted / (~known).sum()
    assert rates.identified == identified / known.sum()
    assert mine.right.sum() == first
    assert not others.right.any()


def test_a_carried_threshold_has_the_same_probability() -> None:
    before = Calibration(slope=12.0, offset=-5.0)
    after = Calibration(slope=30.0, offset=-20.0)
    there = faces.carried(0.6, before, after)
    assert float(after.probability(there)) == pytest.approx(float(before.probability(0.6)))
    assert faces.carried(0.6, before, before) == pytest.approx(0.6)


def test_a_threshold_that_is_carried_to_other_units_decides_the_same() -> None:
    rng = np.random.default_rng(3)
    same = np.arange(400) < 200
    scores = np.where(same, 0.7, 0.3) + 0.15 * rng.normal(size=400)
    other = 0.2 + 0.5 * scores  # the same scores in other units
    limit = 0.55
    there = faces.carried(limit, fit_calibration(scores, same), fit_calibration(other, same))
    assert there == pytest.approx(0.2 + 0.5 * limit, abs=1e-6)
    assert ((other >= there) == (scores >= limit)).all()


def test_a_run_is_measured_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save_faces(tmp_path)
    monkeypatch.setattr(faces, "CHANGES", faces.CHANGES[:1])
    monkeypatch.setattr(faces, "GENUINE", 50)
    monkeypatch.setattr(faces, "IMPOSTORS", 2000)
    out = tmp_path / "out.json"
    monkeypatch.setattr(sys, "argv", ["faces.py", str(tmp_path), "--seeds", "1", "--out", str(out)])
    faces.main()
    content = json.loads(out.read_text())
    runs = content["runs"]
    (run,) = runs
    assert (content["photos"], content["people"]) == (500, 200)
    assert (
        content["alone"]["mobilefacenet"]["accuracy"] > content["alone"]["dlib"]["accuracy"] > 0.8
    )
    ways = run["ways"]
    assert list(ways) == list(faces.WAYS)
    assert ways["all re-embedded"]["rank 1"] > ways["old model"]["rank 1"]
    for how in faces.CARRIED:  # to itself a threshold is carried as it is
        assert ways["old model"]["rates"][how] == ways["old model"]["rates"]["same number"]
    shown = capsys.readouterr().out
    assert "| search | accuracy | TAR at FAR 0.01 |" in shown
    gained = ways["all re-embedded"]["rank 1"] - ways["old model"]["rank 1"]
    assert faces.difference(runs, "all re-embedded", "rank 1")[0] == pytest.approx(100 * gained)
    monkeypatch.setattr(faces, "bridge", lambda *_, **__: pytest.fail("measured again"))
    faces.main()
    assert json.loads(out.read_text())["runs"] == runs


def test_examples_hold() -> None:
    assert doctest.testmod(faces).failed == 0
