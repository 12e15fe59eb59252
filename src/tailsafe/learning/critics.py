"""Quantile regression of the critics: many full-batch steps on fixed targets."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PRNGKeyArray

from tailsafe.learning.networks import Critics

# Without a learning rate, which differs between runs of one program.
ADAM = optax.scale_by_adam()


def critic_optimizer(largest_norm: float) -> optax.GradientTransformation:
    """Adam, after the gradients of each signal's networks together are cut to a norm (inf: as they are)."""
    return ADAM if math.isinf(largest_norm) else optax.chain(_clip_signals(largest_norm), ADAM)


def clipped_adam(largest_norm: float) -> optax.GradientTransformation:
    """Adam, after the whole gradient is cut to a norm; for policies."""
    return optax.chain(optax.clip_by_global_norm(largest_norm), ADAM)


def _clip_signals(largest_norm: float) -> optax.GradientTransformation:
    def update(gradients: Any, state: optax.EmptyState, _: Any = None) -> tuple[Any, optax.EmptyState]:
        # Every leaf has the signals as its first axis.
        squares = [(leaf**2).reshape(leaf.shape[0], -1).sum(-1) for leaf in jax.tree.leaves(gradients)]
        factor = jnp.minimum(1.0, largest_norm / jnp.sqrt(jnp.maximum(jnp.stack(squares).sum(0), 1e-30)))
        return jax.tree.map(lambda leaf: leaf * factor.reshape(-1, *(1,) * (leaf.ndim - 1)), gradients), state

    return optax.GradientTransformation(lambda _: optax.EmptyState(), update)


@jax.custom_vjp
def quantile_loss(quantiles: Float[Array, "S E B L"], targets: Float[Array, "S B K"]) -> Float[Array, ""]:
    """Sum over signals of the mean of delta (tau - 1{delta < 0}), delta = target - quantile, over (E, B, L, K).

    Its gradient only needs to know what share of the targets lies below a quantile, so the L x K residuals of a state
    are counted, never stored.
    """
    levels = _levels(quantiles)
    total = jnp.zeros_like(quantiles)
    for residual in _residuals(quantiles, targets):
        total = total + residual * (levels - (residual < 0))
    # Without the barrier the sum over k would be fused into the reduction, and no longer vectorised.
    kept: Array = jax.lax.optimization_barrier(total)  # type: ignore[no-untyped-call]
    return kept.mean((1, 2, 3)).sum() / targets.shape[-1]


def _residuals(quantiles: Array, targets: Array) -> Iterator[Float[Array, "S E B L"]]:
    """target_k - quantile for one k after the other.

    Unrolled, sums over k become one fused pass over (S, E, B, L), which XLA vectorises on a CPU; as a reduction over an
    axis of its own it took eight times as long.
    """
    for k in range(targets.shape[-1]):
        yield targets[:, None, :, k, None] - quantiles


def _levels(quantiles: Array) -> Float[Array, " L"]:
    count = quantiles.shape[-1]
    return (jnp.arange(count, dtype=quantiles.dtype) + 0.5) / count


def _forward(quantiles: Array, targets: Array) -> tuple[Array, tuple[Array, Array]]:
    return quantile_loss(quantiles, targets), (quantiles, targets)


def _backward(saved: tuple[Array, Array], cotangent: Array) -> tuple[Array, None]:
    quantiles, targets = saved
    below = jnp.zeros_like(quantiles)
    for residual in _residuals(quantiles, targets):
        below = below + (residual < 0)
    _, *rest = quantiles.shape
    share = below / targets.shape[-1] - _levels(quantiles)
    return cotangent * share / (rest[0] * rest[1] * rest[2]), None


quantile_loss.defvjp(_forward, _backward)


def fit_critics(
    critics: Critics,
    optimizer_state: optax.OptState,
    optimizer: optax.GradientTransformation,
    features: Float[Array, "B i"],
    targets: Float[Array, "S B K"],
    largest_return: Float[Array, " C"],
    learning_rate: Float[Array, ""],
    iterations: int,
    minibatches: int = 1,
    dtype: DTypeLike | None = None,
) -> tuple[Critics, optax.OptState, Float[Array, " S"]]:
    """`iterations` gradient steps, each on one of `minibatches` equal parts of the batch, in turn.

    The rows must come in random order if there is more than one part; rows that do not fill a part are left out.
    dtype: what the networks are computed in (see `Stack`); parameters, losses and steps stay as they are.
    Returns also the loss of each signal on the first part before the first step.
    """
    size = features.shape[0] // minibatches
    parts = features[: size * minibatches].reshape(minibatches, size, -1)
    signals = targets.shape[0]
    wanted = targets[:, : size * minibatches].reshape(signals, minibatches, size, -1)

    def loss(critics: Critics, part: Array) -> Float[Array, ""]:
        return quantile_loss(critics(parts[part], largest_return, dtype), wanted[:, part])

    def iterate(index: Array, carry: tuple[Critics, optax.OptState]) -> tuple[Critics, optax.OptState]:
        critics, optimizer_state = carry
        gradients = jax.grad(loss)(critics, index % minibatches)
        updates, optimizer_state = optimizer.update(gradients, optimizer_state)
        updates = jax.tree.map(lambda update: -learning_rate * update, updates)
        return eqx.apply_updates(critics, updates), optimizer_state

    quantiles = critics(parts[0], largest_return)
    before = jax.vmap(lambda q, t: quantile_loss(q[None], t[None]))(quantiles, wanted[:, 0])
    critics, optimizer_state = jax.lax.fori_loop(0, iterations, iterate, (critics, optimizer_state))
    return critics, optimizer_state, before


def shuffled(
    inputs: Float[Array, "T B i"], targets: Float[Array, "S T B K"], minibatches: int, key: PRNGKeyArray
) -> tuple[Float[Array, "R i"], Float[Array, "S R K"]]:
    """Rows for `fit_critics`, in random order where there is more than one part."""
    inputs = inputs.reshape(-1, inputs.shape[-1])
    targets = targets.reshape(targets.shape[0], -1, targets.shape[-1])
    if minibatches == 1:
        return inputs, targets
    order = jax.random.permutation(key, inputs.shape[0])
    return inputs[order], targets[:, order]
