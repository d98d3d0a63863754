"""Small text models for tests: a tiny BERT in a folder, and a server that speaks the embeddings API.

Both make a vector of a bag of words, so texts that share words are near each other.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fixstar.models.backbones import endpoint
from fixstar.trust import VARIABLE

TOPICS = {
    "shoes": "return shoes boots sandals laces sole heel leather size",
    "cards": "credit card bank payment charge refund declined fee",
    "rain": "rain weather storm cloud umbrella forecast wind wet",
    "bread": "bread flour oven bake yeast dough crust butter",
}


@pytest.fixture
def own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No trusted server but those of the test, and next to no pause before a server is asked again."""
    monkeypatch.setattr(endpoint, "_FIRST_PAUSE", 0.001)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv(VARIABLE, raising=False)


def topic_texts(per_topic: int, seed: int = 0) -> list[tuple[str, str]]:
    """Texts of five words of a topic, and the topic of each."""
    rng = np.random.default_rng(seed)
    found = []
    for topic, words in TOPICS.items():
        for _ in range(per_topic):
            chosen = rng.choice(words.split(), 5)
            found.append((" ".join(chosen), topic))
    return found


def write_jsonl(path: Path, texts: list[tuple[str, str]]) -> Path:
    rows = [
        {"id": f"{path.stem}-{row}", "text": text, "label": label}
        for row, (text, label) in enumerate(texts)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@cache
def word_vector(word: str, width: int, salt: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    seed = int.from_bytes(hashlib.blake2b(f"{salt} {word}".encode(), digest_size=8).digest(), "big")
    return np.random.default_rng(seed).standard_normal(width)


@dataclass
class FakeServer:
    """What a server does: ``answers`` are used up first, each a status with a body or a change of the usual one.

    A body that is a list of bytes is sent in these parts, with ``pause`` seconds before each.
    """

    address: str
    width: int = 16
    key: str | None = None
    salt: str = "one"
    noise: float = 0.0
    pause: float = 0.0
    answers: list[Callable[[dict[str, Any]], tuple[int, Any]]] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)

    def vector(self, text: str) -> list[float]:
        total = sum(
            (word_vector(word, self.width, self.salt) for word in text.lower().split()),
            np.zeros(self.width),
        )
        total = total + self.noise * word_vector(text, self.width, "noise")
        return [float(value) for value in total]

    def usual(self, body: dict[str, Any]) -> tuple[int, Any]:
        rows = [
            {"object": "embedding", "index": place, "embedding": self.vector(text)}
            for place, text in enumerate(body["input"])
        ]
        tokens = sum(len(text.split()) for text in body["input"])
        return 200, {"data": rows[::-1], "model": body["model"], "usage": {"total_tokens": tokens}}

    def url(self, model: str = "small") -> str:
        return f"{self.address}/v1/embeddings?model={model}"


@contextmanager
def embeddings_server(**options: Any) -> Iterator[FakeServer]:
    """A server on loopback; answers come in reversed order, as the API allows."""
    fake: FakeServer

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else a body waits 40 ms for the other side

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            fake.requests.append(body)
            fake.keys.append(self.headers.get("authorization"))
            if fake.key is not None and self.headers.get("authorization") != f"Bearer {fake.key}":
                status, content = 401, {"error": {"message": "wrong key"}}
            elif fake.answers:
                status, content = fake.answers.pop(0)(body)
            else:
                status, content = fake.usual(body)
            if isinstance(content, list):
                parts = content
            else:
                parts = [content if isinstance(content, bytes) else json.dumps(content).encode()]
            self.send_response(status)
            self.send_header("content-length", str(sum(map(len, parts))))
            self.end_headers()
            for part in parts:
                if fake.pause:
                    time.sleep(fake.pause)
                self.wfile.write(part)

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: Any) -> None:
            pass

    server = Server(("127.0.0.1", 0), Handler)
    fake = FakeServer(f"http://127.0.0.1:{server.server_port}", **options)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()


def bert_folder(path: Path, width: int = 16, seed: int = 0, pooling: str | None = None) -> Path:
    """A tiny BERT with random weights as ``save_pretrained`` writes it; with ``pooling`` as a sentence transformer."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel

    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "query",
        ":",
        *sorted(set(" ".join(TOPICS.values()).split())),
    ]
    tokenizer = Tokenizer(
        models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    path.mkdir(parents=True)
    tokenizer.save(str(path / "tokenizer.json"))
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=width,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=2 * width,
        max_position_embeddings=32,
    )
    model: Any = BertModel
    model(config).save_pretrained(path)
    if pooling is not None:
        modules = [
            {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
            {
                "idx": 1,
                "name": "1",
                "path": "1_Pooling",
                "type": "sentence_transformers.models.Pooling",
            },
            {
                "idx": 2,
                "name": "2",
                "path": "2_Normalize",
                "type": "sentence_transformers.models.Normalize",
            },
        ]
        (path / "modules.json").write_text(json.dumps(modules))
        (path / "1_Pooling").mkdir()
        (path / "1_Pooling" / "config.json").write_text(
            json.dumps({"word_embedding_dimension": width, f"pooling_mode_{pooling}": True})
        )
        (path / "sentence_bert_config.json").write_text(
            json.dumps({"max_seq_length": 24, "do_lower_case": False})
        )
        (path / "config_sentence_transformers.json").write_text(
            json.dumps(
                {"prompts": {"query": "query : ", "document": ""}, "similarity_fn_name": "cosine"}
            )
        )
    return path


@pytest.fixture
def servers() -> Iterator[tuple[FakeServer, FakeServer]]:
    """A noisy model, and a better one."""
    with (
        embeddings_server(width=24, noise=2.5) as old,
        embeddings_server(width=32, salt="two", noise=0.2) as new,
    ):
        yield old, new
