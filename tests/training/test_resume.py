"""Stopping and resuming: the same path bit for bit, whatever stopped the run."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from datetime import datetime

import jax
import numpy as np
import pytest

import tailsafe as ts
from tailsafe.checkpoints import Checkpoints, latest_common
from tailsafe.cli import main
from tailsafe.errors import InputError
from tailsafe.training import loop
from tailsafe.training import train as train_module
from tailsafe.training.signals import STOPPING
from tailsafe.training.train import resume
from tests.training.tiny import (
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

# Enough that a killed process is still at work; a multiple of 2 (rows) and 3 (checkpoints).
UPDATES = 24


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """UPDATES updates of the finite task in one go."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    run = ts.train(finite_config(folder, UPDATES), progress=False)
    assert run.steps == UPDATES * PER_UPDATE
    return folder


def stop_after(monkeypatch, updates):
    """Request a stop once a run has taken so many updates."""
    for kind in (loop.DeviceLoop, loop.HostLoop):
        original = kind.advance

        def advance(self, state, count, stop, original=original):
            state = original(self, state, count, stop)
            if int(state.updates) >= updates:
                os.kill(os.getpid(), signal.SIGINT)
            return state

        monkeypatch.setattr(kind, "advance", advance)


def test_an_interrupted_command_says_how_to_go_on_and_resume_equals_straight_through(
    straight, tmp_path, monkeypatch, capfd
):
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        stop_after(patch, 4)
        with pytest.raises(SystemExit) as stopped:
            main(arguments(folder, checkpoint_every=3 * PER_UPDATE))
    out, err = capfd.readouterr()
    assert stopped.value.code == 130
    at_the_end = f"stopped and saved at {4 * PER_UPDATE} steps; continue with: tailsafe resume {folder}\n"
    assert (out, err) == ("", STOPPING.decode() + at_the_end)
    assert resume(folder, progress=False).steps == UPDATES * PER_UPDATE
    assert_same_arrays(last_arrays(folder), last_arrays(straight))
    assert rows_without_times(folder) == rows_without_times(straight)


def test_the_log_of_a_run(straight):
    with (straight / "metrics.csv").open(newline="") as handle:
        rows = list(csv.DictReader(handle))
    assert [int(row["updates"]) for row in rows] == list(range(2, UPDATES + 1, 2))
    # Episodes of two_roads have 6 steps; 16 steps of 4 environments are 8 whole episodes.
    assert int(rows[0]["episodes"]) == 8
    assert float(rows[0]["episode_length"]) == 6
    assert float(rows[0]["limit_cost"]) == 2
    wanted = {
        "risk_cost",
        "cost_rate_cost",
        "sub_risk_cost",
        "beta_cost",
        "kl",
        "reward",
        "seconds",
        "steps_per_second",
    }
    assert wanted <= set(rows[0])
    sums = last_arrays(straight)["state/actor.finished.discounted_costs"]  # 16 rows, all filled by now
    assert float(rows[-1]["risk_cost"]) == pytest.approx(float(ts.CVaR(0.75).risk(sums[:, 0].astype(float))))
    assert list((straight / "tensorboard").glob("events.out.tfevents.*"))
    saved = json.loads((straight / "config.json").read_text())
    assert saved["settings"]["problem"]["horizon"] == 6  # the folder alone is enough
    assert saved["versions"]["jax"] == jax.__version__


def test_three_checkpoints_are_kept(straight):
    last = [UPDATES * PER_UPDATE - i * 3 * PER_UPDATE for i in (2, 1, 0)]
    assert Checkpoints(straight / "checkpoints").steps() == last


def test_a_complete_run_is_left_as_it_is(straight):
    before = {p: p.stat().st_mtime_ns for p in (straight / "checkpoints").rglob("*") if p.is_file()}
    assert resume(straight, progress=False).steps == UPDATES * PER_UPDATE
    assert {p: p.stat().st_mtime_ns for p in (straight / "checkpoints").rglob("*") if p.is_file()} == before


def test_mujoco_resumes_bit_for_bit(tmp_path):
    folder = tmp_path / "run"
    settings = {**TINY, "checkpoint_every": 3 * PER_UPDATE}
    config = ts.TrainConfig(
        "point-goal", total_steps=5 * PER_UPDATE, preset="laptop", backend="mujoco", out=folder, settings=settings
    )
    ts.train(config, progress=False)
    first, rows = last_arrays(folder), rows_without_times(folder)
    assert any(array.dtype == np.float64 for name, array in first.items() if name.startswith("environments/"))
    # Staggered: environment i of 4 began with 250 i steps behind it, and all have taken 5 x 8 since.
    assert sorted(first["environments/" + steps_leaf(first)]) == [40, 290, 540, 790]
    # As if it had been killed after update 3: row 4 of the log is newer than the checkpoint.
    shutil.rmtree(folder / "checkpoints" / str(5 * PER_UPDATE))
    assert resume(folder, progress=False).steps == 5 * PER_UPDATE
    assert_same_arrays(last_arrays(folder), first)
    assert rows_without_times(folder) == rows


def steps_leaf(arrays):
    found = [
        name.removeprefix("environments/")
        for name, array in arrays.items()
        if name.startswith("environments/") and array.dtype == np.int32 and array.shape == (4,) and array.max() > 100
    ]
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("damage", ["truncate", "flip", "half", "empty"])
def test_a_broken_checkpoint_is_passed_over(straight, tmp_path, damage, caplog):
    folder = tmp_path / "checkpoints"
    shutil.copytree(straight / "checkpoints", folder)
    *_, before, last = Checkpoints(folder).steps()
    data = max((p for p in (folder / str(last)).rglob("*") if p.is_file()), key=lambda path: path.stat().st_size)
    content = data.read_bytes()
    if damage == "truncate":
        data.write_bytes(content[: len(content) // 2])
    elif damage == "flip":
        middle = len(content) // 2
        data.write_bytes(content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :])
    elif damage == "half":
        shutil.rmtree(folder / str(last) / "state")
    else:
        shutil.rmtree(folder / str(last))
        (folder / str(last)).mkdir()
    steps, contents = latest_common([Checkpoints(folder)])
    assert steps == before
    assert contents[0][1]["steps"] == before
    assert f"checkpoint {last} cannot be read" in caplog.text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda about: about["meta"].update(updates=3), "is not what was written"),
        (lambda about: about["shapes"].popitem(), "is not what was written"),
        (lambda about: about.pop("digest"), None),
    ],
)
def test_what_a_checkpoint_says_of_itself_is_checked(straight, tmp_path, change, words, caplog):
    folder = tmp_path / "checkpoints"
    shutil.copytree(straight / "checkpoints", folder)
    *_, before, last = Checkpoints(folder).steps()
    path = folder / str(last) / "about" / "metadata"
    about = json.loads(path.read_text())
    change(about)
    path.write_text(json.dumps(about))
    steps, _ = latest_common([Checkpoints(folder)])
    assert steps == (last if words is None else before)
    assert (words or "was not checked") in caplog.text


def test_a_checkpoint_under_another_name_is_passed_over(straight, tmp_path, caplog):
    folder = tmp_path / "checkpoints"
    shutil.copytree(straight / "checkpoints", folder)
    *_, last = Checkpoints(folder).steps()
    (folder / str(last)).rename(folder / str(last + PER_UPDATE))
    steps, _ = latest_common([Checkpoints(folder)])
    assert steps < last
    assert "under another name" in caplog.text


def test_a_run_with_a_broken_checkpoint_goes_on(straight, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(straight, folder)
    shutil.rmtree(folder / "checkpoints" / str(UPDATES * PER_UPDATE) / "state")
    with (folder / "metrics.csv").open("a") as handle:
        handle.write("123,")  # what a crash left of a line
    assert resume(folder, progress=False).steps == UPDATES * PER_UPDATE
    assert_same_arrays(last_arrays(folder), last_arrays(straight))
    assert rows_without_times(folder) == rows_without_times(straight)


def test_folders_that_are_no_runs(tmp_path):
    with pytest.raises(ts.InputError, match="the folder of a run"):
        resume(tmp_path / "nowhere")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ts.InputError, match="format None"):
        resume(tmp_path)
    with pytest.raises(ts.InputError, match="exists already"):
        ts.train(finite_config(tmp_path, 1), progress=False)


def test_runs_that_begin_within_the_same_second_have_folders_of_their_own(tmp_path, monkeypatch):
    class Stopped(datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2026, 1, 2, 3, 4, 5)

    monkeypatch.setattr(train_module, "datetime", Stopped)
    monkeypatch.chdir(tmp_path)
    folders = [ts.train(replace(finite_config(None, 1), out=None), progress=False).folder for _ in range(3)]
    assert [folder.name for folder in folders] == [f"finite-srcpo-20260102-030405{end}" for end in ("", "-2", "-3")]


# --- processes --------------------------------------------------------------------------------------------------------


def arguments(folder, steps=UPDATES * PER_UPDATE, **settings):
    """Those of `tailsafe train` for the finite task."""
    words = ["train", "finite", "--limit", "2", "--preset", "laptop", "--steps", str(steps), "--out", str(folder)]
    return [*words, *command_settings(problem=TWO_ROADS, **settings), "--json"]


def start(words):
    """`tailsafe` in a process of its own."""
    program = "import sys; from tailsafe.cli import main; main(sys.argv[1:])"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.Popen([sys.executable, "-c", program, *words], env=environment, **pipes)


def wait_for_checkpoint(folder, process):
    deadline = time.monotonic() + 300
    while not Checkpoints(folder / "checkpoints").steps():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_sigterm_saves_and_says_how_to_go_on(tmp_path):
    folder = tmp_path / "run"
    process = start(arguments(folder, 10**7, checkpoint_every=PER_UPDATE))
    wait_for_checkpoint(folder, process)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 143
    assert out == ""
    assert err.splitlines()[-1].endswith(f"tailsafe resume {folder}")
    assert "Traceback" not in err
    checkpoints = Checkpoints(folder / "checkpoints")
    assert checkpoints.load(checkpoints.steps()[-1])[1]["steps"] == checkpoints.steps()[-1]


def test_kill_9_leaves_a_run_that_goes_on_as_if_nothing_had_happened(straight, tmp_path):
    folder = tmp_path / "run"
    process = start(arguments(folder, checkpoint_every=PER_UPDATE))
    wait_for_checkpoint(folder, process)
    time.sleep(np.random.default_rng(0).uniform(0, 0.5))
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    newest = Checkpoints(folder / "checkpoints").steps()[-1]
    found, _ = latest_common([Checkpoints(folder / "checkpoints")])
    assert newest - PER_UPDATE <= found < UPDATES * PER_UPDATE
    assert resume(folder, progress=False).steps == UPDATES * PER_UPDATE
    assert_same_arrays(last_arrays(folder), last_arrays(straight))
    assert rows_without_times(folder) == rows_without_times(straight)


def test_a_policy_without_checkpoints_cannot_be_gone_on_with(tmp_path):
    """A copy of the results alone: beginning again would empty its log."""
    folder = tmp_path / "run"
    ts.train(finite_config(folder, 3), progress=False)
    shutil.rmtree(folder / "checkpoints")
    log = (folder / "metrics.csv").read_bytes()
    with pytest.raises(InputError, match="no checkpoints"):
        resume(folder, progress=False)
    assert (folder / "metrics.csv").read_bytes() == log
