"""Validation: fresh episodes correct what the learner aims with, and decide which policy ships."""

from __future__ import annotations

import csv
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax import numpy as jnp

import tailsafe as ts
from tailsafe.algorithms.state import PrimalState
from tailsafe.envs.device import DeviceBatch, device_engine
from tailsafe.envs.episodes import environment_keys
from tailsafe.envs.finite import FiniteEnvironments
from tailsafe.envs.jax_user import JaxStage
from tailsafe.evaluation.exact import evaluate_on_problem
from tailsafe.policies.policy import load_policy
from tailsafe.tasks import TASKS, task_units
from tailsafe.training import session
from tailsafe.training.logs import last_shipped
from tailsafe.training.plan import make_plan
from tailsafe.training.settled import DevicePlay, SettledEpisodes, play_settled, standard_error
from tailsafe.training.validation import Entry, Validation
from tests.training.tiny import PER_UPDATE, finite_config

# Validated after updates 6, 7, ...: five are left out at first.
VALIDATED = {"validation_every": 1, "validation_episodes": 64}


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as handle:
        return list(csv.DictReader(handle))


def entries_of(run: Path) -> list[dict[str, str]]:
    return table(run / "validation" / "validation.csv")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine updates, validated after the last four of them."""
    out = tmp_path_factory.mktemp("validated") / "run"
    ts.train(finite_config(out, 9, settings=VALIDATED))
    return out


def test_validations_are_so_many_steps_apart_whatever_an_update_takes(tmp_path: Path) -> None:
    settings = VALIDATED | {"validation_every": PER_UPDATE + 1}
    ts.train(finite_config(tmp_path / "run", 14, settings=settings))
    assert [int(row["updates"]) for row in entries_of(tmp_path / "run")] == [12, 14]


@pytest.mark.parametrize("measure", [ts.CVaR(0.75), ts.Mean(), ts.Wang(0.5)], ids=str)
def test_standard_errors_are_those_of_repeated_samples(measure: ts.SpectralRisk) -> None:
    rng = np.random.default_rng(0)
    samples = rng.exponential(size=(600, 400))
    seen = np.std([measure.risk(row) for row in samples])
    told = np.mean([standard_error(measure, row) for row in samples])
    assert told == pytest.approx(seen, rel=0.1)


def test_settled_episodes_have_the_policys_exact_risk(trained: Path) -> None:
    policy = load_policy(trained)
    problem = ts.tabular.FiniteCMDP.from_dict(policy.description.task.problem)
    stage = JaxStage(FiniteEnvironments(problem, 20_000))
    played = play_settled(policy, stage, 3, problem.horizon)
    exact = evaluate_on_problem(policy)
    risks, errors = played.risks([ts.CVaR(0.75)])
    assert abs(risks[0] - exact.risks[0]) < 4 * errors[0] + 1e-3


@pytest.mark.slow
def test_a_device_plays_the_episodes_of_a_loop(tmp_path: Path) -> None:
    """One program gives what its steps give one by one. Compiling engine mjx takes most of the time."""
    settings = {"num_envs": 2, "chunk_steps": 4, "validation_every": 0}
    run = ts.train(ts.TrainConfig("point-goal", total_steps=8, settings=settings, out=tmp_path / "run"))
    policy, task = load_policy(run.folder), TASKS["point-goal"]
    episodes, steps, seed = 4, 40, 7
    played = DevicePlay(task, "mjx", 2, episodes, steps).play([policy], [seed])[0]

    batch = DeviceBatch(task, device_engine(task, "mjx"))
    move, act = jax.jit(batch.move), jax.jit(policy.sampled)
    state = jax.jit(batch.init)(environment_keys(seed, episodes))
    paid, earned, weight = np.zeros((episodes, 1)), np.zeros(episodes), np.ones(episodes)
    for key in jax.random.split(jax.random.key(seed), steps):
        actions = act(state.episode.observation, jnp.asarray(paid, jnp.float32), jnp.asarray(weight, jnp.float32), key)
        state, moved = move(state, task_units(task, actions))
        paid += weight[:, None] * np.asarray(moved.costs)
        earned += np.asarray(moved.reward)
        weight = weight * policy.description.gamma
    np.testing.assert_allclose(played.costs, paid, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(played.reward, earned / steps, rtol=1e-3, atol=1e-5)


def test_environments_of_ones_own_are_not_validated() -> None:
    constraint = ts.Constraint("cost", ts.CVaR(0.75), limit=1, unit="step")
    config = ts.TrainConfig("tests.training.tiny:Corridor", constraints=[constraint], settings={"validation_every": 1})
    with pytest.raises(ts.InputError, match="validation_every must be 0"):
        make_plan(config)


def test_a_correction_follows_what_is_missing_and_knows_its_error() -> None:
    none = jnp.zeros(1)
    state = replace(object.__new__(PrimalState), **dict.fromkeys(PrimalState.__dataclass_fields__, none))
    state = replace(state, estimate=jnp.array([2.0]))
    first = state.corrected(jnp.array([2.5]), jnp.array([0.2]))
    assert (first.offset[0], first.doubt[0]) == pytest.approx((0.5, 0.2))
    # Ten validations later the estimate is still 2: the offset is a weighted mean, its error that of the mean. Costs do
    # not know of each other: 2000 of them are as many repetitions.
    many = replace(state, **{name: jnp.full(2000, getattr(first, name)[0]) for name in ("estimate", "offset", "doubt")})
    for found in 2.5 + 0.2 * np.random.default_rng(1).standard_normal((10, 2000)):
        many = many.corrected(jnp.asarray(found), jnp.full(2000, 0.2))
    assert np.mean(many.offset) == pytest.approx(0.5, abs=0.01)
    assert np.std(many.offset) == pytest.approx(float(np.mean(many.doubt)), rel=0.1)


def test_validations_are_written_down_and_one_of_them_ships(trained: Path) -> None:
    rows = entries_of(trained)
    assert [int(row["updates"]) for row in rows] == [6, 7, 8, 9]
    assert load_policy(trained).description.steps in {int(row["steps"]) for row in rows}
    log = table(trained / "metrics.csv")
    assert log[0]["validation_risk_cost"] == ""
    assert float(log[-1]["validation_risk_cost"]) == pytest.approx(float(rows[-1]["risk_cost"]))


def test_a_stopped_run_is_validated_as_one_that_was_not(trained: Path, tmp_path: Path) -> None:
    config = finite_config(tmp_path / "run", 9, settings=VALIDATED)
    ts.train(config, callback=lambda row: row["updates"] < 6)
    ts.resume(tmp_path / "run")
    assert entries_of(tmp_path / "run") == entries_of(trained)
    assert same_files(tmp_path / "run", trained)


def test_a_run_that_ends_before_its_policy_is_written_ships_it_later(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its last checkpoint nothing is left to train, but the policy is still the one before."""
    share = session.share_policy

    def killed(folder: Path, plan: Any, learner: Any, steps: int) -> None:
        if steps == 9 * PER_UPDATE:
            raise KeyboardInterrupt
        share(folder, plan, learner, steps)

    with monkeypatch.context() as patch:
        patch.setattr(session, "share_policy", killed)
        with pytest.raises(KeyboardInterrupt):
            ts.train(finite_config(tmp_path / "run", 9, settings=VALIDATED))
    assert not same_files(tmp_path / "run", trained)
    ts.resume(tmp_path / "run")
    assert same_files(tmp_path / "run", trained)


def test_a_run_that_ends_while_its_policy_is_chosen_ships_it_later(trained: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    shipped = (run / "policy" / "policy.safetensors").read_bytes()
    kept = sorted((run / "validation").glob("policy-*"))
    other = next(folder for folder in kept if (folder / "policy.safetensors").read_bytes() != shipped)
    for file in other.iterdir():
        shutil.copy(file, run / "policy")
    assert not same_files(run, trained)
    # Chosen already: nothing is done again. What is certified about a policy is written into it.
    ts.resume(run)
    assert not same_files(run, trained)
    (run / "sessions.json").write_text('{"begun": [0], "shipped": 0}')
    ts.resume(run)
    assert same_files(run, trained)
    assert last_shipped(run) == 9
    # Older runs do not say it: where they have a policy, that is theirs.
    (run / "sessions.json").write_text('{"begun": [0]}')
    (run / "policy" / "policy.json").write_text("mine")
    ts.resume(run)
    assert (run / "policy" / "policy.json").read_text() == "mine"
    shutil.rmtree(run / "policy")
    ts.resume(run)
    assert same_files(run, trained)


def same_files(run: Path, other: Path) -> bool:
    """Whether two runs have the same policy."""
    names = ("policy.json", "policy.safetensors")
    return all((run / "policy" / name).read_bytes() == (other / "policy" / name).read_bytes() for name in names)


def test_several_runs_of_a_program_are_validated_each(tmp_path: Path) -> None:
    ts.train(finite_config(tmp_path / "runs", 7, seeds=2, settings=VALIDATED))
    first, second = (entries_of(tmp_path / "runs" / f"seed-{seed}") for seed in (0, 1))
    assert [int(row["updates"]) for row in first] == [int(row["updates"]) for row in second] == [6, 7]
    assert first != second


def test_corrections_reach_the_estimates(trained: Path, tmp_path: Path) -> None:
    """Without validation the same seed takes another path, from the first update after the first validation on."""
    ts.train(finite_config(tmp_path / "run", 9, settings={"validation_every": 0}))
    with_it, without = (table(run / "metrics.csv") for run in (trained, tmp_path / "run"))
    same = [a["sub_risk_cost"] == b["sub_risk_cost"] for a, b in zip(with_it, without, strict=True)]
    # Rows of the log: updates 2, 4, 6, 8 and 9.
    assert same == [True, True, True, False, False]
    assert not (tmp_path / "run" / "validation").exists()


@pytest.mark.parametrize(
    ("rewards", "risks", "errors", "best"),
    [
        ([1.0, 2.0, 3.0], [1.0, 1.5, 2.5], [0.1, 0.1, 0.1], 1),  # the most rewarding below the limit of 2
        ([1.0, 2.0, 3.0], [1.0, 1.9, 2.5], [0.1, 0.1, 0.1], 0),  # 1.9 is not below 2 by one and a half errors
        ([1.0, 2.0, 3.0], [2.3, 2.2, 2.5], [0.1, 0.1, 0.1], 1),  # none is below: the least excess
    ],
)
def test_the_most_rewarding_policy_that_stays_under_its_limits_is_preferred(
    trained: Path, rewards: list[float], risks: list[float], errors: list[float], best: int
) -> None:
    plan = make_plan(finite_config(trained, 9, settings=VALIDATED))
    ranked = Validation(plan, 0, trained)._rank
    entries = [
        Entry(i, i, *row)
        for i, row in enumerate(zip(rewards, [(r,) for r in risks], [(e,) for e in errors], strict=True))
    ]
    assert min(entries, key=ranked).updates == best


def test_played_episodes_add_up() -> None:
    one, two = (SettledEpisodes(np.full((n, 1), value), np.full(n, value)) for n, value in ((3, 1.0), (5, 2.0)))
    assert one.followed_by(two).costs.ravel().tolist() == [1.0] * 3 + [2.0] * 5


def test_negative_numbers_of_updates_are_refused() -> None:
    with pytest.raises(ts.InputError, match="validation_every"):
        ts.TrainConfig("finite", settings={"validation_every": -1})
