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
    levels = np.asarray(probabilities, dtype=np.float64)
    if levels.ndim != 1:
        raise InputError(f"probabilities have shape {levels.shape}; they must be one-dimensional")
    require("probabilities", levels, (levels >= 0) & (levels <= 1), "they must be in [0, 1]")
    ordered, edges = _ordered(samples, weights)
    n = ordered.shape[-1]
    if edges is None:
        index = np.minimum(np.searchsorted(np.arange(1, n + 1) / n, levels, side="left"), n - 1)
        return ordered[..., index]
    below = edges[..., 1:, None] < xp.asarray(levels)
    index = xp.minimum(below.sum(-2), n - 1)
    return xp.take_along_axis(ordered, index, axis=-1)


def checked_samples(samples: Array) -> np.ndarray:
    """`samples` as float64 of shape (..., n), or an `InputError` that names the first bad entry."""
    array = _real("samples", samples)
    _require_entries(array.shape)
    require("samples", array, np.isfinite(array), "every sample must be finite")
    return array


def checked_weights(weights: Array, samples: np.ndarray) -> np.ndarray:
    """`weights` as float64 that broadcast against the samples, or an `InputError` that names the first bad entry."""
    array = _real("weights", weights)
    _require_matching(array.shape, samples.shape)
    require("weights", array, np.isfinite(array) & (array >= 0), "weights must be finite and non-negative")
    if np.any(array.sum(-1) <= 0):
        raise InputError("weights sum to zero; at least one must be positive")
    return array


def _ordered(samples: Array, weights: Array | None) -> tuple[Array, Array | None]:
    """Sorted samples (..., n) and cumulative weights (..., n + 1) from 0 to 1 in their order (None if equal)."""
    xp = namespace(samples, weights)
    x = checked_samples(samples) if xp is np else as_float(samples, xp)
    _require_entries(x.shape)
    if weights is None:
        return xp.sort(x, axis=-1), None
    w = checked_weights(weights, x) if xp is np else as_float(weights, xp)
    _require_matching(w.shape, x.shape)
    x, w = xp.broadcast_arrays(x, w)
    order = xp.argsort(x, axis=-1)
    cumulative = xp.cumsum(xp.take_along_axis(w, order, axis=-1), axis=-1)
    # The end points are constants, not quotients: exact, and no gradient flows through an infinite sigma(1).
    inner = xp.clip(cumulative[..., :-1] / cumulative[..., -1:], 0.0, 1.0)
    ends = (*inner.shape[:-1], 1)
    edges = xp.concatenate([xp.zeros(ends, inner.dtype), inner, xp.ones(ends, inner.dtype)], axis=-1)
    return xp.take_along_axis(x, order, axis=-1), edges


def _real(name: str, values: Array) -> np.ndarray:
    try:
        array = np.asarray(values)
        real = array.real.astype(np.float64) if np.iscomplexobj(array) else array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be numbers of one shape (..., n): {error}") from None
    if np.iscomplexobj(array):
        raise InputError(f"{name} must be real numbers")
    return real


def _require_entries(shape: tuple[int, ...]) -> None:
    if len(shape) == 0 or shape[-1] == 0:
        raise InputError(f"samples must have at least one entry on the last axis, got shape {shape}")


def _require_matching(weights: tuple[int, ...], samples: tuple[int, ...]) -> None:
    try:
        fits = len(weights) > 0 and weights[-1] == samples[-1] and np.broadcast_shapes(weights, samples) is not None
    except ValueError:
        fits = False
    if not fits:
        raise InputError(f"weights have shape {weights}, which does not match samples of shape {samples}")
