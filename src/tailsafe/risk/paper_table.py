"""The step spectra printed in the paper (M = 5), for comparison with published runs.

The printed numbers are rounded, and all but Pow 0.5 are near-minimisers of the projection problem rather than
minimisers; `discretize` is the default everywhere. The row printed as a second "Wang 0.5" is Wang 1.5.
"""

from __future__ import annotations

from tailsafe.errors import InputError
from tailsafe.risk.projection import l1_distance
from tailsafe.risk.spectra import Pow, SpectralRisk, Wang
from tailsafe.risk.step import StepSpectrum

CELLS = 5
# measure -> (eta_1..eta_5, alpha_1..alpha_4), as printed
PRINTED: dict[SpectralRisk, tuple[tuple[float, ...], tuple[float, ...]]] = {
    Wang(0.5): ((0.515, 0.790, 1.091, 1.493, 2.191), (0.263, 0.541, 0.770, 0.926)),
    Wang(1.0): ((0.294, 0.734, 1.417, 2.640, 5.517), (0.409, 0.701, 0.878, 0.968)),
    Wang(1.5): ((0.180, 0.834, 2.253, 5.678, 16.419), (0.579, 0.834, 0.945, 0.989)),
    Pow(0.5): ((0.200, 0.600, 1.000, 1.400, 1.800), (0.200, 0.400, 0.600, 0.800)),
    Pow(0.75): ((0.046, 0.574, 1.347, 2.308, 3.424), (0.417, 0.615, 0.765, 0.890)),
    Pow(0.9): ((0.003, 0.947, 2.705, 5.216, 8.383), (0.701, 0.821, 0.898, 0.955)),
}


def paper_steps(measure: SpectralRisk) -> StepSpectrum:
    """The printed row of `measure`, rescaled to mass 1 so that a constant cost has its own value as risk."""
    if measure not in PRINTED:
        raise InputError(f"the paper prints no row for {measure}; it has {', '.join(map(str, PRINTED))}")
    steps = StepSpectrum.normalized(*PRINTED[measure])
    return StepSpectrum(steps.eta, steps.alpha, l1_error=l1_distance(measure, steps.eta, steps.alpha))
