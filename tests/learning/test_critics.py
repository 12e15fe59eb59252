"""Quantile regression, the replay, the normaliser."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tailsafe.algorithms.srcpo import Srcpo
from tailsafe.algorithms.srcpo_state import SrcpoConfig
from tailsafe.learning.actions import BoxActions
from tailsafe.learning.chunks import Replay
from tailsafe.learning.critics import ADAM, fit_critics, quantile_loss
from tailsafe.learning.networks import Critics
from tailsafe.learning.normalizer import Normalizer


def test_loss_and_gradient_are_those_of_all_residuals():
    keys = jax.random.split(jax.random.key(0))
    quantiles, targets = jax.random.normal(keys[0], (2, 3, 4, 5)), jax.random.normal(keys[1], (2, 4, 7))

    def slow(quantiles):
        levels = (jnp.arange(5) + 0.5) / 5
        residual = targets[:, None, :, None, :] - quantiles[..., None]
        return (residual * (levels[:, None] - (residual < 0))).mean((1, 2, 3, 4)).sum()

    assert float(quantile_loss(quantiles, targets)) == pytest.approx(float(slow(quantiles)), rel=1e-5)
    np.testing.assert_allclose(jax.grad(quantile_loss)(quantiles, targets), jax.grad(slow)(quantiles), atol=1e-7)


@pytest.mark.parametrize(("minibatches", "dtype"), [(1, None), (4, None), (1, jnp.bfloat16)])
def test_critics_learn_quantiles(minibatches, dtype):
    """Reward atoms of N(x, 1) and exponential costs: the fitted quantiles are those of the distributions."""
    rng = np.random.default_rng(0)
    rows = 2048
    x = rng.uniform(-1, 1, (rows, 1))
    targets = np.stack([x + rng.normal(size=(rows, 20)), rng.exponential(size=(rows, 20))])
    critics = Critics(jax.random.key(0), 1, 2, 1, 5, (32,), "lecun")
    critics, _, before = jax.jit(
        lambda critics, state: fit_critics(
            critics, state, ADAM, jnp.asarray(x, float), jnp.asarray(targets, float), jnp.asarray([50.0]),
            jnp.asarray(1e-2), 400, minibatches, dtype,
        )
    )(critics, ADAM.init(critics))  # fmt: skip
    levels = (np.arange(5) + 0.5) / 5
    fitted = np.sort(np.asarray(critics(jnp.asarray([[-0.5], [0.5]]), jnp.asarray([50.0]))), axis=-1)[:, 0]
    normal = np.array([-1.2816, -0.5244, 0.0, 0.5244, 1.2816])
    np.testing.assert_allclose(fitted[0], normal + np.array([[-0.5], [0.5]]), atol=0.15)
    np.testing.assert_allclose(fitted[1], np.tile(-np.log(1 - levels), (2, 1)), atol=0.2)
    assert np.all(before > 0)


def test_cost_quantiles_stay_between_zero_and_the_largest_return():
    critics = Critics(jax.random.key(0), 2, 3, 2, 4, (8,), "lecun")
    quantiles = critics(100 * jax.random.normal(jax.random.key(1), (50, 2)), jnp.asarray([5.0, 7.0]))
    assert quantiles.shape == (3, 2, 50, 4)
    assert np.all(quantiles[1:] >= 0)
    assert np.all(quantiles[1] <= 5.0)
    assert np.all(quantiles[2] <= 7.0)


def chunk_of(value):
    algorithm = Srcpo(SrcpoConfig(num_envs=2, chunk_steps=3), 1, BoxActions(1), 1)
    empty = algorithm._empty_chunk(1)
    return replace(empty, reward=jnp.full_like(empty.reward, value))


def test_a_batch_is_the_newest_chunk_and_older_ones_without_repetition():
    replay = Replay.create(chunk_of(0.0), 4)
    for value in range(1, 8):
        replay = replay.add(chunk_of(float(value)))
    seen = set()
    for seed in range(30):
        drawn = [int(v) for v in replay.batch(jax.random.key(seed), 3).reward[:, 0, 0]]
        assert drawn[0] == 7
        assert len(set(drawn)) == 3
        assert set(drawn) <= {4, 5, 6, 7}
        seen |= set(drawn)
    assert seen == {4, 5, 6, 7}


def test_a_young_replay_repeats_what_it_has():
    replay = Replay.create(chunk_of(0.0), 4).add(chunk_of(1.0)).add(chunk_of(2.0))
    drawn = {int(v) for v in replay.batch(jax.random.key(0), 4).reward[:, 0, 0]}
    assert drawn == {1, 2}


def test_merged_statistics_are_those_of_all_observations():
    rng = np.random.default_rng(0)
    parts = [rng.normal(3.0, 2.0, (n, 4)) for n in (5, 200, 31)]
    normalizer = Normalizer.create(4)
    for part in parts:
        normalizer = normalizer.update(jnp.asarray(part, float))
    # The initial guess counts as one more observation of mean 0 and variance 1.
    everything = np.concatenate(parts)
    total = len(everything) + 1
    mean = everything.sum(0) / total
    second = ((everything**2).sum(0) + 1.0) / total
    np.testing.assert_allclose(normalizer.mean, mean, rtol=1e-4)
    np.testing.assert_allclose(normalizer.variance, second - mean**2, rtol=1e-4)
    assert np.abs(normalizer(jnp.full(4, 1e9), 10.0)).max() == 10.0
