"""Jobs of a study as tasks of a Ray cluster on this machine."""

import json
import os

import pytest

from tailsafe.studies import launch
from tests.runs.conftest import compile_fast
from tests.studies.setup import command, with_groups
from tests.studies.test_study import measured, tiny_group

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
def test_a_worker_that_dies_is_the_end_of_its_job_alone(tmp_path, capfd, monkeypatch):
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
    assert "the launcher ray needs Ray: pip install 'tailsafe[ray]'" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
