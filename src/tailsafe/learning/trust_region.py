"""Steps in a trust region: Fisher-vector products, conjugate gradients, and the dual that combines the gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from tailsafe.learning.actions import Actions

Matvec = Callable[[Array], Array]
# Added to the diagonal of the Fisher matrix, and iterations of conjugate gradients: the paper's.
DAMPING, ITERATIONS = 0.01, 10
# Squared length under which a gradient counts as zero.
SMALLEST_SQUARE = 1e-10
# Share of its parts' squared lengths that must be left of a combination, in single precision.
_CANCELLATION = 1e-4


def fisher_product(
    outputs_of: Callable[[Array], Array],
    parameters: Float[Array, " P"],
    actions: Actions,
    weights: Float[Array, " B"],
    damping: float = DAMPING,
) -> Matvec:
    """v -> (F + damping I) v for rows v (G, P), with F the Fisher matrix of the policy averaged over states.

    F = sum_b weights[b] J_b' M_b J_b with J the Jacobian of the network's outputs and M the Fisher matrix of the
    distribution in its outputs: the Hessian of the mean KL at the current policy, without differentiating twice.
    outputs_of: parameters -> (B, D). weights sum to one.
    """
    outputs, jacobian = jax.linearize(outputs_of, parameters)
    transpose = jax.linear_transpose(jacobian, parameters)

    def product(vector: Float[Array, " P"]) -> Float[Array, " P"]:
        image: Array = transpose(weights[:, None] * actions.fisher(outputs, jacobian(vector)))[0]
        return image + damping * vector

    return jax.vmap(product)


def conjugate_gradient(
    product: Matvec, targets: Float[Array, "G P"], iterations: int = ITERATIONS, tolerance: float = 1e-8
) -> tuple[Float[Array, "G P"], Float[Array, "G P"]]:
    """x with H x = b for all rows b at once, and H x itself (which differs from b where iterations ran out).

    A row whose squared residual falls under `tolerance` times its start stops where it is. A row of next to no length
    (a gradient that has vanished) gives zero: its products would underflow, and dividing by them has no meaning.
    """
    start = jnp.sum(targets**2, axis=-1)
    targets = jnp.where(start[:, None] > SMALLEST_SQUARE, targets, 0.0)
    start = jnp.where(start > SMALLEST_SQUARE, start, 0.0)

    def iterate(_: Array, carry: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        x, residual, direction, squared = carry
        running = squared > tolerance * start
        image = product(direction)
        curvature = jnp.sum(direction * image, axis=-1)
        step = jnp.where(running, squared / jnp.where(running, curvature, 1.0), 0.0)
        x = x + step[:, None] * direction
        residual = residual - step[:, None] * image
        new = jnp.sum(residual**2, axis=-1)
        momentum = jnp.where(running, new / jnp.where(running, squared, 1.0), 0.0)
        direction = jnp.where(running[:, None], residual + momentum[:, None] * direction, direction)
        return x, residual, direction, jnp.where(running, new, squared)

    zero = jnp.zeros_like(targets)
    x, residual, _, _ = jax.lax.fori_loop(0, iterations, iterate, (zero, targets, targets, start))
    return x, targets - residual


class Step(NamedTuple):
    """A step of one unit. direction (P,): what is added to the parameters. kl: 1/2 p' H p."""

    direction: Float[Array, " P"]
    kl: Float[Array, ""]


def combined_step(
    solved: Float[Array, "1+N P"],
    gram: Float[Array, "1+N 1+N"],
    coefficients: Float[Array, " 1+N"],
    excess: Float[Array, " N"],
    radius: Float[Array, ""],
) -> Step:
    """The direction sum_j coefficients[j] solved[j], stretched or cut to p' H p = radius^2; zero stays zero.

    Where reward and cost gradients are parallel the combination cancels, and what is left of it is rounding. Then the
    step goes along the reward gradient alone, as far as the linearised constraints allow (not at all where one is
    violated).
    """
    squared = coefficients @ gram @ coefficients
    parts = (coefficients**2 * jnp.diagonal(gram)).sum()
    cancelled = squared <= _CANCELLATION * parts
    climbing = jnp.sqrt(jnp.maximum(gram[0, 0], 0.0))
    # A full step along the reward gradient changes cost i by radius gram[0, i] / climbing.
    rise = radius * gram[0, 1:] / jnp.where(climbing > 0, climbing, 1.0)
    room = jnp.where(rise > 0, -excess / jnp.where(rise > 0, rise, 1.0), 1.0)
    share = jnp.clip(jnp.min(room, initial=1.0), 0.0, 1.0) * (jnp.all(excess <= 0) & (climbing > 0))
    along_reward = share * radius / jnp.where(climbing > 0, climbing, 1.0)
    length = jnp.sqrt(jnp.where(cancelled, 1.0, squared))
    factors = jnp.where(cancelled, jnp.zeros_like(coefficients).at[0].set(along_reward), coefficients * radius / length)
    return step_of(solved, gram, factors)


def step_of(solved: Float[Array, "1+N P"], gram: Float[Array, "1+N 1+N"], coefficients: Float[Array, " 1+N"]) -> Step:
    """The step sum_j coefficients[j] solved[j]. A dual program that failed in single precision moves nothing."""
    direction, kl = coefficients @ solved, 0.5 * jnp.maximum(coefficients @ gram @ coefficients, 0.0)
    sound = jnp.isfinite(direction).all() & jnp.isfinite(kl)
    return Step(jnp.where(sound, direction, 0.0), jnp.where(sound, kl, 0.0))


def agreement(solved: Float[Array, "2 G P"], gradients: Float[Array, "2 G P"]) -> Float[Array, " G"]:
    """Cosine between the two halves' estimates of each gradient, in the Fisher metric: 1 all signal, 0 all noise.

    solved: F^+ gradients. A gradient that has vanished in one half gives 0.
    """
    across = (jnp.sum(solved[0] * gradients[1], -1) + jnp.sum(solved[1] * gradients[0], -1)) / 2
    lengths = jnp.sqrt(jnp.maximum(jnp.prod(jnp.sum(solved * gradients, -1), axis=0), 0.0))
    return jnp.where(lengths > 0, across / jnp.where(lengths > 0, lengths, 1.0), 0.0)


def inner_products(solved: Float[Array, "G P"], gradients: Float[Array, "G P"]) -> Float[Array, "G G"]:
    """<x, y> = x' H^-1 y between all gradients, symmetric."""
    gram = solved @ gradients.T
    return 0.5 * (gram + gram.T)


def within_kl(
    kl: Callable[[Array], Array], direction: Float[Array, " P"], largest: Float[Array, ""], *, measured: bool
) -> tuple[Float[Array, " P"], Float[Array, ""]]:
    """The direction, shortened where its KL divergence exceeds the largest, and what it takes then.

    kl: of a step. measured: whether the shortened step is measured again. KL grows with the square of the step.
    """
    full = kl(direction)
    factor = jnp.where(full > largest, jnp.sqrt(largest / jnp.maximum(full, 1e-30)), 1.0)
    spent = jnp.where(full > largest, kl(factor * direction), full) if measured else full
    return factor * direction, spent
