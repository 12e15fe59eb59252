"""The command line: what it prints, its JSON, its exit codes, and one clear line for every mistake."""

import json
from pathlib import Path

import numpy as np
import pytest

import tailsafe as ts
from tailsafe.cli import app

ROOT = Path(__file__).parents[2]
TWO_ROADS = str(ROOT / "examples" / "two_roads.json")
COMMANDS = [
    "spectrum",
    "risk",
    "tabular",
    "bench",
    "tasks",
    "check-env",
    "diagnose",
    "train",
    "resume",
    "tune",
    "evaluate",
    "certify",
    "front",
    "export",
    "plot",
    "render",
    "report",
    "study",
    "settings",
]


@pytest.fixture
def samples(tmp_path):
    path = tmp_path / "costs.npy"
    np.save(path, np.random.default_rng(0).exponential(size=300))
    return path


def last_json(out):
    return json.loads(out.strip().splitlines()[-1])


def test_version(call):
    assert call("--version") == (0, f"tailsafe {ts.__version__}\n", "")


def test_every_command_has_help(call):
    names = [c.name or c.callback.__name__.replace("_", "-") for c in app.registered_commands]
    assert sorted(names) == sorted(COMMANDS)
    for command in [[], *([c] for c in COMMANDS)]:
        code, out, err = call(*command, "--help")
        assert code == 0
        assert "Usage" in out
        assert err == ""


def test_spectrum(call, tmp_path):
    picture = tmp_path / "wang.png"
    code, out, _ = call("spectrum", "wang:0.5", "--cells", 4, "--plot", picture, "--json")
    steps = ts.Wang(0.5).discretize(4)
    assert code == 0
    assert last_json(out) == {
        "spec": "wang:0.5",
        "eta": steps.eta.tolist(),
        "alpha": steps.alpha.tolist(),
        "l1_error": steps.l1_error,
    }
    assert picture.read_bytes().startswith(b"\x89PNG")
    code, out, _ = call("spectrum", "cvar:0.75")
    assert code == 0
    assert "4.00000" in out
    code, out, _ = call("spectrum", "pow:0.9", "--paper-table", "--json")
    assert last_json(out)["alpha"] == [0.701, 0.821, 0.898, 0.955]


def test_risk(call, samples):
    code, out, _ = call("risk", "cvar:0.75", samples, "--upper", 20, "--json")
    values = np.load(samples)
    low, high = ts.CVaR(0.75).risk_interval(values, 0.95, 20.0)
    assert code == 0
    assert last_json(out) == {
        "measure": "cvar:0.75",
        "risk": float(ts.CVaR(0.75).risk(values)),
        "lower": float(low),
        "upper": float(high),
        "n": 300,
        "confidence": 0.95,
        "bound": 20.0,
    }
    code, out, _ = call("risk", "wang:1.0", samples)
    assert code == 0
    assert "--upper" in out  # says what is missing for an upper bound
    assert last_json(call("risk", "mean", samples, "--json")[1])["upper"] is None


@pytest.mark.parametrize(
    "text", ["1\n2\n3\n4\n", "cost\n1\n2\n3\n4\n", "\ufeffcost\r\n1\r\n2\r\n3\r\n4\r\n", "1\n2\n\n3\n4"]
)
def test_risk_reads_csv(call, tmp_path, text):
    path = tmp_path / "costs.csv"
    path.write_bytes(text.encode())
    assert last_json(call("risk", "cvar:0.5", path, "--json")[1])["risk"] == 3.5


def test_risk_reads_a_named_column_and_negative_numbers(call, tmp_path):
    path = tmp_path / "costs.csv"
    path.write_text("reward,cost\n5,-1\n6,2\n")
    assert last_json(call("risk", "mean", path, "--column", "cost", "--json")[1]) == {
        "measure": "mean",
        "risk": 0.5,
        "lower": None,
        "upper": None,
        "n": 2,
        "confidence": 0.95,
        "bound": None,
    }


def test_tabular(call, tmp_path):
    picture = tmp_path / "run.png"
    arguments = ["tabular", TWO_ROADS, "--risk", "cvar:0.75", "--limit", 2]
    code, out, err = call(*arguments, "--plot", picture, "--json")
    result = last_json(out)
    assert code == 0
    assert err == ""
    assert result["feasible"] is True
    assert result["certificate"] == "exact"
    assert result["optimum"] == pytest.approx(3.154757, abs=1e-6)
    assert result["gap"] == pytest.approx(result["optimum"] - result["reward"])
    assert 0 <= result["gap"] <= 5e-4 * result["optimum"]
    assert result["risks"][0] <= 2 + 1e-9
    assert len(result["beta"]) == 1
    assert result["iterations"] > 0
    assert result["seconds"] > 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    code, out, _ = call(*arguments)
    assert code == 0
    assert "optimum 3.15476" in out
    assert "kept" in out


def test_tabular_with_two_costs_draws_too(call, tmp_path):
    problem = json.loads(Path(TWO_ROADS).read_text())
    problem["costs"].append([[0.0, 1.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    problem["horizon"] = 3
    path, picture = tmp_path / "p.json", tmp_path / "p.svg"
    path.write_text(json.dumps(problem))
    code, out, _ = call(
        *("tabular", path, "--risk", "pow:0.5", "--risk", "mean", "--limit", 1.5, "--limit", 0.5, "--plot", picture)
    )
    assert code == 0
    assert "pow:0.5 in 3 steps" in out  # Pow is only approximated, and the output says so
    assert "pow:0.5 itself" in out
    assert picture.read_text().startswith("<?xml")


def test_tabular_writes_the_policy_and_compares(call, tmp_path):
    path = tmp_path / "policy.json"
    code, out, _ = call(
        *("tabular", TWO_ROADS, "--risk", "cvar:0.75", "--limit", 2, "--policy", path, "--compare", "--json")
    )
    assert code == 0
    assert [r["feasible"] for r in last_json(out)["rivals"]] == [False, False]
    steps = json.loads(path.read_text())["steps"]
    assert len(steps) == 6
    assert steps[0]["state"] == [0, 1]
    assert np.allclose(np.sum(steps[3]["probabilities"], axis=1), 1.0)


def test_a_comparison_that_is_too_large_is_skipped_and_the_result_kept(call):
    code, out, _ = call("tabular", TWO_ROADS, "--risk", "wang:0.5", "--limit", 2.2, "--compare", "--max-betas", 20)
    assert code == 0
    assert "comparison skipped" in out
    assert "best on this grid" in out
    assert "no policy at all exceeds" in out


def test_no_arguments_print_the_help(call):
    code, out, err = call()
    assert (code, err) == (0, "")
    assert "Usage" in out


def test_infeasible_problem_has_exit_code_1_and_names_the_smallest_risk(call):
    code, out, err = call("tabular", TWO_ROADS, "--risk", "cvar:0.75", "--limit", 1.5, "--json")
    result = last_json(out)
    assert (code, err) == (1, "")
    assert result["feasible"] is False
    assert result["smallest_risks"] == pytest.approx([1.833645], abs=1e-6)
    code, out, _ = call("tabular", TWO_ROADS, "--risk", "cvar:0.75", "--limit", 1.5, "--plot", "never.png")
    assert code == 1
    assert "no picture written" in out
    assert "infeasible" in out
    assert "1.83364" in out


def test_bench_tabular_reports_growth():
    from tailsafe.bench.tabular import bench_tabular

    rows = bench_tabular(horizons=(2, 3), betas=(2, 4))["results"]
    assert rows[0]["time_ratio"] == rows[0]["work_ratio"] == 1
    assert [row["augmented_states"] for row in rows] == sorted(row["augmented_states"] for row in rows)
    assert all(row["iteration_seconds"] > 0 and row["lp_seconds_per_beta"] > 0 for row in rows)


def test_settings(call):
    code, out, _ = call("settings", "sdac", "--family", "legged", "--json")
    assert code == 0
    found = {setting["key"]: setting for setting in last_json(out)["settings"]}
    assert found["surrogate"] == {
        "key": "surrogate",
        "allowed": "theory | release",
        "defaults": dict.fromkeys(("laptop", "paper", "gpu"), "release"),
        "meaning": "theory: surrogates have the factor 1 / (1 - gamma); release: they do not.",
        "part": "policy",
        "main": False,
    }
    assert found["kl_decay"]["defaults"]["laptop"] == "inf"
    assert found["kl_decay"]["allowed"] == "number in (0, inf]"
    assert found["gamma"]["allowed"] == "number in [0, 1)"
    assert found["policy_hidden"]["defaults"]["gpu"] == [256, 256]
    assert found["fixed_log_std"]["defaults"] == {"laptop": None, "paper": -2.0, "gpu": None}
    assert "sampler_rate" not in found  # of SRCPO
    assert found["margin"]["main"]


def test_settings_shows_those_that_matter_unless_asked_for_all(call):
    _, out, _ = call("settings")
    assert "max_kl" in out
    assert "sampler_rate" not in out
    assert "more: tailsafe settings srcpo --all" in out
    _, out, _ = call("settings", "--all")
    assert "sampler_rate" in out


def test_one_setting_by_its_name(call):
    code, out, _ = call("settings", "margin")
    assert code == 0
    assert out.startswith("margin: Share of every limit")
    assert "number in [0, 1)" in out
    assert "tasks finite: laptop" in out
    _, out, _ = call("settings", "polyak", "--json")  # of one algorithm alone, which need not be named
    assert last_json(out)["algorithm"] == "wcsac"
    assert [setting["key"] for setting in last_json(out)["settings"]] == ["polyak"]
    code, _, err = call("settings", "cppo", "polyak")
    assert code == 2
    assert "cppo has no setting 'polyak'; it belongs to wcsac" in err


TABULAR = ["tabular", TWO_ROADS, "--risk", "cvar:0.75", "--limit", "2"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["spectrum", "cvr:0.5"], "did you mean cvar"),
        (["spectrum", "cvar:1"], "[0, 1)"),
        (["spectrum", "wang:0.5", "--cells", "0"], "at least 1"),
        (["spectrum", "wang:0.5", "--cells", "x"], "--cells"),
        (["spectrum", "wang:0.5", "--plot", "picture.bmp"], "a picture ends in"),
        (["spectrum", "wang:0.5", "--plot", "nowhere/picture.png"], "does not exist"),
        (["spectrum", "cvar:0.5", "--paper-table"], "no row for cvar:0.5"),
        (["spectrum"], "Missing argument"),
        (["spectrum", "mean", "--cell", "3"], "No such option"),
        (["spectre"], "No such command"),
        (["risk", "mean", "missing.npy"], "missing.npy: No such file"),
        (["risk", "mean", "costs.txt"], "costs.txt: samples are read from .npy or .csv"),
        (["risk", "mean", "{bad.csv}"], "bad.csv: line 3 holds 'oops'"),
        (["risk", "mean", "{nan.csv}"], "nan.csv: line 2 holds 'nan'"),
        (["risk", "mean", "{typo.csv}"], "typo.csv: line 1 holds '1.o'"),
        (["risk", "mean", "{archive.npy}"], "an archive of arrays"),
        (["risk", "mean", "{two.csv}"], "choose one with --column"),
        (["risk", "mean", "{two.csv}", "--column", "c"], "no column 'c' (columns: a, b)"),
        (["risk", "mean", "{ragged.csv}"], "line 2 has 2 cells"),
        (["risk", "mean", "{empty.csv}"], "is empty"),
        (["risk", "mean", "{text.npy}"], "not a .npy file"),
        (["risk", "mean", "{matrix.npy}"], "shape (2, 2)"),
        (["risk", "mean", "{good.csv}", "--upper", "2"], "samples[2] is 3"),
        (["risk", "mean", "{good.csv}", "--confidence", "1"], "confidence is 1"),
        (["tabular", "{broken.json}", "--risk", "mean", "--limit", "1"], "not JSON (line 1"),
        (["tabular", "{rows.json}", "--risk", "mean", "--limit", "1"], "transitions[0][0] sums to 0.5"),
        (["tabular", TWO_ROADS, "--risk", "mean"], "--limit"),
        (["tabular", TWO_ROADS, "--risk", "mean", "--limit", "0.1/step"], "limit '0.1/step' is not a number"),
        (["tabular", TWO_ROADS, "--risk", "mean", "--limit", "nan"], "must be finite"),
        ([*TABULAR, "--risk", "mean"], "2 risk measures for 1 costs"),
        ([*TABULAR, "--iterations", "0"], "iterations is 0"),
        ([*TABULAR, "--memory-limit", "1e-6"], "memory limit is 1e-06 GiB"),
        ([*TABULAR, "--plot", "nowhere/x.png"], "does not exist"),
        ([*TABULAR, "--plot", "folder.png"], "is a folder"),
        ([*TABULAR, "--policy", "nowhere/policy.json"], "does not exist"),
        ([*TABULAR, "--memory-limit", "nan"], "must be positive"),
        (["tabular", "{twocosts.json}", "--risk", "mean", "--limit", "1", "--compare"], "problems with one cost"),
        (["spectrum", "wang:0.5", "--paper-table", "--cells", "4"], "the paper's table has 5"),
        (["bench", "everything"], "everything"),
        (["settings", "cpo"], "unknown algorithm 'cpo'; there are: srcpo, cppo"),
        (["settings", "margins"], "If you mean a setting: margin?"),
        (["settings", "--family", "flying"], "unknown family 'flying'; there are: finite, navigation"),
    ],
)
def test_mistakes_get_one_line_and_exit_code_2(call, tmp_path, monkeypatch, arguments, reason):
    files = {
        "bad.csv": "cost\n1\noops\n",
        "nan.csv": "1\nnan\n",
        "two.csv": "a,b\n1,2\n",
        "ragged.csv": "1\n2,3\n",
        "empty.csv": "",
        "good.csv": "1\n2\n3\n",
        "typo.csv": "1.o\n2\n3\n",
        "text.npy": "hello",
        "broken.json": "{",
        "rows.json": json.dumps(
            {
                "horizon": 1,
                "discount": 1,
                "initial": [1],
                "transitions": [[[0.5]]],
                "rewards": [[1]],
                "costs": [[[1]]],
            }
        ),
    }
    two_costs = json.loads(Path(TWO_ROADS).read_text())
    files["twocosts.json"] = json.dumps(two_costs | {"costs": two_costs["costs"] * 2})
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    np.save(tmp_path / "matrix.npy", np.ones((2, 2)))
    with (tmp_path / "archive.npy").open("wb") as handle:
        np.savez(handle, a=np.ones(2))
    (tmp_path / "folder.png").mkdir()
    before = sorted(p.name for p in tmp_path.iterdir())
    monkeypatch.chdir(tmp_path)
    code, out, err = call(*(a.strip("{}") for a in arguments))
    assert code == 2
    assert out == ""
    assert reason in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert sorted(p.name for p in tmp_path.iterdir()) == before  # nothing written


def test_without_matplotlib_a_picture_is_refused_before_the_work(call, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *_: None)
    code, _, err = call(*TABULAR, "--plot", "x.png")
    assert code == 2
    assert "pictures need matplotlib: pip install " in err
    assert "tailsafe[" not in err  # that would need an index that has tailsafe


def test_interrupt_is_one_line(call, monkeypatch):
    def stop(*_args, **_kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("tailsafe.tabular.solve_tabular", stop)
    assert call(*TABULAR)[0] == 130
