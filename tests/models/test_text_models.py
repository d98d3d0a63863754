"""Models of texts: of transformers, of sentence-transformers, as ONNX, and behind an address."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from text_models import FakeServer, bert_folder, embeddings_server
from wording import FIGURES, refuses

from fixstar.durable import document, replace_json
from fixstar.errors import (
    EmbeddingServerError,
    InputError,
    ModelError,
    TextError,
    UntrustedCodeError,
)
from fixstar.models import Encoder
from fixstar.models.backbones import endpoint
from fixstar.models.backbones.endpoint import EndpointBackbone, answered_within
from fixstar.models.backbones.texts import pooled
from fixstar.texts import MOST_CHARACTERS, Prompts
from fixstar.trust import VARIABLE, trusting

TEXTS = ["return shoes", "credit card declined fee", "rain"]


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with embeddings_server() as fake:
        yield fake


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(endpoint, "_FIRST_PAUSE", 0.001)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv(VARIABLE, raising=False)


# --- pooling


def test_pooling_leaves_padding_out() -> None:
    states = torch.tensor(
        [[[1.0, 2.0], [3.0, 4.0], [100.0, 100.0]], [[5.0, 6.0], [7.0, 8.0], [9.0, 10.0]]]
    )
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    assert pooled(states, mask, "mean").tolist() == [[2.0, 3.0], [7.0, 8.0]]
    assert pooled(states, mask, "cls").tolist() == [[1.0, 2.0], [5.0, 6.0]]
    assert pooled(states, mask, "last").tolist() == [[3.0, 4.0], [9.0, 10.0]]


# --- transformers


def test_a_text_model_of_transformers_reads_texts_and_comes_back_the_same(tmp_path: Path) -> None:
    encoder = Encoder.wrap(f"hf:{bert_folder(tmp_path / 'bert')}")
    assert encoder.reads == "texts"
    vectors = encoder.encode(TEXTS)
    assert vectors.shape == (3, 16)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    again = Encoder.load(encoder.save(tmp_path / "saved"))
    assert again.reads == "texts"
    np.testing.assert_array_equal(again.encode(TEXTS), vectors)


def test_the_rest_of_a_batch_does_not_change_a_text(tmp_path: Path) -> None:
    encoder = Encoder.wrap(f"hf:{bert_folder(tmp_path / 'bert')}")
    alone = np.concatenate([encoder.encode([text]) for text in TEXTS])
    np.testing.assert_allclose(encoder.encode(TEXTS), alone, atol=1e-5)


@pytest.mark.parametrize("pooling", ["mean_tokens", "cls_token", "lasttoken"])
def test_a_sentence_transformer_makes_the_vectors_that_its_library_makes(
    tmp_path: Path, pooling: str
) -> None:
    library = pytest.importorskip("sentence_transformers")
    folder = bert_folder(tmp_path / "st", pooling=pooling)
    theirs: Any = library.SentenceTransformer(str(folder), device="cpu")
    encoder = Encoder.wrap(f"st:{folder}")
    np.testing.assert_allclose(
        encoder.encode(TEXTS), theirs.encode(TEXTS, normalize_embeddings=True), atol=1e-5
    )
    asked = theirs.encode(TEXTS, normalize_embeddings=True, prompt_name="query")
    np.testing.assert_allclose(encoder.encode(TEXTS, role="query"), asked, atol=1e-5)


def test_prompts_go_before_queries_and_items(tmp_path: Path) -> None:
    folder = bert_folder(tmp_path / "bert")
    plain = Encoder.wrap(f"hf:{folder}")
    prompted = Encoder.wrap(f"hf:{folder}", Prompts(query="query : ", item="card "))
    np.testing.assert_array_equal(
        prompted.encode(TEXTS, role="query"), plain.encode([f"query : {text}" for text in TEXTS])
    )
    np.testing.assert_array_equal(
        prompted.encode(TEXTS), plain.encode([f"card {text}" for text in TEXTS])
    )
    again = Encoder.load(prompted.save(tmp_path / "saved"))
    assert again.inputs == Prompts(query="query : ", item="card ")


def test_a_sentence_transformer_with_other_modules_is_refused(tmp_path: Path) -> None:
    folder = bert_folder(tmp_path / "st", pooling="mean_tokens")
    modules = json.loads((folder / "modules.json").read_text())
    modules.append(
        {"idx": 3, "name": "3", "path": "3_Dense", "type": "sentence_transformers.models.Dense"}
    )
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ModelError, match="Dense"):
        Encoder.wrap(f"st:{folder}")


def test_a_model_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    folder = bert_folder(tmp_path / "bert")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        Encoder.wrap(f"hf:{folder}")


def test_pickled_weights_are_never_loaded(tmp_path: Path) -> None:
    folder = bert_folder(tmp_path / "bert")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="safetensors"):
        Encoder.wrap(f"hf:{folder}")


def test_a_card_cannot_ask_for_more_bytes_than_there_are(tmp_path: Path) -> None:
    saved = Encoder.wrap(f"hf:{bert_folder(tmp_path / 'bert')}").save(tmp_path / "saved")
    card = json.loads((saved / "card.json").read_text())
    card["backbone"]["options"]["tokenizer_size"] = 10**15
    content = {
        key: value
        for key, value in card.items()
        if key not in ("format", "format_version", "digest")
    }
    replace_json(saved / "card.json", document("encoder", content))
    with refuses(ModelError, varies=r"\{.*\}|\[\d+\]"):
        Encoder.load(saved)


def test_texts_cannot_be_trained_on_here(tmp_path: Path) -> None:
    encoder = Encoder.wrap(f"hf:{bert_folder(tmp_path / 'bert')}")
    with pytest.raises(InputError, match="reads texts"):
        _ = encoder.preprocessing
    with pytest.raises(InputError, match="reads texts"):
        Encoder.create(encoder.backbone)


# --- ONNX


def _onnx(path: Path, whole: bool) -> Path:
    pytest.importorskip("onnx", reason="the onnx extra is not installed")
    from onnx_models import text_model

    path.write_bytes(text_model(whole).SerializeToString())
    return path


def test_an_onnx_model_of_texts_takes_its_tokenizer(tmp_path: Path) -> None:
    tokenizer = bert_folder(tmp_path / "bert") / "tokenizer.json"
    states = Encoder.wrap(_onnx(tmp_path / "states.onnx", whole=False), tokenizer=tokenizer)
    whole = Encoder.wrap(_onnx(tmp_path / "whole.onnx", whole=True), tokenizer=tokenizer)
    np.testing.assert_allclose(states.encode(TEXTS), whole.encode(TEXTS), atol=1e-6)
    again = Encoder.load(states.save(tmp_path / "saved"))
    np.testing.assert_array_equal(again.encode(TEXTS), states.encode(TEXTS))


def test_a_preprocessing_of_images_does_not_go_with_texts(tmp_path: Path) -> None:
    from fixstar.images import Preprocessing

    square = Preprocessing(size=(8, 8), mean=(0, 0, 0), std=(1, 1, 1))
    with pytest.raises(InputError, match="reads texts"):
        Encoder.wrap(f"hf:{bert_folder(tmp_path / 'bert')}", square)


# --- what a text may be


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        (" \n", "empty"),
        ("x" * (MOST_CHARACTERS + 1), "passages"),
        (b"x", "bytes"),
        ("\ud800", "Unicode"),
    ],
)
def test_texts_that_cannot_be_embedded_are_named(
    server: FakeServer, text: Any, reason: str
) -> None:
    encoder = Encoder.wrap(server.url())
    with pytest.raises(TextError, match=reason) as caught:
        encoder.encode(["good", text])
    assert caught.value.index == 1
    told: list[Any] = []
    vectors = encoder.encode(["good", text, "rain"], bad="skip", on_bad=told.append)
    assert np.isnan(vectors).all(axis=1).tolist() == [False, True, False]
    assert [error.index for error in told] == [1]


# --- a server


def test_a_server_embeds_whatever_the_order_of_its_answers(server: FakeServer) -> None:
    encoder = Encoder.wrap(server.url())
    expected = np.array([server.vector(text) for text in TEXTS])
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(encoder.encode(TEXTS), expected, atol=1e-6)
    assert server.requests[-1] == {"model": "small", "input": TEXTS, "encoding_format": "float"}


def test_long_lists_go_in_batches(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "_BATCH_TEXTS", 3)
    monkeypatch.setattr(endpoint, "_BATCH_CHARACTERS", 40)
    encoder = Encoder.wrap(server.url())
    server.requests.clear()
    texts = ["a", "b", "c", "d", "x" * 40, "y" * 40, "e"]
    vectors = encoder.encode(texts)
    assert [body["input"] for body in server.requests] == [
        ["a", "b", "c"],
        ["d"],
        ["x" * 40],
        ["y" * 40],
        ["e"],
    ]
    np.testing.assert_allclose(vectors[3:4], encoder.encode(["d"]), atol=1e-6)


def test_the_key_comes_from_the_environment_and_is_never_saved(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server.key = "secret-1234"
    with refuses(EmbeddingServerError):
        Encoder.wrap(server.url())
    monkeypatch.setenv("MY_KEY", "secret-1234")
    encoder = Encoder.wrap(server.url(), key="MY_KEY")
    saved = encoder.save(tmp_path / "saved")
    assert "secret-1234" not in (saved / "card.json").read_text()
    assert "MY_KEY" in (saved / "card.json").read_text()
    monkeypatch.setenv("MY_KEY", "another")
    with pytest.raises(ModelError, match="MY_KEY, which is set"):
        encoder.encode(["a"])


def test_the_key_of_openai_is_sent_to_nobody_else(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "theirs")
    Encoder.wrap(server.url())
    assert set(server.keys) == {None}


def test_a_copied_card_asks_nobody(server: FakeServer, tmp_path: Path) -> None:
    saved = Encoder.wrap(server.url()).save(tmp_path / "saved")
    before = len(server.requests)
    with pytest.raises(UntrustedCodeError, match="not trusted"):
        Encoder.load(saved)
    assert len(server.requests) == before
    with trusting(server.address):
        assert Encoder.load(saved).reads == "texts"


def test_failures_that_pass_are_waited_out(server: FakeServer) -> None:
    encoder = Encoder.wrap(server.url())
    server.answers += [
        lambda _: (429, {"error": "slow down"}),
        lambda _: (503, b"busy"),
        lambda _: (500, b""),
    ]
    assert np.isfinite(encoder.encode(["rain"])).all()


def test_failures_that_stay_end_with_what_the_server_said(server: FakeServer) -> None:
    encoder = Encoder.wrap(server.url())
    server.answers += [lambda _: (503, b"out of order")] * endpoint._ATTEMPTS
    with pytest.raises(ModelError, match="out of order"):
        encoder.encode(["rain"])
    server.answers.append(lambda _: (400, {"error": "no such model"}))
    before = len(server.requests)
    with pytest.raises(ModelError, match="no such model"):
        encoder.encode(["rain"])
    assert len(server.requests) == before + 1  # not repeated


def test_a_server_that_hangs_up_is_asked_again_and_then_named(server: FakeServer) -> None:
    def hang_up(_: Any) -> Any:
        raise ConnectionResetError

    encoder = Encoder.wrap(server.url())
    server.answers += [hang_up] * 2
    assert np.isfinite(encoder.encode(["rain"])).all()
    server.answers += [hang_up] * endpoint._ATTEMPTS
    with pytest.raises(ModelError, match="attempts"):
        encoder.encode(["rain"])


def _changed(server: FakeServer, change: Any) -> Any:
    def answer(body: dict[str, Any]) -> tuple[int, Any]:
        status, content = server.usual(body)
        return status, change(content)

    return answer


@pytest.mark.parametrize(
    "change",
    [
        lambda c: {**c, "data": c["data"][1:]},
        lambda c: {**c, "data": [{**row, "index": 0} for row in c["data"]]},
        lambda c: {**c, "data": [{**row, "embedding": row["embedding"][:-1]} for row in c["data"]]},
        lambda c: {**c, "data": [{**row, "embedding": [float("nan")] * 16} for row in c["data"]]},
        lambda c: {**c, "data": [{**row, "embedding": [0.0] * 16} for row in c["data"]]},
        lambda c: {**c, "data": [{**row, "embedding": "AAAA"} for row in c["data"]]},
        lambda c: {**c, "data": [c["data"][0], {**c["data"][1], "embedding": [1.0]}]},
        lambda _: {"object": "list"},
        lambda _: b"<html>",
        lambda _: b"[1]",
    ],
)
def test_an_answer_that_is_not_one_vector_per_text_is_refused(
    server: FakeServer, change: Any
) -> None:
    encoder = Encoder.wrap(server.url())
    server.answers.append(_changed(server, change))
    with refuses(EmbeddingServerError):
        encoder.encode(["rain", "shoes"])


def test_vectors_without_numbers_are_asked_for_one_by_one(server: FakeServer) -> None:
    encoder = Encoder.wrap(server.url())
    expected = encoder.encode(TEXTS)

    def without_numbers(body: dict[str, Any]) -> tuple[int, Any]:
        status, content = server.usual(body)
        rows = [
            {"embedding": row["embedding"]} for row in content["data"]
        ]  # in reversed order, as before
        return status, {**content, "data": rows}

    server.requests.clear()
    server.answers += [without_numbers] * 10
    np.testing.assert_allclose(encoder.encode(TEXTS), expected, atol=1e-6)
    np.testing.assert_allclose(encoder.encode(TEXTS), expected, atol=1e-6)
    asked = [body["input"] for body in server.requests]
    assert asked == [TEXTS, *[[text] for text in TEXTS], *[[text] for text in TEXTS]]


def test_a_server_whose_numbers_are_wrong_is_never_added(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def misnumbered(body: dict[str, Any]) -> tuple[int, Any]:
        rows = [
            {"index": len(body["input"]) - 1 - place, "embedding": server.vector(text)}
            for place, text in enumerate(body["input"])
        ]
        return 200, {"data": rows}

    monkeypatch.setattr(server, "usual", misnumbered)
    with pytest.raises(ModelError, match="alone and in a batch"):
        Encoder.wrap(server.url())


# --- a server that takes its time


def hanging(_: dict[str, Any]) -> tuple[int, Any]:
    """No answer for a second."""
    time.sleep(1.0)
    return 503, b"too late"


def test_a_hanging_server_costs_a_search_less_than_an_indexing(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "_TIMEOUT", 0.2)
    monkeypatch.setattr(endpoint, "_ATTEMPTS", 3)
    encoder = Encoder.wrap(server.url())
    server.answers += [hanging] * 3
    started = time.monotonic()
    with pytest.raises(EmbeddingServerError, match="in 3 attempts"):
        encoder.encode(["rain"])
    assert time.monotonic() - started >= 0.6
    server.answers[:] = [hanging] * 3
    started = time.monotonic()
    with (
        answered_within(0.3),
        pytest.raises(EmbeddingServerError, match="time that a search may take"),
    ):
        encoder.encode(["rain"])
    assert time.monotonic() - started < 0.6
    server.answers.clear()
    with answered_within(5.0):
        assert np.isfinite(encoder.encode(["rain"])).all()


def test_an_answer_that_trickles_in_is_not_waited_for(server: FakeServer) -> None:
    encoder = Encoder.wrap(server.url())
    server.pause = 0.1
    server.answers.append(lambda _: (200, [b" "] * 50))
    started = time.monotonic()
    with answered_within(0.3), pytest.raises(EmbeddingServerError, match="not complete in time"):
        encoder.encode(["rain"])
    assert time.monotonic() - started < 2.0


def test_a_search_does_not_wait_until_a_pause_is_over_that_is_too_long(server: FakeServer) -> None:
    encoder = Encoder.wrap(server.url())
    server.answers += [lambda _: (429, b"later")]
    monotonic = time.monotonic()
    with (
        patch("fixstar.models.backbones.endpoint._retry_after", return_value=30.0),
        answered_within(1.0),
        pytest.raises(EmbeddingServerError, match="status 429: later"),
    ):
        encoder.encode(["rain"])
    assert time.monotonic() - monotonic < 1.0
    assert np.isfinite(encoder.encode(["rain"])).all()


def test_a_search_whose_turn_comes_too_late_says_so_and_takes_no_turn(server: FakeServer) -> None:
    encoder = Encoder.wrap(server.url())
    assert isinstance(encoder.backbone, EndpointBackbone)
    encoder.backbone._pause = 3600.0
    encoder.encode(["rain"])
    turn = encoder.backbone._next
    with (
        answered_within(1.0),
        pytest.raises(EmbeddingServerError, match="as many requests per minute as are allowed"),
    ):
        encoder.encode(["rain"])
    assert encoder.backbone._next == turn


def test_processes_share_a_rate(server: FakeServer) -> None:
    backbone = Encoder.wrap(server.url(), per_minute=6000).backbone
    assert isinstance(backbone, EndpointBackbone)
    backbone.share_rate(4)
    started = time.monotonic()
    for _ in range(4):
        backbone.embed(["rain"])
    assert time.monotonic() - started >= 0.12  # three pauses of 0.04 s, and not of 0.01 s


def test_a_model_that_was_changed_silently_is_noticed(server: FakeServer, tmp_path: Path) -> None:
    saved = Encoder.wrap(server.url()).save(tmp_path / "saved")
    server.salt = "another model under the same name"
    with trusting(server.address), refuses(ModelError, "add", varies=FIGURES):
        Encoder.load(saved)


def test_tokens_and_their_price_are_counted(server: FakeServer) -> None:
    encoder = Encoder.wrap(server.url(), price=0.5)
    assert isinstance(encoder.backbone, EndpointBackbone)
    before = encoder.backbone.tokens
    encoder.encode(["one two three", "four"])
    assert encoder.backbone.tokens - before == 4
    assert encoder.backbone.cost(2_000_000) == 1.0


def test_requests_keep_to_a_rate(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("fixstar.models.backbones.endpoint.time.sleep", slept.append)
    encoder = Encoder.wrap(server.url(), per_minute=60)
    slept.clear()
    for _ in range(3):
        encoder.encode(["rain"])
    assert slept == sorted(
        slept
    )  # nobody sleeps here, so every request waits a second longer than the one before
    assert slept[-1] - slept[0] == pytest.approx(2.0, abs=0.5)


@pytest.mark.parametrize(
    "address",
    [
        "https://host/v1/embeddings",
        "https:///v1?model=a",
        "https://host/v1/embeddings?model=a&size=3",
        "https://host/v1/embeddings?model=a&dimensions=none",
        "https://me:secret@host/v1/embeddings?model=a",
    ],
)
def test_addresses_that_say_too_little_or_too_much_are_refused(address: str) -> None:
    with refuses(InputError):
        Encoder.wrap(address)


def test_dimensions_are_asked_for(server: FakeServer) -> None:
    Encoder.wrap(f"{server.url()}&dimensions=16")
    assert server.requests[-1]["dimensions"] == 16


@pytest.mark.parametrize(
    "options", [{"tokenizer": "t.json"}, {"weights": "w"}, {"pooling": "mean"}]
)
def test_options_of_other_models_do_not_go_with_a_server(
    server: FakeServer, options: dict[str, Any]
) -> None:
    with refuses(InputError):
        Encoder.wrap(server.url(), **options)


def test_copies_of_a_server_have_connections_of_their_own(server: FakeServer) -> None:
    import copy

    encoder = Encoder.wrap(server.url())
    again = copy.deepcopy(encoder)
    np.testing.assert_array_equal(again.encode(["rain"]), encoder.encode(["rain"]))
    assert os.environ.get("OPENAI_API_KEY") is None or set(server.keys) == {None}
