"""The dual QP and the weights it gives, against scipy and against the formulas of the appendix."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize, nnls

from tailsafe.optimization.qp import descended_qp, nonnegative_qp
from tailsafe.optimization.strategies import proposed, step_size


def exactly(function, *arguments):
    """Call a jitted function with float64 arrays, return NumPy arrays."""
    with jax.enable_x64(True):
        return jax.device_get(function(*(jnp.asarray(x, dtype=float) for x in arguments)))


SOLVE = jax.jit(nonnegative_qp)
DESCEND = jax.jit(descended_qp)
WEIGH = jax.jit(lambda *args: proposed(*args).signed())


def weigh(gram, excess, radius, max_weight):
    """The signed weights of the proposed strategy, in float64."""
    return exactly(WEIGH, gram, excess, radius, max_weight)


def by_scipy(matrix, vector):
    """min x'Sx/2 - c'x over x >= 0 as non-negative least squares |L'x - L^{-1}c|^2, in units of a unit diagonal."""
    scale = 1 / np.sqrt(np.diagonal(matrix))
    root = np.linalg.cholesky(matrix * np.outer(scale, scale) + 1e-12 * np.eye(len(matrix)))
    return nnls(root.T, np.linalg.solve(root, vector * scale))[0] * scale


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_agrees_with_scipy_on_random_instances(n):
    rng = np.random.default_rng(n)
    gradients = rng.normal(size=(200, n, 8)) * 10 ** rng.uniform(-3, 3, size=(200, n, 1))
    matrices = gradients @ gradients.transpose(0, 2, 1)
    scale = np.sqrt(np.einsum("bii->bi", matrices))
    vectors = rng.normal(size=(200, n)) * scale
    solutions = exactly(jax.vmap(SOLVE), matrices, vectors)
    for x, matrix, vector, s in zip(solutions, matrices, vectors, scale, strict=True):
        np.testing.assert_allclose(x * s, by_scipy(matrix, vector) * s, rtol=1e-6, atol=1e-7)


def test_float32_is_enough_for_well_scaled_instances():
    rng = np.random.default_rng(0)
    solve = jax.jit(lambda matrix, vector: nonnegative_qp(matrix, vector, ridge=1e-6))
    for _ in range(50):
        gradients = rng.normal(size=(3, 8)).astype(np.float32)
        vector = rng.normal(size=3).astype(np.float32)
        x = solve(jnp.asarray(gradients @ gradients.T), jnp.asarray(vector))
        assert x.dtype == jnp.float32
        np.testing.assert_allclose(x, by_scipy((gradients @ gradients.T).astype(float), vector), atol=1e-3)


def test_degenerate_instances():
    def solve(matrix, vector):
        return exactly(SOLVE, matrix, vector)

    # No active constraint: every entry of c negative.
    assert solve(np.eye(3), -np.ones(3)).tolist() == [0.0, 0.0, 0.0]
    # A zero gradient gets no multiplier, however violated its constraint.
    np.testing.assert_allclose(solve(np.diag([2.0, 0.0]), [1.0, 5.0]), [0.5, 0.0], atol=1e-8)
    assert solve(np.zeros((2, 2)), np.ones(2)).tolist() == [0.0, 0.0]
    # Parallel gradients: only the sum is determined, and it is right.
    assert solve(np.ones((2, 2)), np.ones(2)).sum() == pytest.approx(1.0, rel=1e-6)
    # Opposed gradients that cannot both be served (an infeasible primal): finite, and in balance.
    x = solve([[1.0, -1.0], [-1.0, 1.0]], [1.0, 1.0])
    assert np.all(np.isfinite(x))
    assert x[0] == pytest.approx(x[1], rel=1e-6)
    with pytest.raises(ValueError, match="7 multipliers"):
        nonnegative_qp(jnp.eye(7), jnp.ones(7))


def test_satisfied_case_is_the_smallest_step_of_the_paper():
    """min |p|^2 / 2 with gR'p >= eps |gR| and g_i'p + J_i <= d_i, solved by SLSQP in the space of p (F = identity)."""
    rng = np.random.default_rng(0)
    radius = 0.1
    for _ in range(20):
        gradients = rng.normal(size=(3, 6))
        excess = -rng.uniform(0.0, 0.1, size=2)
        gain = radius * np.linalg.norm(gradients[0])
        found = minimize(
            lambda p: p @ p / 2,
            np.zeros(6),
            jac=lambda p: p,
            method="SLSQP",
            constraints=[
                {
                    "type": "ineq",
                    "fun": lambda p, g=gradients, e=gain: g[0] @ p - e,
                    "jac": lambda p, g=gradients: g[0],
                },
                {
                    "type": "ineq",
                    "fun": lambda p, g=gradients, x=excess: -x - g[1:] @ p,
                    "jac": lambda p, g=gradients: -g[1:],
                },
            ],
            options={"ftol": 1e-14, "maxiter": 500},
        )
        weights = weigh(gradients @ gradients.T, excess, radius, 1e6)
        direction = weights @ gradients
        assert weights[0] == 1.0
        # Same direction; the length is the trust region's business.
        cosine = direction @ found.x / np.linalg.norm(direction) / np.linalg.norm(found.x)
        assert cosine == pytest.approx(1.0, abs=1e-6)


def test_satisfied_case_without_active_constraint_follows_the_reward():
    assert weigh(np.eye(2), [-5.0], 0.1, 100.0).tolist() == [1.0, 0.0]


def test_cost_weights_are_capped():
    # Reward and cost gradients coincide and the limit is reached: the QP has no solution, the weight runs into the cap.
    np.testing.assert_allclose(weigh(np.ones((2, 2)), [0.0], 0.1, 2.0), [1.0, -0.1 * 2.0])


def test_a_reward_without_gradient_gives_finite_weights():
    assert np.all(np.isfinite(weigh(np.zeros((2, 2)), [-1.0], 0.1, 100.0)))


def test_violated_case_uses_the_violated_constraints_only():
    # lambda* solves S x = c on {0, 2}: (2/4, 1/1) -> normalised (1/3, 2/3); nothing for reward and satisfied.
    weights = weigh(np.diag([1.0, 4.0, 1.0, 1.0]), [2.0, -1.0, 1.0], 0.1, 100.0)
    np.testing.assert_allclose(weights, [0.0, -1 / 3, 0.0, -2 / 3], atol=1e-7)
    # A violated constraint that nothing can change: the weights still sum to one.
    assert weigh(np.diag([1.0, 0.0]), [1.0], 0.1, 100.0).tolist() == [0.0, -1.0]


def test_step_size_keeps_the_trust_region():
    gram = np.array([[4.0, 1.0], [1.0, 9.0]])

    def step(shortest):
        def run(gram, excess, radius):
            weights = proposed(gram, excess, radius, 100.0)
            return step_size(gram, weights, radius, (shortest, 1e8)) * weights.signed()

        return exactly(run, gram, [-10.0], 0.1)

    free = step(1e-8)
    assert free @ gram @ free == pytest.approx(0.1**2)  # p' F p = eps^2
    np.testing.assert_allclose(step(5.0), [0.1 / 5, 0.0], atol=1e-12)  # |g| = 2 is clipped to 5


@pytest.mark.parametrize("n", [1, 4, 16])
def test_descent_finds_what_scipy_finds_for_any_number_of_variables(n):
    rng = np.random.default_rng(n)
    for _ in range(5):
        gradients = rng.normal(size=(n, 40))
        matrix, vector = gradients @ gradients.T, rng.normal(size=n)
        np.testing.assert_allclose(exactly(DESCEND, matrix, vector), by_scipy(matrix, vector), atol=1e-6)


def test_descent_leaves_out_what_nothing_can_change():
    found = exactly(DESCEND, np.diag([2.0, 0.0, 4.0]), np.array([1.0, 5.0, -1.0]))
    np.testing.assert_allclose(found, [0.5, 0.0, 0.0])
