"""Studies of a few groups, and the command that runs them."""

from dataclasses import replace

import pytest

from tailsafe.cli import main
from tailsafe.studies.registry import STUDIES


def command(*words):
    """`tailsafe study ...`: its exit code."""
    with pytest.raises(SystemExit) as stop:
        main(["study", *map(str, words)])
    return stop.value.code


def with_groups(monkeypatch, name, groups, **changes):
    """The study `name` with these groups, whatever the scale."""
    study = replace(STUDIES[name], groups=lambda scale: groups, **changes)
    monkeypatch.setitem(STUDIES, name, study)
    return study
