"""What can be proved about a finite problem before any learning: its optimum, or that it has none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tailsafe.tabular.augmented import AugmentedMDP
from tailsafe.tabular.betas import BetaSet
from tailsafe.tabular.lp import OccupancyLP


@dataclass(frozen=True, eq=False)
class Certificate:
    """Exact optima of the inner problems and the bound they give on the whole.

    values: (B,) the LP optimum for each beta, -inf where the limits cannot be met with it.
    multipliers: (B, N) the LP's dual variables of the limits (inf where infeasible).
    optimum: the best value; a policy attains it. upper_bound: no policy whatsoever is better than this. The two are
    equal when `exhaustive`: the beta set then contains an optimal beta. best: the index of the best beta.
    """

    values: np.ndarray
    multipliers: np.ndarray
    optimum: float
    upper_bound: float
    exhaustive: bool
    best: int

    @property
    def feasible(self) -> bool:
        """Some policy meets all limits."""
        return bool(np.isfinite(self.optimum))

    @property
    def proved_infeasible(self) -> bool:
        """No policy meets all limits, for any beta."""
        return bool(np.isneginf(self.upper_bound))

    def optimal_betas(self, tolerance: float) -> np.ndarray:
        """(B,) which betas come within `tolerance` (absolute) of the optimum."""
        return self.values >= self.optimum - tolerance


def certify(
    mdp: AugmentedMDP,
    betas: BetaSet,
    limits: Sequence[float],
    progress: Callable[[int], None] = lambda done: None,
) -> Certificate:
    """Solve the linear program of every beta; `progress` is told how many are done."""
    program = OccupancyLP(mdp)
    room = np.asarray(limits) - betas.constant
    values, multipliers, bounds = [], [], []
    for k in range(len(betas)):
        inner = program.maximise_reward(betas.terminal_value[k], room[k])
        values.append(inner.reward)
        multipliers.append(inner.multipliers)
        # The widened limits admit every policy whose own beta rounds up to this one.
        relaxed = np.any(betas.slack[k] > 0)
        bounds.append(
            program.maximise_reward(betas.terminal_value[k], room[k] + betas.slack[k]).reward
            if relaxed
            else inner.reward
        )
        progress(k + 1)
    best = int(np.argmax(values))
    return Certificate(np.array(values), np.array(multipliers), values[best], max(bounds), betas.exhaustive, best)
