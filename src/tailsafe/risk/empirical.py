"""Spectral risk and quantiles of an empirical distribution, exact and differentiable.

Sorted samples x_(1) <= ... <= x_(n) with weights w_j and cumulative weights u_j give

    R_sigma(X) = int_0^1 F_X^{-1}(u) sigma(u) du = sum_j x_(j) (S(u_j) - S(u_{j-1})),   S(u) = int_0^u sigma,

so only the spectrum's integral S is ever evaluated: no sampling of u, and no trouble where sigma(1) is infinite.
Rounding of S(u_j) does not build up: summed by parts, an error of eps in every S(u_j) changes the result by at most
eps times the range of the samples, for any n.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tailsafe.arrays import Array, as_float, namespace, require
from tailsafe.errors import InputError


def spectral_risk(integral: Callable[[Array], Array], samples: Array, weights: Array | None = None) -> Array:
    """R_sigma of each row of `samples`.

    integral: S, vectorised, with S(0) = 0 and S(1) = 1.
    samples: (..., n). weights: (n,) or (..., n), non-negative, any positive total; None means equal.
    Returns (...). NumPy input is checked and computed in float64; JAX input is not checked (NaN propagates).
    """
    xp = namespace(samples, weights)
    ordered, edges = _ordered(samples, weights)
    if edges is None:
        # The masses do not depend on the data: float64 on the host, whatever precision the samples have.
        masses = np.diff(integral(np.arange(ordered.shape[-1] + 1) / ordered.shape[-1]))
        return (ordered * xp.asarray(masses, dtype=ordered.dtype)).sum(-1)
    return (ordered * xp.diff(integral(edges), axis=-1)).sum(-1)


def quantile(samples: Array, probabilities: Array, weights: Array | None = None) -> Array:
    """F_X^{-1}(p) = inf {x : F_X(x) >= p}: always one of the samples.

    samples: (..., n), probabilities: (K,) in [0, 1], weights as in `spectral_risk`. Returns (..., K).
    """
    xp = namespace(samples, weights)
    ordered, edges = _ordered(samples, weights)
    n = ordered.shape[-1]
    if edges is None:
        cumulative = np.arange(1, n + 1) / n
        index = np.minimum(np.searchsorted(cumulative, np.asarray(probabilities), side="left"), n - 1)
        return ordered[..., index]
    below = edges[..., 1:, None] < xp.asarray(probabilities)
    index = xp.minimum(below.sum(-2), n - 1)
    return xp.take_along_axis(ordered, index, axis=-1)


def checked_samples(samples: Array) -> np.ndarray:
    """`samples` as float64 of shape (..., n), or an `InputError` that names the first bad entry."""
    try:
        array = np.asarray(samples, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"samples must be numbers of one shape (..., n): {error}") from None
    if array.ndim == 0 or array.shape[-1] == 0:
        raise InputError(f"samples must have at least one entry on the last axis, got shape {array.shape}")
    require("samples", array, np.isfinite(array), "every sample must be finite")
    return array


def _ordered(samples: Array, weights: Array | None) -> tuple[Array, Array | None]:
    """Sorted samples (..., n) and cumulative weights (..., n + 1) from 0 to 1 in their order (None if equal)."""
    xp = namespace(samples, weights)
    x = checked_samples(samples) if xp is np else as_float(samples, xp)
    if weights is None:
        return xp.sort(x, axis=-1), None
    w = as_float(weights, xp)
    if xp is np:
        _check_weights(w, x)
    x, w = xp.broadcast_arrays(x, w)
    order = xp.argsort(x, axis=-1)
    cumulative = xp.cumsum(xp.take_along_axis(w, order, axis=-1), axis=-1)
    # The end points are constants, not quotients: exact, and no gradient flows through an infinite sigma(1).
    inner = xp.clip(cumulative[..., :-1] / cumulative[..., -1:], 0.0, 1.0)
    ends = (*inner.shape[:-1], 1)
    edges = xp.concatenate([xp.zeros(ends, inner.dtype), inner, xp.ones(ends, inner.dtype)], axis=-1)
    return xp.take_along_axis(x, order, axis=-1), edges


def _check_weights(w: np.ndarray, x: np.ndarray) -> None:
    if w.ndim == 0 or w.shape[-1] != x.shape[-1]:
        raise InputError(f"weights have shape {w.shape}; the last axis must match samples of shape {x.shape}")
    require("weights", w, np.isfinite(w) & (w >= 0), "weights must be finite and non-negative")
    if np.any(w.sum(-1) <= 0):
        raise InputError("weights sum to zero; at least one must be positive")
