"""Bounds on spectral risks by betting: for any distribution of the costs, at one sample size or at all of them at once.

A gambler who bets that a non-negative V has a mean above c multiplies the capital by 1 + f (V / c - 1), where the stake
f in [0, 1) may follow from everything seen before. If the mean is at most c, the capital is expected never to grow, and
by Ville's inequality the probability that it ever reaches 1 / error is at most `error`. The values of c that the
gambler has not refuted form a confidence sequence (Waudby-Smith and Ramdas, Estimating means of bounded random
variables by betting, 2024). For a number of samples that was fixed in advance the capital after the last one decides,
by Markov's inequality: it hardly depends on the order of the samples, while what it reached on the way does.

*From above*: V is how far a majorant of the risk (`risk.majorant`) stays below its largest value. Like the stake, the
majorant may follow from what was seen before, so that no sample is set aside to find it.

*From below*: a spectral risk is an infimum of means, and so concave in the distribution: the risk of k samples is on
average at most the true one. V is the risk of a block of samples.

The stake. Over N bets whose V has mean a and variance s^2, the smallest c that is refuted is reached where
f^2 / (1 - f) + log(1 - f) + f = log(1 / error) a^2 / (N s^2), which is Bennett's trade-off: sqrt(2 ...) where the
right side is small, and all but everything where the variance is negligible beside the range, as it is for rare costs.

What limits the upper bound is what was never seen: n samples leave a mass of log(1 / error) / n that may sit at the
largest cost possible. This holds for every bound that is valid for any distribution; the gambler comes close to it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from tailsafe.risk.majorant import fit, slopes
from tailsafe.risk.spectra import SpectralRisk

# Bets that the gambler's prior is worth: as many have a relative variance of one, so that the first stakes are careful.
PRIOR = 0.05
# The majorant is fitted anew after so many samples, and then each time their number has grown by this factor.
FIRST_FIT, REFIT = 16, 1.5
# Blocks of horizon ** this many samples: larger ones are less biased, smaller ones allow more bets.
BLOCK_POWER = 0.4
# The horizon of a sequence without one: bets at sample t aim at so many times t, at least at the first number.
_FIRST_HORIZON, _AHEAD = 500, 2
# The last slope of a smooth spectrum is where so many samples of the horizon are expected to lie above.
_TAIL_SAMPLES = 2
_HALVINGS = 45
_STAKES = np.append(np.linspace(0.0, 0.99, 1000), 1 - np.geomspace(0.01, 1e-6, 200)[1:])
_WORTH = _STAKES**2 / (1 - _STAKES) + np.log1p(-_STAKES) + _STAKES

# In quotes: with NumPy 2.5 on Python 3.12, NDArray is an alias that jaxtyping cannot subscript at run time.
Samples: TypeAlias = "Float[NDArray[np.float64], 'R n']"
Bounds: TypeAlias = "Float[NDArray[np.float64], ' R']"


def upper_bound(
    spectrum: SpectralRisk, samples: Samples, upper: float, error: float, horizon: int | None = None
) -> Bounds:
    """Upper bounds on R_sigma(X), X in [0, upper], from rows of independent samples in the order they were drawn.

    horizon None: P(any prefix of a row gives a bound below the risk) <= error. Else the bets aim at so many samples,
    and P(the bound is below the risk) <= error for the whole row alone. Its length must not depend on the samples.
    Without samples the bound is `upper`.
    """
    bets = _UpperBets.place(spectrum, samples, upper, error, horizon)
    low, high = np.zeros(len(samples)), np.full(len(samples), float(upper))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        gone = bets.refute(middle)
        low, high = np.where(gone, low, middle), np.where(gone, middle, high)
    return high


def is_below(
    spectrum: SpectralRisk, samples: Float[NDArray[np.float64], " n"], limit: float, upper: float, error: float
) -> bool:
    """Whether `upper_bound` is at most `limit`: one round of bets instead of a search. limit: below `upper`."""
    return bool(_UpperBets.place(spectrum, samples[None], upper, error, None).refute(np.array([limit]))[0])


@dataclass(frozen=True, eq=False)
class _UpperBets:
    """Bets on how far a majorant stays below its largest value. room: that distance, relative to the value.

    always: whether the bounds are for all numbers of samples.
    """

    stakes: Samples
    room: Samples
    largest: Samples
    error: float
    always: bool

    @classmethod
    def place(
        cls, spectrum: SpectralRisk, samples: Samples, upper: float, error: float, horizon: int | None
    ) -> _UpperBets:
        rows, n = samples.shape
        shared = slopes(spectrum, _TAIL_SAMPLES / max(horizon or 4 * _FIRST_HORIZON, 4 * _TAIL_SAMPLES))
        room, largest = np.empty_like(samples), np.empty_like(samples)
        start, end = 0, FIRST_FIT
        while start < n:
            part = slice(start, min(end, n))
            seen = np.sort(samples[:, :start], axis=1) if start else None
            majorant = fit(shared, seen, rows, upper)
            largest[:, part] = majorant(np.full((rows, 1), upper))
            room[:, part] = 1 - majorant(samples[:, part]) / largest[:, part]
            start, end = end, math.ceil(end * REFIT)
        # Rounding must not make it negative where a sample is at `upper`.
        room = np.maximum(room, 0.0)
        return cls(_stakes(room, error, _horizons(horizon, n)), room, largest, error, horizon is None)

    def refute(self, risk: Bounds) -> NDArray[np.bool_]:
        """Whether a risk of at least this, below `upper`, is refuted."""
        return _wins(self.stakes, self.room / (1 - risk[:, None] / self.largest), self.error, always=self.always)


def lower_bound(spectrum: SpectralRisk, samples: Samples, error: float, horizon: int | None = None) -> Bounds:
    """Lower bounds on R_sigma(X), X >= 0, from rows of independent samples: the counterpart of `upper_bound`.

    Samples that do not fill a block are not used. Without a block the bound is 0.
    """
    rows, n = samples.shape
    size = max(1, int((horizon or 4 * _FIRST_HORIZON) ** BLOCK_POWER))
    blocks = n // size
    if blocks == 0:
        return np.zeros(rows)
    risks = np.asarray(spectrum.risk(samples[:, : blocks * size].reshape(rows, blocks, size)))
    stakes = _stakes(risks, error, _horizons(horizon, n)[: blocks * size : size] / size)
    low, high = np.zeros(rows), risks.max(1)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        # Risks that are all zero refute nothing; the division is then by a number that does not matter.
        ratios = risks / np.where(middle > 0, middle, 1.0)[:, None]
        gone = _wins(stakes, ratios, error, always=horizon is None)
        low, high = np.where(gone, middle, low), np.where(gone, high, middle)
    return low


def _horizons(horizon: int | None, n: int) -> Float[NDArray[np.float64], " n"]:
    if horizon is not None:
        return np.full(n, float(horizon))
    return np.maximum(_AHEAD * np.arange(n), float(_FIRST_HORIZON))


def _stakes(values: Samples, error: float, horizons: Float[NDArray[np.float64], " n"]) -> Samples:
    """The stake of each bet, from the mean and variance of the values before it; nothing while they are all zero."""
    count = np.arange(values.shape[1])
    mean = (np.cumsum(values, axis=1) - values) / np.maximum(count, 1)
    squares = np.cumsum(values**2, axis=1) - values**2
    scatter = np.maximum(squares - count * mean**2, 0.0)
    seen = mean > 0
    variance = (PRIOR + scatter / np.where(seen, mean, 1.0) ** 2) / (count + 1)
    return np.where(seen, np.interp(math.log(1 / error) / (horizons * variance), _WORTH, _STAKES), 0.0)


def _wins(stakes: Samples, ratios: Samples, error: float, *, always: bool) -> NDArray[np.bool_]:
    """Whether the capital is 1 / error at the end or, with `always`, ever was. ratios: V / c."""
    growth = np.log1p(stakes * (ratios - 1))
    best = np.cumsum(growth, axis=1).max(axis=1, initial=0.0) if always else growth.sum(axis=1)
    reached: NDArray[np.bool_] = best >= math.log(1 / error)
    return reached
