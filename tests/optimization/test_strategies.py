"""Weights of every strategy against the formulas of appendix B, computed with scipy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from tailsafe.optimization.strategies import Kappa, controlled_step, sdac_step, weights_of

RADIUS, CAP = 0.3, 50.0
KAPPA = Kappa(ipo=0.02, p3o=8.0)
SINGLE, SEVERAL = ("cpo", "pcpo", "ipo"), ("proposed", "sdac", "crpo", "p3o")


def drawn(seed, constraints, satisfied):
    """Inner products of random gradients, and excesses on one side of the limits."""
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(1 + constraints, 6))
    excess = rng.uniform(0.02, 0.3, size=constraints) * (-1 if satisfied else 1)
    if not satisfied and constraints > 1:
        excess[0] = -0.1  # one of them is met
    return root @ root.T, excess


compiled = jax.jit(weights_of, static_argnums=0)
sdac = jax.jit(sdac_step)


def weights(strategy, gram, excess, radius=RADIUS, cap=CAP):
    with jax.enable_x64(True):
        found = compiled(strategy, jnp.asarray(gram), jnp.asarray(excess), jnp.asarray(radius), cap, KAPPA)
    return float(found.reward), np.asarray(found.costs)


def lqclp_multipliers(gram, excess, radius):
    """argmin over lambda, nu >= 0 of (q - 2 r'l + l'Sl) / (2 nu) - l'c + nu radius^2 / 2, nu solved by hand."""

    def dual(lam):
        squared = gram[0, 0] - 2 * gram[0, 1:] @ lam + lam @ gram[1:, 1:] @ lam
        return radius * np.sqrt(max(squared, 1e-300)) - lam @ excess

    start = np.full(excess.size, 0.1)
    found = scipy.optimize.minimize(
        dual, start, bounds=[(0, None)] * excess.size, method="L-BFGS-B", options={"ftol": 1e-15, "gtol": 1e-12}
    )
    return found.x


def projection_multipliers(gram, excess):
    """argmin over lambda >= 0 of l'Sl / 2 - l'(J - d), violated constraints only, normalised."""
    on = np.flatnonzero(excess > 0)
    matrix = gram[1:, 1:][np.ix_(on, on)]
    root = np.linalg.cholesky(matrix)
    # 1/2 |L'x - L^-1 c|^2 is the same program.
    found = scipy.optimize.nnls(root.T, np.linalg.solve(root, excess[on]))[0]
    full = np.zeros(excess.size)
    full[on] = found
    return full / full.sum()


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("strategy", [*SINGLE, *SEVERAL])
def test_satisfied(strategy, seed):
    count = 1 if strategy in SINGLE else 1 + seed % 3
    gram, excess = drawn(seed, count, satisfied=True)
    reward, costs = weights(strategy, gram, excess)
    assert reward == 1
    if strategy in ("pcpo", "crpo", "p3o"):
        np.testing.assert_array_equal(costs, 0)
    elif strategy == "ipo":
        np.testing.assert_allclose(costs, np.minimum(KAPPA.ipo / -excess, RADIUS * CAP))
    elif strategy in ("cpo", "sdac"):
        np.testing.assert_allclose(costs, lqclp_multipliers(gram, excess, RADIUS), atol=2e-3 * (1 + costs.max()))
    else:
        # The multipliers of the smallest step that gains all a step can: nu and lambda of a non-negative QP.
        rows = np.concatenate([-gram[:1], gram[1:]])
        signed = np.concatenate([-rows[:, :1], rows[:, 1:]], axis=1)
        target = np.concatenate([[RADIUS * np.sqrt(gram[0, 0])], excess])
        root = np.linalg.cholesky(signed)
        found = scipy.optimize.nnls(root.T, np.linalg.solve(root, target))[0]
        np.testing.assert_allclose(costs, np.minimum(found[1:] / found[0], RADIUS * CAP), atol=1e-6)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("strategy", [*SINGLE, *SEVERAL])
def test_violated(strategy, seed):
    count = 1 if strategy in SINGLE else 1 + seed % 3
    gram, excess = drawn(seed, count, satisfied=False)
    above = excess > 0
    reward, costs = weights(strategy, gram, excess)
    assert costs.sum() == pytest.approx(1)
    assert not costs[~above].any()
    if strategy == "p3o":
        assert reward == pytest.approx(min(1 / (KAPPA.p3o * above.sum()), RADIUS * CAP))
        np.testing.assert_allclose(costs[above], 1 / above.sum())
        return
    assert reward == 0
    if strategy in ("crpo", "cpo", "ipo"):
        assert costs[np.argmax(excess)] == 1
    else:
        np.testing.assert_allclose(costs, projection_multipliers(gram, excess), atol=1e-6)


def test_with_one_constraint_names_fall_together():
    """CPO recovers as CRPO does, PCPO as SDAC does, and CPO and SDAC are the same where limits are met."""
    gram, above = drawn(3, 1, satisfied=False)
    assert weights("cpo", gram, above) == weights("crpo", gram, above)
    assert weights("pcpo", gram, above) == weights("sdac", gram, above)
    gram, below = drawn(4, 1, satisfied=True)
    assert weights("cpo", gram, below) == weights("sdac", gram, below)


@pytest.mark.parametrize("strategy", ["cpo", "sdac", "ipo", "proposed"])
def test_weights_are_capped(strategy):
    """A reward gradient along the cost's, next to the limit, would want an endless weight."""
    gram = np.array([[1.0, 0.999], [0.999, 1.0]])
    _, costs = weights(strategy, gram, np.array([-1e-9]), cap=0.5)
    assert costs[0] == pytest.approx(0.5 * RADIUS)


def sdac_draw(seed, constraints):
    """Gradients in coordinates where the Fisher matrix is the identity, excesses, and a radius that may not reach."""
    rng = np.random.default_rng(seed)
    gradients, excess = rng.normal(size=(1 + constraints, 5)), rng.uniform(-0.4, 0.4, size=constraints)
    return gradients, excess, 0.3 if seed % 2 else 0.15


def sdac_found(gradients, excess, radius, zeta=0.25):
    with jax.enable_x64(True):
        coefficients, recovers = sdac(jnp.asarray(gradients @ gradients.T), jnp.asarray(excess), radius, zeta)
    return np.asarray(coefficients) @ gradients, bool(recovers)


def shortest_step(cost, asked):
    """SLSQP's answer."""
    return scipy.optimize.minimize(
        lambda p: p @ p,
        np.zeros(5),
        jac=lambda p: 2 * p,
        constraints={"type": "ineq", "fun": lambda p: -(cost @ p) - asked, "jac": lambda p: -cost},
    )


@pytest.mark.parametrize("constraints", [1, 2, 3])
@pytest.mark.parametrize("seed", range(8))
def test_sdac_takes_the_best_step_or_recovers(seed, constraints):
    gradients, excess, radius = sdac_draw(seed, constraints)
    step, recovers = sdac_found(gradients, excess, radius)
    cost = gradients[1:]
    reach = radius * np.linalg.norm(cost, axis=1)
    asked = np.minimum(excess, reach)
    shortest = shortest_step(cost, asked)
    assert recovers == (shortest.fun > 0.999 * radius**2)
    if recovers:
        wanted = shortest_step(cost, np.minimum(excess + 0.25, reach)).x
        np.testing.assert_allclose(step, wanted * radius / np.linalg.norm(wanted), atol=1e-4)
        return
    best = scipy.optimize.minimize(
        lambda p: -gradients[0] @ p,
        shortest.x,
        jac=lambda p: -gradients[0],
        constraints=[
            {"type": "ineq", "fun": lambda p: -(cost @ p) - asked, "jac": lambda p: -cost},
            {"type": "ineq", "fun": lambda p: radius**2 - p @ p, "jac": lambda p: -2 * p},
        ],
    )
    assert np.linalg.norm(step) <= radius * (1 + 1e-6)
    assert np.all(cost @ step <= -asked + 1e-3)
    assert gradients[0] @ step == pytest.approx(-best.fun, abs=2e-3)


def test_the_draws_hold_both_cases():
    assert {sdac_found(*sdac_draw(seed, 3))[1] for seed in range(8)} == {True, False}


@pytest.mark.parametrize("seed", range(20))
def test_steps_for_one_cost_are_the_best_of_a_fine_search(seed):
    """Closed form in single precision against a search over all directions in the plane of both gradients."""
    rng = np.random.default_rng(seed)
    gradients = rng.normal(size=(2, 3)) * 10 ** rng.uniform(-2, 2, size=(2, 1))
    radius, share = 0.1, rng.uniform(-1, 0.99)
    reach = radius * np.linalg.norm(gradients[1])
    gram = jnp.asarray(gradients @ gradients.T, jnp.float32)
    step = np.asarray(controlled_step(gram, jnp.asarray([share], jnp.float32), jnp.float32(radius)), float) @ gradients
    along = gradients[1] / np.linalg.norm(gradients[1])
    aside = gradients[0] - gradients[0] @ along * along
    angles = np.linspace(0, 2 * np.pi, 20_001)[:, None]
    tried = radius * (np.cos(angles) * along + np.sin(angles) * aside / np.linalg.norm(aside))
    allowed = tried[tried @ gradients[1] <= -share * reach + 1e-9]
    most = radius * np.linalg.norm(gradients[0])
    assert step @ gradients[1] <= -share * reach + 2e-3 * reach
    assert np.linalg.norm(step) <= radius * (1 + 1e-4)
    assert step @ gradients[0] >= (allowed @ gradients[0]).max() - 1e-3 * most


def test_a_share_of_the_trust_region_by_hand():
    """Gradients at right angles, lengths 1 and 2, radius 0.1. A share of 0.6 takes 0.6 of the radius along -cost.

    Step = (0.08, -0.06): reward + 0.08, cost - 0.12; in coefficients of the gradients 0.08 / 1 and -0.06 / 2.
    """
    gram = jnp.asarray([[1.0, 0.0], [0.0, 4.0]])
    coefficients = controlled_step(gram, jnp.asarray([0.6]), jnp.asarray(0.1))
    np.testing.assert_allclose(coefficients, [0.08, -0.03], rtol=1e-5)
    # Held to first order: all of the radius for the reward. Free: the same, since this reward costs nothing.
    for share in (0.0, -1.0):
        np.testing.assert_allclose(
            controlled_step(gram, jnp.asarray([share]), jnp.asarray(0.1)), [0.1, 0.0], rtol=1e-5, atol=1e-7
        )


def test_shares_of_two_costs_leave_the_rest_to_the_reward():
    """Three gradients at right angles: shares 0.6 and 0.3 of the radius leave sqrt(1 - 0.36 - 0.09) to the reward."""
    gram = jnp.diag(jnp.asarray([1.0, 4.0, 9.0]))
    step = controlled_step(gram, jnp.asarray([0.6, 0.3]), jnp.asarray(0.1))
    changes = gram @ step
    np.testing.assert_allclose(changes[1:], [-0.12, -0.09], rtol=5e-3)
    np.testing.assert_allclose(changes[0], 0.1 * np.sqrt(0.55), rtol=5e-3)
