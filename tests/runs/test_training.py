"""Training: every kind of environment through one loop, several seeds in one program, and what stops a run."""

import csv
import json

import gymnasium
import jax
import numpy as np
import pytest

import tailsafe as ts
from tailsafe.cli import main
from tailsafe.envs.learning import make_environments
from tailsafe.learning.actions import BoxActions, DiscreteActions
from tailsafe.runs.logs import make_row
from tailsafe.runs.training import NonFiniteError, resume
from tests.runs.tiny import (
    PER_UPDATE,
    TINY,
    TWO_ROADS,
    Corridor,
    Costless,
    NanCost,
    ShapeShifter,
    Switch,
    Unbounded,
    command_settings,
    finite_config,
    last_arrays,
)


def user_config(task, out, names=("speeding",), updates=3):
    constraints = [ts.Constraint(name, ts.CVaR(0.75), 1.0, "discounted") for name in names]
    return ts.TrainConfig(
        task,
        constraints=constraints,
        total_steps=updates * PER_UPDATE,
        preset="laptop",
        out=out,
        settings={**TINY, "checkpoint_every": PER_UPDATE},
    )


def test_the_log_of_a_finite_run(tmp_path):
    folder = tmp_path / "run"
    ts.train(finite_config(folder, 4), progress=False)
    with (folder / "metrics.csv").open(newline="") as handle:
        rows = list(csv.DictReader(handle))
    assert [int(row["steps"]) for row in rows] == [2 * PER_UPDATE, 4 * PER_UPDATE]
    # Episodes of two_roads have 6 steps; 16 steps of 4 environments are 8 whole episodes.
    assert int(rows[0]["episodes"]) == 8
    assert float(rows[0]["episode_length"]) == 6
    assert float(rows[0]["limit_cost"]) == 2
    wanted = {"risk_cost", "cost_rate_cost", "sub_risk_cost", "beta_0", "kl", "reward", "seconds", "steps_per_second"}
    assert wanted <= set(rows[0])
    arrays = last_arrays(folder)
    sums = arrays["state/actor.finished.discounted_costs"][: int(arrays["state/actor.finished.count"])]
    assert float(rows[1]["risk_cost"]) == pytest.approx(float(ts.CVaR(0.75).risk(sums[:, 0].astype(float))))
    assert list((folder / "tensorboard").glob("events.out.tfevents.*"))
    saved = json.loads((folder / "config.json").read_text())
    assert saved["settings"]["problem"]["horizon"] == 6  # the folder alone is enough
    assert saved["versions"]["jax"] == jax.__version__


def test_rows_use_only_finished_episodes():
    from tailsafe.learning.experience import Finished

    ring = Finished(
        count=np.int32(2),
        length=np.array([10.0, 5.0, 0.0, 0.0]),
        reward=np.array([1.0, 3.0, 99.0, 99.0]),
        costs=np.array([[5.0], [0.0], [99.0], [99.0]]),
        discounted_costs=np.array([[4.0], [1.0], [99.0], [99.0]]),
    )
    constraint = ts.Constraint("cost", ts.CVaR(0.5), 2.0, "discounted")
    row = make_row(
        [constraint], [2.0], {"kl": 0.5, "beta": np.array([1.0, 2.0]), "sub_risk": np.array([3.0])}, ring, {}
    )
    # Worst half of {1, 4} is 4; the mean rate of 5/10 and 0/5 is 0.25.
    assert row["risk_cost"] == 4.0
    assert row["cost_rate_cost"] == 0.25
    assert row["reward"] == 2.0
    assert (row["beta_0"], row["beta_1"], row["sub_risk_cost"], row["kl"]) == (1.0, 2.0, 3.0, 0.5)


def test_several_seeds_in_one_program_equal_single_runs(tmp_path):
    ts.train(finite_config(tmp_path / "both", 4, seed=3, seeds=2), progress=False)
    for seed in (3, 4):
        ts.train(finite_config(tmp_path / f"alone-{seed}", 4, seed=seed), progress=False)
        together, alone = last_arrays(tmp_path / "both" / f"seed-{seed}"), last_arrays(tmp_path / f"alone-{seed}")
        assert together.keys() == alone.keys()
        for name, array in alone.items():
            # Batched matrix products sum in another order than single ones; everything else is the same program.
            assert np.allclose(together[name], array, rtol=2e-3, atol=2e-4), name
        integers = [name for name, array in alone.items() if array.dtype.kind in "iub" and "finished" not in name]
        assert all(np.array_equal(together[name], alone[name]) for name in integers)
    first = last_arrays(tmp_path / "both" / "seed-3")["state/learner.sampler.phi"]
    assert not np.array_equal(first, last_arrays(tmp_path / "both" / "seed-4")["state/learner.sampler.phi"])


def test_several_seeds_resume_from_what_all_of_them_have(tmp_path):
    import shutil

    folder = tmp_path / "run"
    ts.train(finite_config(folder, 4, seeds=2), progress=False)
    before = last_arrays(folder / "seed-1")
    # As if the process had died between the two runs' last checkpoints.
    shutil.rmtree(folder / "seed-1" / "checkpoints" / str(4 * PER_UPDATE))
    run = resume(folder, progress=False)
    assert run.steps == 2 * 4 * PER_UPDATE
    after = last_arrays(folder / "seed-1")
    assert all(np.array_equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("form", ["module", "object", "class", "factory", "id"])
def test_user_environments_train(tmp_path, form):
    if form == "id" and "tests/Corridor-v0" not in gymnasium.registry:
        gymnasium.register("tests/Corridor-v0", entry_point=Corridor, max_episode_steps=10)
    task = {
        "module": "tests.runs.tiny:Corridor",
        "object": Corridor(),
        "class": Corridor,
        "factory": lambda: Corridor(),
        "id": "tests/Corridor-v0",
    }[form]
    folder = tmp_path / "run"
    assert ts.train(user_config(task, folder), progress=False).steps == 3 * PER_UPDATE
    saved = json.loads((folder / "config.json").read_text())["task"]
    expected = {"module": task, "class": "tests.runs.tiny:Corridor", "id": task}.get(form)
    assert saved == expected
    arrays = last_arrays(folder)
    assert arrays["state/actor.finished.count"] == 3 * 8 * 4 // 10 // 4 * 4  # 24 steps: two episodes of 10 each
    (folder / "checkpoints" / str(3 * PER_UPDATE)).rename(tmp_path / "aside")
    if expected is None:
        with pytest.raises(ts.InputError, match="started from an environment object"):
            resume(folder, progress=False)
        assert resume(folder, task=task, progress=False).steps == 3 * PER_UPDATE
    else:
        assert resume(folder, progress=False).steps == 3 * PER_UPDATE


def test_discrete_actions_and_a_vector_of_costs(tmp_path):
    ts.train(user_config(Switch, tmp_path / "run", ("cost0", "cost1")), progress=False)
    with (tmp_path / "run" / "metrics.csv").open(newline="") as handle:
        row = list(csv.DictReader(handle))[-1]
    # Costs (speed > 1, speed > 0): the second is at least the first.
    assert 0 < float(row["cost_rate_cost0"]) < float(row["cost_rate_cost1"])


def test_box_actions_are_scaled_to_the_bounds():
    environments = make_environments(Corridor, 3, seed=1)
    assert environments.spec.actions == BoxActions(1)
    transition = environments.step(np.array([[-1.0], [0.0], [1.0]], np.float32))
    assert transition.reward.tolist() == [-2.0, 1.0, 4.0]
    assert transition.costs.tolist() == [[0.0], [0.0], [1.0]]
    for _ in range(9):
        transition = environments.step(np.zeros((3, 1), np.float32))
    assert transition.truncated.all()
    assert not transition.terminated.any()
    assert np.allclose(transition.next_observation[:, 0], [0.7, 1.0, 1.3])
    assert (transition.observation[:, 0] == 0).all()  # the next episode's first


def test_copies_are_seeded_apart_and_repeatably():
    first, second = (make_environments(Corridor, 3, seed=4).reset(7) for _ in range(2))
    assert np.array_equal(first, second)
    assert len(np.unique(first[:, 1])) == 3
    assert make_environments(Switch, 1).spec.actions == DiscreteActions(3)


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        (Costless, "has no info['cost']"),
        (NanCost, "info['cost'] is nan; it must be finite"),
        (ShapeShifter, "changed its shape from (1,) to (2,)"),
        (Unbounded, "has no bounds"),
        (lambda: 3, "builds a int, not a gymnasium.Env"),
    ],
)
def test_unfit_environments_are_refused(tmp_path, task, reason):
    with pytest.raises(ts.InputError) as error:
        ts.train(user_config(task, tmp_path / "run", ("speeding",)), progress=False)
    assert reason in str(error.value)


def test_mjx_and_mujoco_show_the_learner_the_same():
    both = [make_environments("point-goal", 2, backend) for backend in ("mujoco", "mjx")]
    assert both[0].spec == both[1].spec
    state = jax.jit(both[1].init)(jax.random.key(0))
    assert state.episode.steps.tolist() == [0, 500]
    state, transition = jax.jit(both[1].step)(state, np.zeros((2, 2), np.float32))
    assert transition.next_observation.shape == both[0].step(np.zeros((2, 2), np.float32)).next_observation.shape
    both[0].close()


def test_numbers_that_are_not_finite_stop_the_run(tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(NonFiniteError) as error:
        ts.train(finite_config(folder, 6, settings={"critic_rate": 1e38, "checkpoint_every": 10**6}), progress=False)
    assert "is not finite at" in str(error.value)
    assert "critic_rate" in str(error.value)
    assert not (folder / "checkpoints").exists()


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def command(capfd):
    def call(*arguments):
        with pytest.raises(SystemExit) as stop:
            main([str(a) for a in arguments])
        out, err = capfd.readouterr()
        return stop.value.code, out, err

    return call


def test_train_and_resume_commands(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = command_settings(problem=TWO_ROADS)
    code, out, err = command("train", "finite", "--limit", 2, "--steps", 3 * PER_UPDATE, *settings, "--json")
    assert (code, err) == (0, "")
    assert out.count("\n") == 1
    result = json.loads(out)
    assert result["run"].startswith("runs/finite-srcpo-")
    assert result["steps"] == 3 * PER_UPDATE
    assert result["seconds"] > 0
    code, out, _ = command("resume", result["run"], "--json")
    assert code == 0
    assert json.loads(out)["steps"] == 3 * PER_UPDATE
    code, out, err = command("resume", result["run"])
    assert code == 0
    assert result["run"] in out
    assert "is complete" in err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["train", "point-gaol"], "unknown task 'point-gaol'"),
        (["train", "finite"], "needs a problem"),
        (["train", "finite", "--set", f"problem={TWO_ROADS}"], "no limits of its own"),
        (["train", "finite", "--set", "problem=missing.json", "--limit", "1"], "missing.json: No such file"),
        (["train", "point-goal", "--limit", "0.025"], "say in which unit"),
        (["train", "point-goal", "--risk", "cvr:0.5"], "did you mean cvar"),
        (["train", "point-goal", "--risk", "mean", "--risk", "mean"], "2 risk measures for 1 costs (collision)"),
        (["train", "point-goal", "--set", "max_lk=1"], "did you mean max_kl"),
        (["train", "point-goal", "--preset", "lap"], "unknown preset 'lap'"),
        (["train", "point-goal", "--algo", "ppo"], "unknown algorithm"),
        (["train", "point-goal", "--backend", "warp"], "warp"),
        (["train", "point-goal", "--steps", "0"], "total_steps is 0"),
        (["train", "point-goal", "--out", "full"], "full: exists already"),
        (["train", "point-goal", "--set", "problem=x.json"], "x.json: No such file"),
        (["train", "json:JSONDecoder", "--limit", "1/step"], "not a gymnasium.Env"),
        (["resume", "full"], "full/config.json: No such file"),
    ],
)
def test_mistakes_get_one_line_and_exit_code_2(command, tmp_path, monkeypatch, arguments, reason):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    code, out, err = command(*arguments)
    assert (code, out) == (2, "")
    assert reason in err
    assert err.count("\n") == 1
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["file", "full"]  # nothing written
