"""SDAC: Gaussian risks, what actions are worth for them, and the line search."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats
from jax.flatten_util import ravel_pytree

from tailsafe.learning.actions import DiscreteActions
from tailsafe.learning.batches import ActionAdvantages, minibatches_of
from tailsafe.learning.constraints import stack_constraints
from tailsafe.risk import CVaR, parse_spectrum
from tests.algorithms.baseline_setup import experience, make


def minibatches(chunk):
    """One, with an axis in front."""
    taken = ActionAdvantages(chunk.costs, chunk.reward)
    return minibatches_of(*jax.tree.map(lambda leaf: leaf[None], (chunk, taken)), groups=1)


def rows_of(chunk):
    """The states of the steps, one row each."""
    return jax.tree.map(lambda leaf: leaf[0], minibatches(chunk).states)


@pytest.mark.parametrize("spec", ["mean", "cvar:0.75", "cvar:0.5", "pow:0.9", "wang:1.0"])
def test_a_gaussians_risk_is_mean_plus_k_deviations(spec):
    step = parse_spectrum(spec).discretize(5)
    with jax.enable_x64(True):
        k = float(stack_constraints([step], [1.0], [10.0]).deviations[0])
    edges = [0.0, *step.alpha, 1.0]
    parts = [
        eta * scipy.integrate.quad(scipy.stats.norm.ppf, low, high)[0]
        for eta, low, high in zip(step.eta, edges[:-1], edges[1:], strict=True)
    ]
    assert k == pytest.approx(sum(parts), abs=1e-6)
    if spec == "cvar:0.75":
        assert k == pytest.approx(1.27111, abs=1e-5)


def test_risks_are_those_of_all_atoms_pooled():
    learner, settings, state = make("sdac")
    chunk = experience(learner, state, settings)
    rows, networks, key = rows_of(chunk), learner.networks(state, settings), jax.random.key(3)
    found = learner.risk(state, settings).critic_values(networks, rows, key, shifted=False)
    atoms = np.asarray(networks.atoms_at(rows, key), float)
    risk = atoms[1].mean() + 1.27111 * atoms[1].std(ddof=1)
    np.testing.assert_allclose(found, [atoms[0].mean(), risk], rtol=1e-5)


@pytest.mark.parametrize("estimator", ["visited", "shifted"])
def test_the_objective_is_the_derivative_of_the_risk_in_the_distribution(estimator):
    """Moving every atom a little changes mean + k std by the mean change of the objective (times b where shifted)."""
    learner, settings, state = make("sdac", actions=DiscreteActions(2), estimator=estimator)
    chunk = experience(learner, state, settings)
    rows, networks = rows_of(chunk), learner.networks(state, settings)
    features = networks.features(rows)
    outputs = state.policy(features)
    chances = np.asarray(jax.nn.softmax(outputs), float)

    def atoms_of(action):
        inputs = jnp.concatenate([features, jnp.broadcast_to(jnp.eye(2)[action], (features.shape[0], 2))], -1)
        return np.asarray(networks.atoms(inputs), float)

    atoms = np.stack([atoms_of(0), atoms_of(1)], -1)  # (S, B, K, A)
    shift = 1 + np.random.default_rng(0).normal(size=atoms[1].shape)
    if estimator == "shifted":
        so_far, discount = np.asarray(rows.cost_so_far, float)[:, 0], np.asarray(rows.discount, float)
    else:
        so_far, discount = np.zeros(len(chances)), np.ones(len(chances))
    weights = discount / discount.sum()

    def risk(size):
        total = so_far[:, None, None] + discount[:, None, None] * (atoms[1] + size * shift)
        mass = np.broadcast_to(weights[:, None, None] * chances[:, None, :] / atoms.shape[2], total.shape)
        mean = (mass * total).sum()
        return mean + 1.27111 * np.sqrt((mass * (total - mean) ** 2).sum())

    slope = (risk(1e-4) - risk(-1e-4)) / 2e-4
    objective = learner.risk(state, settings).objective(networks, rows, jax.random.key(0))

    def mean_objective(size):
        values = [objective(jnp.asarray(atoms[..., a]).at[1].add(size * shift[..., a])) for a in (0, 1)]
        per_state = np.stack([np.asarray(value, float)[1] for value in values], -1)
        return (weights * discount * (per_state * chances).sum(-1)).sum()

    found = (mean_objective(0.05) - mean_objective(-0.05)) / 0.1  # quadratic in the size: exact
    assert found == pytest.approx(slope, rel=2e-3)


def test_the_line_search_keeps_what_it_promises():
    learner, settings, state = make("sdac", line_search=True)
    settings = replace(settings, max_kl=jnp.asarray(1e-3))
    chunk = experience(learner, state, settings)
    seen, networks, risk = minibatches(chunk), learner.networks(state, settings), learner.risk(state, settings)
    parameters, unravel = ravel_pytree(state.policy)
    keys = jax.random.split(jax.random.key(1), 1)
    features = networks.features(seen.states)
    values = jax.jit(
        lambda policy: risk.critic_values(replace(networks, policy=policy), rows_of(chunk), keys[0], shifted=False)
    )
    searched = jax.jit(lambda step, excess: learner.line_search(state, settings, seen, excess, step, keys))
    before = np.asarray(values(state.policy), float)
    rng = np.random.default_rng(0)
    shares = []
    for room in (10.0, 1e-4):
        for _ in range(4):
            step = jnp.asarray(rng.normal(size=parameters.shape) * 0.05, float)
            kept, metrics = searched(step, jnp.asarray([-room]))
            share = float(metrics["step_share"])
            shares.append(share)
            np.testing.assert_allclose(kept, share * step, rtol=1e-6)
            moved = unravel(parameters + kept)
            change = 10 * (values(moved) - before)
            kl = float(learner.actions.kl(state.policy(features), moved(features)).mean())
            assert kl <= 1.5e-3 * (1 + 1e-5)
            assert float(metrics["kl"]) == pytest.approx(kl, rel=1e-3, abs=1e-7)
            assert change[0] >= -1e-5
            assert change[1] <= room + 1e-5
    assert any(0 < share < 1 for share in shares)
    assert any(share == 0 for share in shares)


def test_cvar_is_not_needed():
    assert make("sdac")[0].objection(None, [CVaR(0.75), parse_spectrum("wang:0.5")]) is None
