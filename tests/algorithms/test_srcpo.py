"""Pieces of the update that can be checked without training."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from tailsafe.algorithms.primal import policy_step
from tailsafe.algorithms.srcpo import Srcpo
from tailsafe.algorithms.srcpo_state import SrcpoConfig
from tailsafe.bench.update import paper_settings
from tailsafe.learning.actions import DiscreteActions
from tailsafe.learning.batches import ActionAdvantages, joined, minibatches_of, states_of
from tailsafe.learning.chunks import Chunk
from tailsafe.learning.risk_estimates import Calibration, calibrated
from tailsafe.learning.sampler_step import sampler_optimizer
from tailsafe.optimization.strategies import recovery_share_after
from tailsafe.risk import CVaR

STATES, ACTIONS = 5, 3


def make(**changes):
    config = SrcpoConfig(
        **{
            "num_envs": ACTIONS,
            "chunk_steps": STATES,
            "policy_hidden": (8,),
            "critic_hidden": (8,),
            "replay_chunks": 1,
            "batch_chunks": 1,
            "initialization": "lecun",
            **changes,
        }
    )
    algorithm = Srcpo(config, STATES, DiscreteActions(ACTIONS), 1)
    settings = paper_settings()
    return algorithm, settings, algorithm.init(jax.random.key(0), settings)


def every_action_in_every_state():
    """One environment per action, one step per state: what a uniform behaviour policy collects on average."""
    steps = (STATES, ACTIONS)
    observation = jnp.broadcast_to(jnp.eye(STATES)[:, None], (*steps, STATES))
    return Chunk(
        observation=observation,
        raw_action=jnp.broadcast_to(jnp.eye(ACTIONS)[None], (*steps, ACTIONS)),
        log_prob=jnp.full(steps, -jnp.log(ACTIONS)),
        reward=jnp.zeros(steps),
        costs=jnp.zeros((*steps, 1)),
        terminated=jnp.zeros(steps, bool),
        truncated=jnp.zeros(steps, bool),
        next_observation=observation,
        cost_so_far=jnp.zeros((*steps, 1)),
        discount=jnp.ones(steps),
        delta=jnp.full((*steps, 1), 0.5),
        initial_observation=observation[0],
    )


def minibatches(chunk, taken):
    """One, with an axis in front."""
    return minibatches_of(*jax.tree.map(lambda leaf: leaf[None], (chunk, taken)), groups=1)


def test_scores_of_another_policys_actions_ignore_a_constant_in_the_advantages():
    """E_mu[pi/mu c grad log pi] = 0, so a critic that is wrong by a constant must not move the policy."""
    algorithm, settings, state = make(gradient="score", normalize=False)
    chunk = every_action_in_every_state()
    parameters, unravel = ravel_pytree(state.policy)
    # A policy far from uniform.
    parameters = 20 * parameters
    policy = unravel(parameters)
    state = replace(state, policy=policy)
    networks, risk = algorithm.networks(state, settings), algorithm.risk(state, settings)
    outputs = policy(networks.features(states_of(chunk)))
    ratio = jnp.exp(algorithm.actions.log_prob(outputs, chunk.raw_action) - chunk.log_prob)
    assert float(jnp.abs(ratio - 1).max()) > 0.3
    advantages = jax.random.normal(jax.random.key(1), (STATES * ACTIONS, 2)).reshape(STATES, ACTIONS, 2)

    @jax.jit
    def direction(shift):
        taken = ActionAdvantages(advantages + shift, ratio)
        minibatch = jax.tree.map(lambda leaf: leaf[0], minibatches(chunk, taken))
        fixed = (networks, risk, state, settings, algorithm.config, algorithm.gradient_scale(settings))
        combine = partial(algorithm.combine, state, settings)
        return policy_step(*fixed, combine, minibatch, jax.random.key(2)).direction

    plain = direction(0.0)
    assert float(jnp.abs(plain).max()) > 1e-3
    np.testing.assert_allclose(direction(7.0), plain, atol=2e-4 * float(jnp.abs(plain).max()))


def test_joined_chunks_keep_every_row():
    batch = Chunk(**{name: jnp.arange(2 * 3 * 4.0).reshape(2, 3, 4) for name in Chunk.__dataclass_fields__})
    first = jnp.arange(2 * 4 * 5.0).reshape(2, 4, 5)
    whole = joined(Chunk(**{**batch.__dict__, "initial_observation": first}))
    assert whole.reward.shape == (1, 6, 4)
    np.testing.assert_array_equal(whole.reward[0, 3:], batch.reward[1])
    np.testing.assert_array_equal(whole.initial_observation, first.reshape(1, 8, 5))


def test_the_rewards_part_of_a_recovery_vanishes():
    shares = [float(recovery_share_after(jnp.int32(n))) for n in (0, 1, 40, 80, 4000)]
    assert shares[:3] == pytest.approx([0.7, 0.7, 0.7])
    # Half of sqrt(1 - 0.49) at right angles, then a hundredth of it.
    assert shares[3:] == pytest.approx([np.sqrt(1 - 0.51 / 4), np.sqrt(1 - 0.51 / 1e4)])


def test_a_sampler_that_follows_quantiles_returns_from_the_end_of_its_range():
    """Gradients near the ends are a hundred times smaller than those that drove it there."""
    moved = {}
    for rule in ("explicit", "pathwise"):
        state = make(sampler_gradient=rule)[2]
        phi, memory = state.sampler.phi, state.sampler_optimizer
        for gradient in [-0.5] * 100 + [0.005] * 150:
            step, memory = sampler_optimizer(rule).update(jnp.full_like(phi, gradient), memory)
            phi = phi - 0.1 * step
            if gradient < 0:
                top = phi
        moved[rule] = float((top - phi)[0])
    assert moved["explicit"] > 2
    assert abs(moved["pathwise"]) < 1.5


def test_calibration_moves_the_estimate_towards_finished_episodes():
    algorithm, settings, state = make()
    chunk = every_action_in_every_state()
    costs = np.arange(STATES * ACTIONS, dtype=float).reshape(STATES, ACTIONS)
    ended = costs % 4 == 1
    chunk = replace(
        chunk,
        costs=jnp.asarray(costs)[..., None],
        truncated=jnp.asarray(ended),
        cost_so_far=jnp.full((*costs.shape, 1), 0.5),
    )
    nothing_taken = ActionAdvantages(jnp.zeros((*costs.shape, 2)), jnp.ones(costs.shape))
    seen = minibatches(chunk, nothing_taken)
    beta = np.asarray(settings.constraints.beta(chunk.delta[:1, 0]))[0, 0]
    expected = CVaR(0.75).discretize(2).sub_risk(0.5 + costs[ended], beta)
    values, zero, risk = jnp.asarray([[0.0, 3.0]]), jnp.zeros(1), algorithm.risk(state, settings)
    # Weights 1, 2, 3, ... at first: the second look has 2/3 of the average. Then the given rate.
    for before, rate, gain in [(0, 0.0, 0.0), (1, 0.1, 2 / 3), (1000, 0.1, 0.1), (1000, 1.0, 1.0)]:
        weight = replace(settings, calibration=jnp.asarray(rate)).gain(jnp.int32(before))
        moved, noise, looks = calibrated(Calibration(zero, zero, jnp.int32(before)), risk, seen, values, weight)
        assert int(looks) == before + 1
        assert float(noise[0]) == pytest.approx(gain * (expected - 3.0) ** 2, rel=1e-5)
        assert float(moved[0]) == pytest.approx(gain * (expected - 3.0), rel=1e-5)
    nothing = jax.tree.map(jnp.zeros_like, seen)
    moved, _, looks = calibrated(Calibration(zero, zero, jnp.int32(1000)), risk, nothing, values, jnp.asarray(1.0))
    assert (float(moved[0]), int(looks)) == (0.0, 1000)


def test_critics_slow_with_the_policy():
    algorithm, settings, state = make(critic_hidden=(8,), critic_iterations=4)
    settings = replace(settings, kl_decay=jnp.asarray(10.0))
    update = jax.jit(algorithm.update_critics)
    segments = jax.tree.map(lambda leaf: leaf[None], every_action_in_every_state())
    moved = {}
    for updates in (0, 1000):
        before = replace(state, updates=jnp.int32(updates))
        after = update(before, settings, segments, jax.random.key(0))[0]
        moved[updates] = np.abs(ravel_pytree(after.critics)[0] - ravel_pytree(state.critics)[0]).max()
    # Adam's steps have the length of the rate while gradients keep their sign.
    assert moved[1000] / moved[0] == pytest.approx(101**-0.6, rel=0.2)


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_precision_reaches_the_critics(precision):
    """A CPU computes tf32 as float32, but bfloat16 is a type of its own."""
    sizes = {"critic_hidden": (8,), "critic_iterations": 4}
    plain, settings, state = make(**sizes)
    segments = jax.tree.map(lambda leaf: leaf[None], every_action_in_every_state())
    learned = [
        ravel_pytree(jax.jit(algorithm.update_critics)(state, settings, segments, jax.random.key(0))[0].critics)[0]
        for algorithm in (plain, make(precision=precision, **sizes)[0])
    ]
    assert learned[1].dtype == jnp.float32
    assert np.array_equal(*learned) == (precision == "tf32")
    np.testing.assert_allclose(*learned, atol=3e-3)
