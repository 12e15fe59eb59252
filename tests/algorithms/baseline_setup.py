"""Small learners of every kind, and a chunk of made-up experience with episodes that end inside it."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from tailsafe.algorithms.registry import algorithm_of
from tailsafe.learning.actions import BoxActions
from tailsafe.learning.chunks import Chunk
from tailsafe.learning.constraints import stack_constraints
from tailsafe.risk import CVaR

OBSERVATIONS, STEPS, ENVS = 3, 12, 4
GAMMA = 0.9


MEASURE = CVaR(0.75)


def settings_of(algorithm, measures=(MEASURE,), limits=(2.0,), **changes):
    """Settings with the usual constants, costs up to 1 per step."""
    kind = algorithm_of(algorithm).settings
    numbers = {"gamma": GAMMA} | changes
    largest = [1 / (1 - GAMMA)] * len(measures)
    return kind(
        constraints=stack_constraints([measure.discretize(5) for measure in measures], limits, largest),
        horizon=jnp.asarray(1 / (1 - GAMMA)),
        **{name: jnp.asarray(value, float) for name, value in numbers.items()},
    )


def make(algorithm, actions=None, costs=1, settings=None, **changes):
    """(learner, settings, state)."""
    parts = algorithm_of(algorithm)
    small = {
        "num_envs": ENVS,
        "chunk_steps": STEPS,
        "policy_hidden": (8,),
        "critic_hidden": (8,),
        "replay_chunks": 2,
        "quantiles": 5,
        "initialization": "lecun",
        "normalize": False,
        "batch_chunks": 1,
        "critic_iterations": 2,
        "minibatch": 16,
    } | changes
    known = {field.name for field in dataclasses.fields(parts.config)}
    config = parts.config(**{name: value for name, value in small.items() if name in known})
    learner = parts.learner(config, OBSERVATIONS, actions or BoxActions(2), costs)
    measures = (CVaR(0.75),) * costs
    settings = settings or settings_of(algorithm, measures, (2.0,) * costs)
    return learner, settings, jax.jit(learner.init)(jax.random.key(0), settings)


def experience(learner, state, settings, seed=0, costs=1):
    """A chunk: episodes of environment i end by truncation every 5 + i steps, those of the last one by termination."""
    rng = np.random.default_rng(seed)
    actions = learner.actions
    shape = (STEPS, ENVS)
    observation = rng.normal(size=(*shape, OBSERVATIONS))
    paid = rng.integers(0, 2, size=(*shape, costs)).astype(float)
    done = np.zeros(shape, bool)
    for env in range(ENVS):
        done[4 + env :: 5 + env, env] = True
    so_far, discount = np.zeros((*shape, costs)), np.ones(shape)
    for t in range(1, STEPS):
        going = ~done[t - 1]
        discount[t] = np.where(going, GAMMA * discount[t - 1], 1.0)
        so_far[t] = np.where(going[:, None], so_far[t - 1] + discount[t - 1][:, None] * paid[t - 1], 0.0)
    terminated = done & (np.arange(ENVS) == ENVS - 1)
    outputs = jnp.zeros((*shape, actions.output_size))
    raw = actions.sample(outputs, actions.noise(jax.random.key(seed), shape))
    leaves = {
        "observation": observation,
        "reward": rng.normal(size=shape),
        "costs": paid,
        "next_observation": np.concatenate([observation[1:], rng.normal(size=(1, ENVS, OBSERVATIONS))]),
        "cost_so_far": so_far,
        "discount": discount,
        "delta": np.full((*shape, learner.delta_width(settings)), 0.5),
        "initial_observation": observation[0],
    }
    return Chunk(
        **{name: jnp.asarray(leaf, float) for name, leaf in leaves.items()},
        raw_action=raw,
        log_prob=actions.log_prob(outputs, raw),
        terminated=jnp.asarray(terminated),
        truncated=jnp.asarray(done & ~terminated),
    )
