"""The front of a finite problem: the best reward at every limit, exactly, by linear programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tailsafe.errors import InputError
from tailsafe.risk import SpectralRisk
from tailsafe.tabular.augmented import DEFAULT_MEMORY_LIMIT, AugmentedMDP, augment
from tailsafe.tabular.betas import DEFAULT_MAX_BETAS, beta_set, smallest_risk
from tailsafe.tabular.certificate import certify
from tailsafe.tabular.lp import OccupancyLP
from tailsafe.tabular.problem import FiniteCMDP
from tailsafe.tabular.solution import Statement
from tailsafe.tabular.solve import state_problem
from tailsafe.tabular.values import occupancy

# The first limit lies this much above the smallest risk, relatively: linear programs have a tolerance.
_ABOVE = 1e-7
_HALVINGS = 8


@dataclass(frozen=True)
class FrontPoint:
    """The optimum at one limit. reward: None where no policy keeps it; bound: no policy at all earns more (equal to
    the reward unless dual variables were searched on a grid). risks: of a policy that attains the reward.
    """

    limits: tuple[float, ...]
    reward: float | None
    bound: float | None
    risks: tuple[float, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "limit": list(self.limits),
            "reward": {"mean": self.reward, "low": self.reward, "high": self.bound},
            "risks": [{"risk": risk, "low": risk, "high": risk} for risk in self.risks],
            "feasible": self.reward is not None,
        }


@dataclass(frozen=True, eq=False)
class ExactFront:
    """Points by increasing limit. smallest: the smallest risk of each cost by itself. careless: the risks of a policy
    that looks at the reward alone; larger limits change nothing. exhaustive: no grid was needed.
    """

    measures: tuple[SpectralRisk, ...]
    points: tuple[FrontPoint, ...]
    smallest: tuple[float, ...]
    careless: tuple[float, ...]
    exhaustive: bool

    def to_json(self) -> dict[str, Any]:
        return {
            "points": [point.to_json() for point in self.points],
            "measures": [str(measure) for measure in self.measures],
            "smallest_risks": list(self.smallest),
            "careless_risks": list(self.careless),
            "certificate": "exact" if self.exhaustive else "grid",
        }


def exact_front(
    problem: FiniteCMDP,
    risks: SpectralRisk | Sequence[SpectralRisk],
    points: int = 8,
    limits: tuple[Sequence[float], Sequence[float]] | None = None,
    *,
    cells: int = 3,
    max_betas: int = DEFAULT_MAX_BETAS,
    memory_limit: float = DEFAULT_MEMORY_LIMIT,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> ExactFront:
    """The best expected discounted reward at `points` limits, evenly spaced.

    limits: (lowest, highest), one number per cost each; without them from the smallest risk that any policy has to the
    risk of the policy that looks at the reward alone. Several costs move from one end to the other together.
    """
    if points < 2:
        raise InputError(f"a front needs at least 2 points, got {points}")
    statement = state_problem(problem, risks, 0.0, cells)
    mdp = augment(problem, memory_limit)
    smallest = tuple(smallest_risk(mdp, spectrum, i).value for i, spectrum in enumerate(statement.spectra))
    careless = _careless(statement, mdp)
    if limits is not None and not len(limits[0]) == len(limits[1]) == problem.num_costs:
        raise InputError(f"limits must have {problem.num_costs} entries at either end, one for each cost")
    low, high = limits or _reachable(statement, mdp, smallest, careless, max_betas)
    found, exhaustive = [], True
    for k, ladder in enumerate(np.linspace(low, np.maximum(low, high), points)):
        point, complete = _point(statement, mdp, tuple(float(limit) for limit in ladder), max_betas)
        found.append(point)
        exhaustive &= complete
        progress(k + 1, points)
    return ExactFront(statement.measures, tuple(found), smallest, careless, exhaustive)


def _reachable(
    statement: Statement, mdp: AugmentedMDP, smallest: Sequence[float], careless: Sequence[float], max_betas: int
) -> tuple[Sequence[float], Sequence[float]]:
    """From about the smallest limits that some policy keeps to those that change nothing.

    Several costs that cannot all be as small as each by itself begin where a bisection finds the first policy.
    """
    low = np.array([risk * (1 + _ABOVE) + _ABOVE * 1e-3 for risk in smallest])
    high = np.maximum(low, careless)
    if len(low) > 1 and _point(statement, mdp, tuple(low), max_betas)[0].reward is None:
        share, step = 1.0, 0.5
        for _ in range(_HALVINGS):
            found = _point(statement, mdp, tuple(low + (share - step) * (high - low)), max_betas)[0]
            share, step = share - (step if found.reward is not None else 0.0), step / 2
        low = low + share * (high - low)
    return low.tolist(), high.tolist()


def _careless(statement: Statement, mdp: AugmentedMDP) -> tuple[float, ...]:
    nothing = np.zeros_like(mdp.terminal_cost)
    policy = OccupancyLP(mdp).maximise_reward(nothing, np.ones(nothing.shape[1])).policy
    assert policy is not None
    return _risks(statement, mdp, policy)


def _point(
    statement: Statement, mdp: AugmentedMDP, limits: tuple[float, ...], max_betas: int
) -> tuple[FrontPoint, bool]:
    betas = beta_set(mdp, statement.spectra, limits, max_betas)
    certificate = certify(mdp, betas, limits)
    if not certificate.feasible:
        return FrontPoint(limits, None, None, ()), betas.exhaustive
    best = certificate.best
    room = np.asarray(limits) - betas.constant[best]
    policy = OccupancyLP(mdp).maximise_reward(betas.terminal_value[best], room).policy
    assert policy is not None
    point = FrontPoint(limits, certificate.optimum, certificate.upper_bound, _risks(statement, mdp, policy))
    return point, betas.exhaustive


def _risks(statement: Statement, mdp: AugmentedMDP, policy: Sequence[np.ndarray]) -> tuple[float, ...]:
    """Of the step spectra, which the limits are on."""
    chances = occupancy(mdp, policy)[-1]
    return tuple(
        float(spectrum.risk(sums, chances))
        for spectrum, sums in zip(statement.spectra, mdp.terminal_cost.T, strict=True)
    )
