"""Who imports whom: packages form layers, and the mathematics knows nothing of what is built on it.

Imports inside of functions count like all others; `docs/architecture.md` shows the layers that this test holds.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "tailsafe"
# What any package may use: errors, files, arrays, declarations of settings, the version.
SHARED = {path.stem for path in SOURCE.glob("*.py")} - {"__init__"}
LEARNERS = {"learning", "algorithms"}
# Whom a package must not reach, not even through others.
FORBIDDEN = {
    "risk": {path.name for path in SOURCE.iterdir()} - {"risk"},
    "optimization": {path.name for path in SOURCE.iterdir()} - {"optimization", "risk"},
    "tabular": LEARNERS | {"envs", "training", "policies", "evaluation", "tasks", "physics"},
    "tasks": LEARNERS | {"envs", "training", "policies", "evaluation", "tabular"},
    "physics": LEARNERS | {"tasks", "envs", "tabular"},
    "learning": {"algorithms", "tasks", "physics", "envs", "tabular", "training", "policies", "evaluation"},
    "algorithms": {"tasks", "physics", "envs", "tabular", "training", "policies", "evaluation"},
}


def modules_named(node: ast.AST) -> list[str]:
    """Modules that a statement imports, or a call of `import_module` names."""
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute here"
        return [f"{node.module}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        called = getattr(node.func, "id", getattr(node.func, "attr", ""))
        return [str(node.args[0].value)] if called == "import_module" else []
    return []


def imports(source: Path = SOURCE) -> dict[str, dict[str, list[str]]]:
    """package -> package it imports -> where it does."""
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for file in sorted(source.rglob("*.py")):
        own = file.relative_to(source).parts
        if len(own) == 1:
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            for name in modules_named(node):
                parts = name.split(".")
                if parts[0] == "tailsafe" and len(parts) > 1 and parts[1] not in {own[0], *SHARED}:
                    found[own[0]][parts[1]].append(f"{file.relative_to(source)}:{node.lineno}")
    return found


def reached(package: str, graph: dict[str, dict[str, list[str]]]) -> set[str]:
    """All packages that importing one may import."""
    seen, waiting = set(), [package]
    while waiting:
        for other in graph.get(waiting.pop(), {}):
            if other not in seen:
                seen.add(other)
                waiting.append(other)
    return seen


def test_packages_form_layers():
    graph = imports()
    order = list(TopologicalSorter({name: set(used) for name, used in graph.items()}).static_order())
    assert set(order) >= {"risk", "learning", "algorithms", "training", "studies", "viz", "cli"}


def test_shared_modules_import_no_package():
    for name in SHARED:
        for node in ast.walk(ast.parse((SOURCE / f"{name}.py").read_text(encoding="utf-8"))):
            for module in modules_named(node):
                assert not module.startswith("tailsafe.") or module.split(".")[1] in SHARED, (name, module)


@pytest.mark.parametrize("package", FORBIDDEN)
def test_what_a_package_must_not_know(package):
    graph = imports()
    bad = reached(package, graph) & FORBIDDEN[package]
    assert not bad, f"{package} reaches {sorted(bad)}: { ({name: dict(graph[name]) for name in {package, *bad}}) }"


def test_nothing_imports_the_command_line():
    users = [places for used in imports().values() for other, places in used.items() if other == "cli"]
    assert not users


def test_the_page_says_who_may_import_whom():
    """docs/architecture.md has a row for every package, with those that it may import; these are layers too."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\| ([^|]*) \|$", text, flags=re.MULTILINE)
    allowed = {name: set(re.findall(r"\w+", used)) - {"nothing"} for name, used in rows}
    TopologicalSorter(allowed).prepare()
    assert set(allowed) == {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    for name, used in imports().items():
        more = {other: places for other, places in used.items() if other not in allowed[name]}
        assert not more, f"{name} may import {sorted(allowed[name])}"


def test_a_forbidden_import_is_found(tmp_path):
    """Of what this file is made of."""
    for package, line in (
        ("risk", "def f():\n    from tailsafe.learning import sampler\n"),
        ("learning", "import tailsafe.risk.step\n"),
    ):
        (tmp_path / package).mkdir()
        (tmp_path / package / "module.py").write_text(line)
    graph = imports(tmp_path)
    assert {name: dict(used) for name, used in graph.items()} == {
        "risk": {"learning": ["risk/module.py:2"]},
        "learning": {"risk": ["learning/module.py:1"]},
    }
    assert reached("risk", graph) == {"learning", "risk"}
