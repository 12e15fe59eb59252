"""The shareable policy of a run, rewritten at every checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from tailsafe._version import __version__
from tailsafe.learning.spaces import ActionDescription
from tailsafe.policies.described_constraint import ConstraintDescription, LimitSpan, Unit
from tailsafe.policies.described_task import TaskDescription
from tailsafe.policies.metadata import NetworkDescription, PolicyDescription
from tailsafe.policies.policy import save_policy
from tailsafe.training.plan import Plan


def share_policy(folder: Path, plan: Plan, learner: Any, steps: int) -> None:
    """Write what `load_policy` reads into `folder`: network, normaliser, the sampler's mode, and what they are for."""
    algorithm = plan.algorithm
    parts = (algorithm.shared_policy(learner), learner.normalizer, algorithm.shared_delta(learner))
    save_policy(folder, *parts, describe_policy(plan, steps))


def describe_policy(plan: Plan, steps: int) -> PolicyDescription:
    """What the policy of a run is for."""
    spec, values = plan.spec, plan.values
    problem = None if plan.problem is None else plan.problem.to_dict()
    backend = None if plan.config.backend == "auto" else plan.config.backend
    source = None if plan.source is None else plan.source.to_json()
    constraints = [
        ConstraintDescription(
            name=constraint.name,
            risk_measure=constraint.spectrum.spec,
            limit=constraint.lowest,
            unit=cast(Unit, constraint.unit),  # a plan's constraints have one
            discounted_limit=limit,
            eta=tuple(float(x) for x in steps_of.eta),
            alpha=tuple(float(x) for x in steps_of.alpha),
            # Nobody has asked for a limit yet: the most cautious one.
            span=LimitSpan(constraint.lowest, constraint.highest, limit, plan.below) if constraint.ranged else None,
        )
        for constraint, limit, steps_of in zip(
            plan.constraints, plan.lowest_limits or plan.discounted_limits, plan.spectra, strict=True
        )
    ]
    return PolicyDescription(
        task=TaskDescription.of(spec, problem, backend, source, plan.config.metrics),
        actions=spec.native_actions or ActionDescription.of(spec.actions),
        network=NetworkDescription(
            hidden=values["policy_hidden"],
            fixed_log_std=values["fixed_log_std"],
            augmented=values["augmented"],
            # A learner that does not normalise does not clip either.
            **({"clip_observation": values["clip_observation"]} if values["normalize"] else {}),
        ),
        gamma=values["gamma"],
        constraints=tuple(constraints),
        largest_return=tuple(float(x) for x in plan.settings.constraints.largest_return),
        least_cells=values["least_cells"],
        algorithm=plan.config.algorithm,
        conditioned=plan.algorithm.delta_width(plan.settings) > 0,
        regions=0 if plan.lowest_limits is None else values["regions"],
        steps=steps,
        version=__version__,
    )
