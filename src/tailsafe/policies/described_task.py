"""What a policy file says about the environments of training: task, observations and actions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tailsafe.errors import InputError
from tailsafe.learning.interface import EnvironmentSpec
from tailsafe.learning.spaces import ActionDescription, ObservationPart, ObservationSpace
from tailsafe.policies.reading import Fields

_DTYPES = ("float16", "float32", "float64", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))


@dataclass(frozen=True)
class TaskDescription:
    """The environments a policy was trained in; fields as in `EnvironmentSpec`.

    largest_costs: inf where unknown. problem: the PROBLEM.json object of task `finite`. backend: the engine, if any.
    observations: how the environment's own are flattened; None: they are vectors. source: how to build a user's
    environment again (`envs.finding.Source.to_json`). metrics: numbers from `info` that were followed.
    """

    name: str
    observation_size: int
    cost_names: tuple[str, ...]
    episode_length: int | None
    largest_costs: tuple[float, ...]
    limits: tuple[float, ...] | None = None
    problem: Mapping[str, Any] | None = None
    backend: str | None = None
    observations: ObservationSpace | None = None
    source: Mapping[str, Any] | None = None
    metrics: tuple[str, ...] = ()

    @property
    def observation_space(self) -> ObservationSpace:
        """What an observation of the environment looks like."""
        return self.observations or ObservationSpace.flat(self.observation_size)

    @classmethod
    def of(
        cls,
        spec: EnvironmentSpec,
        problem: Mapping[str, Any] | None = None,
        backend: str | None = None,
        source: Mapping[str, Any] | None = None,
        metrics: Sequence[str] = (),
    ) -> TaskDescription:
        """From what a learner knows."""
        return cls(
            spec.name,
            spec.observation_size,
            spec.cost_names,
            spec.episode_length,
            spec.largest_costs,
            spec.limits,
            problem,
            backend,
            spec.observations,
            source,
            tuple(metrics),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "observation_size": self.observation_size,
            "cost_names": list(self.cost_names),
            "episode_length": self.episode_length,
            "largest_costs": [or_none(cost) for cost in self.largest_costs],
            "limits": None if self.limits is None else list(self.limits),
            "problem": None if self.problem is None else dict(self.problem),
            "backend": self.backend,
            "observations": None if self.observations is None else self.observations.to_json(),
            "source": None if self.source is None else dict(self.source),
            "metrics": list(self.metrics),
        }

    @classmethod
    def from_json(cls, fields: Fields) -> TaskDescription:
        observations = fields.optional("observations", fields.objects)
        described = None if observations is None else _read_observations(observations)
        if described is not None and described.size != fields.whole("observation_size", 1):
            raise InputError(f"{fields.place}.observations make {described.size} numbers, not observation_size")
        return cls(
            name=fields.text("name"),
            observation_size=fields.whole("observation_size", 1),
            cost_names=fields.texts("cost_names"),
            episode_length=fields.optional("episode_length", lambda key: fields.whole(key, 1)),
            largest_costs=fields.numbers("largest_costs", or_inf=True),
            limits=fields.optional("limits", fields.numbers),
            problem=fields.optional("problem", lambda key: fields.object(key).data),
            backend=fields.optional("backend", fields.text),
            observations=described,
            source=fields.optional("source", lambda key: fields.object(key).data),
            metrics=fields.optional("metrics", fields.texts) or (),
        )


def read_actions(fields: Fields) -> ActionDescription:
    """`ActionDescription` from JSON; files of earlier versions have no shapes, types or combinations."""
    kind = fields.choice("kind", ("box", "discrete"))
    size = fields.whole("size", 1)
    shape = fields.optional("shape", fields.wholes)
    dtype = fields.choice("dtype", _DTYPES) if "dtype" in fields.data else "float32"
    if kind == "discrete":
        counts = fields.optional("counts", lambda key: fields.wholes(key, least=1))
        starts = fields.wholes("starts", len(counts), -math.inf) if counts is not None else ()
        if counts is not None and (math.prod(counts) != size or math.prod(shape or ()) != len(counts)):
            raise InputError(f"{fields.place}.counts does not make {size} actions of its shape")
        start = fields.optional("start", lambda key: fields.integer(key)) or 0
        return ActionDescription("discrete", size, None, None, start, shape, dtype, counts, starts)
    low, high = fields.numbers("low", size), fields.numbers("high", size)
    if not all(a <= b for a, b in zip(low, high, strict=True)):
        raise InputError(f"{fields.place}.high: no bound may be below its lower bound")
    if shape is not None and math.prod(shape) != size:
        raise InputError(f"{fields.place}.shape does not hold {size} numbers")
    return ActionDescription("box", size, low, high, shape=shape, dtype=dtype)


def _read_observations(fields: Sequence[Fields]) -> ObservationSpace:
    """`ObservationSpace` from JSON."""
    parts = []
    for each in fields:
        path = each.get("path")
        if not (isinstance(path, list) and all(isinstance(k, str) or type(k) is int for k in path)):
            raise InputError(f"{each.place}.path must be a list of keys and places")
        shape = each.wholes("shape")
        counts = each.optional("counts", partial(each.wholes, least=1))
        if counts is not None and len(counts) != math.prod(shape):
            raise InputError(f"{each.place}.counts has {len(counts)} entries for an array of shape {shape}")
        parts.append(ObservationPart(tuple(path), shape, counts, each.wholes("starts", len(counts or ()), -math.inf)))
    return ObservationSpace(tuple(parts))


def or_none(value: float) -> float | None:
    """JSON has no infinity."""
    return value if math.isfinite(value) else None
