"""Distribution-free confidence bounds for a spectral risk.

A band around the distribution function that holds with the wanted confidence bounds every spectral risk at once: the
risk is monotone, so the largest and smallest distributions in the band have the largest and smallest risk.

The band is the intersection of two, each given a share of the error probability:

- Dvoretzky-Kiefer-Wolfowitz with Massart's constant: |F_n - F| <= sqrt(log(2 / delta) / (2 n)) everywhere. Right in the
  bulk, useless in the tail: it leaves a mass of order n^(-1/2) free to sit at the upper end, whatever the data say.
- Order statistics in the tails: F(X_(j)) lies stochastically above, and F(X_(j)-) below, a Beta(j, n - j + 1) variable,
  for discrete X too. Used at j = 1, 2, 3, 5, 9, ... counted from either end, with a union bound; there the free mass is
  of order (log n) / n.

The shares are fixed in advance, so nothing is chosen after seeing the data.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.special

from tailsafe.arrays import Array, require
from tailsafe.errors import InputError
from tailsafe.risk.empirical import checked_samples
from tailsafe.risk.spectra import SpectralRisk

# Part of the error probability given to the tails; it widens the bulk by at most 3 % at confidence 0.95.
TAIL_SHARE = 0.2


class RiskInterval(NamedTuple):
    """Bounds that hold together with at least the wanted confidence. `upper` is inf without a bound on X."""

    lower: Array
    upper: Array


def risk_interval(
    spectrum: SpectralRisk, samples: Array, confidence: float = 0.95, upper: float | None = None
) -> RiskInterval:
    """Two-sided bounds on R_sigma(X) from independent samples of X in [0, upper].

    samples: (..., n), each row a sample of its own. Returns arrays (...). Without `upper` no finite upper bound holds
    for every distribution: `upper` comes back infinite and `lower` is still valid.
    """
    x = checked_samples(samples)
    if not 0 < confidence < 1:
        raise InputError(f"confidence is {confidence:g}; it must be in (0, 1)")
    require("samples", x, x >= 0, "the bounds are for costs, which are non-negative")
    if upper is not None:
        if not isinstance(upper, int | float | np.number) or not 0 < upper < np.inf:
            raise InputError(f"upper is {upper}; it must be a positive number")
        require("samples", x, x <= upper, f"no sample may be above upper = {upper:g}")
    x = np.sort(x, axis=-1)
    below, above = cdf_band(x.shape[-1], confidence)
    # Largest distribution: F = below, and what is missing to 1 sits at `upper`. Smallest: F = above, the rest at 0.
    s_below, s_above = spectrum.integral(below), spectrum.integral(above)
    low = x @ np.diff(s_above)
    if upper is None:
        return RiskInterval(low, np.full_like(low, np.inf)[()])
    high = x @ np.diff(s_below) + (1 - s_below[-1]) * upper
    # The empirical risk is always inside in exact arithmetic; rounding must not put it outside.
    estimate = spectrum.risk(x)
    return RiskInterval(np.minimum(low, estimate), np.minimum(np.maximum(high, estimate), upper))


def cdf_band(n: int, confidence: float) -> tuple[np.ndarray, np.ndarray]:
    """(below, above), each (n + 1,): below[j] <= F(x) <= above[j] for all x in [X_(j), X_(j+1)), j = 0..n, at once.

    X_(0) is the lower end of the range; below[0] = 0 and above[n] = 1.
    """
    error = 1 - confidence
    radius = np.sqrt(np.log(2 / (error * (1 - TAIL_SHARE))) / (2 * n))
    empirical = np.arange(n + 1) / n
    below, above = np.maximum(empirical - radius, 0.0), np.minimum(empirical + radius, 1.0)

    ranks = _tail_ranks(n)
    each = error * TAIL_SHARE / (2 * ranks.size)
    lower = scipy.special.betaincinv(ranks, n - ranks + 1, each)
    # The upper quantile of Beta(j, n - j + 1) is one minus the lower quantile of the mirrored Beta: no cancellation.
    higher = 1 - scipy.special.betaincinv(n - ranks + 1, ranks, each)
    below[ranks] = np.maximum(below[ranks], lower)
    above[ranks - 1] = np.minimum(above[ranks - 1], higher)
    below[0], above[n] = 0.0, 1.0
    # F is increasing: a bound at one order statistic holds for all above (or below) it.
    return np.maximum.accumulate(below), np.minimum.accumulate(above[::-1])[::-1]


def _tail_ranks(n: int) -> np.ndarray:
    """Ranks 1, 2, 3, 5, 9, ... from both ends, up to a quarter of the sample (in the bulk DKW is the tighter)."""
    offsets = [0, *(2**k for k in range(n.bit_length()) if 2**k <= n // 4)]
    return np.unique([rank for k in offsets for rank in (1 + k, n - k)])
