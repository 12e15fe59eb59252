"""Spectral risk measures: R_sigma(X) = int_0^1 F_X^{-1}(u) sigma(u) du with sigma >= 0 increasing, int sigma = 1.

One convention everywhere: large values are bad, the level counts from the upper tail, level 0 is the mean.
`CVaR(0.75)` is the mean of the worst 25 %.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from tailsafe.arrays import Array, as_float, namespace, special
from tailsafe.errors import InputError
from tailsafe.risk.empirical import spectral_risk

if TYPE_CHECKING:
    from tailsafe.risk.interval import RiskInterval
    from tailsafe.risk.step import StepSpectrum

# Phi^-1 of the largest float64 below 1 is 8.2: above this level most of Wang's mass lies where u cannot resolve it.
WANG_MAX_LEVEL = 5.0
# Below this level Pow and Wang differ from the mean by less than their own level.
FLAT_LEVEL = 1e-9


class SpectralRisk(abc.ABC):
    """A spectral risk measure: rho(X) = int_0^1 F_X^{-1}(u) sigma(u) du, with an increasing spectrum sigma.

    Examples:
      >>> measure = ts.parse_spectrum("cvar:0.5")
      >>> isinstance(measure, ts.SpectralRisk)
      True
      >>> bounds = measure.risk_interval([0.0, 1.0] * 100, upper=1.0)
      >>> bool(bounds.lower < measure.risk([0.0, 1.0] * 100) <= bounds.upper)
      True
    """

    @property
    @abc.abstractmethod
    def spec(self) -> str:
        """The text form, for instance ``cvar:0.75``; `parse_spectrum` reads it back (custom functions apart)."""

    @abc.abstractmethod
    def sigma(self, u: Array) -> Array:
        """The spectrum at u in [0, 1], elementwise."""

    @abc.abstractmethod
    def integral(self, u: Array) -> Array:
        """S(u) = int_0^u sigma, elementwise: S(0) = 0, S(1) = 1."""

    def risk(self, samples: Array, weights: Array | None = None) -> Array:
        """Exact spectral risk of the empirical distribution; see `spectral_risk`. (..., n) -> (...)."""
        return spectral_risk(self.integral, samples, weights)

    def discretize(self, cells: int) -> StepSpectrum:
        """The closest step spectrum with at most `cells` levels; see `tailsafe.risk.projection.project`."""
        from tailsafe.risk.projection import project

        return project(self, cells)

    def risk_interval(self, samples: Array, confidence: float = 0.95, upper: float | None = None) -> RiskInterval:
        """Distribution-free bounds on the true risk; see `tailsafe.risk.interval.risk_interval`."""
        from tailsafe.risk.interval import risk_interval

        return risk_interval(self, samples, confidence, upper)

    def risk_sequence(self, samples: Array, confidence: float = 0.95, upper: float | None = None) -> RiskInterval:
        """Bounds for samples that keep coming; see `tailsafe.risk.interval.risk_sequence`."""
        from tailsafe.risk.interval import risk_sequence

        return risk_sequence(self, samples, confidence, upper)

    def __str__(self) -> str:
        return self.spec


@dataclass(frozen=True)
class _Leveled(SpectralRisk):
    """A family with one risk level; level 0 is the mean."""

    level: float
    family: ClassVar[str]

    def __post_init__(self) -> None:
        try:
            level = float(self.level)
        except (TypeError, ValueError):
            raise InputError(f"{self.family} level must be a number, got {self.level!r}") from None
        if not self._allowed(level):
            raise InputError(f"{self.family} level is {level:g}; it must be in {self._range()}")
        object.__setattr__(self, "level", level)

    @classmethod
    def _allowed(cls, level: float) -> bool:
        return 0 <= level < 1

    @classmethod
    def _range(cls) -> str:
        return "[0, 1)"

    @property
    def spec(self) -> str:
        return f"{self.family}:{self.level!r}"


@dataclass(frozen=True)
class Mean(SpectralRisk):
    """The expectation: sigma(u) = 1.

    Examples:
      >>> float(ts.Mean().risk([1.0, 2.0, 3.0, 4.0]))
      2.5
    """

    @property
    def spec(self) -> str:
        return "mean"

    def sigma(self, u: Array) -> Array:
        xp = namespace(u)
        return xp.ones_like(as_float(u, xp))

    def integral(self, u: Array) -> Array:
        return as_float(u, namespace(u))


@dataclass(frozen=True)
class CVaR(_Leveled):
    """Conditional value at risk: sigma(u) = 1{u >= level} / (1 - level), the mean of the worst 1 - level.

    Args:
      level: in [0, 1); 0 is the mean.

    Examples:
      >>> float(ts.CVaR(0.5).risk([1.0, 2.0, 3.0, 4.0]))  # (3 + 4) / 2
      3.5
    """

    family: ClassVar[str] = "cvar"

    def sigma(self, u: Array) -> Array:
        xp = namespace(u)
        u = as_float(u, xp)
        return xp.where(u >= self.level, 1 / (1 - self.level), 0.0)

    def integral(self, u: Array) -> Array:
        xp = namespace(u)
        return xp.maximum(as_float(u, xp) - self.level, 0.0) / (1 - self.level)


class Invertible(SpectralRisk):
    """A spectrum that is continuous and strictly increasing on (0, 1), with sigma^{-1} in closed form."""

    @abc.abstractmethod
    def inverse(self, y: Array) -> Array:
        """sigma^{-1}(y), elementwise; y below sigma(0) gives 0, above sigma(1) gives 1."""

    @property
    def is_mean(self) -> bool:
        """Level 0, to rounding: the spectrum is constant and its inverse means nothing."""
        return isinstance(self, _Leveled) and self.level < FLAT_LEVEL


@dataclass(frozen=True)
class Pow(_Leveled, Invertible):
    """Pow: sigma(u) = u^{level / (1 - level)} / (1 - level), the expected maximum of 1 / (1 - level) draws.

    Args:
      level: in [0, 1); 0 is the mean.

    Examples:
      >>> float(ts.Pow(0.5).risk([1.0, 2.0, 3.0, 4.0]))  # sigma(u) = 2 u: (1 + 3 * 2 + 5 * 3 + 7 * 4) / 16
      3.125
    """

    family: ClassVar[str] = "pow"

    def sigma(self, u: Array) -> Array:
        u = as_float(u, namespace(u))
        return u ** (self.level / (1 - self.level)) / (1 - self.level)

    def integral(self, u: Array) -> Array:
        return as_float(u, namespace(u)) ** (1 / (1 - self.level))

    def inverse(self, y: Array) -> Array:
        y = np.clip((1 - self.level) * np.asarray(y, dtype=np.float64), 0.0, 1.0)
        return y ** ((1 - self.level) / self.level)


@dataclass(frozen=True)
class Wang(_Leveled, Invertible):
    """Wang's transform: sigma(u) = exp(level Phi^{-1}(u) - level^2 / 2), a shift of the normal scores.

    sigma(1) is infinite but integrable: S(u) = Phi(Phi^{-1}(u) - level).

    Args:
      level: at least 0; 0 is the mean.

    Examples:
      >>> float(ts.Wang(0.0).risk([1.0, 2.0, 3.0, 4.0]))
      2.5
    """

    family: ClassVar[str] = "wang"

    @classmethod
    def _allowed(cls, level: float) -> bool:
        return 0 <= level <= WANG_MAX_LEVEL

    @classmethod
    def _range(cls) -> str:
        return f"[0, {WANG_MAX_LEVEL:g}]"

    def sigma(self, u: Array) -> Array:
        xp = namespace(u)
        u = as_float(u, xp)
        if self.level == 0:
            return xp.ones_like(u)
        return xp.exp(self.level * special(xp).ndtri(u) - self.level**2 / 2)

    def integral(self, u: Array) -> Array:
        xp = namespace(u)
        u = as_float(u, xp)
        inside = (u > 0) & (u < 1)
        # The placeholder keeps infinities, and their derivatives, out of the end points.
        scores = special(xp).ndtri(xp.where(inside, u, 0.5))
        return xp.where(inside, special(xp).ndtr(scores - self.level), xp.where(u > 0.5, 1.0, 0.0))

    def inverse(self, y: Array) -> Array:
        y = np.asarray(y, dtype=np.float64)
        with np.errstate(divide="ignore"):
            return special(np).ndtr((np.log(y) + self.level**2 / 2) / self.level)
