"""What a saved policy says about itself: `policy.json` as frozen dataclasses, checked field by field when read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from tailsafe._version import __version__
from tailsafe.errors import InputError
from tailsafe.learning.constraints import Constraints, stack_constraints
from tailsafe.learning.spaces import ActionDescription
from tailsafe.policies.answers import Answers
from tailsafe.policies.described_constraint import ConstraintDescription, Unit, discounted_length
from tailsafe.policies.described_task import TaskDescription, or_none, read_actions
from tailsafe.policies.reading import Fields, is_number

FORMAT = 1


@dataclass(frozen=True)
class NetworkDescription:
    """Hidden sizes; a log standard deviation that is fixed, if any; whether (D, b) are inputs; the clip of inputs."""

    hidden: tuple[int, ...]
    fixed_log_std: float | None = None
    augmented: bool = False
    clip_observation: float = 1e6

    def to_json(self) -> dict[str, Any]:
        return {
            "hidden": list(self.hidden),
            "fixed_log_std": self.fixed_log_std,
            "augmented": self.augmented,
            "clip_observation": self.clip_observation,
        }

    @classmethod
    def from_json(cls, fields: Fields) -> NetworkDescription:
        hidden = fields.numbers("hidden")
        if not all(size == int(size) and size >= 1 for size in hidden):
            raise InputError(f"{fields.place}.hidden must be whole numbers, at least 1")
        return cls(
            hidden=tuple(int(size) for size in hidden),
            fixed_log_std=fields.optional("fixed_log_std", fields.number),
            augmented=fields.flag("augmented"),
            clip_observation=fields.number("clip_observation"),
        )


@dataclass(frozen=True)
class PolicyDescription:
    """All of policy.json but the sampler's mode, which belongs to the tensors. One constraint per cost, in order.

    largest_return: the largest discounted sum of each cost, inf where unknown. least_cells: see
    `stack_constraints`. conditioned: whether the policy sees the dual variables. steps: environment steps of training.
    regions: of a range of limits, 0 without one (see `learning.limit_range`). certificate: what `tailsafe certify`
    proved, if anything. answers: where in the range requests are answered, None: each where it is.
    """

    task: TaskDescription
    actions: ActionDescription
    network: NetworkDescription
    gamma: float
    constraints: tuple[ConstraintDescription, ...]
    largest_return: tuple[float, ...]
    algorithm: str
    conditioned: bool
    least_cells: int = 2
    steps: int = 0
    version: str = __version__
    certificate: Mapping[str, Any] | None = None
    regions: int = 0
    answers: Answers | None = None

    def __post_init__(self) -> None:
        costs = len(self.task.cost_names)
        for name, count in (
            ("constraints", len(self.constraints)),
            ("largest_return", len(self.largest_return)),
            ("task.largest_costs", len(self.task.largest_costs)),
        ):
            if count != costs or not costs:
                raise InputError(f"{name} has {count} entries for {costs} costs; it needs one for each, at least one")
        if self.network.fixed_log_std is not None and self.actions.kind == "discrete":
            raise InputError("network.fixed_log_std is for actions in a box; these are discrete")
        if self.ranged != (self.regions > 1) or (self.ranged and not self.conditioned):
            raise InputError(f"regions is {self.regions}; it must be above 1 with a range of limits, else 0")
        if self.answers is not None and not self.ranged:
            raise InputError("answers are for a range of limits; this policy has one limit for each cost")
        for name, lowest in (
            ("largest_return", min(self.largest_return)),
            ("task.largest_costs", min(self.task.largest_costs)),
            ("network.clip_observation", self.network.clip_observation),
        ):
            if lowest < 0:
                raise InputError(f"{name} is {lowest:g}; it must not be negative")
        if not 0 < self.gamma <= 1:
            raise InputError(f"gamma is {self.gamma:g}; it must be in (0, 1]")
        for constraint in self.constraints:
            if constraint.unit == "step" and self.gamma == 1 and self.task.episode_length is None:
                raise InputError(
                    f"the limit of {constraint.name} is per step: it needs gamma below 1 or an episode length"
                )
            if constraint.unit == "episode" and self.task.episode_length is None:
                raise InputError(f"the limit of {constraint.name} is per episode, but the length of one is not known")

    @property
    def ranged(self) -> bool:
        """Whether it was trained for a range of limits, and acts as it is asked to."""
        return any(constraint.span is not None for constraint in self.constraints)

    @property
    def request(self) -> tuple[float, ...]:
        """The limit of each cost that it is asked for, in the units of training."""
        return tuple(constraint.limit for constraint in self.constraints)

    @property
    def position(self) -> float:
        """Where in the range the policy acts, from 0 to 1. Limits of several costs move together: the most cautious one
        says where the request is, and `answers` where it is answered.
        """
        return float(self.positions(np.asarray([self.request]))[0])

    def positions(self, limits: Float[NDArray[Any], "N C"]) -> Float[NDArray[Any], " N"]:
        """The same for limits in the units of training; those outside of the range count as its ends."""
        spans = [(i, one.span) for i, one in enumerate(self.constraints) if one.span is not None]
        if not spans:
            return np.zeros(len(limits), limits.dtype)
        ratios = [np.maximum(limits[:, i] / span.trained_low, 1.0) for i, span in spans]
        places = [
            np.log(r) / math.log(span.high / span.trained_low) for r, (_, span) in zip(ratios, spans, strict=True)
        ]
        requested = np.asarray(np.clip(np.min(places, axis=0), 0.0, 1.0))
        return requested if self.answers is None else self.answers.to(requested)

    def asked(self, limits: float | Sequence[float]) -> PolicyDescription:
        """The same policy, asked for a limit: one for all costs or one for each, in the units of training."""
        given = np.asarray(limits, object)
        wanted = [one.item() if isinstance(one, np.generic) else one for one in given.ravel()]
        if given.ndim == 0:
            wanted *= len(self.constraints)
        if len(wanted) != len(self.constraints) or not all(is_number(one) for one in wanted):
            raise InputError(f"limit is {limits!r}; this policy takes one for all of its costs or one for each")
        rows = zip(self.constraints, wanted, strict=True)
        return replace(self, constraints=tuple(constraint.asked(float(limit)) for constraint, limit in rows))

    def request_at(self, share: float) -> tuple[float, ...]:
        """The limits that can be asked for, from the lowest (0) to the highest (1), on a logarithmic scale."""
        ends = [one.ends for one in self.constraints]
        return tuple(low if low == high else low * (high / low) ** share for low, high in ends)

    def trained_at(self, position: float) -> tuple[float, ...]:
        """The limits of training at a position of the range."""
        ends = [
            (one.limit, one.limit) if one.span is None else (one.span.trained_low, one.span.high)
            for one in self.constraints
        ]
        return tuple(low if low == high else low * (high / low) ** position for low, high in ends)

    def in_own_unit(self, index: int, limit: float, unit: Unit) -> float:
        """A limit of one cost in the unit of training."""
        constraint = self.constraints[index]
        if unit == constraint.unit:
            return limit
        return limit / self.factor_of(unit) * self.unit_factor(constraint)

    @property
    def num_betas(self) -> int:
        """How many dual variables the policy sees: those of all constraints, or none."""
        return self.arrays().num_betas if self.conditioned else 0

    @property
    def modes_shape(self) -> tuple[int, ...]:
        """Of the sampler's modes: one for each dual variable, with a range of limits a row of them for each region."""
        return (self.regions, self.num_betas) if self.ranged else (self.num_betas,)

    @property
    def num_inputs(self) -> int:
        """How many numbers the policy sees beside observation, costs so far and discount."""
        return self.arrays().num_inputs if self.conditioned else 0

    def arrays(self) -> Constraints:
        """The constraints as the learner had them."""
        spectra = [constraint.steps for constraint in self.constraints]
        if not self.ranged:
            limits = [constraint.discounted_limit for constraint in self.constraints]
            return stack_constraints(spectra, limits, self.largest_return, self.least_cells)
        low, high = ([one.asked(one.ends[end]).discounted_limit for one in self.constraints] for end in (0, 1))
        low = [
            limit * (1 - one.span.below) if one.span else limit
            for limit, one in zip(low, self.constraints, strict=True)
        ]
        return stack_constraints(spectra, low, self.largest_return, self.least_cells, high, self.regions)

    def unit_factor(self, constraint: ConstraintDescription) -> float:
        """What a risk of the discounted sum is multiplied with to be in the unit of the limit.

        The inverse of what training did with the limit: per step (1 - gamma), or one over the discounted number of
        steps of a finite problem; per episode, that times the length of an episode.
        """
        if constraint.limit > 0 and constraint.discounted_limit > 0:
            return constraint.limit / constraint.discounted_limit
        # A limit of zero says nothing about the conversion.
        return self.factor_of(constraint.unit)

    def factor_of(self, unit: Unit) -> float:
        """What a discounted sum is multiplied with to be in this unit; see `unit_factor`."""
        if unit == "discounted":
            return 1.0
        if unit == "episode" and self.task.episode_length is None:
            raise InputError(f"{self.task.name} has no fixed episode length: state the limit per step or as discounted")
        finite = self.task.problem is not None or self.gamma == 1
        steps = 1 if unit == "step" else self.task.episode_length or 1
        return steps / discounted_length(self.gamma, self.task.episode_length if finite else None)

    def to_json(self, delta: Sequence[float]) -> dict[str, Any]:
        """policy.json, with the sampler's mode `delta` (of a range those of all regions) for people to read."""
        return {
            "format": FORMAT,
            "task": self.task.to_json(),
            "actions": self.actions.to_json(),
            "network": self.network.to_json(),
            "delta": [float(x) for x in delta],
            "gamma": self.gamma,
            "constraints": [constraint.to_json() for constraint in self.constraints],
            "largest_return": [or_none(largest) for largest in self.largest_return],
            "least_cells": self.least_cells,
            "algorithm": self.algorithm,
            "conditioned": self.conditioned,
            "steps": self.steps,
            "version": self.version,
        } | self._optional()

    def _optional(self) -> dict[str, Any]:
        """What few policies have."""
        found: dict[str, Any] = {"regions": self.regions, "request": list(self.request)} if self.ranged else {}
        if self.answers is not None:
            found["answers"] = self.answers.to_json()
        return found | ({} if self.certificate is None else {"certificate": dict(self.certificate)})

    @classmethod
    def from_json(cls, data: Any) -> PolicyDescription:
        """Read policy.json's object, or one `InputError` that names the place."""
        fields = Fields(data, "policy")
        if (found := fields.get("format")) != FORMAT:
            raise InputError(f"format is {found!r}; this version of tailsafe reads format {FORMAT}")
        described = cls(
            task=TaskDescription.from_json(fields.object("task")),
            actions=read_actions(fields.object("actions")),
            network=NetworkDescription.from_json(fields.object("network")),
            gamma=fields.number("gamma"),
            constraints=tuple(ConstraintDescription.from_json(entry) for entry in fields.objects("constraints")),
            largest_return=fields.numbers("largest_return", or_inf=True),
            # Policies of earlier versions have none.
            least_cells=fields.whole("least_cells", 2) if "least_cells" in fields.data else 2,
            algorithm=fields.text("algorithm"),
            # Earlier versions did not say it; policies that see no dual variables have no mode of them.
            conditioned=fields.flag("conditioned") if "conditioned" in fields.data else bool(fields.numbers("delta")),
            steps=fields.whole("steps", 0),
            version=fields.text("version"),
            certificate=fields.optional("certificate", lambda key: fields.object(key).data),
            regions=fields.optional("regions", lambda key: fields.whole(key, 2)) or 0,
            answers=fields.optional("answers", lambda key: Answers.from_json(fields.object(key))),
        )
        request = fields.optional("request", lambda key: fields.numbers(key, len(described.constraints)))
        return described if request is None else described.asked(request)
