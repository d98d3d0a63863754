"""Texts: prompts of models, and which texts are refused.

A text is a ``str``. Search models often need different prefixes for queries and stored texts ("query: ", "passage: ").
``Prompts`` is part of such a model's card, because vectors are meaningless without it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from fixstar.errors import InputError, TextError

MOST_CHARACTERS = 100_000  # per text; models truncate far earlier, and a hit must be readable

Reads = Literal["images", "texts"]
"""The input of a model."""

Role = Literal["item", "query"]
"""The purpose of embedding a text or an image: to store it, or to search with it."""


@dataclass(frozen=True, kw_only=True)
class Prompts:
    """The prefixes that a model needs for stored texts and for queries."""

    item: str = ""
    query: str = ""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not isinstance(value, str):
                raise InputError(f"prompts: {name} must be a text, got {value!r}")

    def to_json(self) -> dict[str, str]:
        """For ``from_json``; ``reads`` distinguishes it from the preprocessing of images."""
        return {"reads": "texts", **asdict(self)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Prompts:
        """The inverse of ``to_json``; unknown and wrong entries raise."""
        given = {name: value for name, value in values.items() if name != "reads"}
        unknown = sorted(given.keys() - {"item", "query"})
        if unknown:
            raise InputError(f"prompts: unknown entry {', '.join(unknown)}. Known: item, query")
        return cls(**given)

    def before(self, text: str, role: Role) -> str:
        """The text with its prefix.

        >>> Prompts(query="query: ").before("red shoes", "query")
        'query: red shoes'
        """
        if role == "query":
            return self.query + text
        return self.item + text


def in_words_of(reads: Reads, sentence: str) -> str:
    """Rephrase a sentence about images for a workspace of texts.

    >>> in_words_of("texts", "4 labelled images, and no image of v1")
    '4 labelled texts, and no text of v1'
    """
    if reads == "images":
        return sentence
    return re.sub(r"\bimage(s?)\b", r"text\1", sentence)


def too_long(characters: int, at_least: bool = False) -> str:
    """Why a text of so many characters is refused, and what to do; ``at_least`` if not all were counted.

    >>> too_long(123_456)
    'it has 123,456 characters, and a text may have 100,000. Cut it into passages, each an item of its own'
    """
    more = "more than " if at_least else ""
    return (
        f"it has {more}{characters:,} characters, and a text may have {MOST_CHARACTERS:,}. Cut it into passages, each "
        "an item of its own"
    )


def checked_text(text: object, index: int = 0, name: str | None = None) -> str:
    """A text that can be embedded; anything else raises ``TextError`` with the name and the reason."""
    shown = f"text {index}" if name is None else name
    if not isinstance(text, str):
        raise TextError(shown, f"it is a {type(text).__name__}, and the model reads texts", index)
    if not text.strip():
        raise TextError(shown, "it is empty", index)
    if len(text) > MOST_CHARACTERS:
        raise TextError(shown, too_long(len(text)), index)
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise TextError(
            shown, "it is not valid Unicode; read its file with the right encoding", index
        )
    return text
