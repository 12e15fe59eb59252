"""What the tabular solver returns: the policy it learned, and what is proved about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tailsafe.errors import InputError
from tailsafe.risk import SpectralRisk, StepSpectrum
from tailsafe.tabular.augmented import AugmentedMDP
from tailsafe.tabular.betas import BetaSet, SmallestRisk
from tailsafe.tabular.certificate import Certificate
from tailsafe.tabular.problem import FiniteCMDP

# A risk this much above its limit, relative, is rounding: the sub-risk that bounds it was within the limit.
ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class Statement:
    """The problem as it was stated, one measure and one limit per cost.

    measures: as given. spectra: the step spectra that stand for them. limits: on the discounted cost sums.
    """

    problem: FiniteCMDP
    measures: tuple[SpectralRisk, ...]
    spectra: tuple[StepSpectrum, ...]
    limits: tuple[float, ...]

    @property
    def reward_scale(self) -> float:
        """How far the rewards of one step are apart, the unit in which tiny optima are judged."""
        return float(np.ptp(self.problem.rewards)) or 1.0

    def keeps(self, cost: int, risk: float) -> bool:
        """Whether this risk (of the step spectrum) keeps the limit on one cost."""
        limit = self.limits[cost]
        return bool(risk <= limit + ROUNDING * max(abs(limit), self.problem.costs[cost].max()))

    def met_by(self, risks: list[float]) -> bool:
        """Whether these risks keep every limit."""
        return all(self.keeps(i, risk) for i, risk in enumerate(risks))


@dataclass(frozen=True, eq=False)
class Trace:
    """The learner over its iterations, for the beta that the sampler finds most likely at the time.

    reward: (T,) J_R. risks: (T, N) sub-risks J_Ci. entropy: (T,) of the sampler, in nats.
    """

    reward: np.ndarray
    risks: np.ndarray
    entropy: np.ndarray


@dataclass(frozen=True, eq=False)
class LearnedPolicy:
    """The best feasible iterate for the beta that the sampler settled on, evaluated exactly.

    policy: per layer (n_t, A) action probabilities on the augmented states. reward: J_R. terminal_distribution: (L,)
    probability of each attainable cost vector. risks: of the step spectra; spectrum_risks: of the measures as given
    (they differ where steps only approximate). beta_index: into the beta set.
    """

    policy: list[np.ndarray]
    reward: float
    risks: list[float]
    spectrum_risks: list[float]
    terminal_distribution: np.ndarray
    beta_index: int


@dataclass(frozen=True, eq=False)
class Learning:
    """What the algorithm did. best is None if no iterate of any beta was feasible. sampler: (B,) probabilities."""

    iterations: int
    trace: Trace
    sampler: np.ndarray
    best: LearnedPolicy | None


@dataclass(frozen=True, eq=False)
class TabularSolution:
    """A statement, its certificate, and (unless the certificate says it is infeasible) what was learned.

    tolerance: absolute; the gap up to which a policy, or a beta, counts as optimal.
    smallest_risks: where no feasible policy is returned, the smallest risk that any policy reaches, per constraint by
    itself.
    """

    statement: Statement
    mdp: AugmentedMDP
    betas: BetaSet
    certificate: Certificate
    tolerance: float
    seconds: float
    learning: Learning | None = None
    smallest_risks: list[SmallestRisk] | None = None

    @property
    def best(self) -> LearnedPolicy | None:
        return self.learning.best if self.learning else None

    @property
    def policy(self) -> list[np.ndarray] | None:
        return self.best.policy if self.best else None

    @property
    def reward(self) -> float | None:
        return self.best.reward if self.best else None

    @property
    def risks(self) -> list[float] | None:
        return self.best.risks if self.best else None

    @property
    def beta(self) -> list[list[float]] | None:
        """The dual variables of the returned policy, one sorted list per constraint."""
        return self.betas.at(self.best.beta_index) if self.best else None

    @property
    def feasible(self) -> bool:
        """Whether there is a policy and its exact risks keep every limit."""
        return self.best is not None and self.statement.met_by(self.best.risks)

    @property
    def feasible_as_given(self) -> bool:
        """Whether the limits are kept by the measures as given too, not only by the steps that stand for them."""
        return self.best is not None and self.statement.met_by(self.best.spectrum_risks)

    @property
    def optimum(self) -> float | None:
        """The best reward of any feasible policy, by linear programming; over the grid if the beta set is one."""
        return self.certificate.optimum if self.certificate.feasible else None

    @property
    def gap(self) -> float | None:
        return None if self.optimum is None or self.best is None else self.optimum - self.best.reward

    @property
    def sampler_mass(self) -> float | None:
        """The sampler's probability of the betas that are optimal within the tolerance."""
        if self.learning is None:
            return None
        return float(self.learning.sampler[self.certificate.optimal_betas(self.tolerance)].sum())

    @property
    def status(self) -> str:
        """One word.

        optimal: feasible, and no policy at all is better by more than the tolerance. feasible: not shown to be optimal.
        unfinished: no feasible iterate yet.

        infeasible: proved, no policy keeps the limits. undecided: no beta of a coarse grid admits one, but none is
        excluded.
        """
        if self.best is not None and self.feasible:
            return "optimal" if self.certificate.upper_bound - self.best.reward <= self.tolerance else "feasible"
        if self.certificate.feasible:
            return "unfinished"
        return "infeasible" if self.certificate.proved_infeasible else "undecided"

    def action_probabilities(self, step: int, state: int, cost_so_far: float | Sequence[float]) -> np.ndarray:
        """What the learned policy does (A,) at a time step, in a state, after these discounted costs (one per cost)."""
        if self.best is None:
            raise InputError("no policy was learned")
        if not 0 <= step < len(self.mdp.layers):
            raise InputError(f"step is {step}; it must be in 0..{len(self.mdp.layers) - 1}")
        layer = self.mdp.layers[step]
        here = np.flatnonzero(layer.state == state)
        distance = np.abs(layer.cost_so_far[here] - np.asarray(cost_so_far)).max(1, initial=0.0)
        if not here.size or distance.min() > 1e-6 * max(1.0, float(layer.cost_so_far.max())):
            raise InputError(f"state {state} with costs so far {cost_so_far} cannot be reached at step {step}")
        return np.asarray(self.best.policy[step][here[np.argmin(distance)]])

    def policy_json(self) -> list[dict[str, Any]]:
        """The policy, a table per time step: state, cost_so_far (one per cost) and action probabilities, row by row."""
        return [
            {"state": layer.state.tolist(), "cost_so_far": layer.cost_so_far.tolist(), "probabilities": pi.tolist()}
            for layer, pi in zip(self.mdp.layers, self.policy or [], strict=False)
        ]

    def to_json(self) -> dict[str, Any]:
        """What `tailsafe tabular --json` prints."""
        upper = self.certificate.upper_bound
        return {
            "status": self.status,
            "reward": self.reward,
            "risks": self.risks,
            "spectrum_risks": self.best.spectrum_risks if self.best else None,
            "limits": list(self.statement.limits),
            "feasible": self.feasible,
            "feasible_as_given": self.feasible_as_given,
            "optimum": self.optimum,
            "optimum_upper_bound": upper if np.isfinite(upper) else None,
            "certificate": "exact" if self.certificate.exhaustive else "grid",
            "gap": self.gap,
            "beta": self.beta,
            "sampler_mass": self.sampler_mass,
            "betas": len(self.betas),
            "augmented_states": self.mdp.nodes,
            "spectra": [
                {"spec": str(m), "eta": s.eta.tolist(), "alpha": s.alpha.tolist(), "l1_error": s.l1_error}
                for m, s in zip(self.statement.measures, self.statement.spectra, strict=True)
            ],
            "smallest_risks": [s.value for s in self.smallest_risks] if self.smallest_risks else None,
            "smallest_risks_bound": [s.bound for s in self.smallest_risks] if self.smallest_risks else None,
            "iterations": self.learning.iterations if self.learning else 0,
            "seconds": self.seconds,
        }
