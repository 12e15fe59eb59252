"""Gaps and violations on finite problems: which runs there are, and what is measured of them."""

import json

import pytest

from tailsafe.studies import known_optimum
from tailsafe.tabular.suite import SUITE
from tests.compile_fast import compile_fast
from tests.studies.setup import command

__all__ = ["compile_fast"]
# Of two prices, by the linear program.
OPTIMUM = 0.575


def test_smoke_measures_every_policy_against_the_optimum(tmp_path, capsys):
    folder = tmp_path / "study"
    assert command("known-optimum", "--scale", "smoke", "--out", folder) == 0
    out = capsys.readouterr().out
    assert "| wcsac |" in out
    result = json.loads((folder / "results.json").read_text())
    methods = [(entry["method"], entry["seeds"]) for entry in result["summary"]]
    assert methods == [("srcpo/p3o", 2), ("cppo", 2), ("wcsac", 2)]
    for row in result["rows"]:
        assert row["optimum"] == pytest.approx(OPTIMUM, rel=1e-6)
        assert row["gap"] == pytest.approx((row["optimum"] - row["reward"]) / row["optimum"])
        over = max(risk / limit - 1 for risk, limit in zip(row["risks"], row["limits"], strict=True))
        assert row["violation"] == pytest.approx(max(over, 0))
    assert (folder / "known_optimum.png").stat().st_size > 5000
    assert (folder / "table.md").read_text().startswith("| method | two prices |")


def test_every_method_meets_every_problem_it_can():
    found = known_optimum.groups(known_optimum.SCALES["laptop"])
    assert len(found) == len(SUITE) * len(known_optimum.METHODS) - 3
    assert len({group.name for group in found}) == len(found)
    assert all(group.config.seeds == 5 for group in found)
