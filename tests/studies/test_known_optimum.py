"""The study as a command: what it writes, that it goes on where it was, and that one failure is not all."""

import json

import pytest

from tailsafe.cli import main
from tailsafe.runs.session import NonFiniteError
from tailsafe.studies import groups, known_optimum
from tailsafe.tabular.suite import SUITE
from tests.runs.conftest import compile_fast

__all__ = ["compile_fast"]


def command(*words):
    with pytest.raises(SystemExit) as stop:
        main(["study", *map(str, words)])
    return stop.value.code


def test_smoke_from_nothing_to_a_table(tmp_path, capsys, monkeypatch):
    folder = tmp_path / "study"
    wanted = known_optimum.groups(known_optimum.SCALES["smoke"])
    original = groups.train

    # Without the largest programs, which the tests of runs compile as well; one of the others fails.
    kept = [group for group in wanted if group.config.algorithm in ("cppo", "cvar_cpo", "wcsac")]
    monkeypatch.setattr(known_optimum, "groups", lambda scale: kept)

    def train(config, **arguments):
        if config.algorithm == "wcsac":
            raise NonFiniteError("made up")
        return original(config, **arguments)

    with monkeypatch.context() as patch:
        patch.setattr(groups, "train", train)
        assert command("known-optimum", "--scale", "smoke", "--out", folder, "--json") == 1
    first = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert [entry["method"] for entry in first["summary"]] == ["cppo", "cvar_cpo"]
    assert [(entry["method"], "made up" in entry["error"]) for entry in first["failed"]] == [("wcsac", True)]

    # Again: what is finished is read, what failed is tried again.
    assert command("known-optimum", "--scale", "smoke", "--out", folder) == 0
    out, err = capsys.readouterr()
    assert err.count("was finished") == 2
    assert "| wcsac |" in out
    result = json.loads((folder / "results.json").read_text())
    assert not result["failed"]
    assert len(result["rows"]) == 6
    for row in result["rows"]:
        assert row["optimum"] == pytest.approx(0.5375, abs=0.2)
        assert row["gap"] == pytest.approx((row["optimum"] - row["reward"]) / row["optimum"])
        over = max(risk / limit - 1 for risk, limit in zip(row["risks"], row["limits"], strict=True))
        assert row["violation"] == pytest.approx(max(over, 0))
    assert (folder / "known_optimum.png").stat().st_size > 5000
    assert (folder / "table.md").read_text().startswith("| method | two prices |")


def test_every_method_meets_every_problem_it_can(capsys):
    found = known_optimum.groups(known_optimum.SCALES["laptop"])
    assert len(found) == len(SUITE) * len(known_optimum.METHODS) - 3
    assert len({group.name for group in found}) == len(found)
    assert all(group.config.seeds == 5 for group in found)


def test_intervals():
    rows = [{"problem": "p", "method": "m", "gap": gap, "violation": 0.0} for gap in (0.1, 0.2, 0.3)]
    (entry,) = known_optimum.summary(rows)
    # Student's t with two degrees of freedom: 4.303 deviations of the mean, 0.1 / sqrt(3).
    assert entry["gap"]["mean"] == pytest.approx(0.2)
    assert entry["gap"]["high"] - entry["gap"]["mean"] == pytest.approx(4.3027 * 0.1 / 3**0.5, rel=1e-4)


def test_bad_input_is_one_line(tmp_path, capsys):
    assert command("nothing") == 2
    assert "there are: known-optimum" in capsys.readouterr().err
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("words")
    assert command("known-optimum", "--out", tmp_path / "mine") == 2
    assert "is no study's folder" in capsys.readouterr().err
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == ["thesis.txt"]
