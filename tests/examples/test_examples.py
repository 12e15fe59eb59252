"""Every program of `examples/` runs as it is, shortened; of the notebook, every cell."""

from __future__ import annotations

import ast
import json
import re
import runpy
import shutil
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from tailsafe.cli import app
from tests.training.shortly import shorten

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAMS = sorted(path.name for path in EXAMPLES.glob("*.py"))
NOTEBOOKS = sorted(path.name for path in EXAMPLES.glob("*.ipynb"))
# Of an extra that only `make test-slow` installs.
NEEDS = {"gymnax_environment.py": "gymnax"}


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A copy of the examples, which may import each other; the folder of the reader is another one."""
    folder = shutil.copytree(EXAMPLES, tmp_path / "examples")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "own_environment", raising=False)
    shorten(monkeypatch)
    return folder


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in NEEDS else []) for name in PROGRAMS]
)
def test_it_runs(name, workplace, capsys):
    pytest.importorskip(NEEDS.get(name, "tailsafe"))
    runpy.run_path(str(workplace / name), run_name="__main__")
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_every_cell_runs(name, workplace):
    notebook = json.loads((workplace / name).read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    scope = {"__name__": "__main__"}
    shown = []
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        assert not cell["outputs"], "committed without outputs"
        shown.append(run_cell("".join(cell["source"]), scope))
    # A table of the verdict and a picture, as a notebook would show them.
    assert any("<table>" in html for html in shown)
    assert sum("<img" in html for html in shown) == 2


def run_cell(source, scope):
    """What a notebook shows of its last line: as HTML where it has one."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), scope)
    if last is None:
        return ""
    value = eval(compile(ast.Expression(last.value), "cell", "eval"), scope)
    bundle = getattr(value, "_repr_mimebundle_", dict)()
    return "<img>" if "image/png" in bundle else getattr(value, "_repr_html_", lambda: repr(value))()


def test_each_says_what_it_is_and_how_to_run_it():
    """Also by the command line, whose commands and options are those of the program."""
    commands = get_command(app).commands
    for name in PROGRAMS:
        text = ast.get_docstring(ast.parse((EXAMPLES / name).read_text(encoding="utf-8")))
        assert text is not None
        assert f"python examples/{name}" in text
        for command, rest in re.findall(r"^tailsafe (\S+)(.*)", text, re.MULTILINE):
            known = {option for parameter in commands[command].params for option in parameter.opts}
            assert {word for word in rest.split() if word.startswith("--")} <= known
