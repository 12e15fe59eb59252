"""The controller of the trust region's share, the aim below the limit, the sampler's start, the shipped average."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tailsafe.bench.update import paper_settings
from tests.algorithms.test_srcpo import every_action_in_every_state, make


def settings(**changes):
    return replace(paper_settings(), **{name: jnp.asarray(value, float) for name, value in changes.items()})


def test_shares_by_hand():
    """Proportional 0.8: an excess of 0.25 limits asks for 0.2 on top of the integral; the prompt part ends at 0.5."""
    rule = settings(proportional=0.8)
    found = [float(rule.shares(jnp.asarray([error]), jnp.asarray([0.3]))[0]) for error in (0.25, 2.0, -0.25, -5.0)]
    np.testing.assert_allclose(found, [0.5, 0.8, 0.1, -0.7], atol=1e-6)


def test_the_integral_stays_in_bounds_and_comes_back():
    rule = settings(proportional=0.8, integral=0.01)
    integral = jnp.asarray([0.0])
    for _ in range(500):
        integral = rule.integrated(jnp.asarray([30.0]), integral)
    assert float(integral[0]) == pytest.approx(0.5)
    # Wound up by any excess it is back in as many updates as its bound has steps.
    for _ in range(50):
        integral = rule.integrated(jnp.asarray([-30.0]), integral)
    assert float(integral[0]) == pytest.approx(0.0, abs=1e-6)


def test_the_integral_removes_the_offset_of_a_noisy_plant():
    """A cost that drifts up by 2 % per update and falls by 4 % at a full share settles on its limit, not above it."""
    rule = settings(proportional=0.8, integral=0.01)

    def settled(rule):
        rng, cost, integral, late = np.random.default_rng(0), 5.0, jnp.asarray([0.0]), []
        for update in range(1500):
            error = jnp.asarray([cost - 1 + 0.3 * rng.normal()])
            share = float(rule.shares(error, integral)[0])
            integral = rule.integrated(error, integral)
            cost *= 1.02 - 0.04 * share
            late += [cost] * (update >= 1000)
        return np.mean(late)

    assert settled(rule) == pytest.approx(1.0, abs=0.03)
    assert settled(settings(proportional=0.8, integral=0.0)) > 1.3


def test_the_aim_is_below_the_limit_by_standard_errors():
    """Limit 2.5, noise variance 8, gain 0.05: the standard error is sqrt(8 * 0.05 / 1.95) = 0.453; at most 0.5."""
    rule = settings(calibration=0.05, caution=1.0)
    looks = jnp.int32(10_000)
    assert float(rule.aim(jnp.asarray([8.0]), looks)[0]) == pytest.approx(2.5 - (8 * 0.05 / 1.95) ** 0.5, abs=1e-5)
    assert float(rule.aim(jnp.asarray([1e6]), looks)[0]) == pytest.approx(2.0)
    assert float(settings(calibration=0.05).aim(jnp.asarray([8.0]), looks)[0]) == pytest.approx(2.5)


def test_the_standard_error_is_that_of_the_average():
    """The averaged correction, over many repetitions of noisy looks, has the standard deviation that `aim` reckons."""
    rule = settings(calibration=0.05, caution=1.0)
    gain = float(rule.gain(jnp.int32(10_000)))
    looks = np.random.default_rng(0).normal(scale=2.0, size=(400, 4000))
    averages = np.zeros(4000)
    for row in looks:
        averages += gain * (row - averages)
    reckoned = 2.5 - float(rule.aim(jnp.asarray([4.0]), jnp.int32(10_000))[0])
    assert averages.std() == pytest.approx(reckoned, rel=0.05)


def by_runs_too(**changes):
    """Slow: a whole run of the preset that chooses these is in the quick suite."""
    return pytest.param(changes, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    "changes",
    [
        # laptop: navigation (test_resume: test_mujoco_...), legged (test_training: three costs), finite (most runs).
        by_runs_too(strategy="control", slope="visited", estimator="initial", sampler_gradient="quantile"),
        by_runs_too(strategy="joint", estimator="shifted", sampler_gradient="explicit", gradient="score"),
        by_runs_too(strategy="linear", estimator="initial", sampler_gradient="explicit", beta_per="chunk"),
        # paper
        {"strategy": "release", "estimator": "visited", "sampler_gradient": "pathwise", "beta_per": "chunk"},
    ],
    ids=lambda changes: changes["strategy"],
)
def test_every_rule_and_estimator_of_a_preset_updates(changes):
    """Tiny sizes: what presets choose runs an update and stays finite."""
    algorithm, _, state = make(**changes)
    rule = settings(calibration=0.05, caution=1.0, smoothing=0.5, averaging=0.1)
    update = jax.jit(algorithm.update)
    for key in range(3):
        state, metrics = update(state, rule, every_action_in_every_state(), jax.random.key(key))
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves((state.policy, state.average, metrics)))


def test_the_sampler_begins_where_it_is_told():
    algorithm, _, _ = make()
    for start in (0.5, 0.95):
        state = algorithm.init(jax.random.key(0), settings(sampler_start=start))
        np.testing.assert_allclose(state.sampler.mode, start, rtol=1e-5)


def test_the_average_follows_the_policy():
    """It begins with the first policies themselves, and reaches its weight as the run goes on."""
    algorithm, _, begun = make()
    update = jax.jit(algorithm.update)
    for updates, weight in ((0, 1.0), (10, 0.5), (1000, 0.25)):
        state = replace(begun, updates=jnp.int32(updates))
        moved, _ = update(state, settings(averaging=0.25), every_action_in_every_state(), jax.random.key(0))
        for old, new, average in zip(*map(jax.tree.leaves, (state.policy, moved.policy, moved.average)), strict=True):
            np.testing.assert_allclose(average, old + weight * (new - old), atol=1e-6)
        assert algorithm.shared_policy(moved) is moved.average
