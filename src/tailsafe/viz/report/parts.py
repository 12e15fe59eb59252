"""What several parts of a page are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tailsafe.viz.report.markup import Html, el

_MARKS = {"met": "✓", "met (bootstrap, no guarantee)": "≈", "violated": "✕", "cannot tell": "?"}


def badge(verdict: str, words: str | None = None) -> Html:
    """A verdict that does not depend on its colour."""
    mark = el("span", _MARKS[verdict], aria_hidden="true")
    kind = "cannot" if "no guarantee" in verdict else verdict.split()[0]
    return el("span", mark, f" {words or verdict}", class_=f"badge {kind}")


def table_of(header: Sequence[str], rows: Sequence[Sequence[Html | str]], caption: str) -> Html:
    """A table in a box of its own, which scrolls by itself where it is too wide."""
    head = el("tr", *(el("th", name, scope="col") for name in header))
    body = [el("tr", el("th", row[0], scope="row"), *(el("td", cell) for cell in row[1:])) for row in rows]
    inner = el("table", el("caption", caption), el("thead", head), el("tbody", *body))
    return el("div", inner, class_="scroll", tabindex=0, role="region", aria_label=caption)


def folded(title: Html | str, *parts: Html | None, open_: bool = False, **attributes: Any) -> Html:
    """Something to be unfolded."""
    return el("details", el("summary", title), *parts, open=open_, **attributes)


def seeded(rows: Sequence[Any]) -> str:
    """What the rows of a table are."""
    return "seed" if len(rows) > 1 else "run"
