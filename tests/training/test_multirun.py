"""Runs with other measures, limits and rates in one program: each what it would be alone, whatever the others do."""

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace

import pytest

import tailsafe as ts
from tailsafe.errors import InputError
from tailsafe.policies.policy import load_policy
from tailsafe.training.failures import FAILED, NonFiniteError
from tailsafe.training.multirun import programs, train_together
from tailsafe.training.signals import RunInterrupted
from tests.training.tiny import PER_UPDATE, ROOT, assert_close_arrays, finite_config, last_arrays, rows_without_times

MEASURES = ("cvar:0.75", "pow:0.75", "wang:0.5")
UPDATES = 4


def configs_of(folder, measures=MEASURES, limit=2.0, **changes):
    base = finite_config(None, UPDATES, **changes)
    return [
        replace(base, out=folder / f"{i}", constraints=[ts.Constraint("cost", measure, limit + i, "discounted")])
        for i, measure in enumerate(measures)
    ]


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    folder = tmp_path_factory.mktemp("together")
    result = train_together(configs_of(folder), progress=False)
    assert result.steps == UPDATES * PER_UPDATE
    assert not result.failed
    return folder


@pytest.mark.parametrize(("i", "measure"), list(enumerate(MEASURES)))
def test_every_run_is_what_it_would_be_alone(together, tmp_path, i, measure):
    config = replace(configs_of(tmp_path)[i], out=tmp_path / "alone")
    ts.train(replace(config, settings={**config.settings, "least_cells": 5}), progress=False)
    assert_close_arrays(last_arrays(together / str(i)), last_arrays(tmp_path / "alone"))
    assert [row["limit_cost"] for row in rows_without_times(together / str(i))] == [f"{2.0 + i}"] * 2


def test_every_folder_is_an_ordinary_run(together, tmp_path):
    for i, measure in enumerate(MEASURES):
        policy = load_policy(together / str(i))
        assert policy.description.constraints[0].risk_measure == ts.parse_spectrum(measure).spec
        # CVaR has one break point and is filled up: all its betas are in order, the useless ones at its end.
        assert len(policy.beta[0]) == 4
        assert policy.beta[0] == sorted(policy.beta[0])
    assert ts.evaluate(together / "0", episodes=20, exact=False).constraints[0].risk >= 0
    shutil.copytree(together / "1", tmp_path / "1")
    shutil.rmtree(tmp_path / "1" / "checkpoints" / str(UPDATES * PER_UPDATE))
    ts.resume(tmp_path / "1", progress=False)
    assert_close_arrays(last_arrays(tmp_path / "1"), last_arrays(together / "1"))


def test_a_stopped_group_goes_on_where_it_was(together, tmp_path):
    configs = configs_of(tmp_path)
    with pytest.raises(RunInterrupted):
        train_together(configs, progress=False, until=time.monotonic())
    assert len(rows_without_times(tmp_path / "0")) == 1
    train_together(configs, progress=False)
    for i in range(len(MEASURES)):
        assert rows_without_times(tmp_path / str(i)) == rows_without_times(together / str(i))
    with pytest.raises(InputError, match="holds a run with other settings"):
        train_together(configs_of(tmp_path, limit=3.0), progress=False)


def test_what_is_left_of_a_group_goes_on_as_it_was(together, tmp_path):
    """CVaR alone would need one dual variable: started beside others, it keeps its four."""
    configs = configs_of(tmp_path)
    with pytest.raises(RunInterrupted):
        train_together(configs, progress=False, until=time.monotonic())
    train_together(configs[:1], progress=False)
    assert_close_arrays(last_arrays(tmp_path / "0"), last_arrays(together / "0"))


def test_runs_that_went_different_ways_lose_nothing(tmp_path):
    """One went ahead by itself: it resumes from there, and the others from where they are."""
    base = configs_of(tmp_path)
    configs = [replace(config, settings={**config.settings, "checkpoint_every": PER_UPDATE}) for config in base]
    with pytest.raises(RunInterrupted):
        train_together(configs, progress=False, until=time.monotonic())
    ts.resume(tmp_path / "0", progress=False)
    kept = tmp_path / "0" / "checkpoints"

    def updates_kept():
        return sorted(int(path.name) // PER_UPDATE for path in kept.iterdir() if path.name.isdigit())

    assert updates_kept() == [2, 3, 4]
    shutil.rmtree(kept / str(UPDATES * PER_UPDATE))
    third = kept / str(3 * PER_UPDATE)
    written = third.stat().st_mtime_ns
    assert train_together(configs, progress=False).steps == UPDATES * PER_UPDATE
    assert updates_kept() == [2, 3, 4]
    assert third.stat().st_mtime_ns == written  # else it has been trained again
    for name in ("1", "2"):
        assert int(rows_without_times(tmp_path / name)[-1]["updates"]) == UPDATES


def test_a_run_that_fails_does_not_take_the_others_down(together, tmp_path):
    configs = configs_of(tmp_path)
    configs[1] = replace(configs[1], settings={**configs[1].settings, "critic_rate": 1e38})
    result = train_together(configs, progress=False)
    assert list(result.failed) == [tmp_path / "1"]
    assert "is not finite at" in result.failed[tmp_path / "1"]
    assert "is not finite at" in json.loads((tmp_path / "1" / FAILED).read_text())["error"]
    assert not (tmp_path / "1" / "checkpoints").exists()
    for name in ("0", "2"):
        assert rows_without_times(tmp_path / name) == rows_without_times(together / name)
    # It stays given up beside the others, which are complete.
    again = train_together(configs, progress=False)
    assert (again.steps, list(again.failed)) == (UPDATES * PER_UPDATE, [tmp_path / "1"])


def test_of_several_seeds_the_failed_ones_are_an_error(tmp_path, monkeypatch):
    from tailsafe.training import session

    original = session.make_row

    def poisoned(*arguments):
        calls.append(1)
        return original(*arguments) | ({"reward": float("nan")} if len(calls) == 1 else {})

    calls: list[int] = []
    monkeypatch.setattr(session, "make_row", poisoned)
    with pytest.raises(NonFiniteError, match="1 of 2 seeds failed: reward is not finite"):
        ts.train(finite_config(tmp_path / "run", UPDATES, seeds=2), progress=False)
    assert not (tmp_path / "run" / "seed-0" / "checkpoints").exists()
    assert int(rows_without_times(tmp_path / "run" / "seed-1")[-1]["updates"]) == UPDATES


def test_what_fits_into_one_program(tmp_path):
    first, second, third = configs_of(tmp_path)
    wider = replace(second, settings={**second.settings, "critic_hidden": (16,)})
    faster = replace(third, settings={**third.settings, "critic_rate": 0.01}, seed=3)
    assert programs([first, wider, second, faster]) == [[first, second, faster], [wider]]
    with pytest.raises(InputError, match="do not fit into one program"):
        train_together([first, wider], progress=False)
    with pytest.raises(InputError, match="need a folder each"):
        train_together([replace(first, out=None)], progress=False)


@pytest.mark.parametrize("devices", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_runs_are_spread_over_the_devices_of_a_host(devices, together, tmp_path):
    """Three runs on two devices, or on four, stopped and resumed there: the same as on one."""
    program = (
        "import sys, time, jax, pathlib\n"
        "from tests.training.test_multirun import configs_of\n"
        "from tailsafe.training.multirun import train_together\n"
        "from tailsafe.training.signals import RunInterrupted\n"
        f"assert jax.local_device_count() == {devices}\n"
        "configs = configs_of(pathlib.Path(sys.argv[1]))\n"
        "try: train_together(configs, progress=False, until=time.monotonic())\n"
        "except RunInterrupted: pass\n"
        "train_together(configs, progress=False)\n"
    )
    environment = {
        **os.environ,
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]),
    }
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "spread")], env=environment, check=True)
    for i in range(len(MEASURES)):
        assert_close_arrays(last_arrays(tmp_path / "spread" / str(i)), last_arrays(together / str(i)))


def test_environments_outside_of_jax_train_in_turn(tmp_path):
    base = finite_config(None, 2)
    settings = {key: value for key, value in base.settings.items() if key not in ("problem", "total_steps")}
    configs = [
        ts.TrainConfig(
            "tests.training.tiny:Corridor",
            constraints=[ts.Constraint("speeding", measure, 2.0, "discounted")],
            total_steps=2 * PER_UPDATE,
            preset="laptop",
            out=tmp_path / str(i),
            settings=settings,
        )
        for i, measure in enumerate(MEASURES[:2])
    ]
    result = train_together(configs, progress=False)
    assert result.steps == 2 * PER_UPDATE
    for config, limit in zip(configs, ("cvar:0.75", "pow:0.75"), strict=True):
        policy = load_policy(config.out)
        assert policy.description.constraints[0].risk_measure == limit
        assert policy.delta.shape == (4,)
