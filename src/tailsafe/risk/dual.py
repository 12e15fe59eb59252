"""The dual form of a step spectrum (Thm. 6.2): pure functions of (eta, alpha, beta) for NumPy and JAX.

    sigma~(u) = eta_1 + sum_k (eta_{k+1} - eta_k) 1{u >= alpha_k}                         Eq. (discretized spectrum)
    g_beta(x) = eta_1 x + sum_k (eta_{k+1} - eta_k) (x - beta[k])_+
    R(X)      = inf_beta E[g_beta(X)] + int_0^1 g_beta^*(sigma~(u)) du,  attained at beta[k] = F_X^{-1}(alpha_k)

eta has M entries, alpha and beta M - 1; beta is sorted and in the units of X. All three may be traced arrays, so a
learner can be vmapped over risk measures with the same M.
"""

from __future__ import annotations

from tailsafe.arrays import Array, as_float, namespace


def g_beta(x: Array, beta: Array, eta: Array) -> Array:
    """g_beta(x). x: (...); beta: (M - 1,) or (..., M - 1) broadcasting against x; eta: (M,). Returns (...)."""
    xp = namespace(x, beta, eta)
    x, beta, eta = as_float(x, xp), as_float(beta, xp), as_float(eta, xp)
    return eta[0] * x + (xp.diff(eta) * xp.maximum(x[..., None] - beta, 0.0)).sum(-1)


def conjugate_integral(beta: Array, eta: Array, alpha: Array) -> Array:
    """int_0^1 g_beta^*(sigma~(u)) du = sum_k (eta_{k+1} - eta_k) (1 - alpha_k) beta[k]. (..., M - 1) -> (...).

    On the cell where sigma~ = eta_j the conjugate is g_beta^*(eta_j) = sum_{k<j} (eta_{k+1} - eta_k) beta[k];
    summing over the cells, beta[k] collects the width 1 - alpha_k of all cells above it.
    """
    xp = namespace(beta, eta, alpha)
    beta, eta, alpha = as_float(beta, xp), as_float(eta, xp), as_float(alpha, xp)
    return (xp.diff(eta) * (1 - alpha) * beta).sum(-1)


def sub_risk(samples: Array, beta: Array, eta: Array, alpha: Array, weights: Array | None = None) -> Array:
    """The sub-risk measure E[g_beta(X)] + int g_beta^*(sigma~), never below the risk.    Eq. (sub-risk measure)

    samples: (..., n); beta: (..., M - 1), one per row; weights: (n,) or (..., n), normalised here. Returns (...).
    """
    xp = namespace(samples, beta, eta, alpha, weights)
    values = g_beta(samples, as_float(beta, xp)[..., None, :], eta)
    constant = conjugate_integral(beta, eta, alpha)
    if weights is None:
        return values.mean(-1) + constant
    weights = as_float(weights, xp)
    return (values * weights).sum(-1) / weights.sum(-1) + constant


def beta_bounds(eta: Array, alpha: Array, limit: Array) -> Array:
    """The smallest box that holds every beta able to satisfy a limit on non-negative costs. Returns (M - 1,).

    E[g_beta] >= 0, so a feasible beta has conjugate integral <= limit; as beta is sorted,
    beta[k] sum_{j>=k} (eta_{j+1} - eta_j)(1 - alpha_j) <= limit. For CVaR this is [0, limit].
    """
    xp = namespace(eta, alpha, limit)
    eta, alpha = as_float(eta, xp), as_float(alpha, xp)
    tail = xp.cumsum((xp.diff(eta) * (1 - alpha))[::-1])[::-1]
    # A level without width (alpha = 1) or without rise has no say in the limit: its beta is unbounded.
    return xp.where(tail > 0, limit / xp.where(tail > 0, tail, 1.0), xp.inf)
