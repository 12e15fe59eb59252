"""Step spectra: what every increasing spectrum is projected on, and the form the dual needs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tailsafe.arrays import Array, as_float, namespace, require
from tailsafe.errors import InputError
from tailsafe.risk import dual
from tailsafe.risk.empirical import checked_samples, checked_weights, quantile
from tailsafe.risk.spectra import SpectralRisk

# How far the mass of given levels may be from 1 (levels typed with six digits); it is then made exact.
MASS_TOLERANCE = 1e-6


class StepSpectrum(SpectralRisk):
    """sigma~(u) = eta_j for u in [alpha_{j-1}, alpha_j), j = 1..M, with alpha_0 = 0 and alpha_M = 1.

    The mass sum_j eta_j (alpha_j - alpha_{j-1}) must be 1 within `MASS_TOLERANCE`; `normalized` rescales any mass.

    Args:
      eta: (M,) levels, non-negative and increasing.
      alpha: (M - 1,) break points in [0, 1], increasing.
      l1_error: the L1 distance to the spectrum this one was projected from (0 if it stands for itself).

    Examples:
      >>> float(ts.StepSpectrum([0.5, 1.5], [0.5]).risk([1.0, 2.0, 3.0, 4.0]))  # (1 + 2 + 3 * 3 + 3 * 4) / 8
      3.0
    """

    eta: np.ndarray
    alpha: np.ndarray
    l1_error: float

    def __init__(self, eta: Sequence[float] | Array, alpha: Sequence[float] | Array, *, l1_error: float = 0.0):
        eta, alpha = _vector("eta", eta), _vector("alpha", alpha)
        if eta.size == 0 or alpha.size != eta.size - 1:
            raise InputError(
                f"a step spectrum needs one more level than break points, got {eta.size} eta and {alpha.size} alpha"
            )
        require("eta", eta, eta >= 0, "levels must be non-negative")
        require("alpha", alpha, (alpha >= 0) & (alpha <= 1), "break points must be in [0, 1]")
        _require_increasing("eta", eta)
        _require_increasing("alpha", alpha)
        mass = step_mass(eta, alpha)
        if abs(mass - 1) > MASS_TOLERANCE:
            raise InputError(f"the step spectrum integrates to {mass:.6g}; it must be 1 (divide every eta by that)")
        self.eta, self.alpha, self.l1_error = eta / mass, alpha, float(l1_error)
        self.eta.setflags(write=False)
        self.alpha.setflags(write=False)

    @classmethod
    def normalized(cls, eta: Sequence[float] | Array, alpha: Sequence[float] | Array) -> StepSpectrum:
        """The step spectrum proportional to rounded or unscaled levels, such as a printed table's."""
        eta, alpha = _vector("eta", eta), _vector("alpha", alpha)
        mass = step_mass(eta, alpha) if alpha.size == eta.size - 1 else 1.0
        if not mass > 0:
            raise InputError(f"the levels integrate to {mass:g}; their mass must be positive")
        return cls(eta / mass, alpha)

    @property
    def cells(self) -> int:
        """M, the number of levels. The dual variable beta has M - 1 entries."""
        return self.eta.size

    @property
    def spec(self) -> str:
        levels, breaks = (",".join(repr(float(x)) for x in values) for values in (self.eta, self.alpha))
        return f"steps:{levels}/{breaks}"

    def sigma(self, u: Array) -> Array:
        xp = namespace(u)
        u = as_float(u, xp)
        return self.eta[0] + (np.diff(self.eta) * (u[..., None] >= self.alpha)).sum(-1)

    def integral(self, u: Array) -> Array:
        # int_0^u of each step is a ramp: S is g_beta with the break points in the place of beta.
        return dual.g_beta(u, self.alpha, self.eta)

    def g_beta(self, x: Array, beta: Array) -> Array:
        """g_beta(x), see `dual.g_beta`."""
        return dual.g_beta(x, self._checked(beta), self.eta)

    def conjugate_integral(self, beta: Array) -> Array:
        """int_0^1 g_beta^*(sigma~(u)) du in closed form, see `dual.conjugate_integral`."""
        return dual.conjugate_integral(self._checked(beta), self.eta, self.alpha)

    def sub_risk(self, samples: Array, beta: Array, weights: Array | None = None) -> Array:
        """E[g_beta(X)] + int g_beta^*(sigma~) >= risk(X), see `dual.sub_risk`."""
        if namespace(samples, weights) is np:
            samples = checked_samples(samples)
            weights = None if weights is None else checked_weights(weights, samples)
        return dual.sub_risk(samples, self._checked(beta), self.eta, self.alpha, weights)

    def optimal_beta(self, samples: Array, weights: Array | None = None) -> Array:
        """The minimiser of `sub_risk`: beta[k] = F_X^{-1}(alpha_k). (..., n) -> (..., M - 1)."""
        return quantile(samples, self.alpha, weights)

    def _checked(self, beta: Array) -> Array:
        xp = namespace(beta)
        beta = as_float(beta, xp)
        if beta.ndim == 0 or beta.shape[-1] != self.alpha.size:
            raise InputError(f"beta has shape {beta.shape}; its last axis must have M - 1 = {self.alpha.size} entries")
        if xp is np:
            require("beta", beta, np.isfinite(beta), "every entry must be finite")
            require(
                "beta",
                beta,
                np.diff(beta, prepend=beta[..., :1]) >= 0,
                "beta must be sorted (non-decreasing)",
            )
        return beta

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StepSpectrum):
            return NotImplemented
        return np.array_equal(self.eta, other.eta) and np.array_equal(self.alpha, other.alpha)

    def __hash__(self) -> int:
        return hash((self.eta.tobytes(), self.alpha.tobytes()))

    def __repr__(self) -> str:
        return f"StepSpectrum(eta={self.eta.tolist()}, alpha={self.alpha.tolist()}, l1_error={self.l1_error:.6g})"


def step_mass(eta: np.ndarray, alpha: np.ndarray) -> float:
    """int_0^1 sigma~ = sum_j eta_j (alpha_j - alpha_{j-1})."""
    return float(eta @ np.diff(alpha, prepend=0.0, append=1.0))


def _vector(name: str, values: Sequence[float] | Array) -> np.ndarray:
    try:
        array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name} must be a list of numbers, got {values!r}") from None
    if array.ndim != 1:
        raise InputError(f"{name} must be one-dimensional, got shape {array.shape}")
    require(name, array, np.isfinite(array), "every entry must be finite")
    return array


def _require_increasing(name: str, values: np.ndarray) -> None:
    falls = np.diff(values) < 0
    if np.any(falls):
        k = int(np.argmax(falls))
        raise InputError(f"{name}[{k + 1}] = {values[k + 1]:g} is below {name}[{k}] = {values[k]:g}; it must not fall")
