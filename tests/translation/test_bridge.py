"""Bridges between two models: one translation, judged on items that were not fitted, and "keep the old model"."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from wording import check_wording, refuses

import fixstar
from fixstar.errors import DataError, InputError, UnknownNameError
from fixstar.evaluation import VersionFeatures, gallery_query_split
from fixstar.evaluation.verdicts import GateRules, halves, judged_difference
from fixstar.geometry import unit
from fixstar.translation import Pairs, fit_map, load_translation, save_translation, translated
from fixstar.translation.bridge import (
    AGAIN,
    AHEAD,
    BACK,
    OLD,
    ONE,
    TWO,
    Bridged,
    BridgeOptions,
    Measured,
    _by_preference,
    _decided,
    _Trial,
    apply_translation,
    bridge,
)
from fixstar.translation.sides import open_model

Array = NDArray[np.float64]

KINDS = ("ridge", "rotation")
QUICK = BridgeOptions(kinds=KINDS)


def rotation(width: int, seed: int = 1) -> Array:
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((width, width)))[0]


def two_models(
    old_noise: float, new_noise: float, seed: int = 0
) -> tuple[Array, Array, NDArray[np.str_]]:
    """1,200 items of 40 classes by two models: the same content, rotated, with noise of its own each."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(40, size=1200)
    content = rng.standard_normal((40, 16))[labels] + 0.3 * rng.standard_normal((1200, 16))
    old = unit(content + old_noise * rng.standard_normal(content.shape))
    new = unit(content + new_noise * rng.standard_normal(content.shape)) @ rotation(16)
    return old, new, np.array([f"class {label}" for label in labels])


def test_a_better_model_passes_and_a_worse_one_does_not() -> None:
    old, new, labels = two_models(0.9, 0.2)
    better = bridge(old, new, labels=labels, options=QUICK)
    assert better.outcome == "pass"
    assert "Use it: " in better.sentence
    assert str(better) == better.sentence
    assert better.evidence == "labels"
    best = better.best
    assert best is not None
    assert best.low > 0
    assert best.finds > better.measured[OLD].finds
    assert best.won > best.lost
    worse = bridge(
        new, old, labels=labels, options=BridgeOptions(kinds=KINDS, rules=GateRules(seed=3))
    )
    assert worse.outcome != "pass"
    assert worse.sentence.startswith("Keep the old model")


def test_noise_is_refused_with_the_old_model_to_keep() -> None:
    old, _, labels = two_models(0.3, 0.2)
    noise = unit(np.random.default_rng(5).standard_normal((1200, 8)))
    found = bridge(old, noise, labels=labels, options=QUICK)
    for name in (AHEAD, BACK, ONE, AGAIN):
        assert found.measured[name].verdict == "incompatible"
    assert found.outcome in (
        "refuse",
        "missing evidence",
    )  # added to old queries, noise changes little
    assert found.share is None
    alone = bridge(old, noise, labels=labels, options=BridgeOptions(kinds=KINDS, one_model=True))
    assert alone.outcome == "refuse"
    assert alone.sentence.startswith("Keep the old model: both sides, one model per query")


def test_the_figures_are_those_of_slow_code() -> None:
    old, new, labels = two_models(0.9, 0.5)
    found = bridge(old, new, labels=labels, options=QUICK)
    # the same division, by hand
    held = np.sort(np.random.default_rng(0).permutation(1200)[:480])
    fitted = np.setdiff1d(np.arange(1200), held)
    codes = np.unique(labels, return_inverse=True)[1]
    split = gallery_query_split(codes[held], seed=0)
    choosing, judging = halves(codes[held][split.queries], 0)
    queries = held[split.queries][judging]
    chose = held[split.queries][choosing]  # fitted too, after they chose, and count three times
    gallery = held[split.gallery]
    maps = found.translation.about["maps"]
    x = old.astype(np.float32)
    y = new.astype(np.float32)
    rows = np.concatenate([fitted, chose])
    times = np.concatenate([np.ones(len(fitted)), np.full(len(chose), 3.0)])
    groups = np.concatenate([codes[fitted], 100 + np.arange(len(chose))])
    pairs = Pairs.checked(x[rows], y[rows], weights=times, groups=groups)
    forward = fit_map(maps["forward"], pairs).map
    backward = fit_map(maps["backward"], pairs.reversed).map

    def right(asked_ahead: Any, asked_back: Any, w: float) -> NDArray[np.bool_]:
        answers = []
        for query, ahead, back in zip(queries, asked_ahead, asked_back, strict=True):
            scores = w * (mapped @ ahead) + (1 - w) * (x[gallery] @ back)
            answers.append(labels[gallery[np.argmax(scores)]] == labels[query])
        return np.array(answers)

    mapped = forward(x[gallery])
    own = right(y[queries], x[queries], 0)
    measured = found.measured
    assert measured[OLD].finds == np.mean(own)
    asked = backward(y[queries])
    one = measured[ONE].weight
    two = measured[TWO].weight
    assert one is not None
    assert two is not None
    expected = {
        AHEAD: right(y[queries], asked, 1),
        BACK: right(y[queries], asked, 0),
        ONE: right(y[queries], asked, one),
        TWO: right(y[queries], x[queries], two),
    }
    mapped = y[gallery]
    expected[AGAIN] = right(y[queries], asked, 1)
    for name, hits in expected.items():
        assert measured[name].finds == pytest.approx(np.mean(hits)), name
        assert measured[name].lost == np.sum(own & ~hits)
        assert measured[name].won == np.sum(hits & ~own)
        judged = judged_difference(hits, own, 0.975, GateRules())  # two ways are judged together
        assert (
            measured[name].difference,
            measured[name].low,
            measured[name].high,
            measured[name].verdict,
        ) == (
            judged.mean,
            judged.low,
            judged.high,
            judged.verdict,
        )
    assert (found.queries, found.gallery) == (len(queries), len(gallery))
    assert found.fitted_on == f"720 pairs and {len(chose)} queries"
    for name, array in forward.named_arrays():
        assert found.translation.forward is not None
        np.testing.assert_array_equal(dict(found.translation.forward.named_arrays())[name], array)


def test_the_old_side_is_whitened_if_the_choosing_queries_gain_by_it(tmp_path: Path) -> None:
    """Old vectors that mostly point one way, and hide in that what they say."""
    old, new, labels = two_models(0.5, 0.9)
    plain = bridge(old, new, labels=labels, options=QUICK)
    assert not plain.translation.whitened
    assert plain.translation.whitening is None
    assert "old side" not in plain.translation.about["maps"]
    rng = np.random.default_rng(3)
    leaning = unit(old + 2.0 * rng.standard_normal((len(old), 1)) * unit(np.ones((1, 16))))
    found = bridge(leaning, new, labels=labels, options=QUICK)
    way = found.translation
    assert way.whitened
    assert found.to_json()["maps"]["old side"] == "half whitened"
    assert found.measured[TWO].finds > found.measured[BACK].finds
    again = load_translation(save_translation(way, tmp_path / "way.npz"))
    stored, asked = leaning[:50].astype(np.float32), leaning[50:70].astype(np.float32)
    seen = translated(
        again, VersionFeatures("old", asked, stored), VersionFeatures("new", new[50:70], new[:50])
    )
    assert way.whitening is not None
    assert way.forward is not None
    back = way.whitening(asked) @ way.whitening(stored).T
    assert way.two is not None
    ahead = new[50:70] @ way.forward(stored).T
    expected = way.two * ahead + (1 - way.two) * back
    np.testing.assert_allclose(seen.queries @ seen.gallery.T, expected, atol=1e-5)


def test_the_judging_half_is_not_seen_by_the_choice() -> None:
    """With labels by chance no way is better, so verdicts of the chosen one are rarely compatible."""
    passed = 0
    for seed in range(12):
        old, new, _ = two_models(0.5, 0.5, seed=seed)
        labels = np.random.default_rng(seed).integers(6, size=1200)
        options = BridgeOptions(kinds=KINDS, rules=GateRules(seed=seed))
        passed += bridge(old, new, labels=labels, options=options).outcome == "pass"
    assert passed <= 2


def test_re_embedding_is_said_first_where_it_is_much_better_and_possible(tmp_path: Path) -> None:
    old, new, labels = two_models(1.5, 0.05)
    found = bridge(old, new, labels=labels, options=QUICK)
    again = found.measured[AGAIN]
    best = found.best
    assert best is not None
    assert again.finds - best.finds >= 0.05
    assert found.sentence.startswith(
        f"Re-embedding everything would find {100 * again.finds:.1f} %; this finds "
    )
    assert f"this finds {100 * best.finds:.1f} % without it. Use it: " in found.sentence
    ids = np.array([f"item {row}" for row in range(1200)])
    np.savez(tmp_path / "old.npz", vectors=old, ids=ids, labels=labels)
    np.savez(
        tmp_path / "new.npz", vectors=new[:1199], ids=ids[:1199]
    )  # one item cannot be embedded again
    partly = bridge(tmp_path / "old.npz", tmp_path / "new.npz", options=QUICK)
    assert partly.sentence.startswith("Use it: ")
    close = bridge(*two_models(0.5, 0.5)[:2], labels=labels, options=QUICK)
    assert "Re-embedding everything would find" not in close.sentence


def test_the_share_of_the_whole_gain_is_told() -> None:
    old, new, labels = two_models(0.9, 0.2)
    found = bridge(old, new, labels=labels, options=QUICK)
    best = found.best
    again = found.measured[AGAIN].difference
    assert best is not None
    assert best.difference is not None
    assert again is not None
    assert found.share == pytest.approx(best.difference / again)
    assert 0 < best.difference / again < 1
    told = f"It gains {100 * best.difference:.1f} of {100 * again:.1f} points, {100 * best.difference / again:.0f} %"
    assert found.sentence.endswith(told)
    assert found.to_json()["share"] == found.share


def test_one_model_per_query_where_the_old_one_is_not_kept() -> None:
    old, new, labels = two_models(0.9, 0.2)
    found = bridge(old, new, labels=labels, options=BridgeOptions(kinds=KINDS, one_model=True))
    assert TWO not in found.measured
    assert found.chosen == ONE
    assert found.translation.models == ("new",)
    assert "with 95 % confidence" in found.sentence  # one way is judged
    judged_together = bridge(old, new, labels=labels, options=QUICK)
    assert "with 97.5 % confidence" in judged_together.sentence


def measured(verdict: str) -> Measured:
    return Measured(0.5, 0.0, -0.1, 0.1, verdict, 0, 0, 1, 0.6)


def test_the_best_that_passes_is_used_else_the_best_that_may() -> None:
    rows = {ONE: measured("not decided"), TWO: measured("compatible")}
    assert _decided([ONE, TWO], rows) == ("pass", TWO)
    rows[ONE] = measured("compatible")
    assert _decided([ONE, TWO], rows) == ("pass", ONE)
    assert _decided([TWO, ONE], rows) == ("pass", TWO)
    rows[TWO] = measured("incompatible")
    rows[ONE] = measured("not decided")
    assert _decided([TWO, ONE], rows) == ("missing evidence", ONE)
    rows[ONE] = measured("incompatible")
    assert _decided([TWO, ONE], rows) == ("refuse", TWO)
    assert _decided([], rows) == ("refuse", TWO)


def test_the_old_model_embeds_queries_only_where_that_gains_more_than_its_error() -> None:
    old, new, labels = two_models(0.9, 0.5)
    way = bridge(
        old, new, labels=labels, options=BridgeOptions(kinds=KINDS, rules=GateRules(weight=0.5))
    ).translation
    evidence: Any = None
    rows = np.arange(100)
    trial = _Trial(evidence, rows[:50], rows[50:])
    one = np.zeros(100, bool)
    two = np.isin(rows, [3, 7, 60, 61, 62])  # of the queries that choose, two gain
    assert _by_preference(way, {ONE: one, TWO: two}, trial) == [TWO, ONE]
    assert _by_preference(way, {ONE: one, TWO: np.isin(rows, [3, 60, 61, 62])}, trial) == [
        ONE,
        TWO,
    ]  # one is chance
    assert _by_preference(way, {ONE: two, TWO: one}, trial) == [ONE, TWO]


def test_a_given_weight_is_judged_by_all_queries() -> None:
    old, new, labels = two_models(0.9, 0.2)
    given = bridge(
        old, new, labels=labels, options=BridgeOptions(kinds=KINDS, rules=GateRules(weight=0.3))
    )
    assert (given.translation.one, given.translation.two) == (0.3, 0.3)
    half = bridge(old, new, labels=labels, options=QUICK)
    assert half.queries < given.queries <= 2 * half.queries + 40


def test_without_labels_only_agreement_is_measured_and_nothing_passes() -> None:
    old, new, _ = two_models(0.2, 0.2)
    found = bridge(old, new, options=QUICK)
    assert (found.outcome, found.evidence) == ("missing evidence", "old neighbours")
    assert found.sentence.startswith("Unproven: there are no labels")
    assert list(found.measured) == [AHEAD, BACK, ONE, TWO]
    assert all(row.low <= row.finds <= row.high for row in found.measured.values())
    assert all(row.difference is None for row in found.measured.values())
    assert (found.best, found.share) == (None, None)
    assert (found.translation.one, found.translation.two) == (0.6, 0.6)  # nothing could be chosen
    # by hand, for one of them
    held = np.sort(np.random.default_rng(0).permutation(1200)[:480])
    queries = held[::2]
    gallery = held[1::2]
    assert found.translation.forward is not None
    before = np.argsort(-old[queries] @ old[gallery].T, axis=1)[:, :10]
    after = np.argsort(-new[queries] @ found.translation.forward(old[gallery]).T, axis=1)[:, :10]
    shares = [
        len(set(a) & set(b)) / 10 for a, b in zip(before.tolist(), after.tolist(), strict=True)
    ]
    assert found.measured[AHEAD].finds == pytest.approx(np.mean(shares), abs=2e-3)


def test_relevant_items_are_evidence_too(tmp_path: Path) -> None:
    old, new, labels = two_models(0.9, 0.2)
    queries = range(0, 600, 2)
    wanted = {
        str(row): [str(other) for other in range(601, 900) if labels[other] == labels[row]]
        for row in queries
    }
    found = bridge(old, new, relevant=wanted, options=QUICK)
    assert (found.outcome, found.evidence) == ("pass", "relevance")
    assert found.queries <= 150
    lines = [f"{query},{item}" for query, items in wanted.items() for item in items]
    (tmp_path / "relevant.csv").write_text("query,item\n" + "\n".join(lines) + "\n")
    from_file = bridge(old, new, relevant=tmp_path / "relevant.csv", options=QUICK)
    assert from_file.measured == found.measured
    with refuses(InputError):
        bridge(old, new, relevant={"absent": ["7"]}, options=QUICK)
    single = bridge(old, new, relevant={"1": ["2"]}, options=QUICK)
    assert (single.outcome, single.evidence) == ("missing evidence", "none")
    check_wording(single.sentence)
    with refuses(InputError):
        bridge(
            old,
            new,
            relevant={"1": ["2"], "2": ["1"]},
            options=BridgeOptions(kinds=KINDS, held_out=1),
        )


def test_relevant_items_are_judged_by_ndcg_of_slow_code(tmp_path: Path) -> None:
    """Queries in files of their own, with grades; the gallery and what is fitted have no item in common."""
    old, new, labels = two_models(0.9, 0.2)
    ids = np.array([f"d{row}" for row in range(1000)])
    asked = np.array([f"q{row}" for row in range(1000, 1200)])
    for name, vectors in (("old", old), ("new", new)):
        np.savez(tmp_path / f"{name}.npz", vectors=vectors[:1000], ids=ids)
        np.savez(tmp_path / f"{name}-queries.npz", vectors=vectors[1000:], ids=asked)
    wanted: dict[str, dict[str, float]] = {}
    for row in range(1000, 1200):
        same = np.flatnonzero(labels[:1000] == labels[row])[:6].tolist()
        wanted[f"q{row}"] = {f"d{item}": float(place % 3) for place, item in enumerate(same)}
    lines = [
        f"{query}\t{item}\t{grade}"
        for query, judged in wanted.items()
        for item, grade in judged.items()
    ]
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n" + "\n".join(lines) + "\n")
    sides = [tmp_path / "old.npz", tmp_path / "new.npz"]
    queries = (tmp_path / "old-queries.npz", tmp_path / "new-queries.npz")
    found = bridge(*sides, relevant=tmp_path / "qrels.tsv", queries=queries, options=QUICK)
    assert (found.outcome, found.evidence, found.measure) == ("pass", "relevance", "nDCG@10")
    assert found.best is not None
    reached = f"reaches an nDCG@10 of {100 * found.best.finds:.1f} % on 100 held-out queries"
    assert reached in found.sentence
    # the same division, by hand
    named = sorted(
        {int(item[1:]) for judged in wanted.values() for item, grade in judged.items() if grade > 0}
    )
    others = np.setdiff1d(np.arange(1000), named)
    more = np.random.default_rng(0).permutation(others)[: round(0.4 * len(others))]
    gallery = np.sort([*named, *more])
    assert found.gallery == len(gallery)
    assert found.fitted_on == f"{1000 - len(gallery)} pairs and 100 queries"
    _, judging = halves(np.zeros(200, int), 0)
    values = []
    for row in judging.tolist():
        grades = wanted[f"q{row + 1000}"]
        places = np.argsort(-(new[gallery] @ new[row + 1000]), kind="stable")[:10]
        gains = [grades.get(f"d{gallery[place]}", 0) for place in places]
        best = sorted(grades.values(), reverse=True)
        values.append(sum(g / np.log2(i + 2) for i, g in enumerate(gains)))
        values[-1] /= sum(g / np.log2(i + 2) for i, g in enumerate(best[:10]))
    assert found.measured[AGAIN].finds == pytest.approx(np.mean(values), abs=1e-6)
    smaller = bridge(
        *sides,
        relevant=wanted,
        queries=queries,
        options=BridgeOptions(kinds=("rotation",), sample=len(named) + 60),
    )
    assert smaller.queries == 100  # what is relevant stays in a sample
    with refuses(InputError):
        bridge(*sides, queries=queries, options=QUICK)
    with refuses(InputError):
        bridge(*sides, relevant=wanted, queries=(queries[0], new[1000:, :12]), options=QUICK)
    with refuses(InputError):
        bridge(*sides, relevant=wanted, queries=(queries[0], new[1000:]), options=QUICK)


def test_queries_that_chose_are_fitted_and_carry_maps_to_classes_that_no_pair_has() -> None:
    """The fitted classes fill one half of the space, those that are searched another one."""
    rng = np.random.default_rng(0)
    places = np.repeat(rng.standard_normal((60, 16)), 20, axis=0)
    places[:600, 8:] = 0  # 30 classes that are fitted
    places[600:, :8] = 0
    content = places + 0.3 * rng.standard_normal(places.shape)
    new = unit(content @ rotation(16))
    old = unit(content + 0.6 * rng.standard_normal(places.shape))
    labels = np.array([""] * 600 + [f"class {row // 20}" for row in range(600)])
    options = BridgeOptions(kinds=("ridge",), held_out=1)
    found = bridge(old, new, labels=labels, options=options)
    assert found.fitted_on == "600 pairs and 150 queries"
    forward = fit_map("ridge", Pairs.checked(old[:600], new[:600])).map
    held = 600 + np.arange(600)
    assert found.translation.forward is not None
    by_pairs = np.einsum("ij,ij->i", forward(old[held]), new[held]).mean()
    by_both = np.einsum("ij,ij->i", found.translation.forward(old[held]), new[held]).mean()
    assert by_both > by_pairs + 0.1


def test_a_query_that_equals_what_judges_is_not_fitted() -> None:
    old, new, labels = two_models(0.9, 0.2)
    rows = np.concatenate(
        [np.arange(600), 600 + np.arange(600) % 300]
    )  # those that judge occur twice
    known = labels[rows].copy()
    known[:600] = ""
    found = bridge(
        old[rows], new[rows], labels=known, options=BridgeOptions(kinds=("ridge",), held_out=1)
    )
    split = gallery_query_split(np.unique(known[600:], return_inverse=True)[1], seed=0)
    truth = known[600:][split.queries]
    choosing, judging = halves(np.unique(truth, return_inverse=True)[1], 0)
    item = rows[600:]
    judged = {*item[split.gallery].tolist(), *item[split.queries][judging].tolist()}
    kept = [row for row in item[split.queries][choosing].tolist() if row not in judged]
    assert 0 < len(kept) < len(choosing)
    assert found.fitted_on == f"600 pairs and {len(kept)} queries"


def test_held_out_one_fits_on_items_without_a_label() -> None:
    old, new, labels = two_models(0.9, 0.2)
    labels[:500] = ""
    found = bridge(old, new, labels=labels, options=BridgeOptions(kinds=("rotation",), held_out=1))
    assert found.fitted_on == "500 pairs and 170 queries"
    assert found.to_json()["maps"] == {"forward": "rotation", "backward": "rotation"}


def test_an_item_that_occurs_twice_is_not_both_fitted_and_judged() -> None:
    old, new, labels = two_models(0.9, 0.2)
    rows = np.arange(1200) % 600
    options = BridgeOptions(kinds=KINDS, rules=GateRules(weight=0.5))  # all queries judge
    twice = bridge(old[rows], new[rows], labels=labels[rows], options=options)
    assert twice.fitted_on == "720 pairs"
    held = np.random.default_rng(0).permutation(1200)[:480]
    fitted = np.setdiff1d(np.arange(1200), held)
    alone = held[~np.isin(rows[held], rows[fitted])]
    _, counts = np.unique(labels[rows[alone]], return_counts=True)
    assert twice.queries + twice.gallery == counts[counts > 1].sum()
    assert 0 < len(alone) < len(held)


def test_files_are_paired_by_their_ids(tmp_path: Path) -> None:
    old, new, labels = two_models(0.9, 0.2)
    ids, order = (
        np.array([f"item {row}" for row in range(1200)]),
        np.random.default_rng(0).permutation(1200),
    )
    np.savez(tmp_path / "old.npz", vectors=7 * old, ids=ids, labels=labels)
    np.savez(tmp_path / "new.npz", vectors=new[order][:1100], ids=ids[order][:1100])
    found = bridge(tmp_path / "old.npz", str(tmp_path / "new.npz"), options=QUICK)
    assert found.outcome == "pass"
    save_translation(found.translation, tmp_path / "bridge.npz")
    made = load_translation(tmp_path / "bridge.npz")
    assert (made.source, made.target) == ("old", "new")
    assert made.forward is not None
    assert made.backward is not None
    names, mapped = apply_translation(made, tmp_path / "old.npz", tmp_path / "absent.npz")
    assert names == ids.tolist()
    np.testing.assert_allclose(mapped, made.forward(old), atol=1e-6)
    names, mapped = apply_translation(
        made, tmp_path / "absent.npz", tmp_path / "new.npz", "backward"
    )
    np.testing.assert_allclose(mapped[names.index("item 5")], made.backward(new[5:6])[0], atol=1e-6)
    with pytest.raises(UnknownNameError, match="did you mean 'forward'"):
        apply_translation(made, old, new, "forwards")
    with refuses(InputError):
        apply_translation(replace(made, backward=None, one=None, two=0.5), old, new, "backward")
    (tmp_path / "labels.csv").write_text(
        "id,label\n" + "".join(f"item {r},{labels[r]}\n" for r in range(1200))
    )
    named = bridge(
        tmp_path / "old.npz", tmp_path / "new.npz", labels=tmp_path / "labels.csv", options=QUICK
    )
    assert named.measured == found.measured
    by_id = bridge(
        tmp_path / "old.npz",
        tmp_path / "new.npz",
        labels=dict(zip(ids, labels, strict=True)),
        options=QUICK,
    )
    assert by_id.measured == found.measured


def test_the_card_has_all_figures(tmp_path: Path) -> None:
    old, new, labels = two_models(0.9, 0.2)
    found = fixstar.bridge(old, new[:, :12], labels=labels, options=QUICK)
    path = save_translation(found.translation, tmp_path / "bridge.npz")
    about = fixstar.load_translation(path).about
    for key, value in found.to_json().items():
        assert about[key] == value, key
    assert about["widths"] == [16, 12]
    assert (about["confidence"], about["tolerance"]) == (0.95, 0.0)
    assert about["made"]


def test_two_files_of_one_name_are_told_apart(tmp_path: Path) -> None:
    old, new, labels = two_models(0.9, 0.2)
    for folder, part in (("a", old), ("b", new)):
        (tmp_path / folder).mkdir()
        np.save(tmp_path / folder / "vectors.npy", part)
    found = bridge(
        tmp_path / "a" / "vectors.npy", tmp_path / "b" / "vectors.npy", labels=labels, options=QUICK
    )
    assert (found.translation.source, found.translation.target) == ("old vectors", "new vectors")


def test_sets_without_a_common_item_are_aligned_and_marked_as_unproven(tmp_path: Path) -> None:
    old, new, labels = two_models(0.1, 0.1)
    for name, part, rows in (("old", old, slice(0, 600)), ("new", new, slice(600, 1200))):
        ids = np.array([f"{name} {row}" for row in range(600)])
        np.savez(tmp_path / f"{name}.npz", vectors=part[rows], ids=ids, labels=labels[rows])
    found = bridge(tmp_path / "old.npz", tmp_path / "new.npz")
    assert (found.outcome, found.evidence) == ("missing evidence", "none")
    assert found.sentence.startswith("Unproven: no item has vectors by both models")
    assert "40 class centres" in found.fitted_on
    way = found.translation
    assert way.forward is not None
    assert way.backward is not None
    assert np.sum(way.backward(new[:300]) * old[:300], axis=1).mean() > 0.9
    assert np.sum(way.forward(old[:300]) * new[:300], axis=1).mean() > 0.9
    assert way.about["maps"] == {"forward": "rotation", "backward": "rotation"}


def test_models_embed_the_images(tmp_path: Path) -> None:
    from PIL import Image

    from fixstar.models import Encoder

    rng = np.random.default_rng(0)
    lines = ["path,id,label"]
    for label in ("red", "green", "blue"):
        for number in range(14):
            (tmp_path / "images" / label).mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(0, 120, (16, 16, 3))
            pixels[..., ("red", "green", "blue").index(label)] += 130
            Image.fromarray(pixels.astype(np.uint8)).save(
                tmp_path / "images" / label / f"{number}.png"
            )
            lines.append(f"images/{label}/{number}.png,{label}/{number}.png,{label}")
    (tmp_path / "images" / "red" / "torn.png").write_bytes(b"no image")
    for name in ("a", "b"):
        options = {"feature_dim": 12, "width": 4}
        Encoder.create("tiny", "linear", classes=["x", "y"], backbone_options=options).eval().save(
            tmp_path / name
        )

    def made(images: Path) -> Bridged:
        rotations = BridgeOptions(kinds=("rotation",))
        return bridge(str(tmp_path / "a"), str(tmp_path / "b"), images=images, options=rotations)

    found = made(tmp_path / "images")
    assert found.evidence == "labels"
    assert found.fitted_on == "25 pairs and 4 queries"
    (tmp_path / "list.csv").write_text("\n".join(lines) + "\n")
    assert made(tmp_path / "list.csv").fitted_on == "25 pairs and 4 queries"
    (tmp_path / "list.csv").write_text("\n".join([*lines, lines[1]]) + "\n")
    with refuses(DataError):
        made(tmp_path / "list.csv")
    with refuses(InputError):
        made(tmp_path / "absent")
    with pytest.raises(InputError, match=r"write model\.onnx\?size=224"):
        open_model("model.onnx")
    with pytest.raises(InputError, match="could not convert"):
        open_model("model.onnx?size=224&mean=a,b,c")
    with refuses(InputError, "repeat"):
        bridge(str(tmp_path / "a"), str(tmp_path / "b"))


@pytest.mark.parametrize(
    "arguments",
    [
        {"labels": ["a"]},
        {"labels": {"shoe": "a"}},
        {"options": BridgeOptions(sample=20, held_out=1)},
        {"options": BridgeOptions(sample=20, held_out=0.9)},
    ],
)
def test_what_is_refused(arguments: dict[str, Any]) -> None:
    old, new, labels = two_models(0.2, 0.2)
    with refuses(InputError):
        bridge(old, new, **{"labels": labels, **arguments})


def test_kinds_that_lack_pairs_are_left_out_with_the_reason() -> None:
    old, new, labels = two_models(0.2, 0.2)
    found = bridge(old, new, labels=labels, options=BridgeOptions(sample=100))
    assert set(found.left_out) == {"residual", "contrast"}
    assert "needs at least 100 pairs" in found.left_out["residual"]


def test_without_two_items_of_a_class_nothing_is_judged() -> None:
    old, new, _ = two_models(0.2, 0.2)
    found = bridge(old, new, labels=[str(row) for row in range(1200)], options=QUICK)
    assert (found.outcome, found.evidence, found.queries) == ("missing evidence", "none", 0)
    check_wording(found.sentence)


def test_options_and_inputs_that_make_no_sense(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'ridge'"):
        BridgeOptions(kinds=("rigde",))
    with refuses(InputError):
        BridgeOptions(kinds=("contrast",))
    with refuses(InputError):
        BridgeOptions(kinds=("residual",), one_model=True)
    with pytest.raises(InputError, match="20 items or more"):
        BridgeOptions(sample=1)
    with pytest.raises(InputError, match="between 0 and 1"):
        BridgeOptions(held_out=0)
    with refuses(DataError):
        bridge(np.array([[1.0, 0], [0, 0]]), np.eye(2))
    with pytest.raises(DataError, match="a matrix"):
        bridge(np.ones(3), np.eye(3))
    np.savez(tmp_path / "twice.npz", vectors=np.eye(3), ids=np.array(["a", "a", "b"]))
    with refuses(DataError):
        bridge(tmp_path / "twice.npz", np.eye(3))
    (tmp_path / "labels.csv").write_text("a,b,c\n")
    with refuses(DataError):
        bridge(np.eye(3), np.eye(3), labels=tmp_path / "labels.csv")
    with refuses(UnknownNameError):
        bridge("model.onnx?sise=224", np.eye(3), images=tmp_path)


def test_queries_that_no_translation_helps_stay_the_old_models(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Noise that is rotated instead of shrunk: with two models w = 0 is chosen, and that is the old model itself."""
    old, _, labels = two_models(1.2, 0.2)
    noise = unit(np.random.default_rng(5).standard_normal((1200, 16)))
    rotated = BridgeOptions(kinds=("rotation",))
    found = bridge(old, noise, labels=labels, options=rotated)
    assert found.measured[TWO].weight == 0
    assert (found.outcome, found.chosen, found.translation.two) == ("refuse", ONE, None)
    monkeypatch.setattr("fixstar.translation.bridge.BACKWARD", ())
    found = bridge(old, noise, labels=labels, options=rotated)
    assert ONE not in found.measured
    assert found.outcome == "refuse"
    assert found.sentence.startswith(
        "Keep the old model: no way to search with new was better than its own queries"
    )
