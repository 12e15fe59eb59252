"""What the tabular solver returns: the policy it learned, and what is proved about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tailsafe.risk import SpectralRisk, StepSpectrum
from tailsafe.tabular.augmented import AugmentedMDP
from tailsafe.tabular.betas import BetaSet
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

    policy: per layer (n_t, A) action probabilities on the augmented states. reward: J_R. terminal_law: (L,)
    probability of each attainable cost vector. risks: of the step spectra; spectrum_risks: of the measures as given
    (they differ where steps only approximate). beta_index: into the beta set.
    """

    policy: list[np.ndarray]
    reward: float
    risks: list[float]
    spectrum_risks: list[float]
    terminal_law: np.ndarray
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
    smallest_risks: for an infeasible problem, the smallest risk any policy reaches, each constraint by itself.
    """

    statement: Statement
    mdp: AugmentedMDP
    betas: BetaSet
    certificate: Certificate
    tolerance: float
    seconds: float
    learning: Learning | None = None
    smallest_risks: list[float] | None = None

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
    def optimum(self) -> float | None:
        """The best reward of any feasible policy (over the beta set), by linear programming."""
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

        optimal: feasible, gap within the tolerance. feasible: larger gap. unfinished: no feasible iterate yet.

        infeasible: proved, no policy keeps the limits. undecided: no beta of a coarse grid admits one, but none is
        excluded.
        """
        if self.gap is not None and self.feasible:
            return "optimal" if self.gap <= self.tolerance else "feasible"
        if self.certificate.feasible:
            return "unfinished"
        return "infeasible" if self.certificate.proved_infeasible else "undecided"

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
            "smallest_risks": self.smallest_risks,
            "iterations": self.learning.iterations if self.learning else 0,
            "seconds": self.seconds,
        }
