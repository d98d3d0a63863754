"""Faces, people, landmarks and exhibits: tiny files in the official layouts, damaged ones, and their own protocols.

Every measure is compared with a slow loop over features of two made-up versions.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wording import refuses

from fixstar.errors import DataError, UnknownNameError
from fixstar.evaluation import VersionFeatures, kfold_accuracy
from fixstar.research.benchmarks import benchmark, dataset
from fixstar.research.benchmarks.runner import SearchedImages


def touch(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def unit(rows: Any) -> Any:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def versions(searched: SearchedImages, dim: int = 4) -> list[VersionFeatures]:
    """Two versions with random features of the queries and of the gallery, which may be the same images."""
    found = []
    for name in ("v1", "v2"):
        rng = np.random.default_rng(int(name[1]))
        gallery = unit(rng.normal(size=(len(searched.gallery), dim)))
        same = searched.queries is searched.gallery
        found.append(
            VersionFeatures(
                name,
                gallery if same else unit(rng.normal(size=(len(searched.queries), dim))),
                gallery,
            )
        )
    return found


def cells(
    measure: Callable[[Any, Any], float], one: VersionFeatures, two: VersionFeatures
) -> list[float]:
    """C[1,1], C[2,1] and C[2,2]."""
    return [measure(a.queries, b.gallery) for a, b in ((one, one), (two, one), (two, two))]


def measured(
    searched: SearchedImages, protocol: str, features: list[VersionFeatures]
) -> list[float]:
    matrix = searched.matrix(features, protocol)
    return [matrix[0, 0], matrix[1, 0], matrix[1, 1]]


# LFW


def lfw(folder: Path, folds: int = 2, each: int = 3) -> Path:
    rng = np.random.default_rng(0)
    people = [f"Person_{i}" for i in range(8)]
    for person in people:
        touch(*(folder / "lfw" / person / f"{person}_{n:04}.jpg" for n in range(1, 5)))
    lines = [f"{folds}\t{each}"]
    for _ in range(folds):
        lines += [f"{person}\t1\t{n}" for person, n in zip(people[:each], (2, 3, 4), strict=True)]
        for _ in range(each):
            first, second = rng.choice(people, 2, replace=False)
            lines.append(f"{first}\t{rng.integers(1, 5)}\t{second}\t{rng.integers(1, 5)}")
    (folder / "pairs.txt").write_text("\n".join(lines) + "\n")
    return folder


def test_lfw_is_verified_by_its_own_pairs_and_folds(tmp_path: Path) -> None:
    entry = benchmark("casia-lfw/2")
    searched = SearchedImages.open(entry, lfw(tmp_path, folds=10, each=3))
    pairs, (one, two) = searched.protocol.pairs, versions(searched)
    assert pairs is not None
    assert pairs.same.tolist() == [*[True] * 3, *[False] * 3] * 10
    names = [Path(str(path)).name for path in searched.gallery.images]
    assert [names[pairs.first[0]], names[pairs.second[0]]] == [
        "Person_0_0001.jpg",
        "Person_0_0002.jpg",
    ]
    assert set(pairs.first) | set(pairs.second) == set(
        range(len(searched.gallery))
    )  # nothing is embedded in vain

    def accuracy(queries: Any, gallery: Any) -> float:
        scores = (queries[pairs.first] * gallery[pairs.second]).sum(axis=1)
        right = []
        for fold in range(10):
            held = np.arange(60) // 6 == fold
            best = max(scores, key=lambda t: (((scores >= t) == pairs.same) & ~held).sum())
            right.append((((scores >= best) == pairs.same) & held).sum() / 6)
        assert np.mean(right) == pytest.approx(kfold_accuracy(scores, pairs.same).mean, abs=0.07)
        return kfold_accuracy(scores, pairs.same).mean

    assert measured(searched, "verification", [one, two]) == pytest.approx(
        cells(accuracy, one, two)
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("2\t3", "2\t4", 1),
        lambda text: "pairs\n" + text,
        lambda text: text.replace("Person_0\t1\t2", "Person_0\t1", 1),
        lambda text: text.replace("Person_0\t1\t2", "Person_0\t1\tx", 1),
        lambda text: text.replace("Person_0\t1\t2", "Person_0\t1\t9", 1),
        lambda text: text[: len(text) // 2],
    ],
)
def test_damaged_pairs_of_lfw_are_told(tmp_path: Path, change: Callable[[str], str]) -> None:
    file = lfw(tmp_path) / "pairs.txt"
    file.write_text(change(file.read_text()))
    with refuses(DataError):
        dataset("lfw").open(tmp_path, "test")


def test_lfw_is_not_for_training(tmp_path: Path) -> None:
    with refuses(DataError):
        dataset("lfw").open(lfw(tmp_path), "train")


# Market-1501


def market(folder: Path) -> Path:
    root = folder / "Market-1501-v15.09.15"
    touch(
        *(
            root / "bounding_box_train" / f"{p:04}_c1s1_{i:06}_00.jpg"
            for p in (2, 7)
            for i in range(2)
        )
    )
    touch(
        root / "bounding_box_test" / "-1_c1s1_000001_00.jpg",
        root / "bounding_box_test" / "0000_c2s1_000002_00.jpg",
    )
    for person in (3, 5, 8):
        touch(
            *(
                root / "bounding_box_test" / f"{person:04}_c{c}s1_{c:06}_01.jpg"
                for c in (1, 2, 3, 3)
            )
        )
        touch(root / "query" / f"{person:04}_c1s1_000009_00.jpg")
    return folder


def test_people_are_searched_across_cameras(tmp_path: Path) -> None:
    searched = SearchedImages.open(benchmark("market1501/1"), market(tmp_path))
    assert dataset("market1501").open(tmp_path, "train").classes == ("0002", "0007")
    assert searched.gallery.classes == (
        "0000",
        "0003",
        "0005",
        "0008",
    )  # junk is left out, distractors are not
    one, two = versions(searched)
    people = [
        [Path(str(path)).name[:4] for path in part.images]
        for part in (searched.queries, searched.gallery)
    ]
    cameras = [
        [int(Path(str(path)).name[6]) for path in part.images]
        for part in (searched.queries, searched.gallery)
    ]

    def mean_precision(queries: Any, gallery: Any) -> float:
        precisions = []
        for q, person in enumerate(people[0]):
            places = np.argsort(-(gallery @ queries[q]), kind="stable")
            listed = [
                g for g in places if not (people[1][g] == person and cameras[1][g] == cameras[0][q])
            ]
            right = [people[1][g] == person for g in listed]
            precisions.append(
                np.mean([sum(right[: i + 1]) / (i + 1) for i, hit in enumerate(right) if hit])
            )
        return float(np.mean(precisions))

    assert measured(searched, "map", [one, two]) == pytest.approx(cells(mean_precision, one, two))


def test_a_name_that_is_not_markets_is_told(tmp_path: Path) -> None:
    market(tmp_path)
    touch(tmp_path / "Market-1501-v15.09.15" / "query" / "me.jpg")
    with refuses(DataError):
        dataset("market1501").open(tmp_path, "query")
    with pytest.raises(UnknownNameError, match="query"):
        dataset("market1501").open(tmp_path, "val")


# GLDv2


def landmarks(folder: Path) -> Path:
    root = folder / "gldv2"
    for part, names in (("train", ("abc1", "abd2", "fff3")), ("test", ("aaa1", "bbb2", "ccc3"))):
        touch(*(root / part / name[0] / name[1] / name[2] / f"{name}.jpg" for name in names))
    touch(*(root / "index" / "0" / "1" / str(i) / f"01{i}x.jpg" for i in range(10)))
    (root / "train_clean.csv").write_text("landmark_id,images\n17,abc1 abd2\n4,fff3\n")
    solution = [
        "id,images,Usage",
        "aaa1,010x 011x 012x,Public",
        "bbb2,None,Ignored",
        "ccc3,015x,Private",
    ]
    (root / "retrieval_solution_v2.1.csv").write_text("\n".join(solution) + "\n")
    return folder


def test_landmarks_are_found_by_the_solution(tmp_path: Path) -> None:
    searched = SearchedImages.open(benchmark("gldv2/1"), landmarks(tmp_path))
    training = dataset("gldv2").open(tmp_path, "train")
    assert training.counts() == {"17": 2, "4": 1}
    assert [Path(str(path)).stem for path in searched.queries.images] == ["aaa1", "ccc3"]
    one, two = versions(searched)

    def mean_precision(queries: Any, gallery: Any) -> float:
        precisions = []
        for query, wanted in zip(queries, ({0, 1, 2}, {5}), strict=True):
            right = [
                g in wanted for g in np.argsort(-(gallery @ query), kind="stable")[:100].tolist()
            ]
            found = [sum(right[: i + 1]) / (i + 1) for i, hit in enumerate(right) if hit]
            precisions.append(sum(found) / min(len(wanted), 100))
        return float(np.mean(precisions))

    assert measured(searched, "map100", [one, two]) == pytest.approx(
        cells(mean_precision, one, two)
    )


def test_damaged_lists_of_landmarks_are_told(tmp_path: Path) -> None:
    root = landmarks(tmp_path) / "gldv2"
    (root / "index" / "0" / "1" / "5" / "015x.jpg").unlink()
    with refuses(DataError):
        SearchedImages.open(benchmark("gldv2/1"), tmp_path)
    (root / "train_clean.csv").write_text("landmark_id,images\n17,abc1 zzz9\n")
    with refuses(DataError):
        dataset("gldv2").open(tmp_path, "train")
    (root / "train_clean.csv").write_text("landmark_id,images\n17\n")
    with refuses(DataError):
        dataset("gldv2").open(tmp_path, "train")
    (root / "train_clean.csv").write_text("landmark_id,images\n")
    with pytest.raises(DataError, match="no lines"):
        dataset("gldv2").open(tmp_path, "train")
    with pytest.raises(UnknownNameError, match="index"):
        dataset("gldv2").open(tmp_path, "val")


# The Met


def exhibits(folder: Path) -> Path:
    root = folder / "met"
    database: list[dict[str, Any]] = [
        {"id": i // 2, "path": f"MET/{i // 2}/{i}.jpg"} for i in range(6)
    ]
    queries: list[dict[str, Any]] = [{"path": f"test_met/{i}.jpg", "MET_id": i} for i in (1, 2)]
    touch(*(root / entry["path"] for entry in (*database, *queries)))
    (root / "ground_truth").mkdir()
    (root / "ground_truth" / "mini_MET_database.json").write_text(json.dumps(database))
    (root / "ground_truth" / "testset.json").write_text(
        json.dumps([*queries, {"path": "test_other/0.jpg"}])
    )
    return folder


def test_exhibits_are_named_by_their_nearest_photograph(tmp_path: Path) -> None:
    searched = SearchedImages.open(benchmark("met/1"), exhibits(tmp_path))
    assert (
        searched.gallery.classes == searched.queries.classes == ("0", "1", "2")
    )  # nobody took a photograph of 0
    one, two = versions(searched)

    def accuracy(queries: Any, gallery: Any) -> float:
        near = [int(np.argmax(gallery @ query)) for query in queries]
        return float(np.mean(searched.gallery.labels[near] == searched.queries.labels))

    assert measured(searched, "knn1", [one, two]) == pytest.approx(cells(accuracy, one, two))


@pytest.mark.parametrize(
    "text",
    ["{", "[1]", '[{"path": "a"}]'],
)
def test_a_damaged_ground_truth_is_told(tmp_path: Path, text: str) -> None:
    (exhibits(tmp_path) / "met" / "ground_truth" / "testset.json").write_text(text)
    with refuses(DataError):
        dataset("met").open(tmp_path, "test")


# CelebA


def celebrities(folder: Path) -> Path:
    root = folder / "celeba"
    names = [f"{i:06}.jpg" for i in range(1, 17)]
    touch(*(root / "img_align_celeba" / name for name in names))
    (root / "identity_CelebA.txt").write_text(
        "".join(f"{name} {i // 4}\n" for i, name in enumerate(names))
    )
    parts = [0] * 4 + [1] * 4 + [2] * 8
    (root / "list_eval_partition.txt").write_text(
        "".join(f"{n} {p}\n" for n, p in zip(names, parts, strict=True))
    )
    return folder


def test_celebrities_open_in_their_partition_and_no_face_finds_itself(tmp_path: Path) -> None:
    celebrities(tmp_path)
    assert dataset("celeba").open(tmp_path, "train").counts() == {"0": 4}
    searched = SearchedImages.open(benchmark("celeba/16"), tmp_path)
    assert searched.queries.classes == searched.gallery.classes == ("2", "3")
    assert not set(map(str, searched.queries.images)) & set(map(str, searched.gallery.images))
    assert len(searched.queries) == len(searched.gallery) == 4


def test_lists_of_celebrities_that_do_not_belong_together_are_told(tmp_path: Path) -> None:
    file = celebrities(tmp_path) / "celeba" / "identity_CelebA.txt"
    file.write_text(file.read_text().replace("000003.jpg 0\n", ""))
    with pytest.raises(DataError, match=r"differ in 000003\.jpg"):
        dataset("celeba").open(tmp_path, "train")
    file.write_bytes(b"\xff\xfe")
    with refuses(DataError):
        dataset("celeba").open(tmp_path, "train")


# IJB-C


PEOPLE = {10: 1, 11: 1, 20: 2, 21: 2, 30: 3, 31: 3, 40: 4}  # templates and whose they are
G1, G2, PROBES = (10, 20), (30,), (11, 21, 31, 40)


def janus(folder: Path) -> Path:
    meta = folder / "IJBC" / "meta"
    meta.mkdir(parents=True)
    faces = [
        (f"{3 * i + k + 1}.jpg", t, 100 * i + k // 2)
        for i, t in enumerate(PEOPLE)
        for k in range(3)
    ]
    touch(*(folder / "IJBC" / "loose_crop" / name for name, _, _ in faces))
    (meta / "ijbc_face_tid_mid.txt").write_text(
        "".join(f"{name} {t} {m}\n" for name, t, m in faces)
    )
    pairs = [(a, b) for a in PEOPLE for b in PEOPLE if a < b]
    (meta / "ijbc_template_pair_label.txt").write_text(
        "".join(f"{a} {b} {int(PEOPLE[a] == PEOPLE[b])}\n" for a, b in pairs)
    )
    for name, templates in (("gallery_G1", G1), ("gallery_G2", G2), ("probe_mixed", PROBES)):
        lines = [
            f"{t},{PEOPLE[t]},frames/1.png,1,2" for t in templates for _ in range(2)
        ]  # a line per face
        (meta / f"ijbc_1N_{name}.csv").write_text(
            "\n".join(["TEMPLATE_ID,SUBJECT_ID,FILENAME,X,Y", *lines]) + "\n"
        )
    return folder


def template(features: Any, number: int) -> Any:
    """Three faces: the first two are frames of one medium."""
    rows = features[3 * list(PEOPLE).index(number) :][:3]
    return unit((rows[0] + rows[1]) / 2 + rows[2])


def test_templates_are_verified_at_a_false_accept_rate(tmp_path: Path) -> None:
    searched = SearchedImages.open(benchmark("imdbface-ijbc/1"), janus(tmp_path))
    one, two = versions(searched)
    pairs = [(a, b) for a in PEOPLE for b in PEOPLE if a < b]

    def rate(queries: Any, gallery: Any) -> float:
        scores = {(a, b): float(template(queries, a) @ template(gallery, b)) for a, b in pairs}
        impostors = sorted(
            (s for (a, b), s in scores.items() if PEOPLE[a] != PEOPLE[b]), reverse=True
        )
        allowed = int(0.1 * len(impostors))
        genuine = [s for (a, b), s in scores.items() if PEOPLE[a] == PEOPLE[b]]
        return float(np.mean([s > impostors[allowed] for s in genuine]))

    assert measured(searched, "TAR@FAR=0.1", [one, two]) == pytest.approx(cells(rate, one, two))


def test_templates_are_searched_in_two_galleries(tmp_path: Path) -> None:
    """Rates and ranks are means over the galleries; a probe whose person is in none has no rank."""
    searched = SearchedImages.open(benchmark("imdbface-ijbc/1"), janus(tmp_path))
    one, two = versions(searched)

    def answers(
        queries: Any, gallery: Any, held: tuple[int, ...]
    ) -> list[tuple[bool, bool, float]]:
        """Of each probe: whether its person is in the gallery, whether it comes first, and its best cosine."""
        found = []
        for probe in PROBES:
            cosines = {t: float(template(queries, probe) @ template(gallery, t)) for t in held}
            best = max(cosines, key=lambda t: cosines[t])
            mated = PEOPLE[probe] in {PEOPLE[t] for t in held}
            found.append((mated, PEOPLE[best] == PEOPLE[probe], cosines[best]))
        return found

    def rank(queries: Any, gallery: Any) -> float:
        return float(
            np.mean(
                [np.mean([a[1] for a in answers(queries, gallery, g) if a[0]]) for g in (G1, G2)]
            )
        )

    def open_set(queries: Any, gallery: Any) -> float:
        rates = []
        for held in (G1, G2):
            found = answers(queries, gallery, held)
            strangers = sorted((cosine for mated, _, cosine in found if not mated), reverse=True)
            limit = strangers[int(0.5 * len(strangers))]
            rates.append(
                np.mean([right and cosine > limit for mated, right, cosine in found if mated])
            )
        return float(np.mean(rates))

    assert measured(searched, "rank1", [one, two]) == pytest.approx(cells(rank, one, two))
    assert measured(searched, "TPIR@FPIR=0.5", [one, two]) == pytest.approx(
        cells(open_set, one, two)
    )
    curve = searched.backfilled(one, two)
    assert len(curve) == 51
    assert [curve[0], curve[-1]] == pytest.approx(
        cells(rank, one, two)[1:]
    )  # nothing, then everything re-embedded


def test_wider_features_share_their_first_components(tmp_path: Path) -> None:
    """As BCT compares 256 dimensions with 128 (section 3.6)."""
    searched = SearchedImages.open(benchmark("imdbface-ijbc/1"), janus(tmp_path))
    (one, _), (_, wide) = versions(searched, 4), versions(searched, 6)
    short = replace(wide, queries=wide.queries[:, :4], gallery=wide.gallery[:, :4])
    matrix = searched.matrix([one, wide], "TAR@FAR=0.1")
    assert matrix[0, 0] == searched.matrix([one], "TAR@FAR=0.1")[0, 0]
    assert matrix[1, 1] == searched.matrix([wide], "TAR@FAR=0.1")[0, 0]
    assert np.isfinite(searched.matrix([one, short], "TAR@FAR=0.1")[1, 0])


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("ijbc_face_tid_mid.txt", "1.jpg 10\n"),
        ("ijbc_face_tid_mid.txt", "99.jpg 10 1\n"),
        ("ijbc_template_pair_label.txt", "10 77 0\n"),
        ("ijbc_1N_gallery_G1.csv", "TEMPLATE_ID,SUBJECT_ID\nten,1\n"),
        ("ijbc_1N_gallery_G2.csv", "TEMPLATE_ID,SUBJECT_ID\n"),
    ],
)
def test_damaged_lists_of_ijbc_are_told(tmp_path: Path, file: str, text: str) -> None:
    (janus(tmp_path) / "IJBC" / "meta" / file).write_text(text)
    with refuses(DataError):
        SearchedImages.open(benchmark("imdbface-ijbc/1"), tmp_path)
