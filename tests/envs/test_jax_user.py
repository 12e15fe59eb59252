"""Environments written in JAX: checked, batched, and those of other packages where they are installed."""

from __future__ import annotations

from typing import Any, NamedTuple

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


def test_one_that_never_ends_needs_an_episode_length() -> None:
    class Endless(Counter):
        episode_length = None

    findings = check_environment(Endless, max_steps=5)
    assert "no end within 5 steps: give it an episode_length" in [finding.problem for finding in findings]


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


class Params(NamedTuple):
    """As those of gymnax, which have `replace`."""

    max_steps_in_episode: int = 4

    def replace(self, **changes: int) -> Params:
        return self._replace(**changes)


class Clock(NamedTuple):
    time: Any
    fell: Any


class Falls:
    """Shaped like an environment of gymnax: done where it fell (action 1), and when its time is up."""

    def observation_space(self, params: Params) -> Any:
        return gymnasium.spaces.Box(0, 10, (1,))

    def action_space(self, params: Params) -> Any:
        return gymnasium.spaces.Discrete(2)

    def reset_env(self, key: Any, params: Params) -> Any:
        return jnp.zeros(1), Clock(jnp.array(0), jnp.array(False))

    def step_env(self, key: Any, state: Clock, action: Any, params: Params) -> Any:
        state = Clock(state.time + 1, action == 1)
        return state.time[None].astype(float), state, jnp.array(1.0), self.is_terminal(state, params), {}

    def is_terminal(self, state: Clock, params: Params) -> Any:
        return state.fell | (state.time >= params.max_steps_in_episode)


@pytest.mark.parametrize("length", [None, 3, 6])
def test_time_that_is_up_is_a_truncation_also_in_gymnax(length: int | None) -> None:
    """The first copy stands still, the second falls in every second step."""
    env = GymnaxEnv(Falls(), Params(), lambda before, action, after: after.fell.astype(float), episode_length=length)
    stage = JaxStage(JaxUserEnvironments(env, 2, "falls"))
    stage.reset(0)
    falls = np.array([[[1, 0], [0, 1]] if step % 2 else [[1, 0], [1, 0]] for step in range(7)], np.float32)
    rows = [stage.step(actions) for actions in falls]
    end = length or 4
    assert [row.truncated.tolist() for row in rows] == [[step % end == 0, False] for step in range(1, 8)]
    assert [row.terminated.tolist() for row in rows] == [[False, step % 2 == 1] for step in range(7)]
    assert [row.costs[:, 0].tolist() for row in rows] == [[0.0, float(step % 2)] for step in range(7)]


def compiled_reward(env: ts.JaxEnv, steps: int) -> float:
    """The sum over `steps` as training takes them, inside a scan, whose state may not change its types."""
    environments = JaxUserEnvironments(env, 2, "theirs")
    actions = jnp.zeros((steps, 2, environments.spec.native_actions.size))

    def step(state: Any, action: Any) -> Any:
        state, transition = environments.step(state, action)
        return state, transition.reward

    _, rewards = jax.jit(lambda key: jax.lax.scan(step, environments.init(key), actions))(jax.random.key(0))
    return float(rewards.sum())


# --- the real packages: `make test-slow` installs them ---------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1"])
def test_gymnax_itself(name: str) -> None:
    """Step for step what gymnax does with the same states; the end of the time is a truncation."""
    gymnax = pytest.importorskip("gymnax")
    env, params = gymnax.make(name)
    params = params.replace(max_steps_in_episode=5)
    wrapped = GymnaxEnv(env, params, lambda before, action, after: (jnp.abs(action) > 0).astype(float).reshape(()))
    assert all(finding.passed for finding in check_environment(lambda: wrapped))
    state, observation = wrapped.reset(jax.random.key(3))
    inner, _ = state
    for _ in range(5):
        action = jnp.asarray(wrapped.action_space.sample())
        seen, following, reward, _, _ = env.step_env(jax.random.key(0), inner, action, params)
        state, observation, gained, _, terminated = wrapped.step(state, action)
        np.testing.assert_array_equal(observation, seen)
        assert gained == reward
        assert not terminated
        inner = following
    assert inner.time == wrapped.episode_length == 5
    assert np.isfinite(compiled_reward(wrapped, 7))


@pytest.mark.slow
def test_brax_itself() -> None:
    """Step for step."""
    envs = pytest.importorskip("brax.envs")
    env = envs.get_environment("fast")
    wrapped = BraxEnv(env, lambda state: (state.reward > 0).astype(float), episode_length=20)
    assert all(finding.passed for finding in check_environment(lambda: wrapped))
    state, _ = wrapped.reset(jax.random.key(3))
    own = env.reset(jax.random.key(3))
    for _ in range(3):
        action = jnp.ones(env.action_size)
        state, seen, reward, _, _ = wrapped.step(state, action)
        own = env.step(own, action)
        np.testing.assert_array_equal(seen, own.obs)
        assert reward == own.reward
    assert np.isfinite(compiled_reward(wrapped, 25))


@pytest.mark.slow
def test_playground_itself() -> None:
    """Its environments on MJX; this one fetches no models from elsewhere."""
    registry = pytest.importorskip("mujoco_playground").registry
    env = registry.load("CartpoleBalance")
    wrapped = BraxEnv(env, lambda state: jnp.abs(state.data.qpos[0]) > 0.5, episode_length=3)
    assert np.isfinite(compiled_reward(wrapped, 4))
