"""What a public name says about itself: arguments, what it returns, and an example that runs as printed."""

from __future__ import annotations

import doctest
import inspect
import re
import shutil
from pathlib import Path

import pytest

import tailsafe as ts
from tests.training.shortly import shorten

ROOT = Path(__file__).parents[2]
NAMES = [name for name in ts.__all__ if callable(getattr(ts, name))]
FUNCTIONS = [name for name in NAMES if inspect.isfunction(getattr(ts, name))]
# Errors and what functions return; bases whose example is a class of the user's; and a program of the examples.
ELSEWHERE = {"InputError", "TabularSolution", "CostFromStep", "JaxEnv", "tune"}
# First the training whose folder others name.
RUN = ["train", "resume", "diagnose", "plot"]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A reader's folder, in which what is trained and played ends soon."""
    folder = tmp_path_factory.mktemp("reader")
    shutil.copytree(ROOT / "examples", folder / "examples")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        shorten(patch, algorithm="srcpo")
        yield folder


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_says_what_it_takes_and_returns(name):
    function = getattr(ts, name)
    text = inspect.getdoc(function)
    described = re.search(r"^Args:\n(.*?)(?=^\S|\Z)", text, re.MULTILINE | re.DOTALL).group(1)
    keys = {key for keys in re.findall(r"^  ([\w, ]+):", described, re.MULTILINE) for key in keys.split(", ")}
    assert keys == set(inspect.signature(function).parameters)
    assert re.search(r"^Returns:\n", text, re.MULTILINE)


@pytest.mark.parametrize("name", [*RUN, *sorted(set(NAMES) - set(RUN) - ELSEWHERE)])
def test_the_example_runs(name, workplace):
    found = doctest.DocTestFinder(recurse=False).find(getattr(ts, name), name, module=False, globs={"ts": ts})
    assert sum(len(test.examples) for test in found) > 0
    told = []
    failed = sum(doctest.DocTestRunner().run(test, out=told.append).failed for test in found)
    assert not failed, "".join(told)
