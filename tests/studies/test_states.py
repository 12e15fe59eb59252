"""What a study says about each of its groups, with training that only pretends: logs and policies without a learner."""

import csv
import json
import os
import signal

import pytest

from tailsafe.policies.policy import TENSORS_NAME
from tailsafe.studies import groups as groups_module
from tailsafe.training.session import SessionResult
from tailsafe.training.train import seed_folders
from tailsafe.viz.report.study import read_study
from tests.studies.setup import command, with_groups
from tests.studies.test_study import measured, tiny_group

SCALE = ("known-optimum", "--scale", "smoke")


def pretend(config, steps):
    """A run's log up to `steps`, and its policy of that moment."""
    for seed, place in seed_folders(config, config.folder):
        (place / "policy").mkdir(parents=True, exist_ok=True)
        (place / "policy" / TENSORS_NAME).write_bytes(f"{seed} {steps}".encode())
        with (place / "metrics.csv").open("w", newline="") as handle:
            rows = [[32 * i, i, float(i)] for i in range(1, steps // 32 + 1)]
            csv.writer(handle).writerows([["steps", "updates", "seconds"], *rows])


@pytest.fixture
def training(monkeypatch):
    """What training does with a group's configuration; by default it gets to the end."""
    does = {}

    def trained(configs, shown, stop):
        for config in configs:
            found = does.get(config.folder.name)
            if found is None:
                pretend(config, config.total_steps)
                found = SessionResult(config.total_steps, 1.0, {})
            yield [config], found

    monkeypatch.setattr(groups_module, "trained", trained)
    return does


def results(folder):
    return json.loads((folder / "results.json").read_text())


def test_a_group_that_broke_is_not_finished(training, tmp_path, monkeypatch, capsys):
    """The last group breaks: nothing is left to train in this call, and yet the study is not finished."""
    with_groups(
        monkeypatch, "known-optimum", [tiny_group("a"), tiny_group("b", quantiles=7)], measure=lambda _: measured
    )
    folder = tmp_path / "study"
    training["roads_b"] = RuntimeError("out of | memory")
    assert command(*SCALE, "--out", folder) == 1
    assert "failed: roads, b: out of | memory" in capsys.readouterr().out
    written = results(folder)
    assert (written["left"], written["broken"]) == (0, 1)
    assert [group["state"] for group in written["groups"]] == ["final", "broken"]
    assert "| b | none: broke: out of / memory |" in (folder / "table.md").read_text()
    found = read_study(folder)
    assert (found.finished, found.broken) == (False, 1)
    # Files of before this was counted: a failure of no seed is that of a group.
    (folder / "results.json").write_text(json.dumps({key: value for key, value in written.items() if key != "broken"}))
    assert not read_study(folder).finished
    # It is tried again.
    del training["roads_b"]
    assert command(*SCALE, "--out", folder) == 0
    assert (results(folder)["broken"], read_study(folder).finished) == (0, True)


def test_a_run_that_failed_does_not_leave_a_study_unfinished(training, tmp_path, monkeypatch):
    group = tiny_group("a", seeds=2)
    with_groups(monkeypatch, "known-optimum", [group], measure=lambda _: measured)
    folder = tmp_path / "study"
    pretend(group.inside(folder).config, 128)
    training["roads_a"] = SessionResult(128, 1.0, {folder / "roads_a" / "seed-1": "the loss is not finite"})
    (folder / "study.txt").write_text("known-optimum smoke\n")
    assert command(*SCALE, "--out", folder) == 1
    (state,) = results(folder)["groups"]
    assert (state["state"], state["measured"], state["failed"], state["seeds"]) == ("final", 1, 1, 2)
    assert "| a | 400.0 % (final, 1 of 2 runs failed) |" in (folder / "table.md").read_text()
    assert read_study(folder).finished


def test_interim_figures_are_called_so(training, tmp_path, monkeypatch):
    made = [tiny_group("a"), tiny_group("b"), tiny_group("c")]
    with_groups(monkeypatch, "known-optimum", made, measure=lambda _: measured)
    folder = tmp_path / "study"
    assert command(*SCALE, "--out", folder, "--only", "a") == 0
    pretend(made[1].inside(folder).config, 64)
    assert command(*SCALE, "--out", folder, "--interim") == 3
    assert [group["state"] for group in results(folder)["groups"]] == ["final", "interim", "left"]
    table = (folder / "table.md").read_text()
    for line in ("| a | 400.0 % |", "| b | 200.0 % (interim at 64 of 128 steps) |", "| c | none: not trained yet |"):
        assert line in table
    # A later call without --interim does not show them.
    assert command(*SCALE, "--out", folder, "--minutes", 0) == 3
    assert "| b | none: stopped at 64 of 128 steps |" in (folder / "table.md").read_text()


def test_what_was_measured_before_a_stop_is_not_measured_again(training, tmp_path, monkeypatch):
    """One evaluation of 500 episodes may take as long as a call of the study has."""
    seen = []

    def interrupted(place):
        seen.append(place.name)
        if len(seen) == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return measured(place)

    with_groups(monkeypatch, "known-optimum", [tiny_group("a", seeds=2)], measure=lambda _: interrupted)
    words = ("known-optimum", "--scale", "smoke", "--out", tmp_path / "study")
    assert command(*words) == 130
    assert command(*words) == 0
    assert seen == ["seed-0", "seed-1"]
    assert len(json.loads((tmp_path / "study" / "results.json").read_text())["rows"]) == 2


def test_export_of_what_there_is_trains_nothing(training, tmp_path, monkeypatch, capsys):
    with_groups(monkeypatch, "known-optimum", [tiny_group("a")], measure=lambda _: measured)
    folder, words = tmp_path / "study", (*SCALE, "--out", tmp_path / "study", "--export")
    # A study that has not started runs first.
    assert command(*words, tmp_path / "first", "--json") == 0
    told = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert (told["left"], told["export"]) == (0, str(tmp_path / "first"))
    assert {"runs.csv", "summary.csv", "groups.csv"} <= set(told["files"])
    training["roads_a"] = AssertionError("nothing is to be trained")
    (folder / "roads_a" / "result.json").unlink()
    assert command(*words, tmp_path / "second") == 0
    assert (tmp_path / "second" / "runs.csv").read_bytes() == (tmp_path / "first" / "runs.csv").read_bytes()
    assert command(*words, tmp_path / "second") == 2
    assert "exists already" in capsys.readouterr().err
