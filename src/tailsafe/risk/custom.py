"""Any increasing spectrum, given as a function of u."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.polynomial import legendre

from tailsafe.arrays import Array, as_float, namespace
from tailsafe.errors import InputError
from tailsafe.risk.spectra import SpectralRisk
from tailsafe.risk.step import MASS_TOLERANCE

NODES = 12
PANEL_TOLERANCE = 1e-13
SMALLEST_PANEL = 1e-13
MOST_PANELS = 20_000
# What a user's function may raise on an argument it was not written for.
EVALUATION_ERRORS = (TypeError, ValueError, ArithmeticError, LookupError)


class Spectrum(SpectralRisk):
    """The spectral risk measure with the spectrum `sigma`, a function of u in (0, 1).

    The function is checked once, here: finite on (0, 1), non-negative, increasing, integrating to 1 within 1e-6 (the
    rest is scaled away). Its integral is tabulated as a piecewise polynomial on panels that are halved until Gauss
    quadrature is exact to rounding, so jumps and an infinite sigma(1) are fine as long as the mass is finite.

    Args:
      sigma: the spectrum, elementwise.
      name: what texts call it.

    Examples:
      >>> round(float(ts.Spectrum(lambda u: 2 * u).risk([1.0, 2.0, 3.0, 4.0])), 6)
      3.125
    """

    def __init__(self, sigma: Callable[[Array], Array], name: str = "custom"):
        if not callable(sigma):
            raise InputError(f"Spectrum needs a function of u, got {type(sigma).__name__}")
        self.name = name
        self._function = _vectorized(sigma)
        self._edges, self._coefficients = _tabulate(self._function)
        self._mass = float(self._coefficients[-1].sum())
        if abs(self._mass - 1) > MASS_TOLERANCE:
            hint = " (divide sigma by that)" if self._mass > 0 else ""
            raise InputError(f"the spectrum integrates to {self._mass:.6g}; it must be 1{hint}")

    @property
    def spec(self) -> str:
        """The name it was given: a function has no text form to be parsed from."""
        return self.name

    def __repr__(self) -> str:
        return f"Spectrum({self._function!r}, name={self.name!r})"

    def sigma(self, u: Array) -> Array:
        with np.errstate(divide="ignore", over="ignore"):  # sigma(1) may be infinite
            return self._function(as_float(u, namespace(u))) / self._mass

    def integral(self, u: Array) -> Array:
        xp = namespace(u)
        u = xp.clip(as_float(u, xp), 0.0, 1.0)
        panel = xp.clip(xp.searchsorted(self._edges, u, side="right") - 1, 0, self._edges.size - 2)
        left, width = xp.asarray(self._edges[:-1])[panel], xp.asarray(np.diff(self._edges))[panel]
        coefficients = xp.asarray(self._coefficients)[panel]
        t = (u - left) / width
        value = coefficients[..., -1]
        for k in range(coefficients.shape[-1] - 2, -1, -1):
            value = value * t + coefficients[..., k]
        # Rounding in the table must not let S leave [0, 1]: the last panel ends at exactly 1.
        return xp.where(u >= 1.0, 1.0, xp.clip(value / self._mass, 0.0, 1.0))


def _vectorized(sigma: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """`sigma` for arrays: as it is if it maps an array to one of the same shape, else applied elementwise."""
    probe = np.array([0.25, 0.5, 0.75])
    try:
        if np.shape(sigma(probe)) == probe.shape:
            return sigma
    except EVALUATION_ERRORS:
        pass  # a scalar function: `if u > 0.5`, `math.exp(u)`
    try:
        float(sigma(0.5))
    except EVALUATION_ERRORS as error:
        raise InputError(f"the spectrum cannot be evaluated at u = 0.5: {error}") from None
    return np.vectorize(sigma, otypes=[np.float64])


def _tabulate(sigma: Callable[[Array], Array]) -> tuple[np.ndarray, np.ndarray]:
    """Panels (P + 1 edges) and, per panel, S as a polynomial in t = (u - left) / width: (P, NODES + 1).

    A panel is halved until the Gauss integrals of its halves agree with its own.
    """
    x, w = legendre.leggauss(NODES)
    x, w = (x + 1) / 2, w / 2  # nodes and weights on [0, 1]
    # Graded towards both ends from the start: a jump at 0.99999 would slip between the nodes of an even grid.
    ends = 2.0 ** -np.arange(7.0, 44.0)
    pending = np.unique(np.concatenate([np.linspace(0.0, 1.0, 65), ends, 1 - ends]))
    left, width = pending[:-1], np.diff(pending)
    done_left, done_width, done_values = [], [], []
    panels = 0
    while left.size:
        values = _evaluate(sigma, left[:, None] + width[:, None] * x)
        whole = width * (values @ w)
        half = width / 2
        halves = sum(
            half * (_evaluate(sigma, (left + shift)[:, None] + half[:, None] * x) @ w) for shift in (0.0, half)
        )
        good = (np.abs(whole - halves) <= PANEL_TOLERANCE) | (width <= SMALLEST_PANEL)
        done_left.append(left[good])
        done_width.append(width[good])
        done_values.append(values[good])
        panels += int(good.sum())
        left, half = left[~good], half[~good]
        if panels + 2 * left.size > MOST_PANELS:
            raise InputError(f"the spectrum is too rough near u = {left[0]:.6g} to be integrated")
        left, width = np.concatenate([left, left + half]), np.concatenate([half, half])
    starts = np.concatenate(done_left)
    order = np.argsort(starts)
    starts, widths = starts[order], np.concatenate(done_width)[order]
    values = np.concatenate(done_values)[order]
    _check_increasing(starts[:, None] + widths[:, None] * x, values)

    # Polynomial through the nodes, integrated: coefficients of t^1..t^NODES, then the running sum as t^0.
    integrate = np.linalg.inv(np.vander(x, increasing=True)).T / np.arange(1, NODES + 1)
    rise = (values * widths[:, None]) @ integrate
    masses = widths * (values @ w)
    base = np.concatenate([[0.0], np.cumsum(masses)[:-1]])
    return np.append(starts, 1.0), np.column_stack([base, rise])


def _evaluate(sigma: Callable[[Array], Array], u: np.ndarray) -> np.ndarray:
    values = np.asarray(sigma(u), dtype=np.float64)
    for flags, problem in ((~np.isfinite(values), "not finite"), (values < 0, "negative")):
        if np.any(flags):
            raise InputError(f"the spectrum is {problem} at u = {u[flags][0]:.6g}; it must be finite and >= 0")
    return values


def _check_increasing(u: np.ndarray, values: np.ndarray) -> None:
    u, values = u.ravel(), values.ravel()
    falls = np.diff(values) < -1e-9 * np.maximum(1.0, values[:-1])
    if np.any(falls):
        k = int(np.argmax(falls))
        raise InputError(
            f"the spectrum falls from {values[k]:.6g} at u = {u[k]:.6g} to {values[k + 1]:.6g} "
            f"at u = {u[k + 1]:.6g}; it must be increasing"
        )
