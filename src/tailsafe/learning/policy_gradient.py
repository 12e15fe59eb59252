"""Gradients of the reward and of every risk in the policy's parameters, and the same in the Fisher metric."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray

from tailsafe.learning.actor_critic import ActorCritic
from tailsafe.learning.batches import Minibatch
from tailsafe.learning.networks import Policy
from tailsafe.learning.risk_estimates import RiskModel
from tailsafe.learning.trust_region import Matvec, agreement, conjugate_gradient, fisher_product, inner_products


class RowGradients(NamedTuple):
    """What gradients in the policy's parameters are made of.

    by_state (1 + C, B, D): of every signal in the network's outputs at each row. weights (B,): of the rows, sum one.
    pull_back: from (B, D) in outputs to (P,) in parameters. fisher: products with the Fisher matrix.
    """

    by_state: Float[Array, "1+C B D"]
    weights: Float[Array, " B"]
    pull_back: Callable[[Array], Any]
    fisher: Matvec


def row_gradients(
    networks: ActorCritic,
    risk: RiskModel,
    minibatch: Minibatch,
    key: PRNGKeyArray,
    *,
    score: bool = False,
    discounted: bool = False,
) -> RowGradients:
    """Of J_R and every J_Ci. score: advantages of the actions taken times scores, else pathwise through the critics.

    discounted: states count by gamma^t, else alike.
    """
    states, actions = minibatch.states, networks.actions
    parameters, unravel = ravel_pytree(networks.policy)
    features = networks.features(states)
    weights = states.discount if discounted else jnp.ones_like(states.discount)
    weights = weights / weights.sum()

    def outputs_of(parameters: Float[Array, " P"]) -> Float[Array, "B D"]:
        policy: Policy = unravel(parameters)
        return policy(features)

    outputs, pull_back = jax.vjp(outputs_of, parameters)
    if score:
        by_state = _scores(networks, minibatch, weights, outputs)
    else:
        by_state = _pathwise(networks, risk, minibatch, features, outputs, key)
    return RowGradients(by_state, weights, pull_back, fisher_product(outputs_of, parameters, actions, weights))


def policy_gradients(
    networks: ActorCritic,
    risk: RiskModel,
    minibatch: Minibatch,
    horizon: Float[Array, ""],
    key: PRNGKeyArray,
    *,
    score: bool = False,
    discounted: bool = False,
) -> tuple[Float[Array, "2 1+C P"], Matvec]:
    """Gradients of J_R and of every J_Ci in the policy's parameters, and products with its Fisher matrix.

    The gradients come from two halves of the environments, each an estimate by itself; their mean is the estimate from
    all rows. horizon: from means over states to gradients of J, 1 / (1 - gamma). score, discounted: `row_gradients`.
    """
    by_state, weights, pull_back, fisher = row_gradients(
        networks, risk, minibatch, key, score=score, discounted=discounted
    )
    second = jnp.arange(weights.shape[0]) % minibatch.initial_observation.shape[0] % 2
    shares = 2 * weights * jnp.stack([1 - second, second])
    pulled = jax.vmap(jax.vmap(lambda part: pull_back(part)[0]))(shares[:, None, :, None] * by_state)
    return pulled * horizon, fisher


def _scores(
    networks: ActorCritic, minibatch: Minibatch, weights: Float[Array, " B"], outputs: Float[Array, "B D"]
) -> Float[Array, "1+C B D"]:
    taken, raw_action = minibatch.taken, minibatch.steps.raw_action
    # Centred before the ratios come in: a constant times a score has mean zero only with them.
    centred = (taken.advantages - weights @ taken.advantages) * taken.ratio[:, None]
    score = jax.grad(lambda outputs: networks.actions.log_prob(outputs, raw_action).sum())(outputs)
    by_state: Array = centred.T[..., None] * score
    return by_state


def _pathwise(
    networks: ActorCritic,
    risk: RiskModel,
    minibatch: Minibatch,
    features: Float[Array, "B i"],
    outputs: Float[Array, "B D"],
    key: PRNGKeyArray,
) -> Float[Array, "1+C B D"]:
    objective = risk.objective(networks, minibatch.states, jax.random.fold_in(key, 1))

    def value_of(actions: Float[Array, "S B A"]) -> Float[Array, "S B"]:
        inputs = jnp.concatenate([jnp.broadcast_to(features, (*actions.shape[:2], features.shape[-1])), actions], -1)
        return objective(networks.atoms(inputs))

    noise = networks.actions.noise(key, outputs.shape[:-1])
    return networks.actions.output_gradients(outputs, noise, value_of, networks.critics.signals)[1]


class NaturalGradients(NamedTuple):
    """solved (1 + C, P): F^+ grad. gram (1 + C, 1 + C): inner products of the gradients in that metric.

    signal (1 + C,): cosine between the estimates of two halves of the rows, how much of each gradient is signal.
    """

    solved: Float[Array, "1+C P"]
    gram: Float[Array, "1+C 1+C"]
    signal: Float[Array, " 1+C"]


def natural_gradients(halves: Float[Array, "2 1+C P"], fisher: Matvec) -> NaturalGradients:
    """From the gradients of two halves, by conjugate gradients.

    The gradient is the mean of its halves. Mean and half the difference are solved for: noise of the halves must not
    reach the step through iterations that run out.
    """
    parts = jnp.stack([halves.mean(0), (halves[0] - halves[1]) / 2])
    flat, images = conjugate_gradient(fisher, parts.reshape(-1, parts.shape[-1]))
    (solved, apart), (image, image_apart) = flat.reshape(parts.shape), images.reshape(parts.shape)
    gram = inner_products(solved, image)
    signal = agreement(
        jnp.stack([solved + apart, solved - apart]), jnp.stack([image + image_apart, image - image_apart])
    )
    return NaturalGradients(solved, gram, signal)
