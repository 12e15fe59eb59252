"""Environments written in JAX: checked, batched, and those of other packages where they are installed."""

from __future__ import annotations

from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tailsafe as ts
from tailsafe.envs.checking import check_environment
from tailsafe.envs.finding import find_environment
from tailsafe.envs.jax_packages import BraxEnv, GymnaxEnv
from tailsafe.envs.jax_user import JaxStage, JaxUserEnvironments
from tailsafe.envs.user import user_environments
from tailsafe.errors import InputError


class Counter(ts.JaxEnv):
    """Counts its steps, ends itself at `end`; costs are the share of the end and half of it."""

    observation_space = gymnasium.spaces.Box(0, 10, (1,))
    action_space = gymnasium.spaces.Box(-2, 4, (1,))
    cost_names, largest_costs = ("first", "second"), (1.0, 0.5)
    episode_length = 3

    def __init__(self, end: int = 100) -> None:
        self.end = end

    def reset(self, key: Any) -> Any:
        start = jnp.zeros(1)
        return start, start

    def step(self, count: Any, action: Any) -> Any:
        count = count + 1
        return count, count, action[0], jnp.array([1.0, 0.5]), count[0] >= self.end


def played(env: ts.JaxEnv, steps: int) -> list[Any]:
    stage = JaxStage(JaxUserEnvironments(env, 2, "counter"))
    stage.reset(0)
    return [stage.step(np.array([[-1.0], [1.0]], np.float32)) for _ in range(steps)]


def test_steps_ends_and_new_episodes() -> None:
    rows = played(Counter(), 4)
    assert rows[0].reward.tolist() == [-2.0, 4.0]
    assert rows[0].costs.tolist() == [[1.0, 0.5]] * 2
    assert [row.truncated.tolist() for row in rows] == [[False] * 2, [False] * 2, [True] * 2, [False] * 2]
    assert [row.next_observation[0, 0] for row in rows] == [1.0, 2.0, 3.0, 1.0]
    assert rows[2].observation[0, 0] == 0.0
    ended = played(Counter(end=2), 2)[-1]
    assert ended.terminated.all()
    assert not ended.truncated.any()


def test_a_good_one_is_fit_and_a_bad_one_is_refused_in_one_line() -> None:
    findings = check_environment(Counter)
    assert all(finding.passed for finding in findings)

    class Deaf(Counter):
        def step(self, count: Any, action: Any) -> Any:
            return count, count, 0.0

    class Dear(Counter):
        largest_costs = (0.5, 0.5)

    for env, words in ((Deaf, "must return (state"), (Dear, "above its largest_costs")):
        with pytest.raises(InputError) as failure:
            user_environments(find_environment(env), 2)
        assert words in str(failure.value)


def test_costs_of_every_step_are_checked() -> None:
    """Training does not see single steps, so the extremes of all of them are kept."""

    class LaterBad(Counter):
        def __init__(self, cost: float) -> None:
            super().__init__()
            self.cost = cost

        def step(self, count: Any, action: Any) -> Any:
            count, seen, reward, costs, ended = super().step(count, action)
            return count, seen, reward, jnp.where(count[0] == 2, self.cost, costs), ended

    for cost, words in ((-0.5, "safe must cost 0"), (0.7, "above its largest_costs, 0.5")):
        environments = JaxUserEnvironments(LaterBad(cost), 2, "later")
        state = environments.init(jax.random.key(0))
        for _ in range(1):
            state, _ = environments.step(state, jnp.zeros((2, 1)))
        environments.check(state)
        for _ in range(2):
            state, _ = environments.step(state, jnp.zeros((2, 1)))
        with pytest.raises(InputError, match=f"environment later: .*{words}"):
            environments.check(state)


@pytest.mark.slow
def test_gymnax() -> None:
    gymnax = pytest.importorskip("gymnax")
    env, params = gymnax.make("CartPole-v1")
    wrapped = GymnaxEnv(env, params, lambda before, action, after: (jnp.abs(after.x) > 0.1).astype(float))
    assert all(finding.passed for finding in check_environment(lambda: wrapped))


@pytest.mark.slow
def test_brax() -> None:
    envs = pytest.importorskip("brax.envs")
    wrapped = BraxEnv(envs.get_environment("fast"), lambda state: (state.reward > 0).astype(float), episode_length=20)
    assert all(finding.passed for finding in check_environment(lambda: wrapped))
