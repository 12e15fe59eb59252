"""SRCPO for a range of limits: what it does in each region, next to a run for that limit alone or to NumPy."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tailsafe.algorithms.srcpo import Srcpo
from tailsafe.algorithms.srcpo_range import in_regions
from tailsafe.algorithms.srcpo_state import SrcpoConfig
from tailsafe.bench.update import paper_settings
from tailsafe.learning.actions import DiscreteActions
from tailsafe.learning.batches import ActionAdvantages, minibatches_of
from tailsafe.learning.chunks import Chunk
from tailsafe.learning.constraints import stack_constraints
from tailsafe.learning.policy_gradient import policy_gradients, row_gradients
from tailsafe.learning.regions import (
    RegionGradients,
    RegionRows,
    finished_in_regions,
    joint_direction,
    region_gradients,
    region_values,
)
from tailsafe.risk import CVaR

REGIONS = 4
STATES, ACTIONS, ENVS = 5, 3, 12


def learner(regions=REGIONS, **changes):
    """SRCPO for CVaR under limits from 0.5 to 4."""
    static = {"num_envs": ENVS, "chunk_steps": STATES, "policy_hidden": (8,), "critic_hidden": (8,)}
    static |= {"replay_chunks": 1, "batch_chunks": 1, "initialization": "lecun"}
    config = SrcpoConfig(**{**static, "normalize": False, "estimator": "initial", "strategy": "linear", **changes})
    constraints = stack_constraints([CVaR(0.75).discretize(2)], [0.5], [20.0], highest=[4.0], regions=regions)
    settings = replace(paper_settings(), constraints=constraints)
    algorithm = Srcpo(config, STATES, DiscreteActions(ACTIONS), 1)
    return algorithm, settings, jax.jit(algorithm.init)(jax.random.key(0), settings)


def batch(position, seed=0):
    """One chunk whose environments have limits at these positions; every one ends an episode in its last step."""
    rng = np.random.default_rng(seed)
    steps = (STATES, ENVS)
    observation = jnp.asarray(np.eye(STATES)[rng.integers(STATES, size=steps)])
    costs = jnp.asarray(rng.uniform(size=(*steps, 1)))
    last = jnp.zeros(steps, bool).at[-1].set(True)
    delta = jnp.broadcast_to(jnp.stack([jnp.full(ENVS, 0.4), jnp.asarray(position)], -1), (*steps, 2))
    return Chunk(
        observation=observation,
        raw_action=jnp.asarray(np.eye(ACTIONS)[rng.integers(ACTIONS, size=steps)]),
        log_prob=jnp.full(steps, -jnp.log(ACTIONS)),
        reward=jnp.asarray(rng.uniform(size=steps)),
        costs=costs,
        terminated=last,
        truncated=jnp.zeros(steps, bool),
        next_observation=observation,
        cost_so_far=jnp.cumsum(costs, 0) - costs,
        discount=jnp.ones(steps),
        delta=delta,
        initial_observation=observation[0],
    )


def minibatch(chunk):
    taken = ActionAdvantages(jnp.zeros((STATES, ENVS, 2)), jnp.ones((STATES, ENVS)))
    stacked = minibatches_of(*jax.tree.map(lambda leaf: leaf[None], (chunk, taken)), groups=1)
    return jax.tree.map(lambda leaf: leaf[0], stacked)


POSITIONS = np.linspace(0, 1, ENVS)


def test_finished_episodes_count_in_their_regions_in_parts_of_their_own_limits():
    algorithm, settings, state = learner()
    chunk = batch(POSITIONS)
    found, count = jax.jit(lambda: finished_in_regions(algorithm.risk(state, settings), minibatch(chunk)))()
    # By hand: CVaR at beta, eta = (0, 4) - so I(beta) = beta and g = 4 (D - beta)_+ -, beta = mode * limit.
    totals = np.asarray(chunk.costs.sum(0))[:, 0]
    limits = 0.5 * 8.0**POSITIONS
    mode = float(state.sampler.mode[0, 0])
    sub_risk = mode * limits + 4 * np.maximum(totals - mode * limits, 0)
    for region, knot in enumerate([0.5, 1.0, 2.0, 4.0]):
        share = np.maximum(1 - np.abs(POSITIONS * 3 - region), 0)
        assert float(count[region]) == pytest.approx(share.sum(), rel=1e-5)
        wanted = (share * sub_risk * knot / limits).sum() / share.sum()
        assert float(found[region, 0]) == pytest.approx(wanted, rel=1e-4)


def test_where_all_rows_have_one_limit_its_region_has_the_gradients_of_a_run_for_that_limit():
    algorithm, settings, state = learner(slope="visited")
    mini = minibatch(batch(np.full(ENVS, 1 / 3)))

    @jax.jit
    def both():
        networks, risk = algorithm.networks(state, settings), algorithm.risk(state, settings)
        rows = row_gradients(networks, risk, mini, jax.random.key(1))
        found = region_gradients(rows, RegionRows.of(settings.constraints, mini.states.delta), settings.horizon)
        halves, fisher = policy_gradients(networks, risk, mini, settings.horizon, jax.random.key(1))
        return found, halves, fisher(found.solved[1])

    found, halves, image = both()
    np.testing.assert_allclose(found.share, [0, 1, 0, 0], atol=1e-5)
    np.testing.assert_allclose(image, halves.mean(0), rtol=0.02, atol=2e-3)
    np.testing.assert_allclose(found.solved[jnp.asarray([0, 2, 3])], 0, atol=1e-5)
    np.testing.assert_allclose(found.gram[1], found.solved[1] @ halves.mean(0).T, rtol=0.02, atol=2e-3)


@pytest.mark.parametrize("estimator", ["initial", "visited", "shifted", "episodes"])
def test_values_of_regions_are_finite_and_follow_the_estimator(estimator):
    algorithm, settings, state = learner(estimator=estimator)
    mini = minibatch(batch(POSITIONS))

    @jax.jit
    def both():
        networks, risk = algorithm.networks(state, settings), algorithm.risk(state, settings)
        values = region_values(risk, networks, mini, estimator, state.sampler.mode, jax.random.key(0))
        return values, finished_in_regions(risk, mini)[0]

    values, found = both()
    assert values.shape == (REGIONS, 2)
    assert np.isfinite(values).all()
    if estimator == "episodes":
        np.testing.assert_allclose(values[:, 1:], found, rtol=1e-5)


def test_a_region_has_the_settings_of_a_run_for_its_limit():
    algorithm, settings, state = learner()
    state = replace(state, noise=jnp.arange(4.0)[:, None] / 100, looks=jnp.full(4, 18))
    limits, noise = in_regions(lambda own, at: (at.target, own.noise), state, settings)
    np.testing.assert_allclose(limits[:, 0], [0.5, 1, 2, 4], rtol=1e-6)
    np.testing.assert_allclose(noise, state.noise)
    # Averaged with gain 2 / (18 + 2) = 0.1 an estimate has variance noise 0.1 / 1.9; caution is 1.5 at least.
    settings = replace(settings, calibration=jnp.float32(0.01))
    wanted = np.array([0.5, 1, 2, 4]) - 1.5 * np.sqrt(np.arange(4.0) / 100 * 0.1 / 1.9)
    np.testing.assert_allclose(algorithm.aim(state, settings)[:, 0], wanted, rtol=1e-5)


@pytest.mark.parametrize("rule", ["quantile", "explicit"])
def test_an_update_keeps_every_shape_and_moves_policy_and_samplers(rule):
    algorithm, settings, state = learner(sampler_gradient=rule)
    settings = replace(settings, sampler_rate=jnp.float32(0.1))
    after, metrics = jax.jit(algorithm.update)(state, settings, batch(POSITIONS), jax.random.key(2))
    shapes = [jax.tree.map(jnp.shape, jax.tree.leaves(one)) for one in (state, after)]
    assert shapes[0] == shapes[1]
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((after, metrics)))
    assert not np.allclose(after.policy.body.weights[0], state.policy.body.weights[0])
    assert (np.asarray(after.sampler.phi) != np.asarray(state.sampler.phi)).all()
    assert metrics["region_use"].shape == (REGIONS,)


def test_drawn_betas_carry_a_limit_for_every_environment():
    algorithm, settings, state = learner(beta_per="chunk")
    delta = algorithm.draw_betas(state, settings, jax.random.key(0))
    assert delta.shape == (ENVS, 2)
    assert len(np.unique(delta[:, 1])) > ENVS // 2


def test_what_regions_do_to_each_other_s_constraints_is_taken_back():
    """Regions in the plane (F = 1): costs rise along x, y and x again; the third has room for the step of the first."""
    costs = jnp.asarray([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    gradients = jnp.stack([jnp.zeros_like(costs), costs], axis=1)
    natural = RegionGradients(gradients, gradients, jnp.zeros((3, 2, 2)), jnp.full(3, 1 / 3))
    steps = jnp.asarray([[0.2, 0.1], [0.0, 0.0], [0.0, 0.0]])
    # Region 1 is at its limit and did not ask for 0.1 of y; region 2 has room for all of x.
    found = joint_direction(steps, natural, jnp.asarray([[0.0], [0.0], [-1.0]]))
    np.testing.assert_allclose(found, [0.2, 0.0], atol=1e-6)
    # Without room, nothing of x is left either.
    found = joint_direction(steps, natural, jnp.asarray([[0.0], [0.0], [0.5]]))
    np.testing.assert_allclose(found, [0.0, 0.0], atol=1e-6)


def test_products_that_belong_to_no_metric_take_nothing_back():
    """As conjugate gradients that stop early may leave them: a tiny gradient with too large a product with another."""
    nothing = jnp.zeros((2, 1, 3))
    solved = jnp.eye(2, 3)[:, None]
    image = jnp.asarray([[1e-8, -1e-3, 0.0], [-1e-3, 1.0, 0.0]])[:, None]
    natural = RegionGradients(
        jnp.concatenate([nothing, solved], axis=1),
        jnp.concatenate([nothing, image], axis=1),
        jnp.zeros((2, 2, 2)),
        jnp.full(2, 0.5),
    )
    steps = jnp.asarray([[0.0, 2.0, 0.0], [0.0, -1.0, 0.0]])
    np.testing.assert_array_equal(joint_direction(steps, natural, jnp.ones((2, 1))), [0.0, 1.0, 0.0])
