"""A server that embeds texts and speaks OpenAI's embeddings API, as a backbone.

    https://host/v1/embeddings?model=NAME[&dimensions=N]

The key comes from the environment: a card names the variable, never the key. The server must be trusted
(``fixstar.trust``), so a copied card sends nothing to anybody. Requests that fail for a while are repeated with growing
pauses; a search waits for a short while only (``answered_within``). An answer that is not one finite vector of the
known width per text is refused. Vectors are put in order by the numbers that the API gives them. A server that leaves
these numbers out gets one text per request, because the order of its answers cannot be known.
"""

from __future__ import annotations

import importlib
import json
import logging
import math
import os
import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from urllib.parse import parse_qsl, urlsplit, urlunsplit

import numpy as np
import torch
from torch import Tensor

from fixstar.errors import EmbeddingServerError, InputError, MissingExtraError
from fixstar.models.backbones.texts import TextBackbone
from fixstar.texts import Prompts
from fixstar.trust import require_trusted, server_of

KEY = "FIXSTAR_EMBEDDINGS_KEY"  # the environment variable of a server's key
_OPENAI = "https://api.openai.com"
_OPENAI_KEY = "OPENAI_API_KEY"  # sent to that server alone

_BATCH_TEXTS = 128
_BATCH_CHARACTERS = 200_000
_ATTEMPTS = 6
_FIRST_PAUSE = 0.5  # seconds; doubled after every failure
_LONGEST_PAUSE = 60.0
_TIMEOUT = 60.0  # seconds that one request may take
_PASSING = (408, 409, 425, 429, 500, 502, 503, 504)  # answers that may be other ones a moment later
_SHOWN = 200  # characters of an answer that an error quotes
_deadline: ContextVar[float | None] = ContextVar("deadline", default=None)  # of time.monotonic

QUERY_SECONDS = 10.0  # that a search waits for a server, all attempts together


@contextmanager
def answered_within(seconds: float) -> Iterator[None]:
    """What is embedded inside has to be answered in so many seconds, whatever failed on the way."""
    token = _deadline.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _deadline.reset(token)


class EndpointBackbone(TextBackbone):
    """The model of a server. ``tokens`` counts what it was charged for since it was opened."""

    def __init__(
        self,
        url: str,
        model: str,
        feature_dim: int,
        prompts: Mapping[str, Any],
        dimensions: int | None = None,
        key: str = KEY,
        price: float | None = None,
        per_minute: float | None = None,
    ) -> None:
        options = {
            "url": url,
            "model": model,
            "feature_dim": feature_dim,
            "prompts": dict(prompts),
            "dimensions": dimensions,
            "key": key,
            "price": price,
            "per_minute": per_minute,
        }
        super().__init__("endpoint", options, feature_dim, Prompts.from_json(prompts))
        require_trusted(server_of(url))
        self.url = url
        self.model = model
        self.price = price
        self.tokens = 0
        self._pause = 0.0 if per_minute is None else 60.0 / per_minute
        self._next = 0.0
        self._numbered = True  # whether its answers say which vector belongs to which text
        self._lock = threading.Lock()
        self._client: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """For copies and other processes: each has connections of its own."""
        return {**self.__dict__, "_lock": None, "_client": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """The inverse of ``__getstate__``."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._lock = threading.Lock()

    def cost(self, tokens: int) -> float | None:
        """The cost of a number of tokens, in the currency of ``price`` per million; None without a price."""
        if self.price is None:
            return None
        return tokens * self.price / 1e6

    def share_rate(self, processes: int) -> None:
        """Keep to the allowed requests per minute together with other processes that embed at the same time."""
        self._pause *= processes

    def embed(self, texts: Sequence[str]) -> Tensor:
        """Texts to vectors [N, feature_dim], in as many requests as it takes."""
        parts = [vectors for batch in _batches(texts) for vectors in self._batch(batch)]
        return torch.from_numpy(np.concatenate(parts))

    def _batch(self, texts: list[str]) -> Iterator[np.ndarray[Any, np.dtype[np.float32]]]:
        """The vectors of a batch, in one part or in several."""
        if self._numbered:
            try:
                yield self._ask(texts)
                return
            except _NotNumberedError:
                self._numbered = False
        for text in texts:
            yield self._ask([text])

    def _ask(self, texts: Sequence[str]) -> np.ndarray[Any, np.dtype[np.float32]]:
        body: dict[str, Any] = {
            "model": self.model,
            "input": list(texts),
            "encoding_format": "float",
        }
        if self.options["dimensions"] is not None:
            body["dimensions"] = self.options["dimensions"]
        answer = self._posted(body)
        vectors = _vectors(answer, len(texts), self.url)
        if self.feature_dim and vectors.shape[1] != self.feature_dim:
            raise EmbeddingServerError(
                f"{self.url} returned vectors of {vectors.shape[1]} components for {self.model}, which had "
                f"{self.feature_dim}: it is another model now. They were not used; add it as a new version"
            )
        usage = answer.get("usage")
        if isinstance(usage, dict) and isinstance(usage.get("total_tokens"), int):
            with self._lock:
                self.tokens += usage["total_tokens"]
        return vectors

    def _posted(self, body: dict[str, Any]) -> dict[str, Any]:
        """The server's answer; passing failures are waited out, as long as there is time."""
        httpx = _httpx()
        client = self._opened(httpx)
        deadline = _deadline.get()
        pause = _FIRST_PAUSE
        failure = "it gets as many requests per minute as are allowed already"
        for attempt in range(1, _ATTEMPTS + 1):
            if not self._wait_for_turn(deadline):
                break
            asked: float | None = None
            try:
                status, content, headers = self._exchanged(httpx, client, body, deadline)
            except (httpx.TransportError, httpx.InvalidURL) as error:
                failure = f"{type(error).__name__}: {error}".rstrip(": ")
            else:
                if status == 200:
                    return _content(content, self.url)
                failure = f"status {status}: {_shown(content)}"
                if status not in _PASSING:
                    raise EmbeddingServerError(
                        f"{self.url} refused to embed with {self.model} ({failure}).{self._hint(status)}"
                    )
                asked = _retry_after(headers.get("retry-after"))
            wait = min(
                _LONGEST_PAUSE, asked if asked is not None else pause * random.uniform(0.5, 1.0)
            )
            if deadline is not None and time.monotonic() + wait >= deadline:
                break
            if attempt < _ATTEMPTS:
                time.sleep(wait)
                pause *= 2
        if deadline is not None:
            raise EmbeddingServerError(
                f"{self.url} did not embed with {self.model} in the time that a search may take ({failure}). Search "
                "again when it answers"
            )
        raise EmbeddingServerError(
            f"{self.url} did not embed with {self.model} in {_ATTEMPTS} attempts ({failure}). What is stored stays "
            "as it is: repeat the command when the server answers, and it goes on where it was"
        )

    def _exchanged(
        self, httpx: Any, client: Any, body: dict[str, Any], deadline: float | None
    ) -> tuple[int, bytes, Mapping[str, str]]:
        """Status, content and headers of one answer, which has to be here in time as a whole."""
        ends = time.monotonic() + _TIMEOUT
        if deadline is not None:
            ends = min(ends, deadline)
        left = max(0.001, ends - time.monotonic())
        parts = []
        with client.stream(
            "POST", self.url, json=body, headers=self._headers(), timeout=left
        ) as response:
            for part in response.iter_bytes():
                parts.append(part)
                if (
                    time.monotonic() > ends
                ):  # the timeout is of each read: a slow trickle would never end
                    raise httpx.ReadTimeout("the answer was not complete in time")
        return response.status_code, b"".join(parts), response.headers

    def _hint(self, status: int) -> str:
        variable = str(self.options["key"])
        if status not in (401, 403):
            return ""
        given = "is set" if os.environ.get(variable) else "is not set"
        return f" Its key is read from the environment variable {variable}, which {given}"

    def _headers(self) -> dict[str, str]:
        key = os.environ.get(str(self.options["key"]), "").strip()
        if key:
            return {"Authorization": f"Bearer {key}"}
        return {}

    def _opened(self, httpx: Any) -> Any:
        with self._lock:
            if self._client is None:
                self._client = httpx.Client(
                    timeout=_TIMEOUT, follow_redirects=False
                )  # a key must not follow one
            return self._client

    def _wait_for_turn(self, deadline: float | None) -> bool:
        """Keep to the requests per minute that were allowed, over all threads; False if the turn comes too late."""
        if not self._pause:
            return True
        with self._lock:
            now = time.monotonic()
            turn = max(now, self._next)
            if deadline is not None and turn >= deadline:
                return False
            self._next = turn + self._pause
        time.sleep(turn - now)
        return True


class _NotNumberedError(EmbeddingServerError):
    """An answer with several vectors does not say which of them belongs to which text."""


def endpoint_backbone(
    address: str,
    prompts: Prompts | None = None,
    *,
    key: str | None = None,
    price: float | None = None,
    per_minute: float | None = None,
) -> EndpointBackbone:
    """The model that an address names; the server is asked once, for the width of its vectors.

    ``key`` names an environment variable. ``price`` is per million tokens. ``per_minute`` limits the requests.
    """
    for name, value in (("price", price), ("per_minute", per_minute)):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise InputError(f"{name} is a number above 0, got {value}")
    url, model, dimensions = _parsed(address)
    usual = _OPENAI_KEY if server_of(url) == _OPENAI else KEY
    backbone = EndpointBackbone(
        url=url,
        model=model,
        feature_dim=0,
        prompts=(prompts or Prompts()).to_json(),
        dimensions=dimensions,
        key=key or usual,
        price=price,
        per_minute=per_minute,
    )
    backbone.feature_dim = int(backbone.embed(["a text"]).shape[1])
    backbone.options["feature_dim"] = backbone.feature_dim
    return backbone


def _parsed(address: str) -> tuple[str, str, int | None]:
    """The URL to post to, the model, and the dimensions if they are asked for."""
    wanted = "an address is https://HOST/v1/embeddings?model=NAME, and may say &dimensions=256"
    parts = urlsplit(address)
    if parts.username or parts.password:
        raise InputError(
            "an address must not hold a password: a key is read from an environment variable"
        )
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    model = given.pop("model", "")
    asked = given.pop("dimensions", None)
    if given:
        raise InputError(f"{address} has {', '.join(sorted(given))}, which is not known: {wanted}")
    if not parts.hostname or not model:
        raise InputError(f"{address} does not name a host and a model: {wanted}")
    if asked is not None and not (asked.isascii() and asked.isdigit() and int(asked) > 0):
        raise InputError(f"dimensions is a whole number above 0, got {asked!r}: {wanted}")
    return (
        urlunsplit(parts._replace(query="", fragment="")),
        model,
        None if asked is None else int(asked),
    )


def _httpx() -> Any:
    logger = logging.getLogger("httpx")
    if logger.level != logging.WARNING:  # setting it takes half a millisecond
        logger.setLevel(logging.WARNING)  # it tells of every request otherwise
    try:
        return importlib.import_module("httpx")
    except ImportError:
        raise MissingExtraError("httpx", "endpoint", "a server that embeds texts") from None


def _batches(texts: Sequence[str]) -> Iterator[list[str]]:
    """As many texts at once as a server takes."""
    batch: list[str] = []
    characters = 0
    for text in texts:
        if batch and (len(batch) == _BATCH_TEXTS or characters + len(text) > _BATCH_CHARACTERS):
            yield batch
            batch = []
            characters = 0
        batch.append(text)
        characters += len(text)
    if batch:
        yield batch


def _retry_after(value: str | None) -> float | None:
    """The seconds that a server asks for; a date is not read."""
    try:
        if value is None:
            return None
        return max(0.0, float(value))
    except ValueError:
        return None


def _shown(content: bytes) -> str:
    """The beginning of an answer, for an error."""
    return content[: 4 * _SHOWN].decode("utf-8", "replace")[:_SHOWN]


def _content(answer: bytes, url: str) -> dict[str, Any]:
    try:
        content = json.loads(answer)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise EmbeddingServerError(
            f"{url} does not answer as an embeddings API: {_shown(answer)!r}. Is the path right?"
        )
    return content


def _vectors(answer: dict[str, Any], count: int, url: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The vectors of an answer [count, width], in the order of the texts."""
    rows = answer.get("data")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise EmbeddingServerError(
            f"{url} does not answer as an embeddings API: it sent {sorted(answer)}, and data is missing"
        )
    if all(row.get("index") is None for row in rows):
        if len(rows) == count > 1:
            raise _NotNumberedError(
                f"{url} does not say which of its vectors belongs to which text"
            )
        order = list(range(len(rows)))
    else:
        order = [row.get("index") for row in rows]
    if len(rows) != count or sorted(map(str, order)) != sorted(map(str, range(count))):
        raise EmbeddingServerError(
            f"{url} returned {len(rows)} vectors with the numbers {order[:5]} ... for {count} texts"
        )
    by_place = {int(place): row.get("embedding") for place, row in zip(order, rows, strict=True)}
    try:
        vectors = np.array([by_place[place] for place in range(count)], np.float32)
    except (TypeError, ValueError):
        raise EmbeddingServerError(
            f"{url} returned vectors of different widths, or something else than numbers"
        ) from None
    if vectors.ndim != 2 or not vectors.shape[1]:
        raise EmbeddingServerError(
            f"{url} returned an array {vectors.shape}, not one vector per text"
        )
    if not np.isfinite(vectors).all():
        raise EmbeddingServerError(
            f"{url} returned numbers that are not finite; they were not used"
        )
    if not np.linalg.norm(vectors, axis=1).all():
        raise EmbeddingServerError(
            f"{url} returned a vector of zeros, which has no direction; it was not used"
        )
    return vectors
