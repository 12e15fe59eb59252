"""Training: every kind of environment through one loop, several seeds in one program, and what stops a run."""

import csv
import json
import shutil

import gymnasium
import jax
import numpy as np
import pytest

import tailsafe as ts
from tailsafe.envs.training import make_environments, staggered_steps
from tailsafe.learning.actions import BoxActions, DiscreteActions
from tailsafe.training.failures import NonFiniteError
from tailsafe.training.logs import LoggedCost, make_row, missed
from tailsafe.training.plan import make_plan
from tailsafe.training.train import resume
from tests.training.tiny import (
    FINITE_LIMIT,
    PER_UPDATE,
    TINY,
    TWO_ROADS,
    Corridor,
    Costless,
    NanCost,
    ShapeShifter,
    Switch,
    Unbounded,
    assert_close_arrays,
    assert_same_arrays,
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


def test_rows_use_only_finished_episodes():
    from tailsafe.learning.experience import Finished

    ring = Finished(
        count=np.int32(2),
        length=np.array([10.0, 5.0, 0.0, 0.0]),
        reward=np.array([1.0, 3.0, 99.0, 99.0]),
        costs=np.array([[5.0], [0.0], [99.0], [99.0]]),
        discounted_costs=np.array([[4.0], [1.0], [99.0], [99.0]]),
    )
    constraint = ts.Constraint("cost", ts.CVaR(0.5), 0.02, "step")
    metrics = {"kl": 0.5, "beta": np.array([1.0, 2.0]), "sub_risk": np.array([3.0])}
    row = make_row([LoggedCost(constraint, 0.01, 1)], metrics, ring, {})
    # Worst half of {1, 4} is 4; the mean rate of 5/10 and 0/5 is 0.25.
    assert row["risk_cost"] == 4.0 * 0.01  # in the unit of the limit
    assert row["cost_rate_cost"] == 0.25
    assert row["reward"] == 2.0
    assert (row["beta_cost"], row["sub_risk_cost"], row["limit_cost"], row["kl"]) == (0.01, 0.03, 0.02, 0.5)
    assert "beta_cost_1" not in row  # the second dual variable fills a row up
    assert row["recent_episodes"] == 2
    (told,) = missed(row, [LoggedCost(constraint, 0.01, 1)])
    assert missed(row | {"risk_cost": 0.015}, [LoggedCost(constraint, 0.01, 1)]) == []
    (unknown,) = missed(row | {"recent_episodes": 0, "risk_cost": None}, [LoggedCost(constraint, 0.01, 1)])
    assert "no training episode has ended" in unknown
    (aim,) = missed(row | {"risk_cost": 0.015}, [LoggedCost(constraint, 0.01, 1)], 0.5)
    assert aim.endswith("above the aim 0.01/step, but within the limit 0.02/step (margin 0.5)")
    assert told == ("cost: cvar:0.5 is 0.04/step over the last 2 training episodes, above the limit 0.02/step")


def test_rows_are_of_the_latest_tenth_of_all_episodes():
    from tailsafe.learning.experience import Finished

    # 500 episodes in a ring of 256: number k, counted from 0, is in place k % 256, and had the reward k.
    order = np.array([max(k for k in range(500) if k % 256 == place) for place in range(256)], float)
    table = order[:, None]
    ring = Finished(np.int32(500), np.ones(256), order, table, table)
    row = make_row([LoggedCost(FINITE_LIMIT, 1.0, 1)], {}, ring, {})
    assert row["recent_episodes"] == 50
    assert row["reward"] == np.arange(450, 500).mean()
    few = Finished(np.int32(40), np.ones(256), order, table, table)
    assert make_row([LoggedCost(FINITE_LIMIT, 1.0, 1)], {}, few, {})["recent_episodes"] == 32


def test_several_seeds_in_one_program_equal_single_runs(tmp_path):
    both = tmp_path / "both"
    ts.train(finite_config(both, 4, seed=3, seeds=2), progress=False)
    ts.train(finite_config(tmp_path / "alone", 4, seed=4), progress=False)
    together, alone = last_arrays(both / "seed-4"), last_arrays(tmp_path / "alone")
    assert_close_arrays(together, alone)
    other = last_arrays(both / "seed-3")
    chosen = "state/learner.replay.chunks.raw_action"
    assert not np.array_equal(other[chosen], together[chosen])

    # As if the process had died between the two runs' last checkpoints: both go back to what both have.
    shutil.rmtree(both / "seed-4" / "checkpoints" / str(4 * PER_UPDATE))
    assert resume(both, progress=False).steps == 2 * 4 * PER_UPDATE
    assert_same_arrays(last_arrays(both / "seed-4"), together)
    assert_same_arrays(last_arrays(both / "seed-3"), other)


FORMS = {
    "module": "tests.training.tiny:Corridor",
    "object": Corridor(),
    "class": Corridor,
    "factory": lambda: Corridor(),
    "id": "tests/Corridor-v0",
    "made": "made by gymnasium",
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_user_environments(form):
    if "tests/Corridor-v0" not in gymnasium.registry:
        gymnasium.register("tests/Corridor-v0", entry_point="tests.training.tiny:Corridor", max_episode_steps=10)
    task = gymnasium.make("tests/Corridor-v0") if form == "made" else FORMS[form]
    plan = make_plan(user_config(task, None))
    names = {"module": task, "class": "tests.training.tiny:Corridor", "id": task, "made": "tests/Corridor-v0"}
    assert plan.saved is (form in names)
    assert plan.config.to_json()["task"] == names.get(form)
    assert plan.spec.episode_length == (10 if form in ("id", "made") else None)
    assert plan.spec.cost_names == ("speeding",)
    assert plan.environments.reset(0).shape == (4, 2)
    assert len({id(env.unwrapped) for env in plan.environments.envs}) == 4


def test_an_environment_object_trains_and_resumes(tmp_path):
    folder, task = tmp_path / "run", Corridor()
    assert ts.train(user_config(task, folder), progress=False).steps == 3 * PER_UPDATE
    arrays = last_arrays(folder)
    assert arrays["state/actor.finished.count"] == 4 * 2  # 24 steps: two episodes of 10 in each of 4
    with pytest.raises(ts.InputError, match="started from an environment object"):
        resume(folder, progress=False)
    shutil.rmtree(folder / "checkpoints" / str(3 * PER_UPDATE))
    assert resume(folder, task=task, progress=False).steps == 3 * PER_UPDATE
    again = last_arrays(folder)
    # Environments cannot be saved: new episodes begin after 16 steps, the learner continues from where it was.
    assert again["state/actor.finished.count"] == 4
    assert again["state/learner.updates"] == 3
    assert np.array_equal(
        again["state/learner.replay.chunks.reward"][:2], arrays["state/learner.replay.chunks.reward"][:2]
    )


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
        (NanCost, "a step cost nan; costs must be finite"),
        (ShapeShifter, "changed its shape from (1,) to (2,)"),
        (Unbounded, "has no bounds"),
        (lambda: 3, "builds a int, which is not a gymnasium.Env"),
    ],
)
def test_unfit_environments_are_refused(task, reason):
    def ten_steps():
        environments = make_environments(task, 2)
        for _ in range(10):
            environments.step(np.zeros((2, 1), np.float32))

    with pytest.raises(ts.InputError) as error:
        ten_steps()
    assert reason in str(error.value)


def test_mjx_and_mujoco_show_the_learner_the_same():
    mujoco, mjx = (make_environments("point-goal", 2, backend) for backend in ("mujoco", "mjx"))
    assert mujoco.spec == mjx.spec
    actions = np.zeros((2, 2), np.float32)
    state = jax.eval_shape(mjx.init, jax.random.key(0))
    _, promised = jax.eval_shape(mjx.step, state, actions)
    given = mujoco.step(actions)
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), promised) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype), given
    )
    mujoco.close()
    assert staggered_steps(1000, 4).tolist() == [0, 250, 500, 750]
    assert staggered_steps(10, 3).tolist() == [0, 3, 6]


@pytest.mark.slow
def test_mjx_trains_and_resumes_bit_for_bit(tmp_path):
    folder = tmp_path / "run"
    config = ts.TrainConfig(
        "point-goal",
        total_steps=4 * PER_UPDATE,
        preset="laptop",
        backend="mjx",
        out=folder,
        settings={**TINY, "checkpoint_every": 2 * PER_UPDATE},
    )
    ts.train(config, progress=False)
    first = last_arrays(folder)
    assert first["state/environment.episode.steps"].tolist() == [32, 282, 532, 782]
    shutil.rmtree(folder / "checkpoints" / str(4 * PER_UPDATE))
    resume(folder, progress=False)
    assert_same_arrays(last_arrays(folder), first)


def test_numbers_that_are_not_finite_stop_the_run(tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(NonFiniteError) as error:
        ts.train(finite_config(folder, 6, settings={"critic_rate": 1e38, "checkpoint_every": 10**6}), progress=False)
    assert "is not finite at" in str(error.value)
    assert "critic_rate" in str(error.value)
    assert not (folder / "checkpoints").exists()


# --- the command ------------------------------------------------------------------------------------------------------


def test_train_and_resume_commands(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = command_settings(problem=TWO_ROADS)
    code, out, err = call("train", "finite", "--limit", 2, "--steps", 3 * PER_UPDATE, *settings, "--json")
    assert (code, err) == (0, "")
    assert out.count("\n") == 1
    result = json.loads(out)
    assert result["run"].startswith("runs/finite-srcpo-")
    assert result["steps"] == 3 * PER_UPDATE
    assert result["seconds"] > 0
    code, out, _ = call("resume", result["run"], "--json")
    assert code == 0
    assert json.loads(out)["steps"] == 3 * PER_UPDATE
    code, out, err = call("resume", result["run"])
    assert code == 0
    assert result["run"] in out
    assert "is complete" in err


def test_three_costs_each_have_their_measure_and_limit(call, tmp_path):
    """A mixed setting on a robot with three costs, from the command line to the verdicts and the saved policy."""
    folder = tmp_path / "run"
    risks, limits = ("cvar:0.75", "wang:0.5", "pow:0.5"), ("0.025/step", "3/discounted", "250/episode")
    pairs = [word for risk, limit in zip(risks, limits, strict=True) for word in ("--risk", risk, "--limit", limit)]
    where = ("--backend", "mujoco", "--preset", "laptop", "--out", folder, "--steps", 3 * PER_UPDATE)
    code, _, _ = call("train", "quadruped", *pairs, *where, *command_settings(initial_log_std=-2), "--json")
    assert code == 0
    with (folder / "metrics.csv").open() as file:
        row = list(csv.DictReader(file))[-1]
    # Each in the unit that was given.
    assert [float(row[f"limit_{name}"]) for name in ("balance", "height", "foot_timing")] == [0.025, 3, 250]
    assert sum(key.startswith("beta_") for key in row) == 1 + 4 + 4  # CVaR has one step; what pads it is not shown
    code, out, _ = call("evaluate", folder, "--episodes", 4, "--backend", "mujoco", "--json")
    assert code in (0, 1)
    constraints = json.loads(out.splitlines()[-1])["constraints"]
    assert [found["name"] for found in constraints] == ["balance", "height", "foot_timing"]
    assert [found["risk_measure"] for found in constraints] == list(risks)
    assert [(found["limit"], found["unit"]) for found in constraints] == [
        (0.025, "step"),
        (3, "discounted"),
        (250, "episode"),
    ]
    assert all(found["verdict"] in ("met", "violated", "cannot tell") for found in constraints)
    env = gymnasium.make("tailsafe/Quadruped-v0")
    policy = ts.load_policy(folder)
    actions = np.stack([policy(env.observation_space.sample()) for _ in range(40)])
    assert (np.abs(actions) <= env.action_space.high).all()
    # The same deviation before squashing: knees reach 3.29 times as far as abductions, thighs 2.36 times.
    abduct, thigh, knee = (actions[:, joint::3].std() for joint in range(3))
    assert knee / abduct == pytest.approx(3.29, rel=0.25)
    assert thigh / abduct == pytest.approx(2.36, rel=0.25)
    env.close()


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
        (["train", "point-goal", "--backend", "warp"], "backend warp needs warp-lang, which is not installed"),
        (["train", "point-goal", "--steps", "0"], "total_steps is 0"),
        (["train", "point-goal", "--out", "full"], "full: exists already"),
        (["train", "point-goal", "--set", "problem=x.json"], "x.json: No such file"),
        (["train", "json:JSONDecoder", "--limit", "1/step"], "is a module of Python itself"),
        (["resume", "full"], "full/config.json: no such file"),
    ],
)
def test_mistakes_get_one_line_and_exit_code_2(call, tmp_path, monkeypatch, arguments, reason):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tailsafe.physics.warp_engine.warp_installed", lambda: False)  # where it is, this would train
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    assert reason in err
    assert err.count("\n") == 1
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["file", "full"]  # nothing written
