"""CPPO and CVaR-CPO: their advantages and dual variables against loops over single episodes in double precision."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tailsafe.algorithms.cppo import charged_advantage, episode_costs
from tailsafe.algorithms.cvar_cpo import budget_left, penalized_advantage
from tailsafe.algorithms.ppo import dual_step
from tailsafe.learning.batches import next_states, segments_of, states_of
from tests.algorithms.baseline_setup import ENVS, GAMMA, STEPS, experience, make, settings_of

TRACE = 0.97


def atoms_of(learner, state, settings, segments):
    """Atoms at the states of the steps and at those after them, as float64."""
    networks = learner.networks(state, settings)
    now, later = networks.atoms_at(states_of(segments)), networks.atoms_at(next_states(segments, settings.gamma))
    return np.asarray(now, float), np.asarray(later, float)


def gae(errors, done):
    """A_t = sum of the discounted errors until the episode ends, one step after the other."""
    found = np.zeros_like(errors)
    for env in range(errors.shape[1]):
        running = 0.0
        for t in range(errors.shape[0] - 1, -1, -1):
            running = errors[t, env] + GAMMA * TRACE * (0.0 if done[t, env] else running)
            found[t, env] = running
    return found


def reward_advantage(now, later, chunk):
    alive = 1.0 - np.asarray(chunk.terminated)
    return gae(np.asarray(chunk.reward) + GAMMA * alive * later[0].mean(-1) - now[0].mean(-1), np.asarray(chunk.done))


def setup(name):
    learner, settings, state = make(name, costs=2)
    state = replace(state, multiplier=jnp.array([0.7, 1.3]), beta=jnp.array([0.8, 1.9]))
    chunk = experience(learner, state, settings, costs=2)
    assert np.asarray(chunk.terminated).any()
    assert np.asarray(chunk.truncated).any()
    return learner, settings, state, chunk, segments_of(chunk)


def test_cppo_charges_every_step_with_its_whole_episode():
    learner, settings, state, chunk, segments = setup("cppo")
    now, later = atoms_of(learner, state, settings, segments)
    assert now.shape[0] == 1  # no cost critic
    wanted = reward_advantage(now, later, chunk)
    costs, done = np.asarray(chunk.costs, float), np.asarray(chunk.done)
    episodes = np.zeros_like(costs)
    for env in range(ENVS):
        start = 0
        for end in [*np.flatnonzero(done[:, env]), STEPS - 1]:
            powers = GAMMA ** np.arange(end + 1 - start)
            if end >= start:
                episodes[start : end + 1, env] = powers @ costs[start : end + 1, env]
            start = end + 1
    excess = np.maximum(episodes - np.array([0.8, 1.9]), 0.0)
    assert {True, False} == set((excess > 0).ravel())
    wanted -= excess @ np.array([0.7, 1.3])
    np.testing.assert_allclose(
        charged_advantage(learner.networks(state, settings), state, settings, segments), wanted, atol=2e-5
    )

    # The dual step, from the sums of all steps.
    moved, metrics = dual_step(state, settings, episode_costs(segments).reshape(-1, 2).T)
    sums = episodes.reshape(-1, 2)
    risk = np.array([0.8, 1.9]) + np.maximum(sums - [0.8, 1.9], 0).mean(0) / 0.25
    np.testing.assert_allclose(metrics["sub_risk"], risk, rtol=1e-5)
    np.testing.assert_allclose(moved.multiplier, np.maximum([0.7, 1.3] + 0.01 * (risk - 2.0), 0), rtol=1e-5)
    share = (sums >= [0.8, 1.9]).mean(0)
    np.testing.assert_allclose(moved.beta, [0.8, 1.9] - 0.01 * (0.25 - share), rtol=1e-5)


def test_cvar_cpo_budgets_follow_the_recursion_across_episodes():
    """q_0 = beta, q_{t+1} = (q_t - c_t) / gamma; a new episode begins with beta again."""
    _, settings, state, chunk, segments = setup("cvar_cpo")
    costs, done = np.asarray(chunk.costs, float), np.asarray(chunk.done)
    q = np.zeros((STEPS, ENVS, 2))
    for t in range(STEPS):
        q[t] = [0.8, 1.9]
        if t:
            q[t] = np.where(done[t - 1][:, None], [0.8, 1.9], (q[t - 1] - costs[t - 1]) / GAMMA)
    left = np.moveaxis(np.asarray(budget_left(settings.constraints, state.beta, states_of(segments))), 0, -1)
    assert {True, False} == set((q < 0).ravel())
    np.testing.assert_allclose(left, np.maximum(q, 0), atol=1e-5)


def test_cvar_cpo_risk_advantages_are_those_of_the_budget():
    """Against W(s, q) = E[(Y - q)_+] with q as it is, negative or not, and gamma (-q')_+ after a termination."""
    learner, settings, state, chunk, segments = setup("cvar_cpo")
    now, later = atoms_of(learner, state, settings, segments)
    beta = np.array([0.8, 1.9])
    discount, so_far = np.asarray(chunk.discount, float)[..., None], np.asarray(chunk.cost_so_far, float)
    costs = np.asarray(chunk.costs, float)
    q, q_later = (beta - so_far) / discount, (beta - so_far - discount * costs) / (GAMMA * discount)
    alive = 1.0 - np.asarray(chunk.terminated)
    total = reward_advantage(now, later, chunk)
    for i, multiplier in enumerate([0.7, 1.3]):
        risk = np.maximum(now[1 + i] - q[..., i, None], 0).mean(-1)
        risk_later = np.maximum(later[1 + i] * alive[..., None] - q_later[..., i, None], 0).mean(-1)
        total -= multiplier * gae(GAMMA * risk_later - risk, np.asarray(chunk.done))
    np.testing.assert_allclose(
        penalized_advantage(learner.networks(state, settings), state, settings, segments), total, atol=5e-5
    )


def test_auxiliary_variables_find_the_quantile():
    """With sums that do not depend on it, beta settles at their 0.75-quantile, where the risk is their CVaR."""
    settings = settings_of("cvar_cpo", beta_rate=0.05)
    _, _, state = make("cvar_cpo")
    sums = jnp.asarray(np.random.default_rng(0).gamma(2.0, size=(1, 4000)), float)
    step = jax.jit(dual_step)
    for _ in range(2000):
        state, metrics = step(state, settings, sums)
    ordered = np.sort(np.asarray(sums)[0])
    assert float(state.beta[0]) == pytest.approx(ordered[3000], abs=0.03)
    assert float(metrics["sub_risk"][0]) == pytest.approx(ordered[3000:].mean(), rel=1e-3)


def test_the_mean_is_cvar_of_level_zero():
    from tailsafe.risk import parse_spectrum

    settings = settings_of("cppo", measures=(parse_spectrum("mean"),))
    _, _, state = make("cppo")
    sums = jnp.asarray(np.random.default_rng(1).gamma(2.0, size=(1, 100)), float)
    moved, metrics = dual_step(state, settings, sums)
    assert float(moved.beta[0]) == 0
    assert float(metrics["sub_risk"][0]) == pytest.approx(float(sums.mean()), rel=1e-5)
