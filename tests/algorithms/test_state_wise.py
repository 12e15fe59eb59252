"""SDPO and WCSAC: state-wise risk, the log barrier, soft targets, temperature, multipliers and replay."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tailsafe.algorithms.sdpo import state_risks
from tailsafe.algorithms.wcsac import state_wise_values
from tailsafe.learning.actions import BoxActions, DiscreteActions
from tailsafe.learning.batches import segments_of, states_of
from tailsafe.learning.constraints import stack_constraints
from tailsafe.learning.surrogate import Surrogate
from tailsafe.risk import parse_spectrum
from tests.algorithms.baseline_setup import ENVS, GAMMA, OBSERVATIONS, STEPS, experience, make


@pytest.mark.parametrize("spec", ["mean", "cvar:0.75", "wang:1.0", "pow:0.75"])
def test_every_state_has_its_own_risk(spec):
    """For CVaR_0.75 of 50 atoms: atom 37 of the sorted ones, and what lies above it; in general the measure's risk."""
    measure = parse_spectrum(spec)
    step = measure.discretize(5)
    atoms = np.random.default_rng(0).gamma(1.0, size=(1, 7, 50))
    with jax.enable_x64(True):
        found = stack_constraints([step], [1.0], [100.0]).state_wise(jnp.asarray(atoms))
    np.testing.assert_allclose(found[0], [step.risk(row) for row in atoms[0]], rtol=1e-9)
    if spec == "cvar:0.75":
        var = np.sort(atoms[0], axis=-1)[:, 37]
        np.testing.assert_allclose(found[0], var + np.maximum(atoms[0] - var[:, None], 0).mean(-1) / 0.25, rtol=1e-9)


def test_the_average_of_state_wise_risks_is_below_the_risk_of_the_whole():
    atoms = np.concatenate([np.zeros((1, 1, 50)), np.full((1, 1, 50), 8.0)], axis=1)
    constraints = stack_constraints([parse_spectrum("cvar:0.75").discretize(2)], [1.0], [100.0])
    assert float(constraints.state_wise(jnp.asarray(atoms)).mean()) == pytest.approx(4.0)
    assert parse_spectrum("cvar:0.75").risk(atoms.reshape(-1)) == pytest.approx(8.0)


# --- SDPO -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("actions", [BoxActions(2), DiscreteActions(3)], ids=["box", "discrete"])
def test_sdpo_critics_see_the_policys_outputs(actions):
    learner, settings, state = make("sdpo", actions=actions)
    chunk = experience(learner, state, settings)
    segments, networks = segments_of(chunk), learner.networks(state, settings)
    seen = networks.inputs_of_steps(segments)
    assert seen.shape == (STEPS, ENVS, OBSERVATIONS + actions.output_size)
    outputs = np.array(state.policy(networks.features(states_of(segments))))
    if isinstance(actions, BoxActions):
        # The mean in units of actions: beyond their bounds there is nothing more to see.
        outputs[..., :2] = np.tanh(outputs[..., :2])
    np.testing.assert_allclose(seen[..., OBSERVATIONS:], outputs, rtol=1e-6)


def surrogate(learner, state, settings):
    chunk = experience(learner, state, settings, costs=learner.num_costs)
    features = learner.networks(state, settings).features(states_of(chunk)).reshape(-1, OBSERVATIONS)
    raw = chunk.raw_action.reshape(-1, learner.actions.size)
    log_prob = learner.actions.log_prob(state.policy(features), raw) + 0.3 * jnp.sin(jnp.arange(raw.shape[0]))
    advantage = jnp.asarray(np.random.default_rng(5).normal(size=raw.shape[0]), float)
    return Surrogate(features, raw, log_prob, advantage)


def test_sdpo_loss_within_the_limits_has_a_log_barrier():
    learner, settings, state = make("sdpo", costs=2)
    settings = replace(settings, entropy_weight=jnp.asarray(0.1), barrier=jnp.asarray(5.0))
    settings = replace(settings, constraints=replace(settings.constraints, limit=jnp.array([50.0, 60.0])))
    batch = surrogate(learner, state, settings)
    noise = learner.actions.noise(jax.random.key(0), batch.features.shape[:-1])
    networks = learner.networks(state, settings)
    loss = float(jax.jit(learner.loss(networks, settings, batch.features[:3]))(state.policy, batch, noise))
    outputs = state.policy(batch.features)
    ratio = np.exp(np.asarray(learner.actions.log_prob(outputs, batch.raw_action) - batch.log_prob, float))
    advantage = np.asarray(batch.advantage, float)
    gain = np.minimum(ratio * advantage, np.clip(ratio, 0.8, 1.2) * advantage).mean()
    assert (np.abs(ratio - 1) > 0.2).any()
    entropy = float(learner.actions.entropy(outputs, noise).mean())
    atoms = np.asarray(networks.atoms(jnp.concatenate([batch.features, outputs], -1)), float)
    risks = [np.mean([settings_risk(row) for row in atoms[1 + i]]) for i in range(2)]
    barrier = -(np.log(50.0 - risks[0]) + np.log(60.0 - risks[1])) / 5
    assert loss == pytest.approx(-gain - 0.1 * entropy + barrier, rel=1e-4)


def settings_risk(row):
    return parse_spectrum("cvar:0.75").discretize(2).risk(row)


def test_sdpo_beyond_the_limits_lowers_the_first_violated_risk_alone():
    learner, settings, state = make("sdpo", costs=2)
    batch = surrogate(learner, state, settings)
    noise = learner.actions.noise(jax.random.key(0), batch.features.shape[:-1])
    networks = learner.networks(state, settings)
    risks = np.asarray(state_risks(networks, state.policy, batch.features), float)
    for limits, first in (((100.0, 1e-3), 1), ((1e-3, 1e-3), 0)):
        bound = replace(settings, constraints=replace(settings.constraints, limit=jnp.asarray(limits)))
        loss_of = learner.loss(learner.networks(state, bound), bound, batch.features[:3])
        loss, gradient = jax.jit(jax.value_and_grad(loss_of))(state.policy, batch, noise)
        assert float(loss) == pytest.approx(risks[first], rel=1e-5)
        size = sum(float(jnp.abs(leaf).sum()) for leaf in jax.tree.leaves(gradient))
        assert 0 < size < np.inf


# --- WCSAC ------------------------------------------------------------------------------------------------------------


def wcsac(**changes):
    learner, settings, state = make("wcsac", **changes)
    chunk = experience(learner, state, settings)
    whole = replace(chunk, initial_observation=chunk.observation)
    rows = jax.tree.map(lambda leaf: leaf.reshape(STEPS * ENVS, *leaf.shape[2:]), whole)
    return learner, settings, state, rows


@pytest.mark.parametrize("fixed", [None, -2.0])
def test_soft_targets(fixed):
    """r + gamma (1 - terminated)(Z - alpha log pi); costs, and fixed deviations, without the entropy."""
    learner, settings, state, rows = wcsac(fixed_log_std=fixed)
    state = replace(state, log_temperature=jnp.log(0.4))
    # Target networks that are not the online ones.
    state = replace(state, target_critics=jax.tree.map(lambda leaf: leaf + 0.1, state.critics))
    key = jax.random.key(7)
    found = np.asarray(jax.jit(learner.one_step_targets)(state, settings, rows, key), float)
    outputs = state.policy(rows.next_observation)
    raw = learner.actions.sample(outputs, learner.actions.noise(key, outputs.shape[:-1]))
    inputs = jnp.concatenate([rows.next_observation, jnp.tanh(raw)], -1)
    atoms = np.asarray(state.target_critics(inputs, settings.constraints.largest_return), float)
    atoms = np.moveaxis(atoms, 1, 2).reshape(2, inputs.shape[0], -1)
    surprise = 0.4 * np.asarray(learner.actions.log_prob(outputs, raw), float)[:, None] * (fixed is None)
    alive = (1.0 - np.asarray(rows.terminated))[:, None]
    np.testing.assert_allclose(
        found[0], np.asarray(rows.reward)[:, None] + GAMMA * alive * (atoms[0] - surprise), atol=1e-5
    )
    np.testing.assert_allclose(found[1], np.asarray(rows.costs) + GAMMA * alive * atoms[1], atol=1e-5)


def test_target_networks_follow_slowly():
    learner, settings, state, rows = wcsac()
    moved, _ = jax.jit(learner.improve)(state, settings, rows, jax.random.key(0))
    for old, new, target in zip(
        *(jax.tree.leaves(tree) for tree in (state.target_critics, moved.critics, moved.target_critics)), strict=True
    ):
        np.testing.assert_allclose(target, 0.995 * old + 0.005 * new, atol=1e-6)


def test_temperature_and_multipliers_move_the_right_way():
    """Too little entropy raises the temperature; a risk beyond its limit raises its multiplier."""
    for target, limit, up in ((50.0, 1e-3, True), (-50.0, 100.0, False)):
        learner, settings, state, rows = wcsac(entropy_target=target)
        settings = replace(settings, constraints=replace(settings.constraints, limit=jnp.asarray([limit])))
        moved, metrics = jax.jit(learner.improve)(state, settings, rows, jax.random.key(0))
        # The first step of Adam is the learning rate, in the direction of minus the gradient.
        wanted = 1e-3 if up else -1e-3
        assert float(moved.log_temperature) == pytest.approx(wanted, rel=1e-3)
        assert float(moved.log_multiplier[0]) == pytest.approx(0.01 * np.sign(wanted), rel=1e-3)
        assert float(metrics["multiplier"][0]) == pytest.approx(np.exp(float(moved.log_multiplier[0])), rel=1e-5)


def test_a_fixed_deviation_has_no_temperature():
    learner, settings, state, rows = wcsac(fixed_log_std=-2.0)
    moved, metrics = jax.jit(learner.improve)(state, settings, rows, jax.random.key(0))
    assert float(moved.log_temperature) == 0
    assert float(metrics["temperature"]) == 0


def test_default_entropy_targets():
    assert make("wcsac", actions=BoxActions(2))[0].entropy_target == -2
    assert make("wcsac", actions=DiscreteActions(4))[0].entropy_target == pytest.approx(0.03 * np.log(4))


def test_discrete_expectations_are_exact():
    """sum_a pi(a) of values and risks at every action, whatever the noise."""
    learner, settings, state, rows = wcsac(actions=DiscreteActions(3))
    networks, states = learner.networks(state, settings), states_of(rows)
    found = [np.asarray(state_wise_values(networks, state.policy, states, jax.random.key(k))[0]) for k in (0, 1)]
    np.testing.assert_array_equal(*found)
    chances = np.asarray(jax.nn.softmax(state.policy(rows.observation)), float)
    wanted = np.zeros_like(found[0], float)
    for action in range(3):
        inputs = jnp.concatenate([rows.observation, jnp.broadcast_to(jnp.eye(3)[action], chances.shape)], -1)
        atoms = np.asarray(networks.atoms(inputs), float)
        risk = [settings_risk(row) for row in atoms[1]]
        wanted += chances[:, action] * np.stack([atoms[0].mean(-1), risk])
    np.testing.assert_allclose(found[0], wanted, atol=1e-5)


def test_replayed_rows_are_whole_and_uniform():
    learner, settings, state = make("wcsac", replay_chunks=3)
    replay = state.replay
    for seed in range(2):  # one place stays empty
        chunk = experience(learner, state, settings, seed)
        marks = 1000 * (seed + 1) + jnp.arange(STEPS * ENVS).reshape(STEPS, ENVS)
        chunk = replace(chunk, reward=marks.astype(float), discount=2 * marks.astype(float))
        chunk = replace(
            chunk, initial_observation=jnp.broadcast_to(jnp.arange(ENVS)[:, None] * 1.0, (ENVS, OBSERVATIONS))
        )
        replay = replay.add(chunk)
    drawn = replay.rows(jax.random.key(0), 9600)
    marks = np.asarray(drawn.reward)
    np.testing.assert_array_equal(drawn.discount, 2 * marks)
    np.testing.assert_array_equal(np.asarray(drawn.initial_observation)[:, 0], marks % 1000 % ENVS)
    values, counts = np.unique(marks, return_counts=True)
    assert len(values) == 2 * STEPS * ENVS
    assert 60 < counts.min() <= counts.max() < 145  # 100 each, deviation 10
