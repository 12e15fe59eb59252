"""PPO-Lag and PPO-PID: multipliers by hand, risks and quantiles of episodes, advantages against loops in float64."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tailsafe.algorithms import cvar_cpo
from tailsafe.algorithms.penalized import penalized_advantage, spectral_advantages
from tailsafe.learning.batches import segments_of
from tailsafe.learning.constraints import stack_constraints
from tailsafe.learning.multipliers import Controller, Gains, climbed, controlled
from tailsafe.learning.recent_costs import RecentCosts
from tailsafe.risk import parse_spectrum
from tests.algorithms.baseline_setup import GAMMA, experience, make, settings_of
from tests.algorithms.test_lagrangians import atoms_of, gae, reward_advantage

SPECS = ("mean", "cvar:0.75", "wang:0.5", "pow:0.9", "steps:0.4,1.6/0.5")


# --- multipliers ------------------------------------------------------------------------------------------------------


def test_a_plain_multiplier_by_hand():
    """0.3 + 0.1 * (2, -1, -4) = (0.5, 0.2, -0.1), the last one cut at zero; the largest is 0.45."""
    found = climbed(jnp.full(3, 0.3), jnp.array([2.0, -1.0, -4.0]), jnp.array(0.1), jnp.array(0.45))
    np.testing.assert_allclose(found, [0.45, 0.2, 0.0], rtol=1e-6)


def run(errors, gains, largest=100.0):
    """Multipliers and integrals after each error."""
    after, found = Controller(jnp.zeros(1), jnp.asarray([errors[0]], float)), []
    for error in errors:
        after, multiplier = controlled(after, jnp.array([error]), Gains(*map(jnp.asarray, gains)), jnp.array(largest))
        found.append((float(multiplier[0]), float(after.integral[0])))
    return np.array(found).T


def test_the_controller_by_hand():
    """K_P = 2, K_I = 0.5, K_D = 3, no smoothing; errors 1, 2, -1, -1, -1.

    I: 0.5, 1.5, 1, 0.5, 0. P: 2, 4, -2, -2, -2. D: growth 0, 1, 0, 0, 0 times 3.
    lambda: 2.5, 4 + 1.5 + 3 = 8.5, -2 + 1 -> 0, -2 + 0.5 -> 0, -2 -> 0.
    """
    multiplier, integral = run([1.0, 2.0, -1.0, -1.0, -1.0], (2.0, 0.5, 3.0, 0.0))
    np.testing.assert_allclose(integral, [0.5, 1.5, 1.0, 0.5, 0.0], atol=1e-6)
    np.testing.assert_allclose(multiplier, [2.5, 8.5, 0.0, 0.0, 0.0], atol=1e-6)


def test_smoothing_by_hand():
    """Half of what was before: errors 0, 1, 1 are seen as 0, 0.5, 0.75; they grow by 0.5 and 0.25."""
    multiplier, _ = run([0.0, 1.0, 1.0], (1.0, 0.0, 10.0, 0.5))
    np.testing.assert_allclose(multiplier, [0.0, 0.5 + 5.0, 0.75 + 2.5], atol=1e-6)


def test_nothing_winds_up_on_either_side():
    """Kept for long, the integral stops at the largest multiplier and lets go at once; below zero it does not go."""
    multiplier, integral = run([1.0] * 50 + [-1.0] * 3, (0.0, 0.5, 0.0, 0.0), largest=2.0)
    assert integral.max() == multiplier.max() == 2.0
    np.testing.assert_allclose(multiplier[-3:], [1.5, 1.0, 0.5], atol=1e-6)
    multiplier, integral = run([-1.0] * 50 + [1.0], (0.0, 0.5, 0.0, 0.0))
    assert integral.min() == multiplier.min() == 0.0
    assert multiplier[-1] == 0.5


def test_integral_control_alone_is_the_plain_lagrangian():
    errors = np.random.default_rng(0).normal(size=40)
    multiplier, _ = run(errors, (0.0, 0.3, 0.0, 0.9), largest=1.0)
    wanted, now = [], jnp.zeros(1)
    for error in errors:
        now = climbed(now, jnp.array([error]), jnp.array(0.3), jnp.array(1.0))
        wanted.append(float(now[0]))
    np.testing.assert_allclose(multiplier, wanted, atol=1e-6)


# --- risks of episodes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 7, 40])
def test_risks_are_those_of_the_step_spectra(number):
    """Against the exact empirical risk of NumPy; the ring holds 40, of which `number` are filled."""
    steps = [parse_spectrum(spec).discretize(4) for spec in SPECS]
    constraints = stack_constraints(steps, [1.0] * len(SPECS), [50.0] * len(SPECS))
    samples = np.random.default_rng(number).gamma(2.0, size=(len(SPECS), number))
    sums = np.zeros((len(SPECS), 40))
    sums[:, :number] = samples
    risks, beta = jax.jit(RecentCosts.risks)(RecentCosts(jnp.asarray(sums, float), jnp.int32(number)), constraints)
    for i, (spec, step) in enumerate(zip(SPECS, steps, strict=True)):
        assert float(risks[i]) == pytest.approx(float(step.risk(samples[i])), rel=1e-5), spec
        # The quantiles attain the minimum.
        own = np.asarray(beta[i, : step.cells - 1], float)
        assert float(step.sub_risk(samples[i], own)) == pytest.approx(float(step.risk(samples[i])), rel=1e-5), spec


def test_before_the_first_episode_there_is_no_risk():
    constraints = stack_constraints([parse_spectrum("cvar:0.75").discretize(2)], [1.0], [50.0])
    risk, beta = RecentCosts.create(1, 8).risks(constraints)
    assert float(risk[0]) == float(beta[0, 0]) == 0.0


@pytest.mark.parametrize("size", [3, 8, 64])
def test_the_ring_keeps_the_latest_episodes(size):
    learner, settings, state = make("ppo_lag", costs=2)
    recent, wanted = RecentCosts.create(2, size), []
    for seed in range(3):
        chunk = experience(learner, state, settings, seed=seed, costs=2)
        recent = jax.jit(RecentCosts.with_finished)(recent, chunk)
        done, paid = np.asarray(chunk.done), np.asarray(chunk.costs)
        so_far, discount = np.asarray(chunk.cost_so_far), np.asarray(chunk.discount)
        for t, env in np.argwhere(done):
            wanted.append(so_far[t, env] + discount[t, env] * paid[t, env])
    assert int(recent.count) == len(wanted)
    kept = np.asarray(recent.sums)[:, : min(size, len(wanted))].T
    np.testing.assert_allclose(np.sort(kept, axis=0), np.sort(np.array(wanted[-size:]), axis=0), rtol=1e-6)


# --- advantages -------------------------------------------------------------------------------------------------------


def setup(specs, algorithm="ppo_lag"):
    measures = [parse_spectrum(spec) for spec in specs]
    settings = settings_of(algorithm, measures, (2.0,) * len(specs))
    learner, _, state = make(algorithm, costs=len(specs), settings=settings)
    chunk = experience(learner, state, settings, costs=len(specs))
    assert np.asarray(chunk.terminated).any()
    return learner, settings, state, chunk, segments_of(chunk)


def test_spectral_advantages_are_those_of_whole_episodes():
    """Against g_beta(D + b Z) / b with beta as it is, below what was paid or not, at every step in float64."""
    learner, settings, state, chunk, segments = setup(SPECS)
    constraints = settings.constraints
    rng = np.random.default_rng(1)
    beta = np.sort(rng.uniform(0.2, 2.5, size=np.shape(constraints.alpha)), axis=-1)
    now, later = atoms_of(learner, state, settings, segments)
    discount, so_far = np.asarray(chunk.discount, float), np.asarray(chunk.cost_so_far, float)
    costs, alive = np.asarray(chunk.costs, float), 1.0 - np.asarray(chunk.terminated)
    jumps, lowest = np.diff(np.asarray(constraints.eta, float)), np.asarray(constraints.eta, float)[:, 0]
    wanted = []
    for i in range(len(SPECS)):

        def worth(total, i=i):
            return lowest[i] * total + (jumps[i] * np.maximum(total[..., None] - beta[i], 0.0)).sum(-1)

        value = worth(so_far[..., i, None] + discount[..., None] * now[1 + i]).mean(-1)
        paid = so_far[..., i] + discount * costs[..., i]
        following = paid[..., None] + GAMMA * (discount * alive)[..., None] * later[1 + i]
        wanted.append(gae((worth(following).mean(-1) - value) / discount, np.asarray(chunk.done)))
    networks = learner.networks(state, settings)
    found = jax.jit(lambda beta: spectral_advantages(networks, settings, segments, beta))(jnp.asarray(beta, float))
    np.testing.assert_allclose(found, wanted, atol=1e-4)
    # A budget is used up in some rows, and not in others.
    assert {True, False} == set((so_far[..., 1] > beta[1, 0]).ravel())
    # Of the mean, a discounted cost's own.
    plain = costs[..., 0] + GAMMA * alive * later[1].mean(-1) - now[1].mean(-1)
    np.testing.assert_allclose(found[0], gae(plain, np.asarray(chunk.done)), atol=2e-5)


def test_for_cvar_they_are_those_of_cvar_cpo():
    learner, settings, state, _, segments = setup(["cvar:0.75", "cvar:0.5"])
    networks, beta = learner.networks(state, settings), jnp.array([0.8, 1.9])
    # All it asks of a state.
    their_state = SimpleNamespace(beta=beta)
    theirs = jax.jit(lambda steps: cvar_cpo.risk_advantages(networks, their_state, settings, steps))(segments)
    found = jax.jit(lambda steps: spectral_advantages(networks, settings, steps, beta[:, None]))(segments)
    np.testing.assert_allclose(found * np.array([0.25, 0.5])[:, None, None], theirs, atol=2e-5)


def test_the_reward_has_no_scale():
    learner, settings, state, chunk, segments = setup(["mean"])
    networks, weights, beta = learner.networks(state, settings), jnp.array([0.7]), jnp.zeros((1, 1))
    now, later = atoms_of(learner, state, settings, segments)
    reward = reward_advantage(now, later, chunk)
    cost = np.asarray(jax.jit(lambda steps: spectral_advantages(networks, settings, steps, beta))(segments))[0]
    found = jax.jit(lambda steps: penalized_advantage(networks, settings, steps, weights, beta))(segments)
    np.testing.assert_allclose(found, reward / reward.std() - 0.7 * cost, atol=5e-5)


# --- updates ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["ppo_lag", "ppo_pid"])
def test_multipliers_move_where_episodes_ended(algorithm):
    """Limit 0.5, the mean: the first update's error is (mean - 0.5) / 0.5, and lambda that times the sum of gains."""
    changes = {"pid_smoothing": 0.0} if algorithm == "ppo_pid" else {}
    settings = settings_of(algorithm, [parse_spectrum("mean")], (0.5,), **changes)
    learner, _, state = make(algorithm, settings=settings)
    chunk = experience(learner, state, settings)
    update = jax.jit(learner.update)
    running = replace(chunk, terminated=chunk.terminated & False, truncated=chunk.truncated & False)
    silent, metrics = update(state, settings, running, jax.random.key(0))
    assert float(silent.multiplier[0]) == 0.0
    moved, metrics = update(silent, settings, chunk, jax.random.key(1))
    done = np.asarray(chunk.done)
    sums = (np.asarray(chunk.cost_so_far)[..., 0] + np.asarray(chunk.discount * chunk.costs[..., 0]))[done]
    error = sums.mean() / 0.5 - 1
    assert error > 0
    gain = 0.05 if algorithm == "ppo_lag" else 0.5 + 0.05
    assert float(metrics["sub_risk"][0]) == pytest.approx(sums.mean(), rel=1e-5)
    assert float(moved.multiplier[0]) == pytest.approx(gain * error, rel=1e-4)
    again, _ = update(moved, settings, running, jax.random.key(2))
    assert float(again.multiplier[0]) == float(moved.multiplier[0])
