"""How the pages are written: lines of at most 120 characters, and the words that readers of the field use."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
WIDTH = 120
# Not these but: baseline, video, distribution, resume, stop request, "is not a number".
AVOIDED = re.compile(
    r"\b(rivals?|films?|laws?|wish(es)? to stop|go(es)? on (with|from)|gone on|is no number|is no run|reckons?)\b",
    re.IGNORECASE,
)
# What programs print, and names of files and options, are quoted as they are.
QUOTED = re.compile(r"^ *```.*?^ *```|`[^`]*`|\]\([^)]*\)", re.MULTILINE | re.DOTALL)


def name(page):
    return page.name


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_lines_are_short(page):
    """All but rows of tables, which Markdown cannot break, addresses, and what programs print."""
    inside, printed, long = False, False, []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        words = line.split()
        if line.lstrip().startswith("```"):
            inside = not inside
            printed = inside and words[0] in ("```", "```text")
        unbreakable = line.startswith(("|", "![")) or len(words) == 1
        if len(line) > WIDTH and not printed and not unbreakable:
            long.append(number)
    assert not long


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=name)
def test_words(page):
    text = QUOTED.sub("", page.read_text(encoding="utf-8"))
    assert not [found[0] for found in AVOIDED.finditer(text)]
