"""Calling the command."""

import pytest

from tailsafe.cli import main
from tests.report.folders import Page


@pytest.fixture
def call(capsys):
    """call(*arguments) -> (exit code, stdout, stderr) of `tailsafe report`."""

    def run(*arguments):
        with pytest.raises(SystemExit) as stop:
            main(["report", *map(str, arguments)])
        out, err = capsys.readouterr()
        return stop.value.code, out, err

    return run


@pytest.fixture
def page(call, tmp_path):
    """page(*folders) -> the parsed page of a report that succeeds."""

    def make(*folders):
        target = tmp_path / "page.html"
        code, _, err = call(*folders, "--out", target)
        assert (code, err) == (0, "")
        return Page(target.read_text(encoding="utf-8"))

    return make
