"""The finite set of dual variables beta that the outer problem searches.

For a policy that meets the limits, the optimal beta_i[k] is the alpha_k-quantile of its discounted cost sum, hence one
of the attainable sums. The sorted tuples of attainable sums therefore contain an optimal beta: searching them loses
nothing. Of these, tuples whose conjugate integral exceeds the limit are dropped, since E[g_beta] >= 0 puts their
sub-risk above it.

When the product over constraints and breakpoints is too large, a coarser grid of attainable sums is used. Rounding a
tuple up to the grid raises the sub-risk by at most `slack`; the optimum over all tuples is thus at most the best grid
value under limits widened by the slack, which keeps the certificate honest.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tailsafe.errors import InputError
from tailsafe.risk.dual import beta_bounds
from tailsafe.risk.step import StepSpectrum
from tailsafe.tabular.augmented import AugmentedMDP

DEFAULT_MAX_BETAS = 512


@dataclass(frozen=True, eq=False)
class BetaSet:
    """B joint dual variables for N constraints.

    betas: per constraint (B, M_i - 1), sorted along the last axis, in cost units.
    terminal_value: (B, L, N), g_{beta_i} on the attainable terminal cost vectors. constant: (B, N) conjugate integrals.
    slack: (B, N), zero where the set is exhaustive. exhaustive: whether the set provably contains an optimal beta.
    """

    betas: tuple[np.ndarray, ...]
    terminal_value: np.ndarray
    constant: np.ndarray
    slack: np.ndarray
    exhaustive: bool

    def __len__(self) -> int:
        return int(self.constant.shape[0])

    def at(self, index: int) -> list[list[float]]:
        """The joint beta number `index`, one list per constraint."""
        return [beta[index].tolist() for beta in self.betas]


@dataclass(frozen=True, eq=False)
class _Candidates:
    """The tuples of one constraint: beta (C, M - 1) and slack (C,)."""

    beta: np.ndarray
    slack: np.ndarray


def beta_set(
    mdp: AugmentedMDP,
    spectra: Sequence[StepSpectrum],
    limits: Sequence[float],
    max_betas: int = DEFAULT_MAX_BETAS,
) -> BetaSet:
    """Every beta that can be optimal, or a grid of at most about `max_betas` of them."""
    if max_betas < 1:
        raise InputError(f"max_betas is {max_betas}; it must be at least 1")
    attainable = [mdp.attainable(i) for i in range(len(spectra))]
    candidates, exhaustive = _search(spectra, limits, attainable, max_betas)
    if not exhaustive:
        # A grid may miss every feasible beta; the one of the safest policy is feasible whenever any is.
        candidates = [
            _with(c, smallest_risk(mdp, s, i).beta) for i, (c, s) in enumerate(zip(candidates, spectra, strict=True))
        ]
    return _product(mdp, spectra, candidates, exhaustive)


class SmallestRisk(NamedTuple):
    """The smallest risk found, the beta (M - 1,) that attains it, and a bound below which no policy gets.

    value and bound agree unless there are more tuples of attainable sums than were tried.
    """

    value: float
    bound: float
    beta: np.ndarray


def smallest_risk(mdp: AugmentedMDP, spectrum: StepSpectrum, cost: int, max_betas: int = 20_000) -> SmallestRisk:
    """The smallest risk of one cost's discounted sum that any policy reaches, whatever its reward.

    min_pi R(pi) = min_beta min_pi E[g_beta(D_T)] + I(beta), and for fixed beta the inner minimum is backward induction.
    """
    (candidates,), _ = _search([spectrum], [np.inf], [mdp.attainable(cost)], max_betas)
    edges = max(layer.successor.size for layer in mdp.layers)
    chunk = max(1, 10_000_000 // edges)
    risks = np.concatenate(
        [
            _least_terminal_value(mdp, spectrum.g_beta(mdp.terminal_cost[:, cost, None], beta))
            for beta in np.array_split(candidates.beta, math.ceil(candidates.slack.size / chunk))
        ]
    ) + spectrum.conjugate_integral(candidates.beta)
    best = int(np.argmin(risks))
    return SmallestRisk(float(risks[best]), float((risks - candidates.slack).min()), candidates.beta[best])


def _least_terminal_value(mdp: AugmentedMDP, terminal_value: np.ndarray) -> np.ndarray:
    """min_pi E[g(D_T)] for B terminal functions at once, (L, B) -> (B,)."""
    value = terminal_value
    for layer in reversed(mdp.layers):
        value = (layer.probability[..., None] * value[layer.successor]).sum(2).min(1)
    return np.asarray(mdp.initial @ value)


def sorted_tuples(values: np.ndarray, size: int) -> np.ndarray:
    """All non-decreasing tuples of `size` of the sorted values: (count, size)."""
    return np.array(list(itertools.combinations_with_replacement(values, size))).reshape(-1, size)


def _with(candidates: _Candidates, beta: np.ndarray) -> _Candidates:
    """Add one tuple that stands for nothing but itself."""
    if np.any(np.all(candidates.beta == beta, axis=1)):
        return candidates
    return _Candidates(np.vstack([candidates.beta, beta]), np.append(candidates.slack, 0.0))


def _search(
    spectra: Sequence[StepSpectrum], limits: Sequence[float], attainable: Sequence[np.ndarray], max_betas: int
) -> tuple[list[_Candidates], bool]:
    """Candidates per constraint with a product of at most about `max_betas`, and whether none was left out."""
    values = [_useful_values(*args) for args in zip(attainable, spectra, limits, strict=True)]
    sizes = [v.size for v in values]
    exhaustive = True
    while True:
        # Tuples are enumerated only when they are few; the limits then drop some more.
        if _count(spectra, sizes) <= 64 * max_betas:
            grids = [_thin(v, size) for v, size in zip(values, sizes, strict=True)]
            candidates = [_candidates(*args) for args in zip(spectra, limits, values, grids, strict=True)]
            if math.prod(c.slack.size for c in candidates) <= max_betas or max(sizes) <= 1:
                return candidates, exhaustive
        exhaustive = False
        largest = max(sizes)
        sizes = [min(size, largest - max(1, largest // 10)) for size in sizes]


def _useful_values(attainable: np.ndarray, spectrum: StepSpectrum, limit: float) -> np.ndarray:
    """Attainable sums up to the largest entry that a beta within the limit can have."""
    if spectrum.cells == 1:
        return attainable[:1]  # the mean has no beta
    bound = beta_bounds(spectrum.eta, spectrum.alpha, max(limit, 0.0))[-1]
    useful = attainable[attainable <= bound * (1 + 1e-12)]
    return useful if useful.size else attainable[:1]


def _count(spectra: Sequence[StepSpectrum], sizes: Sequence[int]) -> int:
    """The number of sorted tuples over all constraints, before the limits drop any."""
    return math.prod(math.comb(size + s.cells - 2, s.cells - 1) for s, size in zip(spectra, sizes, strict=True))


def _thin(values: np.ndarray, size: int) -> np.ndarray:
    """At most `size` of the sorted values, so that rounding up to them moves no value further than necessary.

    Intervals of one width, laid greedily from the left, cover the values; the narrowest width that needs at most `size`
    of them is found by bisection, and the last value in each interval is kept.
    """

    def ends(width: float) -> list[int]:
        kept, start = [], 0
        while start < values.size:
            start = int(np.searchsorted(values, values[start] + width, side="right"))
            kept.append(start - 1)
        return kept

    low, high = 0.0, float(values[-1] - values[0])
    if values.size <= size:
        return values
    for _ in range(50):
        width = (low + high) / 2
        low, high = (low, width) if len(ends(width)) <= size else (width, high)
    return values[ends(high)]


def _candidates(spectrum: StepSpectrum, limit: float, values: np.ndarray, grid: np.ndarray) -> _Candidates:
    """Sorted tuples of grid values that stand for at least one tuple of `values` within the limit."""
    if spectrum.cells == 1:
        return _Candidates(np.zeros((1, 0)), np.zeros(1))
    beta = sorted_tuples(grid, spectrum.cells - 1)
    # A grid value stands for itself and the values above its predecessor on the grid; `floor` is the smallest of those.
    previous = np.concatenate([[-np.inf], grid[:-1]])
    floor = values[np.searchsorted(values, previous, side="right")]
    lowest = floor[np.searchsorted(grid, beta)]
    within = spectrum.conjugate_integral(lowest) <= limit + 1e-12 * abs(limit)
    if not np.any(within):
        within[np.argmin(beta.sum(1))] = True  # nothing can be feasible; keep one for the LP to say so
    # Lowering beta[k] by h lowers the sub-risk by at most (eta_{k+1} - eta_k)(1 - alpha_k) h.
    slack = spectrum.conjugate_integral(beta) - spectrum.conjugate_integral(lowest)
    return _Candidates(beta[within], slack[within])


def _product(
    mdp: AugmentedMDP, spectra: Sequence[StepSpectrum], candidates: Sequence[_Candidates], exhaustive: bool
) -> BetaSet:
    picks = np.array(list(itertools.product(*(range(c.slack.size) for c in candidates))), int)
    betas = tuple(c.beta[picks[:, i]] for i, c in enumerate(candidates))
    values = [
        s.g_beta(mdp.terminal_cost[:, i], c.beta[:, None, :])[picks[:, i]]
        for i, (s, c) in enumerate(zip(spectra, candidates, strict=True))
    ]
    constants = [
        s.conjugate_integral(c.beta)[picks[:, i]] for i, (s, c) in enumerate(zip(spectra, candidates, strict=True))
    ]
    slacks = [c.slack[picks[:, i]] for i, c in enumerate(candidates)]
    return BetaSet(
        betas,
        np.stack(values, -1),
        np.stack(constants, -1),
        np.maximum(np.stack(slacks, -1), 0.0),
        exhaustive,
    )
