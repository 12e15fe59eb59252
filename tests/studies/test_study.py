"""What all studies share: finished groups are not repeated, a stop loses nothing, one failure is not all."""

import itertools
import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tailsafe as ts
from tailsafe.algorithms.registry import ALGORITHMS
from tailsafe.errors import InputError
from tailsafe.policies.policy import load_policy
from tailsafe.studies import groups as groups_module
from tailsafe.studies.groups import Group, finished, jobs, of_one_width
from tailsafe.studies.registry import STUDIES
from tailsafe.studies.study import chosen
from tailsafe.studies.tables import interval, over_seeds, with_reach
from tailsafe.tasks import TASKS
from tailsafe.training import loop
from tailsafe.training.logs import session_starts
from tailsafe.training.settings import resolved_values
from tailsafe.viz.report.study import read_study
from tests.compile_fast import compile_fast
from tests.studies.setup import command, with_groups
from tests.training.tiny import finite_config

__all__ = ["compile_fast"]
UPDATES = 4
OUT = Path("nowhere")


def tiny_group(method, measure="cvar:0.75", seeds=1, updates=UPDATES, **settings):
    config = finite_config(OUT, updates, seeds=seeds, settings=settings)
    config = replace(config, constraints=[ts.Constraint("cost", measure, 2.0, "discounted")])
    return Group({"problem": "roads", "method": method}, config)


def measured(folder):
    """Instead of an evaluation, which other tests have."""
    rows = (folder / "metrics.csv").read_text().count("\n") - 1
    return {"gap": float(rows), "violation": 0.0, "optimum": 1.0, "reward": 1.0}


def stopped_by(patch, number):
    """A signal comes during the first updates of every program."""
    original = loop.DeviceLoop.advance

    def advance(self, *arguments):
        state = original(self, *arguments)
        os.kill(os.getpid(), number)
        return state

    patch.setattr(loop.DeviceLoop, "advance", advance)


@pytest.fixture
def three(monkeypatch):
    """Two groups that share a program, one of two seeds, and a third that fails."""
    made = [tiny_group("a", seeds=2), tiny_group("b", "wang:0.5"), tiny_group("c", critic_rate=1e38)]
    with_groups(monkeypatch, "known-optimum", made, measure=lambda scale: measured)
    return made


def test_a_study_goes_on_where_it_was_and_lists_what_failed(three, tmp_path, capsys, monkeypatch):
    folder = tmp_path / "study"
    words = ("known-optimum", "--scale", "smoke", "--out", folder)
    # A signal after two updates: saved, and said.
    with monkeypatch.context() as patch:
        stopped_by(patch, signal.SIGTERM)
        assert command(*words) == 128 + signal.SIGTERM
    assert "stopped and saved; the same command resumes it" in capsys.readouterr().err
    assert (folder / "roads_a" / "seed-1" / "checkpoints").is_dir()
    written = json.loads((folder / "results.json").read_text())
    assert written["left"] == 3
    # Those that share a program have stopped in the middle; the last one has not started.
    notes = ["stopped at 64 of 128 steps", "stopped at 64 of 128 steps", "not trained yet"]
    assert [(group["state"], group["note"]) for group in written["groups"]] == [("left", note) for note in notes]
    assert "| a | none: stopped at 64 of 128 steps |" in (folder / "table.md").read_text()

    # No time at all: the same, but as an exit code of its own.
    assert command(*words, "--minutes", 0) == 3
    assert "3 groups are not finished" in capsys.readouterr().out

    assert command(*words, "--json") == 1
    out, err = capsys.readouterr()
    told = json.loads(out.strip().splitlines()[-1])
    assert [(entry["method"], entry["seeds"]) for entry in told["summary"]] == [("a", 2), ("b", 1)]
    assert [entry["gap"]["mean"] for entry in told["summary"]] == [2.0, 2.0]
    assert [(entry["method"], entry["seed"]) for entry in told["failed"]] == [("c", 0)]
    assert "is not finite" in told["failed"][0]["error"]
    assert told["left"] == 0

    # Everything is finished, also what failed: with the same numbers it would fail again.
    def trained(*arguments):
        raise AssertionError("nothing is left to train")

    monkeypatch.setattr(groups_module, "trained", trained)
    assert command(*words) == 1
    out, err = capsys.readouterr()
    assert err.count("was finished") == 3
    assert "failed: roads, c, 0: " in out
    assert "| a | 200.0 % |" in (folder / "table.md").read_text()


def test_interim_numbers_of_what_is_trained_so_far(three, tmp_path, capsys, monkeypatch):
    """A policy is measured once; the study continues as if nothing had been asked."""
    folder = tmp_path / "study"
    words = ("known-optimum", "--scale", "smoke", "--out", folder)
    seen = []

    def counting(place):
        seen.append(place.relative_to(folder).as_posix())
        return measured(place)

    with_groups(monkeypatch, "known-optimum", three, measure=lambda scale: measured, quick=lambda scale: counting)
    assert command(*words, "--interim") == 2
    assert "nothing of this study has been trained there" in capsys.readouterr().err
    assert not folder.exists()
    assert command(*words, "--interim", "--launcher", "ray") == 2
    assert command(*words, "--only", "b") == 0
    assert command(*words, "--minutes", 0) == 3
    capsys.readouterr()
    assert command(*words, "--interim", "--only", "a") == 3
    out, err = capsys.readouterr()
    assert "0 of 2 runs measured as they are" in err
    assert "1 group is not finished; these are the numbers so far" in out
    # Half of the first group, as a stop would leave it.
    with monkeypatch.context() as patch:
        stopped_by(patch, signal.SIGINT)
        assert command(*words, "--only", "a") == 130
    capsys.readouterr()
    for _ in range(2):
        assert command(*words, "--interim", "--json") == 3
        told = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
        # One row of the log at the stop, two at the end.
        assert [(entry["method"], entry["gap"]["mean"]) for entry in told["summary"]] == [("a", 1.0), ("b", 2.0)]
        assert told["left"] == 2
        assert seen == ["roads_a/seed-0", "roads_a/seed-1"]
    results = json.loads((folder / "results.json").read_text())
    assert [row.get("interim", False) for row in results["rows"]] == [True, True, False]
    assert [group["state"] for group in results["groups"]] == ["interim", "final", "left"]
    table = (folder / "table.md").read_text()
    assert "| a | 100.0 % (interim at 64 of 128 steps) |" in table
    assert "| b | 200.0 % |" in table
    # The rest, of which one has started and another has not: none of what there was is trained again.
    asked, advance = [], loop.DeviceLoop.advance

    def counting_advance(self, state, updates, stop):
        asked.append((int(np.asarray(state.updates).reshape(-1)[0]), np.asarray(state.updates).size))
        return advance(self, state, updates, stop)

    monkeypatch.setattr(loop.DeviceLoop, "advance", counting_advance)
    assert command(*words, "--json") == 1
    told = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert [(entry["method"], entry["gap"]["mean"]) for entry in told["summary"]] == [("a", 2.0), ("b", 2.0)]
    assert len(seen) == 2
    # Where its sessions began: their first rows compiled.
    assert session_starts(folder / "roads_a" / "seed-0") == [0, UPDATES // 2]
    assert asked[0] == (UPDATES // 2, 2)
    assert (0, 1) in asked[1:]
    assert (0, 2) not in asked


def test_without_a_name_the_studies_are_listed(call):
    code, out, _ = call("study")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == list(STUDIES)
    code, out, _ = call("study", "--json")
    assert [study["name"] for study in json.loads(out)["studies"]] == list(STUDIES)


def test_only_some_groups(three, tmp_path, capsys):
    folder = tmp_path / "study"
    words = ("known-optimum", "--scale", "smoke", "--out", folder)
    assert command(*words, "--only", "d") == 2
    assert "no group of this study is 'd'; there are: roads, a, b, c" in capsys.readouterr().err
    assert not folder.exists()
    assert command(*words, "--only", "b", "--only", "roads") == 0
    assert "not finished" not in capsys.readouterr().out
    assert json.loads((folder / "results.json").read_text())["left"] == 2
    assert not (folder / "roads_a").exists()
    assert [group.name for group in chosen(three, ["a", "c", "roads"])] == ["roads_a", "roads_c"]
    other = Group({"problem": "toll", "method": "d"}, three[0].config)
    with pytest.raises(InputError, match="no group of this study is all of: roads, d"):
        chosen([*three, other], ["roads", "d"])


def test_a_part_of_a_study_trains_as_the_whole_would(tmp_path, monkeypatch):
    """CVaR alone has fewer dual variables than beside Wang, and must not begin with them."""
    with_groups(
        monkeypatch, "known-optimum", [tiny_group("a"), tiny_group("b", "wang:0.5")], measure=lambda _: measured
    )
    words = ("known-optimum", "--scale", "smoke", "--out", tmp_path / "study")
    assert command(*words, "--only", "a") == 0
    assert load_policy(tmp_path / "study" / "roads_a").description.least_cells == 5
    assert command(*words) == 0


def test_a_copy_without_checkpoints_is_not_trained_over(tmp_path, monkeypatch, capsys):
    with_groups(monkeypatch, "known-optimum", [tiny_group("a")], measure=lambda _: measured)
    words = ("known-optimum", "--scale", "smoke", "--out", tmp_path / "study")
    assert command(*words) == 0
    (tmp_path / "study" / "roads_a" / "result.json").unlink()
    shutil.rmtree(tmp_path / "study" / "roads_a" / "checkpoints")
    kept = (tmp_path / "study" / "roads_a" / "metrics.csv").read_bytes()
    assert command(*words) == 1
    assert "has a policy but no checkpoints to resume from" in capsys.readouterr().out
    assert (tmp_path / "study" / "roads_a" / "metrics.csv").read_bytes() == kept
    # A group that broke is tried again: until then a report does not call the study finished.
    results = json.loads((tmp_path / "study" / "results.json").read_text())
    assert (results["left"], results["broken"]) == (0, 1)
    found = read_study(tmp_path / "study")
    assert (found.finished, found.broken) == (False, 1)
    assert "none: broke: " in (tmp_path / "study" / "table.md").read_text()


def test_processes_may_share_a_study(three, tmp_path, monkeypatch):
    """What another one has finished meanwhile is part of the results."""
    folder = tmp_path / "study"
    first, *_ = of_one_width([group.inside(folder) for group in three])

    def meanwhile(place):
        list(jobs([first], measured)[0].run())
        return measured(place)

    with_groups(monkeypatch, "known-optimum", three, measure=lambda scale: meanwhile)
    assert command("known-optimum", "--scale", "smoke", "--out", folder, "--only", "b") == 0
    results = json.loads((folder / "results.json").read_text())
    assert [(entry["method"], entry["seeds"]) for entry in results["summary"]] == [("a", 2), ("b", 1)]
    assert results["left"] == 1


def test_errors_that_are_no_numbers_leave_a_group_unfinished(tmp_path, monkeypatch):
    group = tiny_group("a").inside(tmp_path)
    (job,) = jobs([group], measured)

    def trained(*arguments):
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(groups_module, "trained", trained)
        (outcome,) = job.run()
    assert outcome.rows == []
    assert outcome.failed[0]["error"] == "out of memory"
    assert "RuntimeError: out of memory" in (tmp_path / "roads_a" / "error.txt").read_text()
    assert finished(group) is None

    def unmeasurable(folder):
        raise ValueError("no episodes")

    (outcome,) = jobs([group], unmeasurable)[0].run()
    assert outcome.failed[0]["error"] == "no episodes"
    assert finished(group) is None

    (outcome,) = job.run()
    assert [row["seconds"] > 0 for row in outcome.rows] == [True]
    assert finished(group).rows == outcome.rows
    other = replace(group, config=replace(group.config, seed=5))
    with pytest.raises(InputError, match="holds results of other settings"):
        finished(other)


def test_on_host_environments_one_error_is_not_the_end_of_the_others(tmp_path):
    """And what is ready is measured before the next begins."""
    settings = {key: value for key, value in tiny_group("a").config.settings.items() if key != "problem"}
    groups = [
        Group(
            {"problem": "corridor", "method": name},
            ts.TrainConfig(
                "tests.training.tiny:Corridor",
                constraints=[ts.Constraint("speeding", "cvar:0.75", limit, "discounted")],
                preset="laptop",
                settings=settings,
            ),
        ).inside(tmp_path)
        for name, limit in (("a", 1.0), ("b", 2.0), ("c", 3.0))
    ]
    (tmp_path / "corridor_b").write_text("in the way")
    seen = []

    def measure(folder):
        seen.append((folder.name, (tmp_path / "corridor_c" / "metrics.csv").exists()))
        return measured(folder)

    first, second, third = jobs(groups, measure)[0].run()
    assert [len(first.rows), len(second.rows), len(third.rows)] == [1, 0, 1]
    assert "corridor_b" in second.failed[0]["error"]
    assert seen == [("corridor_a", False), ("corridor_c", True)]


def test_groups_share_programs_where_their_shapes_allow(tmp_path):
    groups = [tiny_group("a"), tiny_group("b", "pow:0.5"), tiny_group("c", quantiles=7), tiny_group("d", max_kl=0.1)]
    found = jobs([group.inside(tmp_path) for group in groups], measured)
    assert [[group.labels["method"] for group in job.groups] for job in found] == [["a", "b", "d"], ["c"]]


def test_the_45_runs_of_risk_measures_are_one_program(tmp_path):
    for scale, runs in (("laptop", 18), ("paper", 45)):
        groups = [group.inside(tmp_path) for group in STUDIES["risk-measures"].groups(scale)]
        (job,) = jobs(groups, measured)
        assert sum(group.config.seeds for group in job.groups) == runs


def test_the_benchmark_gives_all_algorithms_on_all_tasks_the_same_chances():
    groups = STUDIES["benchmark"].groups("paper")
    assert [tuple(group.labels.values()) for group in groups] == list(itertools.product(TASKS, ALGORITHMS))
    assert {group.config.seeds for group in groups} == {5}
    for task, own in itertools.groupby(groups, lambda group: group.labels["task"]):
        members = list(own)
        values = [
            resolved_values("laptop", TASKS[task].family, group.config.settings, group.config.algorithm)
            for group in members
        ]
        for key in ("policy_hidden", "critic_hidden", "margin", "gamma"):
            assert len({value[key] for value in values if key in value}) == 1
        steps = 10_000_000 if task in ("point-button", "car-button") else 5_000_000
        assert {group.config.total_steps for group in members} == {steps}


def test_intervals():
    rows = [{"problem": "p", "method": "m", "gap": gap} for gap in (0.1, 0.2, 0.3)]
    (entry,) = over_seeds(rows, ("problem", "method"), ("gap",))
    # Student's t with two degrees of freedom: 4.303 deviations of the mean, 0.1 / sqrt(3).
    assert entry["gap"]["mean"] == pytest.approx(0.2)
    assert entry["gap"]["high"] - entry["gap"]["mean"] == pytest.approx(4.3027 * 0.1 / 3**0.5, rel=1e-4)
    assert with_reach(entry["gap"], ".2f") == "0.20 ± 0.25"
    assert with_reach(interval([2.0]), ".2f") == "2.00"


def test_bad_input_is_one_line(tmp_path, capsys):
    assert command("nothing") == 2
    assert (
        "there are: discretization, risk-measures, benchmark, training-time, known-optimum" in capsys.readouterr().err
    )
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("words")
    assert command("known-optimum", "--out", tmp_path / "mine") == 2
    assert "is not a study's folder" in capsys.readouterr().err
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == ["thesis.txt"]
    assert command("discretization", "--launcher", "rocket", "--out", tmp_path / "new") == 2
    assert "there are: here, ray" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
