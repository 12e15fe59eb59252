"""Recording steps, and worlds that stand still: cut short, they count as if they had been played to the end."""

import jax.numpy as jnp
import numpy as np
import pytest

from tailsafe.envs.training import MujocoEnvironments
from tailsafe.learning.chunks import Transition
from tailsafe.learning.experience import Actor, record
from tailsafe.tasks import TASKS

GAMMA = 0.99


def played(reward, costs, repeats):
    """The totals of one environment's episode, from its transitions."""
    actor = Actor.create(jnp.zeros((1, 1)), jnp.zeros((1, 0)), 2, window=4)
    rows = []
    for t, (earned, paid, count) in enumerate(zip(reward, costs, repeats, strict=True)):
        last = t == len(reward) - 1
        transition = Transition(
            jnp.zeros((1, 1)),
            jnp.zeros((1, 1)),
            jnp.array([earned]),
            jnp.array([paid]),
            jnp.array([count is not None and count > 0]),
            jnp.array([last and not count]),
            None if count is None else jnp.array([count]),
        )
        actor, row = record(actor, jnp.zeros((1, 1)), jnp.zeros(1), transition, jnp.asarray(GAMMA), actor.delta)
        rows.append(row)
    return actor.finished, rows


def test_an_episode_that_was_cut_counts_like_one_that_was_not():
    """Ten steps, then a fall whose step is repeated until step 40."""
    rng = np.random.default_rng(0)
    reward, costs = rng.normal(size=10), rng.integers(0, 2, size=(10, 2)).astype(float)
    long, _ = played([*reward, *[reward[-1]] * 30], [*costs, *[costs[-1]] * 30], [None] * 40)
    short, rows = played(reward, costs, [0] * 9 + [31])
    for name in ("count", "length", "reward", "costs", "discounted_costs"):
        np.testing.assert_allclose(getattr(short, name), getattr(long, name), rtol=1e-5, err_msg=name)
    # For learning it is a termination worth standing still for ever, as any truncation is bootstrapped.
    assert bool(rows[-1].terminated[0])
    assert float(rows[-1].reward[0]) == pytest.approx(reward[-1] / (1 - GAMMA), rel=1e-4)
    np.testing.assert_allclose(rows[-1].costs[0], costs[-1] / (1 - GAMMA), rtol=1e-4)
    np.testing.assert_allclose(rows[3].reward, reward[3:4], rtol=1e-6)


def test_a_fallen_robot_is_cut_and_begins_again():
    """The biped falls under zero actions; uncut it lies there with the same observation, reward and costs."""
    task, count = TASKS["biped"], 4
    cut, whole = (MujocoEnvironments(task, count, cut_halted=flag) for flag in (True, False))
    first = [environments.reset(0) for environments in (cut, whole)]
    np.testing.assert_array_equal(*first)
    still = np.zeros((count, len(task.action_reach)), np.float32)
    steps = cut._steps.copy()
    fallen = np.zeros(count, bool)
    for _ in range(160):
        one, other = cut.step(still), whole.step(still)
        steps += 1
        assert other.repeats is None
        fell = one.repeats > 0
        going = ~fallen & ~np.asarray(other.truncated)
        np.testing.assert_array_equal(one.reward[going], other.reward[going])
        np.testing.assert_array_equal(one.costs[going], other.costs[going])
        for env in np.flatnonzero(fell & going):
            assert one.terminated[env]
            assert not other.terminated[env]
            assert one.repeats[env] == task.episode_length - steps[env] + 1
            assert one.costs[env, 0] == 1
            # It stands again here, and lies there.
            assert one.observation[env, -1] > 0.8 > other.observation[env, -1]
        fallen |= fell | np.asarray(other.truncated)
    assert fallen.all()
    cut.close()
    whole.close()
