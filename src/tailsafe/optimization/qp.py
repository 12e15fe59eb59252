"""The small dual quadratic programs of the trust region, solved exactly inside jit and vmap."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

MOST_VARIABLES = 6


def nonnegative_qp(matrix: Float[Array, "n n"], vector: Float[Array, " n"], ridge: float = 1e-9) -> Float[Array, " n"]:
    """argmin_{x >= 0} x' S x / 2 - c' x for positive semidefinite S, by trying every set of positive entries.

    At the optimum the positive entries solve S_pp x_p = c_p, so the best non-negative one of those 2^n solutions is the
    optimum: no iterations, no tolerance on the multipliers. Rows are scaled to a unit diagonal first and `ridge` is
    added to it, which makes parallel gradients, and a dual without a bound (an infeasible primal), end in large finite
    multipliers of the right ratio. A zero row (a constraint that no step can change) gets the multiplier zero.
    """
    n = matrix.shape[0]
    if n > MOST_VARIABLES:
        raise ValueError(f"{n} multipliers: the enumeration of active sets is meant for at most {MOST_VARIABLES}")
    diagonal = jnp.diagonal(matrix)
    usable = diagonal > 0
    scale = jnp.where(usable, 1 / jnp.sqrt(jnp.where(usable, diagonal, 1.0)), 0.0)
    s = matrix * scale[:, None] * scale[None, :] + ridge * jnp.eye(n, dtype=matrix.dtype)
    c = vector * scale

    def restricted(positive: Float[Array, " n"]) -> tuple[Float[Array, " n"], Float[Array, ""]]:
        """The solution with exactly these positive entries, and its objective (inf if it leaves the orthant)."""
        on = positive * usable
        # Rows outside the set become x_i = 0.
        system = s * on[:, None] * on[None, :] + jnp.diag(1.0 - on)
        x = _solve(system, c * on)
        return x, jnp.where(jnp.all(x >= 0), x @ s @ x / 2 - c @ x, jnp.inf)

    sets = np.array(list(itertools.product([0.0, 1.0], repeat=n)))
    solutions, objectives = jax.vmap(restricted)(jnp.asarray(sets, dtype=matrix.dtype))
    return solutions[jnp.argmin(objectives)] * scale


def _solve(matrix: Float[Array, "n n"], vector: Float[Array, " n"]) -> Float[Array, " n"]:
    """Gauss-Jordan elimination for a small positive definite matrix, unrolled.

    No pivoting is needed, and thousands of them under vmap are a few fused loops instead of thousands of LAPACK calls.
    """
    n = vector.shape[0]
    rows = jnp.concatenate([matrix, vector[:, None]], axis=1)
    for i in range(n):
        pivot = rows[i] / rows[i, i]
        others = rows[:, i] * (np.arange(n) != i)
        rows = (rows - others[:, None] * pivot[None, :]).at[i].set(pivot)
    return rows[:, n]


def descended_qp(matrix: Float[Array, "n n"], vector: Float[Array, " n"], sweeps: int = 50) -> Float[Array, " n"]:
    """About what `nonnegative_qp` finds, for any number of variables: by descent along one coordinate after the other.

    Exact after one sweep where the matrix is diagonal; a zero row gets zero.
    """
    diagonal = jnp.diagonal(matrix)
    scale = jnp.where(diagonal > 0, 1 / jnp.where(diagonal > 0, diagonal, 1.0), 0.0)

    def descend(step: Array, x: Float[Array, " n"]) -> Float[Array, " n"]:
        i = step % vector.shape[0]
        return x.at[i].set(jnp.maximum(x[i] + scale[i] * (vector[i] - matrix[i] @ x), 0.0))

    found: Array = jax.lax.fori_loop(0, sweeps * vector.shape[0], descend, jnp.zeros_like(vector))
    return found
