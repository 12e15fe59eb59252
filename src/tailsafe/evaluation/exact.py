"""A policy of task `finite`, evaluated without sampling and compared with the exact optimum."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from tailsafe.errors import InputError
from tailsafe.policies.acting import LoadedPolicy
from tailsafe.tabular.augmented import AugmentedMDP, augment
from tailsafe.tabular.betas import beta_set
from tailsafe.tabular.certificate import certify
from tailsafe.tabular.problem import FiniteCMDP
from tailsafe.tabular.solution import Statement
from tailsafe.tabular.values import expected_reward, occupancy


@dataclass(frozen=True, eq=False)
class ExactEvaluation:
    """What the learned policy earns and risks, and what any policy could.

    reward: expected discounted sum. risks: of the step spectra, on the discounted sums; spectrum_risks: of the measures
    as given (they differ where steps only approximate). feasible: the risks keep the limits. optimum: the best reward
    of any policy that keeps them, None if there is none; on a grid of dual variables unless `exhaustive`.
    """

    reward: float
    risks: tuple[float, ...]
    spectrum_risks: tuple[float, ...]
    limits: tuple[float, ...]
    feasible: bool
    optimum: float | None
    exhaustive: bool
    augmented_states: int

    @property
    def gap(self) -> float | None:
        """Optimum minus reward. Negative only if the policy breaks a limit, or the optimum is a grid's."""
        return None if self.optimum is None else self.optimum - self.reward

    def to_json(self) -> dict[str, Any]:
        return {
            "reward": self.reward,
            "risks": list(self.risks),
            "spectrum_risks": list(self.spectrum_risks),
            "limits": list(self.limits),
            "optimum": self.optimum,
            "gap": self.gap,
            "feasible": self.feasible,
            "certificate": "exact" if self.exhaustive else "grid",
            "augmented_states": self.augmented_states,
        }


def evaluate_on_problem(policy: LoadedPolicy, *, deterministic: bool = False) -> ExactEvaluation:
    """Walk the augmented states of the policy's own problem with its action probabilities at the sampler's mode."""
    description = policy.description
    if description.task.problem is None:
        raise InputError(f"task {description.task.name!r} has no finite problem to be evaluated on exactly")
    problem = FiniteCMDP.from_dict(description.task.problem)
    if not math.isclose(problem.discount, description.gamma, rel_tol=1e-6):
        raise InputError(
            f"the policy was trained with gamma {description.gamma:g}, its problem has discount {problem.discount:g}"
        )
    mdp = augment(problem)
    constraints = description.constraints
    statement = Statement(
        problem,
        tuple(constraint.measure for constraint in constraints),
        tuple(constraint.steps for constraint in constraints),
        tuple(constraint.discounted_limit for constraint in constraints),
    )
    probabilities = tabulate(policy, mdp, deterministic=deterministic)
    distribution = occupancy(mdp, probabilities)[-1]
    sums = list(mdp.terminal_cost.T)
    risks = tuple(float(s.risk(x, distribution)) for s, x in zip(statement.spectra, sums, strict=True))
    certificate = certify(mdp, beta_set(mdp, statement.spectra, statement.limits), statement.limits)
    return ExactEvaluation(
        reward=expected_reward(mdp, probabilities),
        risks=risks,
        spectrum_risks=tuple(float(m.risk(x, distribution)) for m, x in zip(statement.measures, sums, strict=True)),
        limits=statement.limits,
        feasible=statement.met_by(list(risks)),
        optimum=certificate.optimum if certificate.feasible else None,
        exhaustive=certificate.exhaustive,
        augmented_states=mdp.nodes,
    )


def tabulate(policy: LoadedPolicy, mdp: AugmentedMDP, *, deterministic: bool = False) -> list[np.ndarray]:
    """Action probabilities on every augmented state: per layer (n_t, A)."""
    problem = mdp.problem
    sizes = [layer.state.size for layer in mdp.layers]
    state = np.concatenate([layer.state for layer in mdp.layers])
    time = np.repeat(np.arange(problem.horizon), sizes)
    observation = np.concatenate([np.eye(problem.states)[state], np.eye(problem.horizon)[time]], axis=1)
    paid = np.concatenate([layer.cost_so_far for layer in mdp.layers])
    # One call for all layers: a program is compiled for every size of a batch.
    table = policy.action_probabilities(observation, paid, problem.discount**time)
    if deterministic:
        table = np.eye(problem.actions)[table.argmax(1)]
    return np.split(table, np.cumsum(sizes)[:-1])
