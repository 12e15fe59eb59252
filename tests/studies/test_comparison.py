"""Algorithms over tasks, and tables for other tools, from rows made by hand."""

import csv

import pytest

from tailsafe.errors import InputError
from tailsafe.studies.comparison import compare, comparison_tables
from tailsafe.studies.export import export, read_results
from tailsafe.studies.tables import figures


def group(task, algorithm, state="final", failed=0):
    return {
        "task": task,
        "algorithm": algorithm,
        "state": state,
        "seeds": 2,
        "measured": 2,
        "failed": failed,
        "steps": 50,
        "total_steps": 100,
        "note": "not trained yet" if state == "left" else "",
    }


def rows(task, algorithm, *runs):
    return [
        {"task": task, "algorithm": algorithm, "seed": i, "reward": reward, "excess": excess}
        for i, (reward, excess) in enumerate(runs)
    ]


GROUPS = [group("a", "x"), group("a", "y", failed=1), group("b", "x"), group("b", "y"), group("c", "x")]
ROWS = [
    *rows("a", "x", (10.0, -0.1), (6.0, 0.2)),
    *rows("a", "y", (0.0, -0.5)),
    *rows("b", "x", (-10.0, 0.0), (-20.0, -0.2)),
    *rows("b", "y", (-30.0, -0.3), (-10.0, 0.4)),
    *rows("c", "x", (5.0, -0.1), (6.0, -0.1)),
]


def test_scores_count_where_limits_are_kept_on_tasks_that_all_have_finished():
    found = compare(ROWS, [*GROUPS, group("c", "y", "left")])
    assert (found["tasks"], found["tasks_left"]) == (["a", "b"], ["c"])
    assert found["ranges"] == {"a": {"low": 0.0, "high": 10.0}, "b": {"low": -30.0, "high": -10.0}}
    x, y = found["algorithms"]
    # x: 1 and (over the limit) 0 on a, 1 and 0.5 on b. y: 0 and a failed run on a, 0 and (over the limit) 0 on b.
    assert (x["runs"], x["score"]["mean"], x["kept"]["mean"]) == (4, pytest.approx(0.75), 0.75)
    assert (y["runs"], y["score"]["mean"], y["kept"]["mean"]) == (4, 0.0, 0.5)
    assert x["profile"][0]["mean"] == 0.75
    against = {(pair["first"], pair["second"]): pair["mean"] for pair in found["improvement"]}
    # On a: 1 beats both, 0 ties with both. On b both of x are better.
    assert against == {("x", "y"): pytest.approx((0.75 + 1) / 2), ("y", "x"): pytest.approx(0.125)}
    text = comparison_tables(found, "x")
    assert "Final figures over a, b; not finished by all: c" in text
    assert "| y | 4 | 0 [0, 0] | 0.5 [" in text


def test_interim_figures_are_not_compared():
    assert compare([], [group("a", "x", "interim"), group("a", "y", "left")]) == {}
    assert comparison_tables({}, "x") == ""
    only = compare(rows("a", "x", (1.0, -0.1)), [group("a", "x"), group("a", "y", "interim")])
    assert [entry["algorithm"] for entry in only["algorithms"]] == ["x"]


def test_figures_say_what_they_are():
    assert figures(group("a", "x")) == "final"
    assert figures(group("a", "x", failed=1)) == "final, 1 of 2 runs failed"
    assert figures(group("a", "x", "interim")) == "interim at 50 of 100 steps"
    assert figures(group("a", "x", "left")) == "none: not trained yet"


def lines(path):
    with path.open(newline="") as handle:
        return list(csv.DictReader(handle))


def test_tables_for_other_tools(tmp_path):
    row = {"task": "a", "algorithm": "x", "seed": 0, "reward": 1.5, "risks": [0.1, 0.2], "limits": [0.3, 0.3]}
    row |= {"cost_rates": [0.0, 0.5], "costs": [[0.0, 0.2], [0.2, 0.2]], "interim": True}
    bounded = {"mean": 1.5, "low": 1.0, "high": 2.0}
    entry = {"task": "a", "algorithm": "x", "seeds": 1, "reward": bounded, "risks": [bounded, bounded]}
    results = {
        "rows": [row],
        "summary": [entry | {"percentiles": {"50": 0.5}}],
        "groups": GROUPS,
        "failed": [],
        "statistics": compare(ROWS, GROUPS[:4]),
    }
    names = export(results, [], tmp_path / "csv")
    assert names == ["runs.csv", "constraints.csv", "summary.csv", "groups.csv", "statistics.csv"]
    assert sorted(path.name for path in (tmp_path / "csv").iterdir()) == sorted(names)
    (run,) = lines(tmp_path / "csv" / "runs.csv")
    assert run == {"task": "a", "algorithm": "x", "seed": "0", "reward": "1.5", "figures": "interim"}
    first, second = lines(tmp_path / "csv" / "constraints.csv")
    assert (first["number"], first["risk"], second["cost_rate"], second["limit"]) == ("0", "0.1", "0.5", "0.3")
    summary = lines(tmp_path / "csv" / "summary.csv")
    assert [(line["quantity"], line["number"]) for line in summary] == [
        ("seeds", ""),
        ("reward", ""),
        ("risks", "0"),
        ("risks", "1"),
        ("percentiles 50", ""),
    ]
    assert (summary[1]["value"], summary[1]["low"], summary[1]["high"]) == ("1.5", "1.0", "2.0")
    statistics = lines(tmp_path / "csv" / "statistics.csv")
    # Of two algorithms: score, share, twenty thresholds; two comparisons.
    assert len(statistics) == 2 * 22 + 2
    # A folder that holds something is left alone.
    with pytest.raises(InputError, match="csv"):
        export(results, [], tmp_path / "csv")


def test_results_that_are_none(tmp_path):
    for text, words in (("{", "is not JSON"), ("[]", "must hold an object"), ("{}", "not the result of a study")):
        (tmp_path / "results.json").write_text(text)
        with pytest.raises(InputError, match=words):
            read_results(tmp_path)
