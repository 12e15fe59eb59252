"""Settings as fields: what a declaration allows, and that a subclass changes a default alone."""

from dataclasses import dataclass
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailsafe.errors import InputError
from tailsafe.fields import Interval, scalar, setting, settings_of


@dataclass(frozen=True)
class Base:
    untold: int = 3
    count: int = setting(2, "How many.", part="sizes")
    share: float | None = setting(None, "Which part.", part="run", within="[0, 1)")
    rule: Literal["one", "two"] = setting("one", "Which rule.", part="policy")
    rate: object = scalar(0.5, "How fast.", part="critics", within="(0, inf]", main=True)


@dataclass(frozen=True)
class Derived(Base):
    count: int = 7


def test_a_subclass_keeps_meaning_and_range():
    base, derived = settings_of(Base), settings_of(Derived)
    assert list(base) == ["count", "share", "rule", "rate"]
    assert (base["count"].default, derived["count"].default) == (2, 7)
    assert derived["count"].declaration == base["count"].declaration
    assert Derived().count == 7


def test_a_scalar_is_an_array_by_default():
    assert Base().rate.shape == ()
    assert float(Base().rate) == settings_of(Base)["rate"].default == 0.5


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("count", "1_000", 1000),
        ("share", "none", None),
        ("share", "0", 0.0),
        ("rule", "two", "two"),
        ("rate", "inf", float("inf")),
    ],
)
def test_parsing(key, text, value):
    assert settings_of(Base)[key].parse(text) == value


@pytest.mark.parametrize(
    ("key", "text", "reason"),
    [
        ("count", "0", "count is 0; it must be in [1, inf)"),
        ("share", "1", "share is 1; it must be in [0, 1)"),
        ("share", "nan", "share is nan; it must be in [0, 1)"),
        ("count", "9" * 20, f"count is {'9' * 20}; no whole number may be above 9,007,199,254,740,992"),
        ("rate", "0", "rate is 0; it must be in (0, inf]"),
        ("rule", "three", "rule is 'three'; it must be one of one, two"),
    ],
)
def test_what_is_refused(key, text, reason):
    with pytest.raises(InputError) as error:
        settings_of(Base)[key].parse(text)
    assert str(error.value) == reason


def test_what_is_allowed_in_words():
    words = {key: each.allowed for key, each in settings_of(Base).items()}
    assert words == {
        "count": "whole number in [1, inf)",
        "share": "number in [0, 1), or none",
        "rule": "one | two",
        "rate": "number in (0, inf]",
    }


@given(st.floats(-5, 5), st.floats(0, 5), st.booleans(), st.booleans(), st.floats(-10, 10))
def test_intervals(low, width, low_open, high_open, value):
    interval = Interval(low, low + width, low_open, high_open)
    inside = (low < value or (low == value and not low_open)) and (
        value < low + width or (value == low + width and not high_open)
    )
    assert (value in interval) == inside
    assert (low in interval) == (not low_open and (low + width > low or not high_open))
    assert Interval.parse("[0, 1)") == Interval(0.0, 1.0, False, True)
    assert str(Interval.parse("(0, inf]")) == "(0, inf]"
