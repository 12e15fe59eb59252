"""Stopping and going on: the same path bit for bit, whatever stopped the run."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import tailsafe as ts
from tailsafe.runs import training
from tailsafe.runs.checkpoints import Checkpoints
from tailsafe.runs.training import RunInterrupted, resume
from tests.runs.tiny import (
    PER_UPDATE,
    ROOT,
    TINY,
    TWO_ROADS,
    assert_same_arrays,
    command_settings,
    finite_config,
    last_arrays,
    rows_without_times,
)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """8 updates of the finite task in one go."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    run = ts.train(finite_config(folder, 8), progress=False)
    assert run.steps == 8 * PER_UPDATE
    return folder


def stop_after(monkeypatch, updates):
    """Raise the wish to stop once a run has taken so many updates."""
    for kind in (training.DeviceLoop, training.HostLoop):
        original = kind.advance

        def advance(self, state, count, stop, original=original):
            state = original(self, state, count, stop)
            if int(state.updates) >= updates:
                os.kill(os.getpid(), signal.SIGINT)
            return state

        monkeypatch.setattr(kind, "advance", advance)


def test_stop_and_resume_equals_straight_through(straight, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        stop_after(patch, 4)
        with pytest.raises(RunInterrupted) as stopped:
            ts.train(finite_config(folder, 8), progress=False)
    assert stopped.value.steps == 4 * PER_UPDATE
    assert "tailsafe resume" in str(stopped.value)
    run = resume(folder, progress=False)
    assert run.steps == 8 * PER_UPDATE
    assert_same_arrays(last_arrays(folder), last_arrays(straight))
    assert rows_without_times(folder) == rows_without_times(straight)


def test_a_run_depends_on_its_seed(straight, tmp_path):
    ts.train(finite_config(tmp_path / "run", 8, seed=1), progress=False)
    assert not np.array_equal(
        last_arrays(tmp_path / "run")["state/learner.sampler.phi"], last_arrays(straight)["state/learner.sampler.phi"]
    )


def test_a_complete_run_is_left_as_it_is(straight):
    before = {p: p.stat().st_mtime_ns for p in (straight / "checkpoints").rglob("*") if p.is_file()}
    assert resume(straight, progress=False).steps == 8 * PER_UPDATE
    assert {p: p.stat().st_mtime_ns for p in (straight / "checkpoints").rglob("*") if p.is_file()} == before


def test_mujoco_resumes_bit_for_bit(tmp_path, monkeypatch):
    def config(folder):
        settings = {**TINY, "checkpoint_every": 10_000}
        return ts.TrainConfig(
            "point-goal", total_steps=5 * PER_UPDATE, preset="laptop", backend="mujoco", out=folder, settings=settings
        )

    ts.train(config(tmp_path / "straight"), progress=False)
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        with pytest.raises(RunInterrupted):
            ts.train(config(tmp_path / "stopped"), progress=False)
    resume(tmp_path / "stopped", progress=False)
    first, second = last_arrays(tmp_path / "straight"), last_arrays(tmp_path / "stopped")
    assert any(array.dtype == np.float64 for name, array in first.items() if name.startswith("environments/"))
    # Staggered: environment i of 4 began with 250 i steps behind it, and all have taken 5 x 8 since.
    assert sorted(first["environments/" + steps_leaf(first)]) == [40, 290, 540, 790]
    assert_same_arrays(second, first)
    assert rows_without_times(tmp_path / "stopped") == rows_without_times(tmp_path / "straight")


def steps_leaf(arrays):
    found = [
        name.removeprefix("environments/")
        for name, array in arrays.items()
        if name.startswith("environments/") and array.dtype == np.int32 and array.shape == (4,) and array.max() > 100
    ]
    assert len(found) == 1
    return found[0]


def test_a_broken_last_checkpoint_is_passed_over(straight, tmp_path):
    import shutil

    for damage in ("truncate", "flip", "half"):
        folder = tmp_path / damage
        shutil.copytree(straight, folder)
        checkpoints = folder / "checkpoints"
        last = max(checkpoints.iterdir(), key=lambda path: int(path.name))
        data = max((p for p in last.rglob("*") if p.is_file()), key=lambda path: path.stat().st_size)
        content = data.read_bytes()
        if damage == "truncate":
            data.write_bytes(content[: len(content) // 2])
        elif damage == "flip":
            middle = len(content) // 2
            data.write_bytes(content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :])
        else:
            shutil.rmtree(last / "state")
        assert resume(folder, progress=False).steps == 8 * PER_UPDATE
        assert_same_arrays(last_arrays(folder), last_arrays(straight))
        assert rows_without_times(folder) == rows_without_times(straight)


def test_three_checkpoints_are_kept(tmp_path):
    ts.train(finite_config(tmp_path / "run", 5, settings={"checkpoint_every": PER_UPDATE}), progress=False)
    assert Checkpoints(tmp_path / "run" / "checkpoints").steps() == [3 * PER_UPDATE, 4 * PER_UPDATE, 5 * PER_UPDATE]


def test_folders_that_are_no_runs(tmp_path):
    with pytest.raises(ts.InputError, match="the folder of a run"):
        resume(tmp_path / "nowhere")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ts.InputError, match="format None"):
        resume(tmp_path)
    with pytest.raises(ts.InputError, match="exists already"):
        ts.train(finite_config(tmp_path, 1), progress=False)


# --- processes --------------------------------------------------------------------------------------------------------

MAIN = "import sys; from tailsafe.cli import main; main(sys.argv[1:])"


def start(folder, steps):
    """`tailsafe train` in a process of its own."""
    arguments = ["train", "finite", "--limit", "2", "--preset", "laptop", "--steps", str(steps), "--out", str(folder)]
    settings = command_settings(problem=TWO_ROADS, checkpoint_every=PER_UPDATE, log_every=1)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.Popen(
        [sys.executable, "-c", MAIN, *arguments, *settings, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def wait_for_checkpoint(folder, process):
    deadline = time.monotonic() + 300
    while not Checkpoints(folder / "checkpoints").steps():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_save_and_say_how_to_go_on(tmp_path, number):
    folder = tmp_path / "run"
    process = start(folder, 10**7)
    wait_for_checkpoint(folder, process)
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 128 + number
    assert out == ""
    assert err.splitlines()[-1].endswith(f"tailsafe resume {folder}")
    assert "Traceback" not in err
    assert Checkpoints(folder / "checkpoints").load(Checkpoints(folder / "checkpoints").steps()[-1])


def test_kill_9_leaves_a_run_that_goes_on(tmp_path):
    folder = tmp_path / "run"
    process = start(folder, 10**7)
    wait_for_checkpoint(folder, process)
    time.sleep(np.random.default_rng().uniform(0, 1))
    process.kill()
    process.communicate()
    newest = Checkpoints(folder / "checkpoints").steps()[-1]
    # Three more updates, by asking for fewer steps in all.
    config = json.loads((folder / "config.json").read_text())
    config["total_steps"] = newest + 3 * PER_UPDATE
    (folder / "config.json").write_text(json.dumps(config))
    run = resume(folder, progress=False)
    # A checkpoint after every update: the last is whole, or it was being written and the one before is.
    assert run.steps == newest + 3 * PER_UPDATE
    rows = rows_without_times(folder)
    assert [int(row["updates"]) for row in rows] == list(range(1, run.steps // PER_UPDATE + 1))
    # And the path is the one that a run without accident takes.
    undisturbed = ts.train(
        finite_config(tmp_path / "same", run.steps // PER_UPDATE, settings={"checkpoint_every": 10**7, "log_every": 1}),
        progress=False,
    )
    assert_same_arrays(last_arrays(folder), last_arrays(undisturbed.folder))
