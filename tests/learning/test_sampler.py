"""The sampler: truncated normals, their score, and where its updates lead."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate

from tailsafe.learning.sampler import Sampler


def make(*modes, deviation=0.2):
    modes = np.asarray(modes)
    return Sampler(jnp.asarray(np.log(modes / (1 - modes)), float), jnp.asarray(deviation))


@pytest.mark.parametrize("mode", [0.02, 0.5, 0.97])
def test_density_moments_and_samples_belong_together(mode):
    sampler = make(mode)

    def density(x):
        return float(jnp.exp(sampler.log_prob(jnp.asarray([x]))))

    total, _ = integrate.quad(density, 0, 1)
    first, _ = integrate.quad(lambda x: x * density(x), 0, 1)
    second, _ = integrate.quad(lambda x: x * x * density(x), 0, 1)
    assert total == pytest.approx(1.0, abs=1e-4)
    mean, variance = (float(moment[0]) for moment in sampler.moments())
    assert mean == pytest.approx(first, abs=1e-4)
    assert variance == pytest.approx(second - first**2, abs=1e-4)
    samples = np.asarray(sampler.sample(jax.random.key(0), (100_000,)))
    assert samples.min() >= 0
    assert samples.max() <= 1
    assert samples.mean() == pytest.approx(first, abs=3e-3)


def test_a_share_is_uniform():
    samples = np.asarray(make(0.05, deviation=0.01).sample(jax.random.key(0), (20_000,), uniform_share=0.3))
    assert (samples > 0.2).mean() == pytest.approx(0.3 * 0.8, abs=0.02)


def test_pathwise_and_score_function_gradients_agree():
    """On a quadratic J; the natural gradient is the plain one over the Fisher information of phi."""
    sampler = make(0.4)
    best = 0.7

    def value(delta):
        return -((delta - best) ** 2).sum(-1)

    pathwise = jax.grad(
        lambda phi: value(Sampler(phi, sampler.deviation).sample(jax.random.key(1), (400_000,))).mean()
    )(sampler.phi)
    delta = sampler.sample(jax.random.key(2), (400_000,))
    natural = sampler.natural_gradient(delta, value(delta))
    slope = float((sampler.mode * (1 - sampler.mode))[0])
    information = slope**2 * float(sampler.moments()[1][0]) / float(sampler.deviation) ** 4
    assert float(natural[0]) * information == pytest.approx(float(pathwise[0]), rel=0.03)


def test_following_the_natural_gradient_finds_the_best_beta():
    sampler = make(0.5, 0.5, deviation=0.1)
    best = jnp.asarray([0.8, 0.25])
    for i in range(400):
        delta = sampler.sample(jax.random.key(i), (32,))
        values = -((delta - best) ** 2).sum(-1)
        step = sampler.natural_gradient(delta, values)
        sampler = Sampler(sampler.phi + 0.3 * step, sampler.deviation)
    np.testing.assert_allclose(sampler.mode, best, atol=0.06)
