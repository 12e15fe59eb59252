"""Spectral risks as means, bounded from above: the dual form for spectra that need not be steps.

For every convex, piecewise linear g on [0, B] with g(0) = 0, Fenchel's inequality g(x) + g^*(y) >= x y gives

    R_sigma(X) <= E[g(X)] + int_0^1 g^*(sigma(u)) du,                                            Eq. (sub-risk measure)

for any X in [0, B], with near equality if g' is near sigma(F_X). The slopes of g are the spectrum's values at chosen
levels v_1 < ... < v_M < 1 and its vertices are beta_1 <= ... <= beta_M = B. Between two levels sigma lies between two
neighbouring slopes, so the vertex between them attains g^*, and with S the integral of sigma

    int_0^1 g^*(sigma(u)) du = sum_j beta_j (S(v_{j+1}) - S(v_j)) - g(beta_j) (v_{j+1} - v_j),   v_{M+1} = 1,

exactly: no error of a discretisation enters, whatever the levels. For a step spectrum this is `dual.sub_risk`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from tailsafe.risk.spectra import CVaR, Mean, SpectralRisk
from tailsafe.risk.step import StepSpectrum

# Slopes for a spectrum that is not a step function: the bounds of 12 and of 24 differ by less than a percent.
CELLS = 24
_GRID = 400


@dataclass(frozen=True)
class Slopes:
    """What all majorants of one spectrum share. levels, eta: (M,) v_j and sigma(v_j). mass, width: (M,) of the cells
    from v_j to v_{j+1}. knots: (M - 1,) where F_X should be at each inner vertex for the bound to be smallest.
    """

    levels: Float[NDArray[np.float64], " M"]
    eta: Float[NDArray[np.float64], " M"]
    mass: Float[NDArray[np.float64], " M"]
    width: Float[NDArray[np.float64], " M"]
    knots: Float[NDArray[np.float64], " K"]


def slopes(spectrum: SpectralRisk, tail: float) -> Slopes:
    """Slopes for a spectrum; a smooth one has its last level at 1 - tail, which is its steepest slope."""
    levels = _levels(spectrum, tail)
    eta = np.asarray(spectrum.sigma(levels), np.float64)
    # A level at which the spectrum does not rise adds nothing but a division by zero.
    rises = np.append(True, np.diff(eta) > 0)
    levels, eta = levels[rises], eta[rises]
    edges = np.append(levels, 1.0)
    mass, width = np.diff(np.asarray(spectrum.integral(edges), np.float64)), np.diff(edges)
    # Where the derivative of the bound by a vertex is zero.
    knots = levels[1:] - ((mass - eta * width)[:-1] / np.diff(eta))
    return Slopes(levels, eta, mass, width, np.clip(knots, levels[:-1], levels[1:]))


def _levels(spectrum: SpectralRisk, tail: float) -> Float[NDArray[np.float64], " M"]:
    match spectrum:
        case Mean():
            return np.zeros(1)
        case CVaR():
            return np.unique([0.0, spectrum.level])
        case StepSpectrum():
            return np.unique(np.append(0.0, spectrum.alpha[spectrum.alpha < 1]))
    # Equal shares of the spectrum's mass, and the tail for itself.
    u = np.append(np.linspace(0.0, 0.5, _GRID, endpoint=False), 1 - np.geomspace(0.5, tail, _GRID))
    reached = np.asarray(spectrum.integral(u), np.float64)
    return np.unique(np.interp(np.linspace(0.0, reached[-1], CELLS), reached, u))


@dataclass(frozen=True, eq=False)
class Majorant:
    """g and its constant, one of each per row. inner: (R, M - 1) vertices below `upper`, sorted."""

    slopes: Slopes
    inner: Float[NDArray[np.float64], "R K"]
    upper: float

    @property
    def constant(self) -> Float[NDArray[np.float64], " R"]:
        """int_0^1 g^*(sigma(u)) du."""
        vertices = np.concatenate([self.inner, np.full((len(self.inner), 1), self.upper)], axis=1)
        heights = np.cumsum(np.diff(vertices, axis=1, prepend=0.0) * self.slopes.eta, axis=1)
        constant: NDArray[np.float64] = vertices @ self.slopes.mass - heights @ self.slopes.width
        return constant

    def __call__(self, x: Float[NDArray[np.float64], "R n"]) -> Float[NDArray[np.float64], "R n"]:
        """g(x) + constant, whose mean is an upper bound on the risk."""
        value: NDArray[np.float64] = self.slopes.eta[0] * x + self.constant[:, None]
        for rise, vertex in zip(np.diff(self.slopes.eta), self.inner.T, strict=True):
            value = value + rise * np.maximum(x - vertex[:, None], 0.0)
        return value


def fit(slopes: Slopes, ordered: Float[NDArray[np.float64], "R n"] | None, rows: int, upper: float) -> Majorant:
    """The majorant that is smallest for the sorted samples (R, n) of each row; without samples, vertices at zero."""
    if ordered is None:
        return Majorant(slopes, np.zeros((rows, slopes.knots.size)), upper)
    n = ordered.shape[-1]
    index = np.clip(np.ceil(slopes.knots * n).astype(int) - 1, 0, n - 1)
    return Majorant(slopes, ordered[:, index], upper)
