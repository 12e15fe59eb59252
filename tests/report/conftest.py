"""Calling the command."""

from functools import partial

import pytest

from tests.report.folders import Page


@pytest.fixture
def call(call):
    """call(*arguments) -> (exit code, stdout, stderr) of `tailsafe report`."""
    return partial(call, "report")


@pytest.fixture
def page(call, tmp_path):
    """page(*folders) -> the parsed page of a report that succeeds."""

    def make(*folders):
        target = tmp_path / "page.html"
        code, _, err = call(*folders, "--out", target)
        assert (code, err) == (0, "")
        return Page(target.read_text(encoding="utf-8"))

    return make
