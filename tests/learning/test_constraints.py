"""Constraints as arrays: stick-breaking, budgets, padding."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailsafe.learning.constraints import stack_constraints
from tailsafe.risk import CVaR, Mean, Pow, Wang
from tailsafe.risk.dual import beta_bounds

SPECTRA = [CVaR(0.75).discretize(2), Wang(0.5).discretize(5), Pow(0.75).discretize(5)]
LIMITS = [2.5, 1.0, 4.0]


def make():
    return stack_constraints(SPECTRA, LIMITS, [100.0, 100.0, 100.0])


@given(st.lists(st.floats(0, 1), min_size=12, max_size=12))
@settings(max_examples=50, deadline=None)
def test_betas_are_sorted_and_inside_the_sharp_bounds(delta):
    with jax.enable_x64(True):
        constraints = make()
        betas = np.asarray(constraints.beta(jnp.asarray(delta)))
    assert np.all(np.diff(betas, axis=-1) >= -1e-12)
    for beta, spectrum, limit in zip(betas, SPECTRA, LIMITS, strict=True):
        bounds = np.minimum(beta_bounds(spectrum.eta, spectrum.alpha, limit), 100.0)
        assert np.all(beta[: len(bounds)] <= bounds + 1e-12)
    # One break point: the paper's beta = delta d.
    assert betas[0, 0] == pytest.approx(delta[0] * 2.5)


def test_every_admissible_beta_is_reached():
    """Stick-breaking inverts: increments can be found for any sorted beta under the bounds."""
    with jax.enable_x64(True):
        constraints = make()
        bounds = np.minimum(beta_bounds(SPECTRA[1].eta, SPECTRA[1].alpha, 1.0), 100.0)
        wanted = np.array([0.3, 0.3, 0.9, 1.0]) * bounds
        wanted = np.maximum.accumulate(wanted)
        before = np.concatenate([[0.0], wanted[:-1]])
        delta = np.zeros(12)
        delta[4:8] = (wanted - before) / (bounds - before)
        np.testing.assert_allclose(np.asarray(constraints.beta(jnp.asarray(delta)))[1], wanted, rtol=1e-12)


def test_padding_changes_neither_g_nor_the_conjugate():
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        constraints = make()
        delta = jnp.asarray(rng.uniform(size=(7, 12)))
        beta = constraints.beta(delta)
        total = jnp.asarray(rng.uniform(0, 6, (3, 7, 9)))
        value = np.asarray(constraints.g(total, beta))
        integral = np.asarray(constraints.conjugate_integral(beta))
    for i, spectrum in enumerate(SPECTRA):
        own = np.asarray(beta)[i, :, : spectrum.cells - 1]
        for row in range(7):
            np.testing.assert_allclose(value[i, row], spectrum.g_beta(np.asarray(total)[i, row], own[row]), rtol=1e-12)
            np.testing.assert_allclose(integral[i, row], spectrum.conjugate_integral(own[row]), rtol=1e-12)


def test_a_mean_still_has_a_dual_variable_and_it_does_nothing():
    constraints = stack_constraints([Mean().discretize(1)], [1.0], [10.0])
    assert constraints.num_betas == 1
    for delta in (0.0, 0.3, 1.0):
        beta = constraints.beta(jnp.asarray([delta]))
        assert np.all(np.isfinite(beta))
        np.testing.assert_allclose(constraints.g(jnp.asarray([[2.0, 5.0]]), beta), [[2.0, 5.0]])
        np.testing.assert_allclose(constraints.conjugate_integral(beta), [0.0])


def test_the_budget_form_is_g_of_the_whole_sum_up_to_a_constant():
    """(g(D + b z) - g(D + b z0)) / b equals the difference of g at the budget, for every z, z0 >= 0."""
    rng = np.random.default_rng(1)
    with jax.enable_x64(True):
        constraints = make()
        beta = constraints.beta(jnp.asarray(rng.uniform(size=(50, 12))))
        so_far, discount = jnp.asarray(rng.uniform(0, 4, (50, 3))), jnp.asarray(rng.uniform(0.01, 1, 50))
        budget = constraints.budget(beta, so_far, discount)
        atoms = jnp.asarray(rng.uniform(0, 9, (3, 50, 2)))
        whole = constraints.g(so_far.T[..., None] + discount[:, None] * atoms, beta) / discount[:, None]
        remaining = constraints.g(atoms, budget)
    difference = np.asarray(whole[..., 1] - whole[..., 0])
    np.testing.assert_allclose(np.asarray(remaining[..., 1] - remaining[..., 0]), difference, atol=1e-9)
