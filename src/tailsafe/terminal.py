"""Names that strangers chose, on a terminal: nothing in them moves the cursor, colours a word or breaks a table."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text with its control characters, escape sequences among them, made visible; lines stay lines."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)


def escaped(text: str) -> str:
    """The text as part of a line with markup: brackets are brackets."""
    from rich.markup import escape

    return escape(printable(text))
