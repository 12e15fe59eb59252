"""Bootstrap confidence bounds: narrower than the distribution-free ones, and without their guarantee.

The percentile bootstrap is right for large samples of a distribution without rare extremes. It cannot know of an
outcome that was not sampled, which is what a tail risk is about: use it beside `risk_interval`, not instead of it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tailsafe.arrays import Array
from tailsafe.errors import InputError
from tailsafe.risk.empirical import checked_samples
from tailsafe.risk.interval import RiskInterval
from tailsafe.risk.spectra import SpectralRisk

RESAMPLES = 2000
# Resamples are made in blocks of about this many numbers.
_BLOCK = 2_000_000


def bootstrap_interval(
    spectrum: SpectralRisk, samples: Array, confidence: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> RiskInterval:
    """Percentile bounds on R_sigma(X) from samples (n,). The seed makes them reproducible."""
    if not 0 < confidence < 1:
        raise InputError(f"confidence is {confidence:g}; it must be in (0, 1)")
    risks = resampled_risks(spectrum, samples, resamples, np.random.default_rng(seed))
    low, high = np.quantile(risks, [(1 - confidence) / 2, (1 + confidence) / 2])
    return RiskInterval(low, high)


def resampled_risks(
    spectrum: SpectralRisk, samples: Array, resamples: int, generator: np.random.Generator
) -> NDArray[np.float64]:
    """(resamples,): R_sigma of samples (n,) drawn anew with replacement."""
    x = np.sort(checked_samples(samples))
    if x.ndim != 1:
        raise InputError(f"samples have shape {x.shape}; the bootstrap takes one sample at a time")
    n = x.size
    # S at every share of the sample that can lie below one of its values.
    integral = spectrum.integral(np.arange(n + 1) / n)
    risks = []
    for block in np.array_split(np.arange(resamples), max(1, resamples * n // _BLOCK)):
        # How often each sorted sample is drawn, instead of drawing and sorting.
        drawn = generator.integers(n, size=(block.size, n)) + n * np.arange(block.size)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=block.size * n).reshape(block.size, n)
        masses = np.diff(integral[np.cumsum(counts, axis=1)], axis=1, prepend=0.0)
        risks.append(masses @ x)
    return np.concatenate(risks)
