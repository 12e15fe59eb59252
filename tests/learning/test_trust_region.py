"""Fisher products, conjugate gradients and the combined step, against dense linear algebra."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from jax.flatten_util import ravel_pytree

from tailsafe.learning.actions import BoxActions, DiscreteActions
from tailsafe.learning.networks import Policy
from tailsafe.learning.trust_region import combined_step, conjugate_gradient, fisher_product, step_of
from tailsafe.optimization.strategies import joint_step, linear_step, proposed


@pytest.mark.parametrize("actions", [BoxActions(2), DiscreteActions(3)], ids=["box", "discrete"])
def test_fisher_product_is_the_hessian_of_the_mean_divergence(actions):
    with jax.enable_x64(True):
        policy = Policy(jax.random.key(0), 3, actions, (4,), "lecun")
        parameters, unravel = ravel_pytree(policy)
        parameters = jax.random.normal(jax.random.key(3), parameters.shape) * 0.5
        features = jax.random.normal(jax.random.key(1), (6, 3))
        weights = jax.nn.softmax(jax.random.normal(jax.random.key(2), (6,)))

        def outputs_of(parameters):
            return unravel(parameters)(features)

        old = outputs_of(parameters)
        hessian = jax.hessian(lambda new: weights @ actions.kl(old, outputs_of(new)))(parameters)
        product = fisher_product(outputs_of, parameters, actions, weights, damping=0.1)
        np.testing.assert_allclose(
            product(jnp.eye(parameters.size)), hessian + 0.1 * np.eye(parameters.size), atol=1e-9
        )


def spd(seed, n):
    root = np.random.default_rng(seed).normal(size=(n, n))
    return root @ root.T + 0.5 * np.eye(n)


def test_conjugate_gradients_solve_all_rows_at_once():
    matrix = spd(0, 8)
    rows = np.random.default_rng(1).normal(size=(3, 8)) * np.array([[1.0], [1e-3], [0.0]])
    with jax.enable_x64(True):
        solved, images = conjugate_gradient(lambda v: v @ jnp.asarray(matrix), jnp.asarray(rows), 8, tolerance=1e-20)
    np.testing.assert_allclose(solved, np.linalg.solve(matrix, rows.T).T, atol=1e-8)
    np.testing.assert_allclose(images, rows, atol=1e-8)
    assert not np.any(solved[2])


def test_images_are_those_of_the_solution_even_when_iterations_run_out():
    matrix, rows = spd(2, 12), np.random.default_rng(3).normal(size=(2, 12))
    with jax.enable_x64(True):
        solved, images = conjugate_gradient(lambda v: v @ jnp.asarray(matrix), jnp.asarray(rows), 3)
        np.testing.assert_allclose(images, solved @ matrix, atol=1e-9)


def problem(seed, costs):
    rng = np.random.default_rng(seed)
    matrix = spd(seed, 6)
    gradients = rng.normal(size=(1 + costs, 6))
    solved = np.linalg.solve(matrix, gradients.T).T
    return matrix, gradients, solved, solved @ gradients.T


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("costs", [1, 3])
def test_satisfied_steps_gain_reward_keep_constraints_and_fill_the_trust_region(seed, costs):
    radius = 0.05
    matrix, gradients, solved, gram = problem(seed, costs)
    # Slack that one full step could use up, so that constraints matter.
    excess = -0.3 * radius * np.sqrt(np.diagonal(gram)[1:])
    with jax.enable_x64(True):
        arrays = [jnp.asarray(a) for a in (solved, gram, excess)]
        weights = proposed(arrays[1], arrays[2], jnp.asarray(radius), 1e6, violated="release")
        step = combined_step(arrays[0], arrays[1], weights.signed(), arrays[2], jnp.asarray(radius))
    p = np.asarray(step.direction)
    assert p @ matrix @ p == pytest.approx(radius**2, rel=1e-6)
    assert float(step.kl) == pytest.approx(radius**2 / 2, rel=1e-6)
    assert gradients[0] @ p > 0
    assert np.all(gradients[1:] @ p + excess <= 1e-9)


def test_one_violated_constraint_descends_it_at_full_length():
    radius = 0.05
    _, _, solved, gram = problem(4, 1)
    with jax.enable_x64(True):
        arrays = [jnp.asarray(a) for a in (solved, gram, np.array([0.2]))]
        for rule in ("paper", "release"):
            weights = proposed(arrays[1], arrays[2], jnp.asarray(radius), 1e6, violated=rule)
            step = combined_step(arrays[0], arrays[1], weights.signed(), arrays[2], jnp.asarray(radius))
            expected = -radius / np.sqrt(gram[1, 1]) * solved[1]
            np.testing.assert_allclose(step.direction, expected, atol=1e-10)


# Compiled once per number of constraints.
STEPS = {
    "joint": jax.jit(partial(joint_step, recovery_share=0.7)),
    "linear": jax.jit(linear_step),
}


def asked_by(rule, excess, reach):
    """What each rule wants of costs: their excess, where it is in reach; or, where violated, a share of the reach."""
    return np.minimum(excess, reach) if rule == "linear" else np.where(excess > 0, 0.7 * reach, excess)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("costs", [1, 2, 3])
@pytest.mark.parametrize("over", [10.0, 0.01, -0.01, -10.0])
@pytest.mark.parametrize("rule", STEPS)
def test_steps_are_the_best_ones_within_the_trust_region(seed, costs, over, rule):
    radius = 0.05
    matrix, gradients, solved, gram = problem(seed, costs)
    excess = np.full(costs, over)
    with jax.enable_x64(True):
        arrays = [jnp.asarray(a) for a in (solved, gram, excess)]
        step = step_of(arrays[0], arrays[1], STEPS[rule](arrays[1], arrays[2], jnp.asarray(radius)))
    p = np.asarray(step.direction)
    assert p @ matrix @ p <= radius**2 * (1 + 1e-6)
    assert float(step.kl) == pytest.approx(p @ matrix @ p / 2)
    reach = radius * np.sqrt(np.diagonal(gram)[1:])
    asked = asked_by(rule, excess, reach)
    if over == 10.0 and rule == "linear":  # all of the trust region goes against the costs
        np.testing.assert_array_less(gradients[1:] @ p, 0)
        if costs == 1:
            np.testing.assert_allclose(gradients[1] @ p, -reach[0], rtol=2e-3)
            return
        needed = {"type": "ineq", "fun": lambda x: -(gradients[1:] @ x) - reach / radius}
        shortest = scipy.optimize.minimize(
            lambda x: x @ matrix @ x, p / radius, constraints=needed, method="SLSQP", tol=1e-12
        )
        assert shortest.success
        expected = radius * shortest.x / np.sqrt(shortest.fun)
        np.testing.assert_allclose(p, expected, atol=5e-3 * np.abs(expected).max())
        return
    # In units of the radius, so that all numbers are near one.
    limits = [{"type": "ineq", "fun": lambda x, i=i: -(gradients[1 + i] @ x) - asked[i] / radius} for i in range(costs)]
    trust = {"type": "ineq", "fun": lambda x: 1 - x @ matrix @ x}
    for start in (np.zeros(6), p / radius):  # SLSQP now and then gets stuck
        best = scipy.optimize.minimize(
            lambda x: -(gradients[0] @ x), start, constraints=[*limits, trust], method="SLSQP", tol=1e-12
        )
        if best.success:
            break
    if not best.success:  # what is asked of several constraints at once does not fit into the trust region
        assert costs > 1
        assert over > 0
        return
    if rule == "joint" and best.fun > 0:  # it does not pay for a recovery with reward
        assert gradients[0] @ p >= -1e-6
        assert np.all(gradients[1:] @ p <= -0.1 * asked)
        return
    assert np.all(gradients[1:] @ p <= -asked + 1e-7)
    assert gradients[0] @ p == pytest.approx(-radius * best.fun, rel=1e-4, abs=1e-7)


SLACKS = [0.001, 0.02, 10.0, -0.001, -0.02, -10.0]


@pytest.mark.parametrize("slack", SLACKS)
@pytest.mark.parametrize(("rule", "double"), [("joint", True), ("linear", True), ("linear", False)])
def test_steps_along_parallel_gradients(slack, rule, double):
    """A step counts with relative errors of 1e-3. What rounding leaves of `joint` in single precision: below."""
    radius, direction = 0.05, np.array([1.0, 2.0, -1.0])
    with jax.enable_x64(double):
        gradients = jnp.asarray(np.stack([direction, 2.81 * direction]), float)
        gram = gradients @ gradients.T
        step = step_of(gradients, gram, STEPS[rule](gram, jnp.asarray([-slack]), jnp.asarray(radius)))
        moved = np.asarray(step.direction)
    reach = radius * np.linalg.norm(direction)
    # To the constraint from both sides. The way back of `joint` has no such end: a share of what is in reach.
    back = -0.7 * reach if rule == "joint" else -reach
    expected = back if rule == "joint" and slack < 0 else np.clip(slack / 2.81, back, reach)
    assert moved @ direction == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize("slack", SLACKS)
def test_however_parallel_gradients_are_rounded_no_constraint_is_broken(slack):
    """The program of `joint` is singular, and in single precision the last bits decide whether it has an answer.

    They differ between processors, so all are tried: products up to two bits off, which may belong to no gradients at
    all. The step may be shorter than it could be, or none; it is never too long, and never on the wrong side.
    """
    radius = 0.05
    gradients = np.outer([1.0, 2.81], [1.0, 2.0, -1.0]).astype(np.float32)
    off = np.random.default_rng(0).integers(-2, 3, size=(200, 2, 2))
    off = np.triu(off) + np.triu(off, 1).swapaxes(1, 2)
    gram = (gradients @ gradients.T) * (1 + off * np.float32(2**-24))

    def moved(gram):
        step = STEPS["joint"](gram, jnp.asarray([-slack], jnp.float32), jnp.float32(radius))
        return step_of(jnp.asarray(gradients), gram, step).direction

    steps = np.asarray(jax.vmap(moved)(jnp.asarray(gram, jnp.float32)))
    change, reach = steps @ gradients[1], radius * np.linalg.norm(gradients[1])
    assert np.all(np.linalg.norm(steps, axis=1) <= radius * (1 + 1e-5))
    # A satisfied one is kept to a thousandth of what a step can do; a violated one is made no worse.
    assert np.all(change <= max(slack, 0.0) + (slack > 0) * 1e-3 * reach)
    assert np.any(change < 0 if slack < 0 else change > 0)


@pytest.mark.parametrize("slack", [0.0, 0.02, 10.0])
def test_parallel_gradients_go_as_far_as_the_constraint_allows(slack):
    """In single precision, where the combination of parallel gradients would be nothing but rounding."""
    radius, direction = 0.05, np.array([1.0, 2.0, -1.0], np.float32)
    gradients = np.stack([direction, 2.81 * direction])
    gram = gradients @ gradients.T
    excess = jnp.asarray([-slack], jnp.float32)
    weights = proposed(jnp.asarray(gram), excess, jnp.float32(radius), 1e3, violated="release")
    step = combined_step(jnp.asarray(gradients), jnp.asarray(gram), weights.signed(), excess, jnp.float32(radius))
    p = np.asarray(step.direction)
    assert np.all(np.isfinite(p))
    assert gradients[1] @ p <= slack + 1e-5
    assert p @ p <= radius**2 * (1 + 1e-5)
    assert direction @ p == pytest.approx(min(slack / 2.81, radius * np.linalg.norm(direction)), abs=1e-5)


def test_no_gradient_no_step():
    zero = jnp.zeros((2, 4))
    weights = proposed(jnp.zeros((2, 2)), jnp.asarray([-1.0]), jnp.float32(0.1), 1e3)
    step = combined_step(zero, jnp.zeros((2, 2)), weights.signed(), jnp.asarray([-1.0]), jnp.float32(0.1))
    assert not np.any(step.direction)
    assert float(step.kl) == 0.0
