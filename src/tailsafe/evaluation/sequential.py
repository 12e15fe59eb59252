"""Proving that risks are below limits, one candidate after the other, with one error probability for the whole search.

A candidate is tested with episodes that keep coming, until a bound that holds at all numbers of episodes at once
(`risk.betting`) is below every limit, or until that is out of reach. All of a candidate's limits are tested at the full
error: to certify it wrongly, the test of the one limit that it breaks must fail.

Two searches keep the error:

- `in_sequence`: candidates from the most cautious upwards, each with the whole error, until one fails. A wrong
  certificate needs the first unsafe candidate to be certified, and there is but one first (fixed-sequence testing).
- `with_shares`: any candidates in an order fixed in advance, each with its share of the error, until one is certified.

Nothing here plays: episodes come from a function, so that the error can be measured on distributions that are known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from tailsafe.errors import InputError
from tailsafe.risk import SpectralRisk
from tailsafe.risk.betting import is_below, lower_bound, upper_bound
from tailsafe.risk.majorant import fit, slopes

Outcome = Literal["certified", "violated", "out of reach", "undecided"]
# (number of the first episode, how many) -> their discounted costs (n, C).
Draw: TypeAlias = "Callable[[int, int], Float[NDArray[np.float64], 'n C']]"
Report = Callable[[int], None]
# Episodes come in batches of this many, and later of this share of those played.
BATCH, SHARE = 256, 0.25
# From so many episodes on, a limit that is out of reach is given up.
_LEAST_TO_GIVE_UP = 2 * BATCH
# An estimate this many standard errors smaller than the one seen still counts as possible.
_HOPE = 2.0


@dataclass(frozen=True)
class Limit:
    """R(X) <= limit, for a discounted sum X of costs in [0, largest]."""

    measure: SpectralRisk
    limit: float
    largest: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.largest):
            raise InputError("nothing can be proven about costs without a bound: say what a step can cost at most")

    def holds(self, costs: Float[NDArray[np.float64], " n"], error: float) -> bool:
        """Whether it is proven."""
        if self.limit >= self.largest:
            return True
        return is_below(self.measure, costs, self.limit, self.largest, error)

    def upper(self, costs: Float[NDArray[np.float64], " n"], error: float) -> float:
        return float(upper_bound(self.measure, costs[None], self.largest, error)[0])

    def broken(self, costs: Float[NDArray[np.float64], " n"], error: float) -> bool:
        """Whether the opposite is proven."""
        return bool(lower_bound(self.measure, costs[None], error)[0] > self.limit)

    def in_reach(self, costs: Float[NDArray[np.float64], " n"], error: float, budget: int) -> bool:
        """Whether `budget` episodes could prove it, if the risk were smaller than it seems by two standard errors."""
        risk = float(self.measure.risk(costs))
        shrunk = costs * max(0.0, 1 - _HOPE * self._standard_error(costs) / risk) if risk > 0 else costs
        return self.holds(np.resize(shrunk, budget), error)

    def _standard_error(self, costs: Float[NDArray[np.float64], " n"]) -> float:
        majorant = fit(slopes(self.measure, 1 / costs.size), np.sort(costs)[None], 1, self.largest)
        return float(majorant(costs[None]).std()) / math.sqrt(costs.size)


@dataclass(frozen=True)
class Proof:
    """What was found about one candidate. risks, uppers: per limit, of discounted sums; uppers hold with the error."""

    outcome: Outcome
    episodes: int
    error: float
    risks: tuple[float, ...]
    uppers: tuple[float, ...]


def prove(limits: Sequence[Limit], draw: Draw, error: float, budget: int, report: Report = lambda done: None) -> Proof:
    """Draw episodes until all limits are proven, one is refuted or out of reach, or the budget is used up."""
    costs = draw(0, min(BATCH, budget))
    while True:
        report(len(costs))
        _check(limits, costs)
        rows = list(zip(limits, costs.T, strict=True))
        outcome: Outcome | None = None
        if all(limit.holds(row, error) for limit, row in rows):
            outcome = "certified"
        elif any(limit.broken(row, error) for limit, row in rows):
            outcome = "violated"
        elif len(costs) >= budget:
            outcome = "undecided"
        elif len(costs) >= _LEAST_TO_GIVE_UP and not all(limit.in_reach(row, error, budget) for limit, row in rows):
            outcome = "out of reach"
        if outcome is not None:
            risks = tuple(float(limit.measure.risk(row)) for limit, row in rows)
            return Proof(outcome, len(costs), error, risks, tuple(limit.upper(row, error) for limit, row in rows))
        more = max(BATCH, BATCH * math.ceil(SHARE * len(costs) / BATCH))
        costs = np.concatenate([costs, draw(len(costs), min(more, budget - len(costs)))])


def in_sequence(run: Callable[[int, float], Proof], count: int, error: float) -> list[Proof]:
    """Test candidates 0, 1, ... with the whole error until one is not certified. run: (candidate, error) -> result."""
    found: list[Proof] = []
    for candidate in range(count):
        found.append(run(candidate, error))
        if found[-1].outcome != "certified":
            break
    return found


def with_shares(run: Callable[[int, float], Proof], shares: Sequence[float], error: float) -> list[Proof]:
    """Test candidates in their order, each with its share of the error, until one is certified."""
    found: list[Proof] = []
    for candidate, share in enumerate(shares):
        found.append(run(candidate, share * error))
        if found[-1].outcome == "certified":
            break
    return found


def _check(limits: Sequence[Limit], costs: NDArray[Any]) -> None:
    for limit, row in zip(limits, costs.T, strict=True):
        if row.min() < 0 or row.max() > limit.largest:
            worst = row.min() if row.min() < 0 else row.max()
            raise InputError(
                f"an episode cost {worst:g}, which is not in [0, {limit.largest:g}]: largest_costs is wrong"
            )
