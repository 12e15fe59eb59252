"""Run folders around random networks: what training leaves behind, without training."""

import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file, save_file

from tailsafe.algorithms.srcpo import Srcpo
from tailsafe.algorithms.srcpo_state import Settings, SrcpoConfig
from tailsafe.envs.finite import FiniteEnvironments
from tailsafe.learning.actions import BoxActions
from tailsafe.learning.interface import EnvironmentSpec
from tailsafe.learning.networks import Policy
from tailsafe.learning.normalizer import Normalizer
from tailsafe.learning.sampler import Sampler
from tailsafe.learning.spaces import ActionDescription
from tailsafe.policies.described_constraint import ConstraintDescription, LimitSpan
from tailsafe.policies.described_task import TaskDescription
from tailsafe.policies.digests import sealed, seals
from tailsafe.policies.metadata import NetworkDescription, PolicyDescription
from tailsafe.policies.policy import save_policy
from tailsafe.risk import parse_spectrum


def constraint(
    name="cost", spec="cvar:0.75", limit=1.0, unit="discounted", discounted_limit=None, cells=3, highest=None
):
    """highest: of a range of limits that begins at `limit`."""
    steps = parse_spectrum(spec).discretize(cells)
    discounted = limit if discounted_limit is None else discounted_limit
    span = None if highest is None else LimitSpan(limit, highest, discounted)
    return ConstraintDescription(name, spec, limit, unit, discounted, tuple(steps.eta), tuple(steps.alpha), span)


def describe(spec, constraints, gamma=0.9, low=None, high=None, problem=None, **network):
    network = {"hidden": (16, 16)} | network
    steps = np.inf if spec.episode_length is None else spec.episode_length
    weight = steps if gamma == 1 else (1 - gamma**steps) / (1 - gamma)
    return PolicyDescription(
        task=TaskDescription.of(spec, problem),
        actions=ActionDescription.of(spec.actions, low, high),
        network=NetworkDescription(**network),
        gamma=gamma,
        constraints=tuple(constraints),
        largest_return=tuple(float(weight * largest) for largest in spec.largest_costs),
        algorithm="srcpo",
        conditioned=True,
        steps=1234,
        regions=4 if any(one.span is not None for one in constraints) else 0,
    )


def one_cost(spec="cvar:0.75", limit=1.0, unit="discounted", discounted_limit=None, gamma=0.9, largest=1.0, length=10):
    environment = EnvironmentSpec("box", 3, BoxActions(1), ("cost",), length, (largest,))
    return describe(environment, [constraint("cost", spec, limit, unit, discounted_limit)], gamma)


def learner(description, seed=0):
    """The training code's own algorithm and state for a described policy, with weights large enough to matter."""
    network = description.network
    config = SrcpoConfig(
        num_envs=3,
        chunk_steps=2,
        replay_chunks=1,
        batch_chunks=1,
        policy_hidden=network.hidden,
        critic_hidden=(4,),
        initialization="lecun",
        fixed_log_std=network.fixed_log_std,
        augmented=network.augmented,
        clip_observation=network.clip_observation,
    )
    numbers = [f for f in Settings.__dataclass_fields__ if f != "constraints"]
    settings = Settings(description.arrays(), **{n: jnp.asarray(0.5) for n in numbers})
    algorithm = Srcpo(
        config, description.task.observation_size, description.actions.build(), len(description.constraints)
    )
    state = algorithm.init(jax.random.key(seed), settings)
    head = state.policy.body.weights[-1]
    rng = np.random.default_rng(seed)
    size = description.task.observation_size
    normalizer = Normalizer(
        jnp.float32(100.0), jnp.asarray(rng.normal(size=size)), jnp.asarray(rng.uniform(0.5, 2, size=size))
    )
    phi = jnp.asarray(rng.normal(size=state.sampler.phi.shape))
    state = eqx.tree_at(
        lambda s: (s.policy.body.weights[-1], s.normalizer, s.sampler),
        state,
        # The head starts a hundred times smaller than the rest: random here, so that actions differ.
        (100 * head, normalizer, Sampler(phi, jnp.float32(0.1))),
    )
    return algorithm, settings, state


def save_learner(folder, description, seed=0):
    """Write the policy of a random learner; returns what `learner` does."""
    algorithm, settings, state = learner(description, seed)
    save_policy(folder / "policy", state.policy, state.normalizer, state.sampler.mode, description)
    return algorithm, settings, state


def save(folder, description, seed=0):
    """Write a policy of random numbers; nothing is compiled for it."""
    rng = np.random.default_rng(seed)
    size, costs = description.task.observation_size, len(description.constraints)
    inputs = size + description.num_inputs + (costs + 1 if description.network.augmented else 0)
    skeleton = eqx.filter_eval_shape(
        lambda key: Policy(
            key,
            inputs,
            description.actions.build(),
            description.network.hidden,
            "small",
            description.network.fixed_log_std,
        ),
        jax.random.key(0),
    )
    policy = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape) / leaf.shape[0] ** 0.5, skeleton)
    normalizer = Normalizer(np.float32(1), rng.normal(size=size), rng.uniform(0.5, 2, size=size))
    save_policy(folder / "policy", policy, normalizer, rng.uniform(0.2, 0.8, size=description.modes_shape), description)


def reseal(folder):
    """Digests that fit what is in the policy's folder now, as of somebody who edits it on purpose."""
    path = folder / "policy.json"
    content = {key: value for key, value in json.loads(path.read_text()).items() if key != "digest"}
    path.write_text(json.dumps(sealed(content)))
    tensors = load_file(folder / "policy.safetensors")
    save_file(tensors, folder / "policy.safetensors", seals(tensors, content))


def finite_description(problem, constraints=None, **network):
    spec = FiniteEnvironments(problem, 1).spec
    given = constraints or [constraint(name) for name in spec.cost_names]
    network = {"augmented": True} | network
    return describe(spec, given, problem.discount, problem=problem.to_dict(), **network)


def box_description(observation_size=5, action_size=2, low=(-1.0, 0.0), high=(3.0, 0.5), **network):
    spec = EnvironmentSpec("box", observation_size, BoxActions(action_size), ("a", "b"), 10, (1.0, 2.0))
    constraints = [
        constraint("a", "cvar:0.75", 0.1, "step", 1.0),
        constraint("b", "wang:0.5", 2.0, "episode", 2.0, cells=4),
    ]
    return describe(spec, constraints, 0.9, low, high, **network)
