"""The L1 projection of a spectrum on step spectra with M levels.                             Eq. (approx problem)

    minimise int_0^1 |sigma - sigma~| du   subject to   int_0^1 sigma~ du = 1.

With a multiplier mu on the mass the objective is a pinball loss: in each cell the best level is the kappa-quantile of
sigma over the cell, kappa = (1 - mu) / 2 common to all cells. For increasing sigma with c_j = sigma^{-1}(eta_j) that
gives the stationarity conditions

    c_j            = alpha_{j-1} + kappa (alpha_j - alpha_{j-1}),
    sigma(alpha_j) = kappa eta_j + (1 - kappa) eta_{j+1},          sum_j eta_j (alpha_j - alpha_{j-1}) = 1.

Two solvers share them. A spectrum with a closed-form inverse (Pow, Wang) is solved by shooting: march the conditions
from alpha_1, search alpha_1 so that alpha_M = 1, search kappa so that the mass is 1. Any other spectrum (custom, with
jumps or flat parts, or a finer step spectrum) is first cut globally by dynamic programming on a grid, then polished by
alternating between the two conditions and, where it is smooth, by Newton's method on them.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import brentq, root

from tailsafe.arrays import Array
from tailsafe.errors import InputError
from tailsafe.risk.spectra import CVaR, Invertible, Mean, SpectralRisk
from tailsafe.risk.step import StepSpectrum, step_mass

# The fraction kappa of a cell at which its level is attained; 1/2 would be the median (no mass constraint).
KAPPA_RANGE = (1e-3, 1 - 1e-3)
GRID_POINTS = 256
ALTERNATIONS = 8


def project(spectrum: SpectralRisk, cells: int) -> StepSpectrum:
    """The step spectrum of mass 1 with at most `cells` levels that is closest to `spectrum` in L1.

    Fewer levels come back where they represent the spectrum exactly: 1 for the mean, 2 for CVaR.
    """
    if isinstance(cells, bool) or not isinstance(cells, int | np.integer) or cells < 1:
        raise InputError(f"cells is {cells!r}; it must be a whole number of at least 1")
    exact = _as_steps(spectrum)
    if exact is not None and exact.cells <= cells:
        return exact
    if cells == 1:
        eta, alpha = np.ones(1), np.zeros(0)
    elif exact is None and isinstance(spectrum, Invertible):
        eta, alpha = _shoot(spectrum, cells)
    else:
        eta, alpha = _cut_and_polish(spectrum, cells)
    eta, alpha = _without_idle_cells(eta / step_mass(eta, alpha), alpha)
    return StepSpectrum(eta, alpha, l1_error=l1_distance(spectrum, eta, alpha))


def l1_distance(spectrum: SpectralRisk, eta: np.ndarray, alpha: np.ndarray) -> float:
    """int_0^1 |sigma - sigma~| du, exactly: sigma crosses each level once, at c_j.

    cell error_j = S(alpha_{j-1}) + S(alpha_j) - 2 S(c_j) + eta_j (2 c_j - alpha_{j-1} - alpha_j)
    """
    edges = np.concatenate([[0.0], alpha, [1.0]])
    left, right = edges[:-1], edges[1:]
    crossing = np.clip(_inverse(spectrum, eta), left, right)
    s = spectrum.integral
    errors = s(left) + s(right) - 2 * s(crossing) + eta * (2 * crossing - left - right)
    return float(np.maximum(errors, 0.0).sum())


def _without_idle_cells(eta: np.ndarray, alpha: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Drop empty cells and join cells of equal level: each would add a beta that does nothing."""
    filled = np.diff(alpha, prepend=0.0, append=1.0) > 0
    starts, eta = np.append(0.0, alpha)[filled], eta[filled]
    rises = np.diff(eta, prepend=-1.0) > 0
    return eta[rises], starts[rises][1:]


def _as_steps(spectrum: SpectralRisk) -> StepSpectrum | None:
    """The spectrum itself where it is a step spectrum already."""
    if isinstance(spectrum, StepSpectrum):
        return StepSpectrum(*_without_idle_cells(spectrum.eta, spectrum.alpha))
    if isinstance(spectrum, Mean) or (isinstance(spectrum, Invertible) and spectrum.is_mean):
        return StepSpectrum([1.0], [])
    if isinstance(spectrum, CVaR):
        if spectrum.level == 0:
            return StepSpectrum([1.0], [])
        return StepSpectrum([0.0, 1 / (1 - spectrum.level)], [spectrum.level])
    return None


# --- closed-form inverse: shooting ----------------------------------------------------------------------------------


def _shoot(spectrum: Invertible, cells: int) -> tuple[np.ndarray, np.ndarray]:
    """Solve the stationarity conditions by two nested scalar searches, over alpha_1 inside kappa."""

    # Below this alpha_1 the first level underflows and the march cannot leave it.
    smallest = max(1e-12, float(spectrum.inverse(1e-200)))

    def steps(kappa: float) -> tuple[np.ndarray, np.ndarray]:
        first = brentq(lambda a: _march(spectrum, cells, kappa, a)[2], smallest, 1.0, xtol=1e-16, rtol=1e-15)
        eta, alpha, _ = _march(spectrum, cells, kappa, first)
        return np.array(eta), np.array(alpha)

    def excess_mass(kappa: float) -> float:
        return step_mass(*steps(kappa)) - 1

    low, high = 0.35, 0.75  # holds every spectrum of moderate level; widened for the extreme ones
    while low > KAPPA_RANGE[0] and excess_mass(low) > 0:
        low = max(KAPPA_RANGE[0], low / 2)
    while high < KAPPA_RANGE[1] and excess_mass(high) < 0:
        high = min(KAPPA_RANGE[1], (1 + high) / 2)
    return steps(brentq(excess_mass, low, high, xtol=1e-15))


def _march(spectrum: Invertible, cells: int, kappa: float, first: float) -> tuple[list[float], list[float], float]:
    """(eta_1..eta_M, alpha_1..alpha_{M-1}, alpha_M - 1) from alpha_1 = first by the stationarity conditions.

    A march that reaches 1 early has too large a first cell: it is filled up with empty cells, and the overshoot counts
    them, so that it grows with alpha_1 throughout.
    """
    alpha, eta = [first], [float(spectrum.sigma(kappa * first))]
    while len(eta) < cells and alpha[-1] < 1:
        eta.append(eta[-1] + (float(spectrum.sigma(alpha[-1])) - eta[-1]) / (1 - kappa))
        alpha.append(alpha[-1] + (float(spectrum.inverse(eta[-1])) - alpha[-1]) / kappa)
    missing = cells - len(eta)
    overshoot = alpha[-1] - 1 + missing
    return eta + [eta[-1]] * missing, [min(a, 1.0) for a in alpha[:-1]] + [1.0] * missing, overshoot


# --- any spectrum: dynamic programming, then alternation ------------------------------------------------------------


def _cut_and_polish(spectrum: SpectralRisk, cells: int) -> tuple[np.ndarray, np.ndarray]:
    grid = _grid(spectrum)
    low, high = KAPPA_RANGE
    cuts = {}
    for _ in range(7):  # the mass of the best cut grows with kappa: bracket mass 1
        kappa = (low + high) / 2
        alpha = _best_cut(spectrum, grid, cells, kappa)
        above = step_mass(_levels(spectrum, alpha, kappa), alpha) > 1
        cuts[above] = alpha
        low, high = (low, kappa) if above else (kappa, high)
    candidates = [_polish(spectrum, alpha) for alpha in cuts.values()]
    return min(candidates, key=lambda steps: l1_distance(spectrum, *steps))


def _polish(spectrum: SpectralRisk, alpha: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Move break points to a stationary point: by alternation, then by Newton's method, while the L1 error falls."""
    eta, kappa = _levels_of_mass_one(spectrum, alpha)
    for move in [_alternate] * ALTERNATIONS + [_solve_stationarity]:
        moved = move(spectrum, eta, alpha, kappa)
        moved_eta, moved_kappa = _levels_of_mass_one(spectrum, moved)
        if l1_distance(spectrum, moved_eta, moved) < l1_distance(spectrum, eta, alpha):
            eta, alpha, kappa = moved_eta, moved, moved_kappa
    return eta, alpha


def _alternate(spectrum: SpectralRisk, eta: np.ndarray, alpha: np.ndarray, kappa: float) -> np.ndarray:
    """The best break points for given levels. Safe for any spectrum, slow to converge."""
    return _inverse(spectrum, kappa * eta[:-1] + (1 - kappa) * eta[1:])


def _solve_stationarity(spectrum: SpectralRisk, eta: np.ndarray, alpha: np.ndarray, kappa: float) -> np.ndarray:
    """The root of the stationarity conditions near (alpha, kappa), where the spectrum is smooth; else `alpha`."""

    def residual(unknowns: np.ndarray) -> np.ndarray:
        breaks, fraction = np.clip(unknowns[:-1], 0.0, 1.0), np.clip(unknowns[-1], *KAPPA_RANGE)
        levels = _levels(spectrum, breaks, fraction)
        at_breaks = spectrum.sigma(breaks) - fraction * levels[:-1] - (1 - fraction) * levels[1:]
        return np.append(at_breaks, step_mass(levels, breaks) - 1)

    with np.errstate(all="ignore"):  # a wild step is caught by the checks below and by the caller's comparison
        found = root(residual, np.append(alpha, kappa), method="hybr", options={"xtol": 1e-12}).x[:-1]
    inside = np.all(np.isfinite(found)) and np.all(np.diff(found, prepend=0.0, append=1.0) >= 0)
    return found if inside else alpha


def _levels(spectrum: SpectralRisk, alpha: np.ndarray, kappa: float) -> np.ndarray:
    """The kappa-quantile of sigma over each cell."""
    edges = np.concatenate([[0.0], alpha, [1.0]])
    return np.asarray(spectrum.sigma(edges[:-1] + kappa * np.diff(edges)))


def _levels_of_mass_one(spectrum: SpectralRisk, alpha: np.ndarray) -> tuple[np.ndarray, float]:
    """The best levels of mass 1 for given break points, and their kappa.

    The mass grows with kappa. Where sigma jumps it jumps too; both sides of the jump, and what lies between them,
    are then optimal for the same kappa, so the mass is met by mixing the two.
    """
    low, high = KAPPA_RANGE
    while (kappa := (low + high) / 2) not in (low, high):
        mass = step_mass(_levels(spectrum, alpha, kappa), alpha)
        low, high = (low, kappa) if mass > 1 else (kappa, high)
    below, above = _levels(spectrum, alpha, low), _levels(spectrum, alpha, high)
    gap = step_mass(above, alpha) - step_mass(below, alpha)
    share = np.clip((1 - step_mass(below, alpha)) / gap, 0.0, 1.0) if gap > 0 else 0.0
    eta = below + share * (above - below)
    return eta / step_mass(eta, alpha), low


def _grid(spectrum: SpectralRisk) -> np.ndarray:
    """Candidate break points: every break of a step, else even in u and dense where cells should be narrow.

    A narrow cell [u, u + h] costs about sigma'(u) h^2 / 4, so the best cells have widths proportional to
    sigma'(u)^(-1/2): points even in the cumulative sum of sqrt(d sigma du).
    """
    if isinstance(spectrum, StepSpectrum):
        return np.unique(np.concatenate([[0.0], spectrum.alpha, [1.0]]))
    tail = 1 - np.geomspace(1e-12, 0.5, 16 * GRID_POINTS)
    fine = np.unique(np.concatenate([np.linspace(0.0, 1.0, 16 * GRID_POINTS + 1)[:-1], tail]))
    density = np.sqrt(np.maximum(np.diff(spectrum.sigma(fine)), 0.0) * np.diff(fine))
    even = np.linspace(0.0, 1.0, GRID_POINTS // 4 + 1)
    dense = np.interp(np.linspace(0.0, density.sum(), GRID_POINTS), np.append(0.0, np.cumsum(density)), fine)
    return np.unique(np.concatenate([even, dense]))


def _best_cut(spectrum: SpectralRisk, grid: np.ndarray, cells: int, kappa: float) -> np.ndarray:
    """The break points on `grid` with the smallest total pinball loss, by dynamic programming. Returns (M - 1,)."""
    rows, columns = np.triu_indices(grid.size, 1)
    left, right, s_grid = grid[rows], grid[columns], spectrum.integral(grid)
    crossing = left + kappa * (right - left)
    level, s_crossing = spectrum.sigma(crossing), spectrum.integral(crossing)
    # sum over a cell of kappa (sigma - eta)_+ + (1 - kappa) (eta - sigma)_+ with eta its kappa-quantile
    above = s_grid[columns] - s_crossing - level * (right - crossing)
    below = level * (crossing - left) - (s_crossing - s_grid[rows])
    loss = np.full((grid.size, grid.size), np.inf)
    loss[rows, columns] = kappa * above + (1 - kappa) * below
    np.fill_diagonal(loss, 0.0)  # an empty cell costs nothing
    best, choices = loss[0], []
    for _ in range(cells - 1):
        total = best[:, None] + loss
        choice = total.argmin(0)
        choices.append(choice)
        best = total[choice, np.arange(grid.size)]
    index, breaks = grid.size - 1, []
    for choice in reversed(choices):
        index = choice[index]
        breaks.append(grid[index])
    return np.array(breaks[::-1])


def _inverse(spectrum: SpectralRisk, levels: Array) -> np.ndarray:
    """inf {u : sigma(u) >= level}, elementwise: in closed form, or by bisection."""
    if isinstance(spectrum, Invertible) and not spectrum.is_mean:
        return np.asarray(spectrum.inverse(levels))
    levels = np.asarray(levels)
    low, high = np.zeros_like(levels), np.ones_like(levels)
    for _ in range(53):
        middle = (low + high) / 2
        reached = spectrum.sigma(middle) >= levels
        low, high = np.where(reached, low, middle), np.where(reached, middle, high)
    return np.asarray(high)
