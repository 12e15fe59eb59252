"""What a run is: task, constraints, and every choice behind it, checked before any work begins."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from tailsafe.algorithms.registry import DEFAULT_ALGORITHM, check_algorithm
from tailsafe.envs.finding import Source
from tailsafe.envs.metrics import parse_metrics
from tailsafe.errors import InputError
from tailsafe.risk import SpectralRisk, parse_spectrum
from tailsafe.training.former import of_this_version
from tailsafe.training.settings import PRESETS, parsed

Unit = Literal["step", "discounted", "episode"]
# One limit, or the lowest and the highest of a range.
Limit = float | tuple[float, float]
UNITS: tuple[Unit, ...] = ("step", "discounted", "episode")
BACKENDS = ("auto", "mujoco", "warp", "mjx")
DEFAULT_RISK = "cvar:0.75"
DEFAULT_LOG = ("tensorboard",)
FORMAT = 1
_LARGEST_SEED = 2**31 - 1
# Of one run: each has a folder, and most train in one program.
_MOST_SEEDS = 10_000


@dataclass(frozen=True)
class Constraint:
    """The risk of one cost stays under a limit.

    Args:
      name: of the cost, as the task calls it.
      spectrum: the risk measure, or its text (`cvar:0.75`).
      limit: in the unit. Or a range, (lowest, highest): one policy is then trained for all of it, and asked for a limit
        when it is used.
      unit: `step` (a rate: the discounted sum is limit / (1 - gamma)), `discounted` (the discounted sum itself) or
        `episode` (a sum over an episode of the task's full length, spread evenly). All three limit the discounted sum,
        to which late steps of long episodes hardly contribute. None: `discounted` for task `finite`, as on the command
        line; other tasks need one.

    Examples:
      >>> ts.Constraint("collision", "cvar:0.75", limit=0.025, unit="step").spectrum
      CVaR(level=0.75)
    """

    name: str
    spectrum: SpectralRisk
    limit: Limit
    unit: Unit | None = None

    def __post_init__(self) -> None:
        if isinstance(self.spectrum, str):
            object.__setattr__(self, "spectrum", parse_spectrum(self.spectrum))
        if not isinstance(self.spectrum, SpectralRisk):
            raise InputError(f"constraint {self.name!r}: {self.spectrum!r} is not a risk measure; try ts.CVaR(0.75)")
        object.__setattr__(self, "limit", _checked_limit(f"constraint {self.name!r}: limit is", self.limit))
        if self.unit not in (None, *UNITS):
            raise InputError(f"constraint {self.name!r}: unit is {self.unit!r}; it must be one of {', '.join(UNITS)}")

    @property
    def ranged(self) -> bool:
        """Whether the limit is a range."""
        return isinstance(self.limit, tuple)

    @property
    def lowest(self) -> float:
        """Where the range begins; the limit itself where it is one number."""
        return self.limit[0] if isinstance(self.limit, tuple) else self.limit

    @property
    def highest(self) -> float:
        """Where the range ends; the limit itself where it is one number."""
        return self.limit[1] if isinstance(self.limit, tuple) else self.limit

    @property
    def limit_text(self) -> str:
        """As `parse_limit` reads it, without the unit."""
        return f"{self.lowest!r}..{self.highest!r}" if self.ranged else f"{self.lowest!r}"

    def to_json(self) -> dict[str, Any]:
        """Plain values, from which `from_json` makes an equal constraint."""
        limit = list(self.limit) if isinstance(self.limit, tuple) else self.limit
        return {"name": self.name, "risk_measure": self.spectrum.spec, "limit": limit, "unit": self.unit}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Constraint:
        """What `to_json` wrote."""
        return Constraint(data["name"], parse_spectrum(data["risk_measure"]), data["limit"], data["unit"])


@dataclass(frozen=True)
class TrainConfig:
    """A run, or several that differ in their seeds alone.

    Args:
      task: a task's name, a Gymnasium id, MODULE:CLASS, an environment or what builds one.
      algorithm: `srcpo` or a baseline.
      constraints: one per cost; none: the paper's CVaR 0.75 at the task's own limits.
      total_steps: control steps over all environments; None: the preset's.
      seed: the first one.
      seeds: how many runs, with seeds seed, seed + 1, ...
      preset: `laptop`, `paper` or `gpu`; None: `gpu` where JAX sees one, else `laptop`.
      backend: engine of the built-in tasks.
      out: the run's folder; None: runs/TASK-ALGORITHM-TIME.
      settings: overrides of single values, see `tailsafe settings`.
      env_args: arguments of the constructor or function of an environment of your own.
      metrics: numbers of its `info` to follow, as `success` or `max:speed`.
      start: a run or policy to start from instead of a random one, see `tailsafe.training.start`; risks, limits and
        shapes of networks that nobody gives are then its own.
      log: where rows go beside metrics.csv: `tensorboard`, `wandb`, `mlflow`; `csv` alone is metrics.csv only.

    Examples:
      >>> config = ts.TrainConfig("point-goal", seeds=3, settings={"max_kl": "0.005"})
      >>> config.settings["max_kl"]
      0.005
    """

    task: Any
    algorithm: str = DEFAULT_ALGORITHM
    constraints: Sequence[Constraint] = ()
    total_steps: int | None = None
    seed: int = 0
    seeds: int = 1
    preset: str | None = None
    backend: str = "auto"
    out: str | Path | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    env_args: Mapping[str, Any] = field(default_factory=dict)
    metrics: Sequence[str] = ()
    start: str | Path | None = None
    log: Sequence[str] = DEFAULT_LOG

    def __post_init__(self) -> None:
        check_algorithm(self.algorithm)
        if self.backend not in BACKENDS:
            raise InputError(f"unknown backend {self.backend!r}; there are: {', '.join(BACKENDS)}")
        if self.preset is not None and self.preset not in PRESETS:
            raise InputError(f"unknown preset {self.preset!r}; there are: {', '.join(PRESETS)}")
        ranges = (("seed", self.seed, 0, _LARGEST_SEED), ("seeds", self.seeds, 1, _MOST_SEEDS))
        for name, value, low, high in ranges:
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise InputError(f"{name} is {value!r}; it must be a whole number from {low} to {high}")
        if self.seed + self.seeds - 1 > _LARGEST_SEED:
            raise InputError(f"the last seed would be {self.seed + self.seeds - 1}; the largest is {_LARGEST_SEED}")
        if not all(isinstance(constraint, Constraint) for constraint in self.constraints):
            raise InputError("constraints must be ts.Constraint(name, spectrum, limit, unit)")
        object.__setattr__(self, "constraints", tuple(self.constraints))
        object.__setattr__(self, "metrics", tuple(metric.text for metric in parse_metrics(self.metrics)))
        if isinstance(self.log, str):
            raise InputError(f"log is {self.log!r}; it must be a list, as in [{self.log!r}]")
        object.__setattr__(self, "log", tuple(self.log))
        settings = {key: parsed(key, value, self.algorithm) for key, value in self.settings.items()}
        if self.total_steps is not None:
            settings["total_steps"] = parsed("total_steps", self.total_steps, self.algorithm)
        object.__setattr__(self, "settings", settings)

    @property
    def folder(self) -> Path:
        """Where the run is to be, for those that must know before it begins."""
        if self.out is None:
            raise InputError("this run needs a folder: out=...")
        return Path(self.out)

    def for_seed(self, seed: int) -> TrainConfig:
        """The same run with one seed."""
        return replace(self, seed=seed, seeds=1)

    def to_json(self) -> dict[str, Any]:
        """Plain values. A task that has no name becomes None; a user's environment also says how it is built."""
        source = self.task if isinstance(self.task, Source) else None
        return {
            "format": FORMAT,
            "task": source.reference if source is not None else self.task if isinstance(self.task, str) else None,
            "source": None if source is None else source.to_json(),
            "metrics": list(self.metrics),
            "algorithm": self.algorithm,
            "constraints": [constraint.to_json() for constraint in self.constraints],
            "total_steps": self.settings.get("total_steps"),
            "seed": self.seed,
            "seeds": self.seeds,
            "preset": self.preset,
            "backend": self.backend,
            "settings": {key: plain(value) for key, value in self.settings.items()},
            **({} if self.start is None else {"start": str(self.start)}),
            **({} if tuple(self.log) == DEFAULT_LOG else {"log": list(self.log)}),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> TrainConfig:
        """What `to_json` wrote."""
        if data.get("format") != FORMAT:
            raise InputError(f"the configuration has format {data.get('format')!r}; this version reads {FORMAT}")
        source = data.get("source")
        if source is None and isinstance(data["task"], str) and ":" in data["task"]:
            # A name in a file is not one that the user typed: nothing beside the user is imported for it.
            source = Source(data["task"]).to_json()
        return TrainConfig(
            task=data["task"] if source is None else Source.from_json(source),
            algorithm=data["algorithm"],
            constraints=[Constraint.from_json(constraint) for constraint in data["constraints"]],
            total_steps=data["total_steps"],
            seed=data["seed"],
            seeds=data["seeds"],
            preset=data["preset"],
            backend=data["backend"],
            settings=of_this_version(data["settings"]),
            metrics=data.get("metrics") or (),
            start=data.get("start"),
            log=data.get("log", DEFAULT_LOG),
        )


def plain(value: Any) -> Any:
    """JSON knows no infinity and no tuple; `parsed` reads both back."""
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if isinstance(value, tuple):
        return list(value)
    return value.to_dict() if hasattr(value, "to_dict") else value


def _checked_limit(what: str, limit: Any) -> Limit:
    """One number that is finite and not negative, or two of which the second is larger; `what` begins a complaint."""
    if isinstance(limit, list | tuple):
        numbers = [x for x in limit if isinstance(x, int | float) and not isinstance(x, bool)]
        if len(limit) != 2 or len(numbers) != 2 or not 0 < numbers[0] < numbers[1] < math.inf:
            raise InputError(f"{what} {limit!r}; a range needs two numbers, 0 < lowest < highest")
        return float(numbers[0]), float(numbers[1])
    if isinstance(limit, bool) or not isinstance(limit, int | float) or not 0 <= limit < math.inf:
        raise InputError(f"{what} {limit!r}; it must be finite and not negative")
    return float(limit)


def parse_limit(text: str, default_unit: Unit | None = None) -> tuple[float, Unit]:
    """`0.025/step`, `2.5/discounted` or `25/episode` -> number and unit; a bare number only with a default unit."""
    value, unit = parse_limits(text, default_unit)
    if isinstance(value, tuple):
        raise InputError(f"limit {text!r}: is a range; here a single limit is needed")
    return value, unit


def parse_limits(text: str, default_unit: Unit | None = None) -> tuple[Limit, Unit]:
    """As `parse_limit`; or a range, `0.01..0.05/step`, as its two numbers."""
    number, slash, unit = text.strip().partition("/")
    written = "as in 0.025/step, 2.5/discounted or 25/episode"
    low, dots, high = number.partition("..")
    found = []
    for part in (low, high) if dots else (number,):
        try:
            found.append(float(part))
        except ValueError:
            raise InputError(f"limit {text!r}: {part!r} is not a number; write it {written}") from None
    if not dots and not 0 <= found[0] < math.inf:
        raise InputError(f"limit {text!r}: must be finite and not negative")
    value = _checked_limit(f"limit {text!r}: is", tuple(found)) if dots else found[0]
    if not slash and default_unit is not None:
        unit = default_unit
    if unit not in UNITS:
        raise InputError(f"limit {text!r}: say in which unit, {written}")
    return value, unit


def parse_settings(texts: Sequence[str], algorithm: str = DEFAULT_ALGORITHM) -> dict[str, Any]:
    """`KEY=VALUE` of the command line -> checked values."""
    check_algorithm(algorithm)
    settings: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"--set {text!r}: write KEY=VALUE, as in max_kl=0.001")
        settings[key.strip()] = parsed(key.strip(), value.strip(), algorithm)
    return settings


def make_constraints(
    names: Sequence[str],
    risks: Sequence[str | SpectralRisk],
    limits: Sequence[tuple[Limit, Unit]],
    own_limits: Sequence[float] | None,
) -> tuple[Constraint, ...]:
    """One constraint per cost: measures and limits in the order of the costs, one for all, or the defaults."""
    measures = _for_all("risk measures", risks or [DEFAULT_RISK], names)
    if limits:
        chosen = _for_all("limits", limits, names)
    elif own_limits is not None:
        chosen = [(limit, "step") for limit in own_limits]
    else:
        raise InputError(f"this task has no limits of its own; give one for each cost ({', '.join(names)}): --limit")
    rows = zip(names, measures, chosen, strict=True)
    return tuple(Constraint(name, measure, limit, unit) for name, measure, (limit, unit) in rows)


def _for_all(what: str, values: Sequence[Any], names: Sequence[str]) -> list[Any]:
    if len(values) == 1:
        return list(values) * len(names)
    if len(values) != len(names):
        raise InputError(f"{len(values)} {what} for {len(names)} costs ({', '.join(names)})")
    return list(values)
