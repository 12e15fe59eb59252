"""Names in the documentation lead to code: what a page says implements a formula is there under that name."""

import importlib
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PRACTICAL = "## The practical algorithm"


def section(page, title):
    """The text of a section, up to the next one of its level."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.split(r"^## ", text[text.index(title) + len(title) :], flags=re.MULTILINE)[0]


def dotted(text):
    """Names like `learning.targets.td_lambda`: a package, a module, what is in it."""
    return sorted(set(re.findall(r"`((?:[a-z_]+\.){2}\w+(?:\.\w+)*)`", text)))


NAMES = dotted(section("method.md", PRACTICAL))


def test_the_section_names_every_part():
    assert len(NAMES) >= 25
    assert {name.split(".")[0] for name in NAMES} == {"algorithms", "learning", "optimization"}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_leads_to_code(name):
    package, module, *inside = name.split(".")
    found = importlib.import_module(f"tailsafe.{package}.{module}")
    for part in inside:
        found = getattr(found, part)
