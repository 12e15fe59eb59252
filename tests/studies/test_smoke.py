"""Every study as a command at scale `smoke`: what it writes agrees with itself and with what can be computed."""

import csv
import json

import numpy as np
import pytest

from tailsafe.risk import parse_spectrum
from tests.compile_fast import compile_fast
from tests.studies.setup import command

__all__ = ["compile_fast"]


def results(name, folder, code=0):
    assert command(name, "--scale", "smoke", "--out", folder) == code
    found = json.loads((folder / "results.json").read_text())
    assert (found["study"], found["scale"], found["failed"], found["left"]) == (name, "smoke", [], 0)
    for picture in found["pictures"]:
        assert (folder / picture).stat().st_size > 5000
    return found


def test_discretization(tmp_path):
    found = results("discretization", tmp_path / "study")
    assert found["pictures"] == ["spectra.png", "errors.png"]
    assert len(found["summary"]) == 6
    for entry in found["summary"]:
        measure = parse_spectrum(entry["measure"])
        # The error, by the trapezoidal rule on the differences; the optimum is no worse than the printed row.
        u = (np.arange(200_000) + 0.5) / 200_000
        steps = np.asarray(entry["eta"])[np.searchsorted(entry["alpha"], u, side="right")]
        assert np.abs(measure.sigma(u) - steps).mean() == pytest.approx(entry["l1_error"], rel=5e-3)
        assert entry["l1_error"] <= entry["paper_l1_error"] + 1e-9
        assert entry["errors"]["5"] == pytest.approx(entry["l1_error"])
        assert entry["errors"]["2"] > entry["errors"]["5"]
        assert np.allclose(entry["alpha"], entry["paper_alpha"], atol=0.006)
    assert (tmp_path / "study" / "table.md").read_text().count("\n") == 2 + 12


def test_risk_measures(tmp_path):
    found = results("risk-measures", tmp_path / "study")
    assert found["pictures"] == ["scatter.png", "measures.png", "cvar_levels.png", "curves.png"]
    names = [("cvar", "0.25"), ("cvar", "0.5"), ("pow", "0.5"), ("wang", "0.5")]
    assert [(entry["measure"], entry["level"]) for entry in found["summary"]] == names
    for entry in found["summary"]:
        rows = [row for row in found["rows"] if (row["measure"], row["level"]) == (entry["measure"], entry["level"])]
        assert [row["seed"] for row in rows] == [0]
        assert entry["reward"]["mean"] == pytest.approx(np.mean([row["reward"] for row in rows]))
        rates = np.concatenate([row["rates"] for row in rows])
        assert entry["cost_rate"]["mean"] == pytest.approx(rates.mean(), abs=1e-6)
        assert entry["percentiles"]["50"] == pytest.approx(np.median(rates))
    # Runs of one program are ordinary runs, each with its own measure and its own evaluation.
    config = json.loads((tmp_path / "study" / "wang_0.5" / "config.json").read_text())
    assert config["constraints"][0]["risk_measure"] == "wang:0.5"
    evaluation = json.loads((tmp_path / "study" / "wang_0.5" / "evaluation.json").read_text())
    assert evaluation["constraints"][0]["risk"] == found["rows"][-1]["risk"]


def test_benchmark_and_training_time(tmp_path):
    found = results("benchmark", tmp_path / "benchmark")
    assert [(entry["task"], entry["algorithm"]) for entry in found["summary"]] == [
        ("point-goal", "cppo"),
        ("quadruped", "cppo"),
    ]
    assert [len(entry["risks"]) for entry in found["summary"]] == [1, 3]
    assert [group["state"] for group in found["groups"]] == ["final", "final"]
    for entry, row in zip(found["summary"], found["rows"], strict=True):
        assert [risk["mean"] for risk in entry["risks"]] == pytest.approx(row["risks"], abs=2e-6)
        assert [len(costs) for costs in row["costs"]] == [2] * len(row["risks"])
    (algorithm,) = found["statistics"]["algorithms"]
    kept = np.mean([row["excess"] <= 0 for row in found["rows"]])
    assert (algorithm["runs"], algorithm["kept"]["mean"]) == (2, kept)
    for row in found["rows"]:
        over = max(risk / limit - 1 for risk, limit in zip(row["risks"], row["limits"], strict=True))
        assert row["excess"] == pytest.approx(over)
    assert found["pictures"] == ["curves.png", "profiles.png"]
    exported = tmp_path / "csv"
    assert command("benchmark", "--scale", "smoke", "--out", tmp_path / "benchmark", "--export", exported) == 0
    files = {"runs", "constraints", "curves", "episodes", "summary", "groups", "statistics"}
    assert {path.stem for path in exported.iterdir()} == files
    with (exported / "episodes.csv").open(newline="") as handle:
        lines = list(csv.DictReader(handle))
    # Two episodes of one cost, and two of three.
    assert len(lines) == 2 + 6
    with (exported / "constraints.csv").open(newline="") as handle:
        risks = [float(line["risk"]) for line in csv.DictReader(handle)]
    assert risks == [risk for row in found["rows"] for risk in row["risks"]]

    found = results("training-time", tmp_path / "times")
    assert found["pictures"] == ["times.png"]
    for entry in found["summary"]:
        assert entry["hours"] == pytest.approx(5e6 / entry["steps_per_second"] / 3600)
        assert entry["paper_hours"] > 4
