"""The two kinds of actions: densities, divergences, Fisher matrices, gradients of expectations."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate

from tailsafe.learning.actions import BoxActions, DiscreteActions


def test_squashed_density_integrates_to_one():
    actions, outputs = BoxActions(1), jnp.asarray([0.4, -0.3])

    def density(action):
        raw = jnp.arctanh(action)
        return float(jnp.exp(actions.log_prob(outputs, jnp.asarray([raw]))))

    total, _ = integrate.quad(density, -0.9999, 0.9999, limit=200)
    assert total == pytest.approx(1.0, abs=2e-3)


@pytest.mark.parametrize("actions", [BoxActions(3), DiscreteActions(4)], ids=["box", "discrete"])
def test_divergence_is_the_expected_log_ratio(actions):
    keys = jax.random.split(jax.random.key(0), 3)
    old, new = (0.5 * jax.random.normal(key, (actions.output_size,)) for key in keys[:2])
    noise = actions.noise(keys[2], (200_000,))
    raw = actions.sample(jnp.broadcast_to(old, (200_000, old.size)), noise)
    ratio = actions.log_prob(old, raw) - actions.log_prob(new, raw)
    assert float(actions.kl(old, new)) == pytest.approx(float(ratio.mean()), abs=0.02)
    assert float(actions.kl(old, old)) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("actions", [BoxActions(3), DiscreteActions(4)], ids=["box", "discrete"])
def test_fisher_matrix_is_the_hessian_of_the_divergence(actions):
    with jax.enable_x64(True):
        outputs = 0.5 * jax.random.normal(jax.random.key(1), (actions.output_size,))
        hessian = jax.hessian(lambda new: actions.kl(outputs, new))(outputs)
        product = jax.vmap(lambda v: actions.fisher(outputs, v))(jnp.eye(outputs.size))
        np.testing.assert_allclose(product, hessian, atol=1e-10)


def quadratic(actions):
    """Two signals with known expectations: (S, B, A) -> (S, B)."""
    return jnp.stack([-((actions[0] - 0.3) ** 2).sum(-1), (actions[1] ** 3).sum(-1) + actions[1, :, 0]])


def test_discrete_gradients_are_exact():
    actions = DiscreteActions(4)
    outputs = jax.random.normal(jax.random.key(2), (5, 4))
    table = jnp.stack([quadratic(jnp.broadcast_to(row, (2, 5, 4))) for row in jnp.eye(4)], axis=-1)  # (S, B, A)

    def expected(outputs):
        return (jax.nn.softmax(outputs) * table).sum(-1)

    values, gradients = actions.output_gradients(outputs, jnp.zeros((5, 4)), quadratic, 2)
    np.testing.assert_allclose(values, expected(outputs), rtol=1e-5)
    for signal in range(2):
        wanted = jax.grad(lambda outputs, signal=signal: expected(outputs)[signal].sum())(outputs)
        np.testing.assert_allclose(gradients[signal], wanted, atol=1e-6)


def test_pathwise_gradients_are_those_of_the_expectation():
    """Averaged over noise they equal central differences of the expectation under common noise."""
    actions, rows = BoxActions(2), 40_000
    outputs = jnp.asarray([0.2, -0.4, -0.5, 0.1])
    noise = actions.noise(jax.random.key(3), (rows,))

    def expectation(outputs):
        action = actions.embed(actions.sample(jnp.broadcast_to(outputs, (rows, 4)), noise))
        return quadratic(jnp.broadcast_to(action, (2, rows, 2))).mean(-1)

    _, gradients = actions.output_gradients(jnp.broadcast_to(outputs, (rows, 4)), noise, quadratic, 2)
    step = 1e-2
    for i in range(4):
        shift = jnp.zeros(4).at[i].set(step)
        difference = (expectation(outputs + shift) - expectation(outputs - shift)) / (2 * step)
        np.testing.assert_allclose(gradients[:, :, i].mean(-1), difference, atol=2e-3)


def test_scores_times_values_estimate_the_same_gradient():
    """The two gradient estimators of the learner agree in expectation."""
    actions, rows = BoxActions(2), 400_000
    outputs = jnp.broadcast_to(jnp.asarray([0.2, -0.4, -0.5, 0.1]), (rows, 4))
    noise = actions.noise(jax.random.key(4), (rows,))
    raw = actions.sample(outputs, noise)
    values, pathwise = actions.output_gradients(outputs, noise, quadratic, 2)
    score = jax.grad(lambda outputs: actions.log_prob(outputs, raw).sum())(outputs)
    by_score = ((values - values.mean(-1, keepdims=True))[..., None] * score).mean(1)
    np.testing.assert_allclose(by_score, pathwise.mean(1), atol=0.02)
