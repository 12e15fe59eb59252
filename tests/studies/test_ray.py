"""Jobs of a study as tasks of a Ray cluster on this machine."""

import json
import os
import signal

import numpy as np
import pytest

from tailsafe.studies import launch
from tailsafe.training.logs import session_starts
from tests.compile_fast import compile_fast
from tests.studies.setup import command, with_groups
from tests.studies.test_study import measured, tiny_group
from tests.training.tiny import assert_close_arrays, last_arrays, rows_without_times

__all__ = ["compile_fast"]


@pytest.mark.slow
def test_jobs_run_as_tasks_of_a_cluster(tmp_path, capfd, monkeypatch):
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'tailsafe[ray]'")
    groups = [tiny_group("a"), tiny_group("b", quantiles=7), tiny_group("c", critic_rate=1e38)]
    with_groups(monkeypatch, "known-optimum", groups, measure=lambda scale: measured)
    folder = tmp_path / "study"
    words = ("known-optimum", "--scale", "smoke", "--out", folder, "--launcher", "ray", "--json")
    assert command(*words) == 1
    told = json.loads(capfd.readouterr().out.strip().splitlines()[-1])
    assert [(entry["method"], entry["gap"]["mean"]) for entry in told["summary"]] == [("a", 2.0), ("b", 2.0)]
    assert [entry["method"] for entry in told["failed"]] == ["c"]
    assert (folder / "roads_b" / "policy" / "policy.json").is_file()
    # Nothing is left to launch.
    assert command(*words) == 1
    assert capfd.readouterr().err.count("was finished") == 3


@pytest.mark.slow
def test_a_worker_killed_in_the_middle_loses_and_repeats_nothing(tmp_path, capfd, monkeypatch):
    """Three programs on a cluster of processes; one is killed between two checkpoints, and another resumes it."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'tailsafe[ray]'")
    updates, killed_at = 8, 4
    groups = [tiny_group("a", updates=updates), tiny_group("b", updates=updates, quantiles=7)]
    groups.append(tiny_group("c", updates=updates, quantiles=6))
    with_groups(monkeypatch, "known-optimum", groups, measure=lambda scale: measured)
    mark, run = tmp_path / "died", launch._run

    def dying(job):
        from tailsafe.training import loop

        advance = loop.DeviceLoop.advance

        def deadly(self, state, ahead, stop):
            state = advance(self, state, ahead, stop)
            done = int(np.asarray(state.updates).reshape(-1)[0])
            if job.groups[0].name == "roads_b" and done == killed_at and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return state

        loop.DeviceLoop.advance = deadly
        try:
            return run(job)
        finally:
            loop.DeviceLoop.advance = advance

    monkeypatch.setattr(launch, "_run", dying)
    words = ("known-optimum", "--scale", "smoke", "--json")
    assert command(*words, "--out", tmp_path / "study", "--launcher", "ray") == 0
    assert mark.exists()
    told = json.loads(capfd.readouterr().out.strip().splitlines()[-1])
    assert (told["failed"], told["left"]) == ([], 0)
    # Four rows of the log each, none twice.
    assert [(entry["method"], entry["gap"]["mean"]) for entry in told["summary"]] == [("a", 4), ("b", 4), ("c", 4)]
    # From the checkpoint after three updates, not from the beginning; the others had one session.
    assert [session_starts(tmp_path / "study" / f"roads_{name}") for name in "abc"] == [[0], [0, 3], [0]]
    # And what it learned is what an undisturbed run learns.
    assert command(*words, "--out", tmp_path / "calm", "--only", "b") == 0
    calm, other = (tmp_path / name / "roads_b" for name in ("calm", "study"))
    assert_close_arrays(last_arrays(calm), last_arrays(other))
    assert len(rows_without_times(calm)) == len(rows_without_times(other)) == 4


@pytest.mark.slow
def test_a_worker_that_always_dies_is_the_end_of_its_job_alone(tmp_path, capfd, monkeypatch):
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'tailsafe[ray]'")
    groups = [tiny_group("a"), tiny_group("b", quantiles=7)]

    def deadly(folder):
        if folder.name == "roads_b":
            os._exit(9)
        return measured(folder)

    with_groups(monkeypatch, "known-optimum", groups, measure=lambda scale: deadly)
    words = ("known-optimum", "--scale", "smoke", "--out", tmp_path / "study", "--launcher", "ray", "--json")
    assert command(*words) == 1
    told = json.loads(capfd.readouterr().out.strip().splitlines()[-1])
    assert [entry["method"] for entry in told["summary"]] == ["a"]
    assert [entry["method"] for entry in told["failed"]] == ["b"]
    assert told["left"] == 0
    assert not (tmp_path / "study" / "roads_b" / "result.json").exists()


def test_without_ray_one_line_says_what_to_install(tmp_path, capsys, monkeypatch):
    find = launch.importlib.util.find_spec
    monkeypatch.setattr(launch.importlib.util, "find_spec", lambda name: None if name == "ray" else find(name))
    assert command("known-optimum", "--out", tmp_path / "new", "--launcher", "ray") == 2
    assert "the launcher ray needs Ray: pip install " in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
