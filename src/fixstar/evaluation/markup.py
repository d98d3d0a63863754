"""HTML by small functions. Plain strings are escaped; only what these functions made is taken as markup."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Sequence

__all__ = ["Html", "element", "join", "picture", "table", "thumbnail"]

EMPTY = {"img", "meta"}  # elements without an end


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


def element(name: str, /, *content: str, **attributes: str) -> Html:
    """One element. Underscores in attribute names are hyphens, and one at the end is dropped: ``class_``.

    >>> element("p", "1 < 2, ", element("b", "really"), class_="note")
    '<p class="note">1 &lt; 2, <b>really</b></p>'
    """
    inside = join(content)
    given = "".join(f' {key.rstrip("_").replace("_", "-")}="{html.escape(v)}"' for key, v in attributes.items())
    return Html(f"<{name}{given}>" if name in EMPTY else f"<{name}{given}>{inside}</{name}>")


def join(parts: Iterable[str], between: str = "") -> Html:
    """Parts one after the other, plain strings escaped."""
    return Html(html.escape(between).join(part if isinstance(part, Html) else html.escape(part) for part in parts))


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], words: int = 1) -> Html:
    """A table whose first ``words`` columns are words, the others numbers; wide ones scroll by themselves."""
    heads = [element("th", cell, scope="col", **_side(i, words)) for i, cell in enumerate(head)]
    lines = []
    for row in rows:
        cells = [element("th", row[0], scope="row")]
        cells += [element("td", cell, **_side(i, words)) for i, cell in enumerate(row[1:], start=1)]
        lines.append(element("tr", *cells))
    body = element(
        "table",
        element("caption", caption),
        element("thead", element("tr", *heads)),
        element("tbody", *lines),
    )
    return element("div", body, class_="wide", role="region", tabindex="0", aria_label=caption)


def picture(png: bytes, text: str, caption: str = "") -> Html:
    """A figure with the picture inside it; ``text`` says in words what it shows."""
    below = [element("figcaption", caption)] if caption else []
    return element("figure", element("img", src=_data(png), alt=text), *below)


def thumbnail(png: bytes, text: str) -> Html:
    """A small picture in a row of others."""
    return element("img", src=_data(png), alt=text, class_="thumbnail")


def _data(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")


def _side(column: int, words: int) -> dict[str, str]:
    return {} if column < words else {"class_": "number"}
