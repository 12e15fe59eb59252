"""The Python code of the README and of the guide runs as printed; only trainings and evaluations are shortened."""

from __future__ import annotations

import dataclasses
import re
import runpy
import shutil
import sys
import textwrap
from pathlib import Path

import pytest

from tailsafe.training.plan import make_plan
from tests.training.shortly import shorten

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", "docs/risk.md", "docs/finite.md", "docs/own_environment.md", "docs/choosing.md", "docs/tasks.md"]


def python_blocks(path: str) -> list[str]:
    """The Python code in a Markdown file; blocks in lists are indented."""
    text = (ROOT / path).read_text(encoding="utf-8")
    found = re.findall(r"^([ ]*)```python\n(.*?)^\1```$", text, re.MULTILINE | re.DOTALL)
    # The one with onnxruntime needs an exported policy: tests/policies/test_export.py runs it.
    return [textwrap.dedent(code) for _, code in found if "onnxruntime" not in code]


def by_the_guides_environment(config):
    """In place of a larger task by its name: what is checked before a training begins, then the road of the guide."""
    if not isinstance(config.task, str):
        return config
    make_plan(config)
    constraint = dataclasses.replace(config.constraints[0], name="slip")
    return dataclasses.replace(config, task="icy:IcyRoad", constraints=[constraint])


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A folder like that of a reader: the examples, the environment of the guide as icy.py, runs that end soon."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    (tmp_path / "icy.py").write_text(python_blocks("docs/own_environment.md")[0], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "icy", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    shorten(monkeypatch, by_the_guides_environment)
    return tmp_path


@pytest.mark.parametrize("page", PAGES)
def test_printed_code_runs(page, workplace):
    blocks = python_blocks(page)
    assert blocks
    for number, block in enumerate(blocks):
        script = workplace / f"block{number}.py"
        script.write_text(block, encoding="utf-8")
        runpy.run_path(str(script), run_name="__main__")


def test_the_environment_of_the_guide_is_fit_and_has_ten_lines(workplace, capsys):
    from tailsafe.cli import main

    with pytest.raises(SystemExit) as stop:
        main(["check-env", "icy:IcyRoad"])
    assert stop.value.code == 0
    # What the guide shows is what is printed.
    assert capsys.readouterr().out in (ROOT / "docs/own_environment.md").read_text(encoding="utf-8")
    body = (workplace / "icy.py").read_text(encoding="utf-8").partition("class IcyRoad(gym.Env):\n")[2]
    assert len([line for line in body.splitlines() if line.strip()]) == 10
