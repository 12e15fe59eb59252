"""A confidence band around the distribution function, which bounds every spectral risk at once.

The risk is monotone, so the largest and smallest distributions in the band have the largest and smallest risk.

The band is the intersection of two, each given a share of the error probability:

- Dvoretzky-Kiefer-Wolfowitz with Massart's constant: |F_n - F| <= sqrt(log(2 / delta) / (2 n)) everywhere. Right in the
  bulk, useless in the tail: it leaves a mass of order n^(-1/2) free to sit at the upper end, whatever the data say.
- Order statistics in the tails: F(X_(j)) lies stochastically above, and F(X_(j)-) below, a Beta(j, n - j + 1) variable,
  for discrete X too. Used at j = 1, 2, 3, 5, 9, ... counted from either end, with a union bound; there the free mass is
  of order (log n) / n.

The shares are fixed in advance, so nothing is chosen after seeing the data.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.special
from jaxtyping import Float
from numpy.typing import NDArray

from tailsafe.risk.spectra import SpectralRisk

# Part of the error probability given to the tails; it widens the bulk by at most 3 % at confidence 0.95.
TAIL_SHARE = 0.2


def band_bounds(
    spectrum: SpectralRisk, ordered: Float[NDArray[np.float64], "*R n"], confidence: float, upper: float | None
) -> tuple[Float[NDArray[Any], "*R"], Float[NDArray[Any], "*R"]]:
    """(lower, upper) bounds on R_sigma(X) from sorted samples of X in [0, upper]; infinite above where that is None."""
    below, above = cdf_band(ordered.shape[-1], confidence)
    # Largest distribution: F = below, and what is missing to 1 sits at `upper`. Smallest: F = above, the rest at 0.
    s_below, s_above = spectrum.integral(below), spectrum.integral(above)
    low = ordered @ np.diff(s_above)
    if upper is None:
        return low, np.full_like(low, np.inf)
    return low, ordered @ np.diff(s_below) + (1 - s_below[-1]) * upper


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
