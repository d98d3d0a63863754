"""A second simplex in new dimensions: nothing stored changes, and old and new vectors meet exactly."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dense_geometry import simplex_prototypes
from documents import rewrite
from numpy.typing import NDArray
from wording import refuses

from fixstar.errors import InputError, ModelError
from fixstar.evaluation import (
    VersionFeatures,
    backfill_curve,
    cross_test,
    found_before_after,
    mixed_gallery_search,
)
from fixstar.gallery import MemoryGallery
from fixstar.geometry import carry, short_basis, short_factors, unit
from fixstar.models import Encoder, FrozenEncoder, SimplexClassifier, Slots, create_classifier
from fixstar.models.encoder import Form

OPTIONS = {"in_channels": 1, "width": 4}


def encoder(
    capacity: int = 4, kind: str = "simplex", seed: int = 0, added: tuple[int, ...] = ()
) -> Encoder:
    torch.manual_seed(seed)
    classes = ("a", "b", "c", "d")
    more = {"added": added} if added else {}
    return Encoder.create(
        "tiny",
        kind,
        classes=classes,
        capacity=capacity,
        backbone_options=OPTIONS,
        classifier_options=more,
    ).eval()


def pixels(count: int = 9, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (count, 32, 32, 1), dtype=np.uint8)


def stirred(grown: Encoder, seed: int = 3) -> Encoder:
    """As if it had been trained: no weight is what it was."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in grown.parameters():
            parameter.add_(torch.randn_like(parameter) * parameter.abs().mean().clamp(min=0.05))
    return grown


def side_by_side(*capacities: int) -> NDArray[np.float64]:
    """The prototypes [K, d] of several simplices, block by block: slow and obvious."""
    blocks = [simplex_prototypes(K) for K in capacities]
    whole = np.zeros((sum(len(b) for b in blocks), sum(b.shape[1] for b in blocks)))
    row = column = 0
    for block in blocks:
        whole[row : row + block.shape[0], column : column + block.shape[1]] = block
        row, column = row + block.shape[0], column + block.shape[1]
    return whole


# The classifier


def test_two_segments_are_a_cross() -> None:
    """By hand: K = 2 has the prototypes +1 and -1, so 2 + 2 classes are the four ends of two axes."""
    head = SimplexClassifier(2, added=(2,))
    assert (head.feature_dim, head.outputs, head.parts) == (2, 4, (1, 1))
    torch.testing.assert_close(
        head(torch.tensor([[0.6, 0.8]])), torch.tensor([[0.6, -0.6, 0.8, -0.8]])
    )


def test_a_triangle_and_a_segment_by_hand() -> None:
    """Three prototypes at 120 degrees in the first plane, two ends of an axis that is upright on it."""
    head = SimplexClassifier(3, scale=2.0, added=(2,))
    logits = head(torch.tensor([[0.0, 0.0, 1.0]]))
    torch.testing.assert_close(logits, torch.tensor([[0.0, 0.0, 0.0, 2.0, -2.0]]))
    w = side_by_side(3, 2)
    cosines = np.array(
        [
            [1.0, -0.5, -0.5, 0.0, 0.0],
            [-0.5, 1.0, -0.5, 0.0, 0.0],
            [-0.5, -0.5, 1.0, 0.0, 0.0],
            [0.0, 0.0, 0.0, 1.0, -1.0],
            [0.0, 0.0, 0.0, -1.0, 1.0],
        ]
    )
    np.testing.assert_allclose(w @ w.T, cosines, atol=1e-12)
    np.testing.assert_allclose(
        head(torch.from_numpy(w)), 2 * cosines, atol=1e-12
    )  # the logits of the prototypes


@pytest.mark.parametrize("capacities", [(4, 6), (2, 2, 5), (9, 3, 17)])
def test_logits_are_the_dense_product(capacities: tuple[int, ...]) -> None:
    head = create_classifier("simplex", capacity=capacities[0], scale=3.0, added=capacities[1:])
    w = side_by_side(*capacities)
    assert (head.outputs, head.feature_dim) == w.shape
    z = torch.randn(5, head.feature_dim, generator=torch.Generator().manual_seed(1))
    np.testing.assert_allclose(head(z), 3 * z.numpy() @ w.T, atol=1e-5)
    assert head.fused_cross_entropy(z, torch.zeros(5, dtype=torch.long)) is None
    again = create_classifier("simplex", **json.loads(json.dumps(head.options)))
    assert (again.parts, again.added, again.options) == (head.parts, capacities[1:], head.options)


def test_without_growth_a_card_says_nothing_of_it() -> None:
    head = SimplexClassifier(5)
    assert head.options == {"capacity": 5, "scale": 1.0}
    assert (head.parts, head.added) == ((4,), ())
    assert head.extended(3).options == {"capacity": 5, "scale": 1.0, "added": [3]}
    assert head.outputs == 5


@pytest.mark.parametrize("extra", [1, 0, -4])
def test_a_simplex_of_one_class_is_refused_and_changes_nothing(extra: int) -> None:
    model = encoder()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with refuses(InputError):
        model.grow(extra)
    assert (model.feature_dim, model.slots.capacity) == (3, 4)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("kind", "word"), [("linear", "each new class"), ("cosine", "each new class")]
)
def test_a_classifier_without_capacity_grows_by_itself(kind: str, word: str) -> None:
    torch.manual_seed(0)
    model = Encoder.create("tiny", kind, classes=("a", "b"), backbone_options=OPTIONS)
    with pytest.raises(InputError, match=word):
        model.grow(4)


@pytest.mark.parametrize("kind", ["orthoplex", "cube", "polygon"])
def test_other_polytopes_do_not_grow(kind: str) -> None:
    with refuses(InputError):
        encoder(8, kind).grow(4)


# Slots


def test_slots_grow_behind_and_nobody_moves() -> None:
    full = Slots(3).assign(["a", "b", "c"])
    with refuses(InputError, "grow"):
        full.assign(["d", "e", "f", "g"])
    with pytest.raises(InputError, match=r"by at least 2"):
        full.assign(["d"])  # no simplex has one corner
    grown = full.grown(4)
    assert grown.assign(["d", "e"]).by_class == {"a": 0, "b": 1, "c": 2, "d": 3, "e": 4}
    assert grown.assign(["d", "e"], side="right").by_class == {
        "a": 0,
        "b": 1,
        "c": 2,
        "d": 6,
        "e": 5,
    }
    for slots, extra in ((Slots(), 2), (full, -1)):
        with pytest.raises(InputError, match=r"cannot grow"):
            slots.grown(extra)


def test_models_join_when_one_has_grown_from_the_other() -> None:
    grown, plain = encoder(added=(3,)), encoder()
    plain.slots = Slots(4, {"a": 0, "z": 3})
    grown.slots = Slots(7, {"b": 1, "x": 6})
    grown.join_slots(plain)
    assert (grown.slots.capacity, dict(grown.slots.by_class)) == (
        7,
        {"a": 0, "z": 3, "b": 1, "x": 6},
    )
    with pytest.raises(ModelError, match=r"4 and of 4 \+ 3"):
        plain.join_slots(grown)
    same_room = Encoder.create(
        "tiny", capacity=7, backbone_options=OPTIONS
    )  # 7 slots too, with other prototypes
    with refuses(ModelError):
        grown.join_slots(same_room)


# The encoder


@pytest.mark.parametrize(
    "capacity", [4, 30, 100]
)  # the backbone has m = 64: d below, crossing and above
def test_features_stay_with_zeros_behind(capacity: int) -> None:
    old, new = encoder(capacity), encoder(capacity)
    new.encode(pixels(), form="short")  # so that there is a cached factor to be forgotten
    new.grow(6)
    new.encode(pixels(), form="short")
    new.grow(40)
    d = capacity - 1
    assert new.feature_dim == new.classifier.feature_dim == d + 5 + 39
    assert new.slots.capacity == new.classifier.outputs == capacity + 46
    assert new.slots.by_class == old.slots.by_class
    forms: tuple[Form, ...] = ("full", "raw")
    for form in forms:
        was, now = old.encode(pixels(), form=form), new.encode(pixels(), form=form)
        np.testing.assert_allclose(now[:, :d], was, atol=1e-6, rtol=1e-5)
        assert not now[:, d:].any()
    u = new.encode(pixels(), form="short")
    P = new.projection_matrix()
    assert P is not None
    np.testing.assert_allclose(
        u @ short_factors(P)[0].T, new.encode(pixels()), atol=1e-5
    )  # P has few ranks here
    np.testing.assert_allclose(u @ u.T, old.encode(pixels()) @ old.encode(pixels()).T, atol=1e-5)


def test_gradients_reach_the_new_rows_and_training_the_new_classes() -> None:
    model = encoder()
    model.grow(6)
    model.add_classes(("e", "f"))
    assert model.targets(("a", "e", "f")).tolist() == [0, 4, 5]
    images = torch.from_numpy(pixels(6)).permute(0, 3, 1, 2)
    targets = model.targets(("a", "b", "c", "d", "e", "f"))
    assert model.projection is not None
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    first = model(images).cross_entropy(targets)
    torch.testing.assert_close(
        first, torch.nn.functional.cross_entropy(model(images).logits, targets)
    )
    first.backward()
    assert model.projection.weight.grad is not None
    assert (model.projection.weight.grad[3:].abs().sum(dim=1) > 0).all()
    for _ in range(30):
        optimiser.zero_grad()
        loss = model(images).cross_entropy(targets)
        loss.backward()
        optimiser.step()
    assert loss.item() < first.item()
    assert (model.projection.weight[3:].abs().sum(dim=1) > 0).all()


def test_a_frozen_copy_grows_without_gradients() -> None:
    model = encoder()
    images = torch.from_numpy(pixels()).permute(0, 3, 1, 2)
    plain, grown = FrozenEncoder(model), FrozenEncoder(model, grown=(5, 3))
    was, now = plain(images), grown(images)
    assert (plain.feature_dim, grown.feature_dim, model.feature_dim) == (3, 9, 3)
    torch.testing.assert_close(now.z, torch.cat([was.z, was.z.new_zeros(9, 6)], dim=1))
    torch.testing.assert_close(now.logits[:, :4], was.logits)
    assert not now.logits[:, 4:].any()
    assert not any(p.requires_grad for p in grown._encoder.parameters())


def test_a_grown_encoder_survives_the_disk(tmp_path: Path) -> None:
    model = encoder()
    model.grow(6)
    model.add_classes(("e",))
    model = stirred(model)
    again = Encoder.load(model.save(tmp_path / "grown"))
    card = json.loads((tmp_path / "grown" / "card.json").read_text())
    assert card["classifier"]["options"] == {"capacity": 4, "scale": 1.0, "added": [6]}
    assert (again.classifier.parts, again.slots) == ((3, 5), model.slots)
    assert np.array_equal(again.encode(pixels()), model.encode(pixels()))
    again.grow(2)
    assert again.classifier.parts == (3, 5, 1)


def test_a_card_without_growth(tmp_path: Path) -> None:
    card = json.loads((encoder().save(tmp_path / "old") / "card.json").read_text())
    assert card["classifier"] == {"kind": "simplex", "options": {"capacity": 4, "scale": 1.0}}
    assert card["slots"] == {"capacity": 4, "by_class": {"a": 0, "b": 1, "c": 2, "d": 3}}
    assert Encoder.load(tmp_path / "old").classifier.parts == (3,)


def test_a_card_with_an_impossible_simplex_is_refused(tmp_path: Path) -> None:
    path = encoder(added=(6,)).save(tmp_path / "odd") / "card.json"
    for wrong in ([1], ["six"], 6):
        rewrite(path, lambda card, added: card["classifier"]["options"].update(added=added), wrong)
        with refuses(ModelError):
            Encoder.load(tmp_path / "odd")


# Old and new vectors


def padded(vectors: NDArray[Any], width: int) -> NDArray[np.float64]:
    """Zeros behind: what growth says of old vectors."""
    return np.pad(vectors.astype(np.float64), ((0, 0), (0, width - vectors.shape[1])))


@pytest.mark.parametrize("widths", [(3, 8), (3, 40), (12, 19), (29, 60), (700, 1500)])
def test_old_and_new_short_forms_meet_as_full_vectors_do(widths: tuple[int, int]) -> None:
    """Projections of all kinds: wider and narrower than the backbone's m = 16 features, before and after growth."""
    rng = np.random.default_rng(sum(widths))
    P_old, P_new = (rng.standard_normal((d, 16)) for d in widths)
    h_old, h_new = rng.standard_normal((7, 16)), rng.standard_normal((5, 16))
    u_old, u_new = (unit(h @ short_factors(P)[1].T) for h, P in ((h_old, P_old), (h_new, P_new)))
    z_old, z_new = padded(unit(h_old @ P_old.T), widths[1]), unit(h_new @ P_new.T)
    expected = z_new @ z_old.T
    bases = short_basis(P_old), short_basis(P_new)
    np.testing.assert_allclose(
        carry(u_new, bases[1], bases[0], widths[0]) @ u_old.T, expected, atol=1e-10
    )
    np.testing.assert_allclose(
        carry(u_old, bases[0], bases[1], widths[1]) @ u_new.T, expected.T, atol=1e-10
    )


@pytest.mark.parametrize("capacity", [4, 60, 2000])  # d stays below m = 64, crosses it, is above
def test_a_gallery_holds_both_and_its_old_cosines_do_not_change(capacity: int) -> None:
    old = encoder(capacity)
    new = copy.deepcopy(old)
    new.grow(capacity // 2)
    new = stirred(new)
    u_old, u_new = (model.encode(pixels(), form="short") for model in (old, new))
    z_old, z_new = (
        padded(old.encode(pixels()), new.feature_dim),
        new.encode(pixels()).astype(np.float64),
    )
    with MemoryGallery() as gallery:
        gallery.create_version("v1", u_old.shape[1], old.projection_matrix())
        gallery.upsert("v1", [f"old{i}" for i in range(9)], u_old)
        alone = gallery.search("v1", u_old, k=9)
        gallery.create_version("v2", u_new.shape[1], new.projection_matrix())
        assert gallery.search("v1", u_old, k=9) == alone  # to the bit
        gallery.upsert("v2", [f"new{i}" for i in range(9)], u_new)
        assert gallery.search("v1", u_old, k=9, versions=["v1"]) == alone
        assert np.array_equal(gallery.get(["old4"])["old4"].vector, u_old[4])
        for name, queries, full in (("v1", u_old, z_old), ("v2", u_new, z_new)):
            for row, hits in enumerate(gallery.search(name, queries, k=18)):
                slow = {f"old{i}": full[row] @ z for i, z in enumerate(z_old)}
                slow |= {f"new{i}": full[row] @ z for i, z in enumerate(z_new)}
                assert [hit.score for hit in hits] == pytest.approx(
                    sorted(slow.values(), reverse=True), abs=1e-5
                )
                assert {hit.id: hit.score for hit in hits} == pytest.approx(slow, abs=1e-5)


def versions(
    *grown: tuple[int, ...],
) -> list[tuple[VersionFeatures, NDArray[np.float64], NDArray[np.float64]]]:
    """Random models of capacity 4 with these additions: features for a cross-test, and their full vectors padded."""
    made = []
    width = max(3 + sum(K - 1 for K in added) for added in grown)
    for number, added in enumerate(grown):
        model = stirred(encoder(added=added), seed=number)
        queries, gallery = pixels(30, seed=1), pixels(20, seed=2)
        features = VersionFeatures(
            f"v{number + 1}",
            model.encode(queries, form="short"),
            model.encode(gallery, form="short"),
            model.projection_matrix(),
            parts=model.classifier.parts,
        )
        made.append(
            (features, padded(model.encode(queries), width), padded(model.encode(gallery), width))
        )
    return made


LABELS = np.arange(30) % 5, np.arange(20) % 5


@pytest.mark.parametrize("grown", [((), (6,)), ((), (6,), (6, 30)), ((6,), ())])
def test_a_cross_test_over_growth_is_the_one_of_padded_vectors(
    grown: tuple[tuple[int, ...], ...],
) -> None:
    made = versions(*grown)
    features = [entry[0] for entry in made]
    for protocol in ("image", "template"):
        found = cross_test(features, *LABELS, protocol, upper=True)
        plain = [VersionFeatures(f.name, queries, gallery) for f, queries, gallery in made]
        assert np.array_equal(found.matrix, cross_test(plain, *LABELS, protocol, upper=True).matrix)
    old, new = features[:2]
    plain_old, plain_new = plain[:2]
    held = (np.arange(20) % 3 == 0).astype(np.int64)
    for protocol in ("image", "template"):
        here = mixed_gallery_search([old, new], held, *LABELS, protocol=protocol)
        assert np.array_equal(
            here, mixed_gallery_search([plain_old, plain_new], held, *LABELS, protocol=protocol)
        )
    rows, expected = (
        found_before_after([1, 5], a, b, k=4) for a, b in ((old, new), (plain_old, plain_new))
    )
    assert all(np.array_equal(a, b) for a, b in zip(rows, expected, strict=True))
    curve, slow = (
        backfill_curve(a, b, *LABELS, [0, 0.5, 1]) for a, b in ((old, new), (plain_old, plain_new))
    )
    assert np.array_equal(curve.accuracy, slow.accuracy)


def test_what_has_not_grown_from_another_is_still_refused() -> None:
    """Two ways to grow from one model: the added dimensions mean different things."""
    (first, *_), (one, *_), (other, *_) = versions((), (6,), (9,))
    cross_test([first, one], *LABELS)
    cross_test([first, other], *LABELS)
    for wrong in ([one, other], [first, one, other], [one, first, other]):
        with pytest.raises(InputError, match="different feature width"):
            cross_test(wrong, *LABELS)
    with pytest.raises(InputError, match="different feature width"):
        mixed_gallery_search([one, other], np.zeros(20, np.int64), *LABELS)
    with refuses(InputError):
        VersionFeatures("v1", one.queries, one.gallery, one.projection, parts=(3, 4))
    unknown = VersionFeatures("v2", one.queries, one.gallery, one.projection)
    with pytest.raises(InputError, match="different feature width"):
        cross_test([first, unknown], *LABELS)  # nobody said that it has grown
