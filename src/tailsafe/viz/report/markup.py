"""HTML that is safe by construction: whatever is not markup already is escaped on its way in."""

from __future__ import annotations

import html
import json
import re
from typing import Any

# Halves of surrogate pairs (names of files that are not UTF-8) cannot be written, other control characters not be read.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
_VOID = frozenset({"meta", "img", "br", "input"})


class Html(str):
    """Markup, to be put into a page as it is."""

    __slots__ = ()


Part = Html | str | None


def text(value: str) -> Html:
    """Words of any origin as markup that shows them."""
    if isinstance(value, Html):
        return value
    return Html(html.escape(_UNPRINTABLE.sub("\ufffd", value)))


def join(*parts: Part) -> Html:
    """One after the other; None is nothing."""
    return Html("".join(text(part) for part in parts if part is not None))


def el(name: str, /, *parts: Part, **attributes: str | int | float | bool | None) -> Html:
    """An element. Underscores in names of attributes stand for hyphens, a last one for nothing: `class_`, `aria_label`.

    True is an attribute without a value; False and None leave it out.
    """
    given = [
        (key.rstrip("_").replace("_", "-"), value)
        for key, value in attributes.items()
        if value is not None and value is not False
    ]
    opened = "".join(f" {key}" if value is True else f' {key}="{text(str(value))}"' for key, value in given)
    if name in _VOID:
        return Html(f"<{name}{opened}>")
    return Html(f"<{name}{opened}>{join(*parts)}</{name}>")


def data(value: Any) -> Html:
    """JSON for the inside of a script element: no `<` that could end it."""
    return Html(json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"))
