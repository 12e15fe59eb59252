"""Distribution-free confidence bounds for a spectral risk.

Three bounds share the error probability in parts that are fixed in advance, and each side takes the better of two: a
band around the distribution function (`risk.band`), and bets on a mean that bounds the risk (`risk.betting`). The bets
are what makes the upper side tight; the band is better from below where costs vary little beside their size.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from tailsafe.arrays import Array, require
from tailsafe.errors import InputError
from tailsafe.risk import betting
from tailsafe.risk.band import band_bounds
from tailsafe.risk.empirical import checked_samples
from tailsafe.risk.spectra import SpectralRisk

# Parts of the error probability. Most goes to the upper side, where a smaller part costs most: there the width grows
# with log(1 / error), from below with its root.
UPPER_SHARE, LOWER_SHARE, BAND_SHARE = 0.75, 0.15, 0.1


class RiskInterval(NamedTuple):
    """Bounds that hold together with at least the wanted confidence. `upper` is inf without a bound on X."""

    lower: Array
    upper: Array


def risk_interval(
    spectrum: SpectralRisk, samples: Array, confidence: float = 0.95, upper: float | None = None
) -> RiskInterval:
    """Two-sided bounds on R_sigma(X) from independent samples of X in [0, upper], for any distribution.

    samples: (..., n), each row a sample of its own, in any order. Returns arrays (...). Without `upper` no finite upper
    bound holds for every distribution: `upper` comes back infinite and `lower` is still valid.
    """
    x = _checked(samples, confidence, upper)
    n, error = x.shape[-1], 1 - confidence
    ordered = np.sort(x.reshape(-1, n), axis=1)
    shuffled = np.stack([_shuffled(row) for row in x.reshape(-1, n)])
    low, high = band_bounds(spectrum, ordered, 1 - BAND_SHARE * error, upper)
    lower_share = LOWER_SHARE if upper is not None else LOWER_SHARE + UPPER_SHARE
    low = np.maximum(low, betting.lower_bound(spectrum, shuffled, lower_share * error, n))
    if upper is not None:
        high = np.minimum(high, betting.upper_bound(spectrum, shuffled, upper, UPPER_SHARE * error, n))
    return _around(spectrum, ordered, low, high, x.shape[:-1])


def risk_sequence(
    spectrum: SpectralRisk, samples: Array, confidence: float = 0.95, upper: float | None = None
) -> RiskInterval:
    """Bounds like `risk_interval`'s that hold at every number of samples at once, for samples that keep coming.

    samples: (..., n) so far, in an order that does not depend on their values. The probability that the bounds of any
    prefix miss the risk is at most 1 - confidence: one may look after every sample, and stop when one likes the bounds.
    """
    x = _checked(samples, confidence, upper)
    rows, error = x.reshape(-1, x.shape[-1]), 1 - confidence
    shares = (LOWER_SHARE / (LOWER_SHARE + UPPER_SHARE), 1.0)[upper is None]
    low, high = betting.lower_bound(spectrum, rows, shares * error), np.full(len(rows), np.inf)
    if upper is not None:
        high = betting.upper_bound(spectrum, rows, upper, (1 - shares) * error)
    return RiskInterval(low.reshape(x.shape[:-1])[()], high.reshape(x.shape[:-1])[()])


def _checked(samples: Array, confidence: float, upper: float | None) -> NDArray[np.float64]:
    x = checked_samples(samples)
    if not 0 < confidence < 1:
        raise InputError(f"confidence is {confidence:g}; it must be in (0, 1)")
    require("samples", x, x >= 0, "the bounds are for costs, which are non-negative")
    if upper is not None:
        if not isinstance(upper, int | float | np.number) or not 0 < upper < np.inf:
            raise InputError(f"upper is {upper}; it must be a positive number")
        require("samples", x, x <= upper, f"no sample may be above upper = {upper:g}")
    return x


def _shuffled(samples: Float[NDArray[np.float64], " n"]) -> Float[NDArray[np.float64], " n"]:
    """The samples in another order: bets are fair in one that the values had no part in, and files come sorted.

    The seed is a digest of the samples. The same file always gives the same bounds, and no order is used for all files:
    on sorted samples one fixed order would make the bounds a function of few numbers, wrong more often than allowed.
    """
    seed = int.from_bytes(hashlib.blake2b(samples.tobytes(), digest_size=8).digest(), "little")
    return np.random.default_rng(seed).permutation(samples)


def _around(
    spectrum: SpectralRisk,
    samples: Float[NDArray[np.float64], "R n"],
    low: Float[NDArray[np.float64], " R"],
    high: Float[NDArray[np.float64], " R"],
    shape: tuple[int, ...],
) -> RiskInterval:
    """Bounds with the estimate inside: it is, but for rounding and for a lower bet that came out above it by luck."""
    estimate = np.asarray(spectrum.risk(samples))
    low, high = np.minimum(low, estimate), np.maximum(high, estimate)
    return RiskInterval(low.reshape(shape)[()], high.reshape(shape)[()])
