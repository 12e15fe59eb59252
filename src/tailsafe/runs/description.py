"""What a saved policy says about itself: `policy.json` as frozen dataclasses, checked field by field when read."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast, get_args

from tailsafe._version import __version__
from tailsafe.errors import InputError
from tailsafe.learning.actions import Actions, BoxActions, DiscreteActions
from tailsafe.learning.constraints import Constraints, stack_constraints
from tailsafe.learning.environments import EnvironmentSpec
from tailsafe.risk import SpectralRisk, StepSpectrum, parse_spectrum

FORMAT = 1
# The algorithm whose policies are conditioned on dual variables.
CONDITIONED = "srcpo"
Unit = Literal["step", "discounted", "episode"]
T = TypeVar("T")


@dataclass(frozen=True)
class TaskDescription:
    """The environments a policy was trained in; fields as in `EnvironmentSpec`.

    largest_costs: inf where unknown. problem: the PROBLEM.json object of task `finite`. backend: the engine, if any.
    """

    name: str
    observation_size: int
    cost_names: tuple[str, ...]
    episode_length: int | None
    largest_costs: tuple[float, ...]
    limits: tuple[float, ...] | None = None
    problem: Mapping[str, Any] | None = None
    backend: str | None = None

    @classmethod
    def of(
        cls, spec: EnvironmentSpec, problem: Mapping[str, Any] | None = None, backend: str | None = None
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
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "observation_size": self.observation_size,
            "cost_names": list(self.cost_names),
            "episode_length": self.episode_length,
            "largest_costs": [_or_none(cost) for cost in self.largest_costs],
            "limits": None if self.limits is None else list(self.limits),
            "problem": None if self.problem is None else dict(self.problem),
            "backend": self.backend,
        }

    @classmethod
    def from_json(cls, fields: Fields) -> TaskDescription:
        return cls(
            name=fields.text("name"),
            observation_size=fields.whole("observation_size", 1),
            cost_names=fields.texts("cost_names"),
            episode_length=fields.optional("episode_length", lambda key: fields.whole(key, 1)),
            largest_costs=fields.numbers("largest_costs", or_inf=True),
            limits=fields.optional("limits", fields.numbers),
            problem=fields.optional("problem", lambda key: fields.object(key).data),
            backend=fields.optional("backend", fields.text),
        )


@dataclass(frozen=True)
class ActionDescription:
    """`box`: `size` numbers in [low, high]. `discrete`: one of `size` actions, counted from `start`; no bounds."""

    kind: Literal["box", "discrete"]
    size: int
    low: tuple[float, ...] | None = None
    high: tuple[float, ...] | None = None
    start: int = 0

    @classmethod
    def of(
        cls,
        actions: Actions,
        low: Sequence[float] | None = None,
        high: Sequence[float] | None = None,
        start: int = 0,
    ) -> ActionDescription:
        """From a learner's actions and the environment's own bounds (default: [-1, 1]) or first action."""
        if isinstance(actions, DiscreteActions):
            return cls("discrete", actions.size, start=start)
        ones = (1.0,) * actions.size
        low = tuple(-x for x in ones) if low is None else tuple(float(x) for x in low)
        return cls("box", actions.size, low, ones if high is None else tuple(float(x) for x in high))

    def build(self) -> BoxActions | DiscreteActions:
        """What the networks work with."""
        return DiscreteActions(self.size) if self.kind == "discrete" else BoxActions(self.size)

    def to_json(self) -> dict[str, Any]:
        bounds = [None if bound is None else list(bound) for bound in (self.low, self.high)]
        return {"kind": self.kind, "size": self.size, "low": bounds[0], "high": bounds[1], "start": self.start}

    @classmethod
    def from_json(cls, fields: Fields) -> ActionDescription:
        kind = fields.choice("kind", ("box", "discrete"))
        size = fields.whole("size", 1)
        if kind == "discrete":
            # Policies written before there was such an entry count from 0.
            return cls("discrete", size, start=fields.optional("start", lambda key: fields.integer(key)) or 0)
        low, high = fields.numbers("low", size), fields.numbers("high", size)
        if not all(a < b for a, b in zip(low, high, strict=True)):
            raise InputError(f"{fields.place}.high: every bound must be above its lower bound")
        return cls("box", size, low, high)


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
class ConstraintDescription:
    """One constraint: the measure as given, its limit in the unit as given, and what the learner made of them.

    risk_measure: SPEC. discounted_limit: on the discounted cost sum. eta (M,), alpha (M-1,): the step spectrum.
    """

    name: str
    risk_measure: str
    limit: float
    unit: Unit
    discounted_limit: float
    eta: tuple[float, ...]
    alpha: tuple[float, ...]

    @property
    def measure(self) -> SpectralRisk:
        """The measure as given."""
        return parse_spectrum(self.risk_measure)

    @property
    def steps(self) -> StepSpectrum:
        """The step spectrum that stands for it."""
        return StepSpectrum.normalized(self.eta, self.alpha)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "risk_measure": self.risk_measure,
            "limit": self.limit,
            "unit": self.unit,
            "discounted_limit": self.discounted_limit,
            "eta": list(self.eta),
            "alpha": list(self.alpha),
        }

    @classmethod
    def from_json(cls, fields: Fields) -> ConstraintDescription:
        described = cls(
            name=fields.text("name"),
            risk_measure=fields.text("risk_measure"),
            limit=fields.number("limit"),
            unit=cast(Unit, fields.choice("unit", get_args(Unit))),
            discounted_limit=fields.number("discounted_limit"),
            eta=fields.numbers("eta"),
            alpha=fields.numbers("alpha"),
        )
        try:
            _ = described.measure, described.steps
        except InputError as error:
            raise InputError(f"{fields.place}: {error}") from None
        return described


@dataclass(frozen=True)
class PolicyDescription:
    """All of policy.json but the sampler's mode, which belongs to the tensors. One constraint per cost, in order.

    largest_return: the largest discounted sum of each cost, inf where unknown. least_cells: see
    `stack_constraints`. steps: environment steps of training.
    """

    task: TaskDescription
    actions: ActionDescription
    network: NetworkDescription
    gamma: float
    constraints: tuple[ConstraintDescription, ...]
    largest_return: tuple[float, ...]
    least_cells: int = 2
    algorithm: str = "srcpo"
    steps: int = 0
    version: str = __version__

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
    def num_betas(self) -> int:
        """How many dual variables the policy sees: those of all constraints, or none."""
        return self.arrays().num_betas if self.algorithm == CONDITIONED else 0

    def arrays(self) -> Constraints:
        """The constraints as the learner had them."""
        return stack_constraints(
            [constraint.steps for constraint in self.constraints],
            [constraint.discounted_limit for constraint in self.constraints],
            self.largest_return,
            self.least_cells,
        )

    def unit_factor(self, constraint: ConstraintDescription) -> float:
        """What a risk of the discounted sum is multiplied with to be in the unit of the limit.

        The inverse of what training did with the limit: per step (1 - gamma), or one over the discounted number of
        steps of a finite problem; per episode, that times the length of an episode.
        """
        if constraint.limit > 0 and constraint.discounted_limit > 0:
            return constraint.limit / constraint.discounted_limit
        if constraint.unit == "discounted":
            return 1.0
        # A limit of zero says nothing about the conversion.
        finite = self.task.problem is not None or self.gamma == 1
        steps = 1 if constraint.unit == "step" else self.task.episode_length or 1
        return steps / discounted_length(self.gamma, self.task.episode_length if finite else None)

    def to_json(self, delta: Sequence[float]) -> dict[str, Any]:
        """policy.json, with the sampler's mode `delta` for people to read."""
        return {
            "format": FORMAT,
            "task": self.task.to_json(),
            "actions": self.actions.to_json(),
            "network": self.network.to_json(),
            "delta": [float(x) for x in delta],
            "gamma": self.gamma,
            "constraints": [constraint.to_json() for constraint in self.constraints],
            "largest_return": [_or_none(largest) for largest in self.largest_return],
            "least_cells": self.least_cells,
            "algorithm": self.algorithm,
            "steps": self.steps,
            "version": self.version,
        }

    @classmethod
    def from_json(cls, data: Any) -> PolicyDescription:
        """Read policy.json's object, or one `InputError` that names the place."""
        fields = Fields(data, "policy")
        if (found := fields.get("format")) != FORMAT:
            raise InputError(f"format is {found!r}; this version of tailsafe reads format {FORMAT}")
        return cls(
            task=TaskDescription.from_json(fields.object("task")),
            actions=ActionDescription.from_json(fields.object("actions")),
            network=NetworkDescription.from_json(fields.object("network")),
            gamma=fields.number("gamma"),
            constraints=tuple(ConstraintDescription.from_json(entry) for entry in fields.objects("constraints")),
            largest_return=fields.numbers("largest_return", or_inf=True),
            # Policies of earlier versions have none.
            least_cells=fields.whole("least_cells", 2) if "least_cells" in fields.data else 2,
            algorithm=fields.text("algorithm"),
            steps=fields.whole("steps", 0),
            version=fields.text("version"),
        )


def discounted_length(gamma: float, steps: int | None) -> float:
    """The discounted sum of ones over `steps` steps, or over endless ones."""
    if steps is None:
        return 1 / (1 - gamma) if gamma < 1 else math.inf
    return float(steps) if gamma == 1 else (1 - gamma**steps) / (1 - gamma)


class Fields:
    """A JSON object whose entries are asked for by type; every complaint names the place. place: where it stands."""

    def __init__(self, data: Any, place: str) -> None:
        if not isinstance(data, dict):
            raise InputError(f"{place} must be an object, is {type(data).__name__}")
        self.data: dict[str, Any] = data
        self.place = place

    def get(self, key: str) -> Any:
        if key not in self.data:
            raise InputError(f"{self.place} lacks {key!r}")
        return self.data[key]

    def optional(self, key: str, read: Callable[[str], T]) -> T | None:
        return None if self.data.get(key) is None else read(key)

    def text(self, key: str) -> str:
        return cast(str, self._require(key, isinstance(self.get(key), str), "a text"))

    def flag(self, key: str) -> bool:
        return cast(bool, self._require(key, isinstance(self.get(key), bool), "true or false"))

    def choice(self, key: str, allowed: Sequence[str]) -> str:
        return cast(str, self._require(key, self.get(key) in allowed, "one of " + ", ".join(allowed)))

    def number(self, key: str) -> float:
        return float(self._require(key, _is_number(self.get(key)), "a finite number"))

    def whole(self, key: str, least: int) -> int:
        value = self.get(key)
        good = isinstance(value, int) and not isinstance(value, bool) and value >= least
        return int(self._require(key, good, f"a whole number, at least {least}"))

    def integer(self, key: str) -> int:
        value = self.get(key)
        good = isinstance(value, int) and not isinstance(value, bool)
        return int(self._require(key, good, "a whole number"))

    def numbers(self, key: str, count: int | None = None, *, or_inf: bool = False) -> tuple[float, ...]:
        """A list of numbers; with `or_inf`, null stands for infinity."""
        values = self.get(key)
        good = isinstance(values, list) and all(_is_number(x) or (or_inf and x is None) for x in values)
        self._require(key, good and count in (None, len(values)), f"a list of {count or ''} finite numbers")
        return tuple(math.inf if x is None else float(x) for x in values)

    def texts(self, key: str) -> tuple[str, ...]:
        values = self.get(key)
        good = isinstance(values, list) and all(isinstance(x, str) for x in values)
        return tuple(self._require(key, good, "a list of texts"))

    def object(self, key: str) -> Fields:
        return Fields(self.get(key), f"{self.place}.{key}")

    def objects(self, key: str) -> list[Fields]:
        values = self._require(key, isinstance(self.get(key), list), "a list")
        return [Fields(value, f"{self.place}.{key}[{i}]") for i, value in enumerate(values)]

    def _require(self, key: str, good: bool, wanted: str) -> Any:
        value = self.get(key)
        if not good:
            shown = repr(value) if len(repr(value)) < 60 else type(value).__name__
            raise InputError(f"{self.place}.{key} must be {' '.join(wanted.split())}, is {shown}")
        return value


def _is_number(value: Any) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer that no float holds
        return False


def _or_none(value: float) -> float | None:
    """JSON has no infinity."""
    return value if math.isfinite(value) else None
