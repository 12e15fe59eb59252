"""From a configuration to everything a run needs: environments, constraints as arrays, the algorithm."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from tailsafe.algorithms.learner import Learner
from tailsafe.algorithms.registry import ALGORITHMS, algorithm_of
from tailsafe.algorithms.state import LearnerSettings
from tailsafe.envs.finding import Source
from tailsafe.envs.metrics import parse_metrics
from tailsafe.envs.training import FINITE, is_jax, resolve
from tailsafe.errors import InputError
from tailsafe.fields import settings_of
from tailsafe.learning.actions import DiscreteActions
from tailsafe.learning.constraints import Constraints, stack_constraints
from tailsafe.learning.interface import EnvironmentSpec, HostEnvironments, JaxEnvironments
from tailsafe.policies.described_constraint import discounted_length
from tailsafe.risk import SpectralRisk, StepSpectrum, parse_spectrum
from tailsafe.tabular.problem import FiniteCMDP
from tailsafe.training.config import UNITS, Constraint, Limit, TrainConfig, Unit, make_constraints
from tailsafe.training.logs import LoggedCost
from tailsafe.training.settings import resolved_values
from tailsafe.training.sizes import check_state, check_values

# Where nobody says how much a step can cost, cost critics are cut at this many times the limit.
_MANY_LIMITS = 1000.0
# Of the lowest limit of a range, where requests are answered by episodes.
_BELOW = 0.05


@dataclass(frozen=True)
class Plan:
    """A run that is ready to begin.

    config: with every choice made: name, preset, engine, constraints, all settings. values: those settings by name.
    saved: whether another process can find the task by `config.task`. problem: of the task finite. discounted_limits,
    spectra (C,): limits on the discounted cost sums (of a range the highest), and the step spectra learned with.
    lowest_limits (C,): of a range on the discounted sums, None without one.
    """

    config: TrainConfig
    values: Mapping[str, Any]
    family: str
    text: str
    saved: bool
    problem: FiniteCMDP | None
    environments: JaxEnvironments | HostEnvironments
    constraints: tuple[Constraint, ...]
    discounted_limits: tuple[float, ...]
    lowest_limits: tuple[float, ...] | None
    spectra: tuple[StepSpectrum, ...]
    settings: LearnerSettings
    algorithm: Learner[Any]

    @property
    def spec(self) -> EnvironmentSpec:
        """What the learner knows of the task."""
        return self.environments.spec

    @property
    def source(self) -> Source | None:
        """How a user's environment is built again; None for built-in tasks and for objects without a name."""
        return self.config.task if isinstance(self.config.task, Source) else None

    @property
    def on_device(self) -> bool:
        """Whether the environments live inside JAX."""
        return is_jax(self.environments)

    @property
    def logged_costs(self) -> tuple[LoggedCost, ...]:
        """How rows of the log speak of each cost: in the unit of its limit."""
        scale = _rate_scale(self.values["gamma"], self.problem)
        steps = {"discounted": scale, "step": 1, "episode": self.spec.episode_length or 1}
        rows = zip(self.constraints, self.discounted_limits, self.spectra, strict=True)
        return tuple(
            LoggedCost(
                constraint,
                constraint.highest / limit if limit > 0 else steps[constraint.unit or "discounted"] / scale,
                spectrum.cells - 1,
            )
            for constraint, limit, spectrum in rows
        )

    @property
    def below(self) -> float:
        """How far training goes below the lowest limits of a range, as a share of them."""
        return _below(self.values)

    @property
    def steps_per_update(self) -> int:
        """Control steps, over all environments, between two updates."""
        return int(self.algorithm.config.num_envs * self.algorithm.config.chunk_steps)

    @property
    def total_updates(self) -> int:
        """Updates until `total_steps` are reached."""
        return math.ceil(int(self.values["total_steps"]) / self.steps_per_update)

    @property
    def total_steps(self) -> int:
        """Those of all updates: what was asked for, rounded up."""
        return self.total_updates * self.steps_per_update

    @property
    def checkpoint_updates(self) -> int:
        """Updates between two checkpoints."""
        every = self.values["checkpoint_every"] or self.values["total_steps"] / 20
        return max(1, round(float(every) / self.steps_per_update))

    @property
    def validation_updates(self) -> int:
        """Updates between two validations; 0: there are none."""
        return math.ceil(int(self.values["validation_every"]) / self.steps_per_update)

    def extended(self, steps: int) -> Plan:
        """The same run, so many steps longer."""
        total = self.total_steps + steps
        return replace(
            self, config=replace(self.config, total_steps=total), values={**self.values, "total_steps": total}
        )


def make_plan(
    config: TrainConfig,
    risks: Sequence[str | SpectralRisk] = (),
    limits: Sequence[tuple[Limit, Unit]] = (),
    before: Sequence[Constraint] = (),
) -> Plan:
    """Check everything, make every choice.

    risks, limits: constraints by the order of the costs, if not in `config`. before: constraints of the run that this
    one starts from; if they are on the same costs, what is missing is taken from them.
    """
    problem = _problem(config)
    found = resolve(config.task, config.backend, problem, config.env_args)
    preset = config.preset or ("laptop" if jax.default_backend() == "cpu" else "gpu")
    values = resolved_values(preset, found.family, config.settings, config.algorithm)
    if problem is not None:
        if config.settings.get("gamma", problem.discount) != problem.discount:
            raise InputError(f"gamma of the task finite is its problem's discount, {problem.discount:g}")
        values |= {"gamma": problem.discount, "problem": problem}
        if values.get("beta_per", "chunk") == "chunk":
            # Whole episodes in every chunk: a beta per chunk is then a beta per episode, and none is learned from half.
            values["chunk_steps"] = math.ceil(values["chunk_steps"] / problem.horizon) * problem.horizon
    elif values["request_episodes"]:
        raise InputError(
            f"request_episodes must be 0 for {found.text}: only episodes of finite problems are that cheap"
        )
    check_values(values)
    # Episodes can be cut where worlds stand still, which those of users and finite problems do not.
    options = {"cut_halted": values["cut_halted"]} if found.family in ("navigation", "legged") else {}
    if found.family == "user":
        if values["validation_every"]:
            raise InputError(f"validation_every must be 0 for environments of your own, such as {found.text}")
        options = {"workers": values["env_workers"], "metrics": parse_metrics(config.metrics)}
    elif values["env_workers"] > 1 or config.metrics:
        name = "env_workers is" if values["env_workers"] > 1 else "metrics are"
        raise InputError(f"{name} for Gymnasium environments of your own; {found.text} is built in")
    environments = found.make(values["num_envs"], **options)
    if tuple(one.name for one in before) == tuple(environments.spec.cost_names):
        risks = risks or [one.spectrum for one in before]
        limits = limits or [(one.limit, one.unit) for one in before if one.unit is not None]
    constraints = _constraints(config, environments.spec, risks, limits)
    scale = _rate_scale(values["gamma"], problem)
    discounted = tuple(_discounted(one, one.highest, environments.spec, scale) for one in constraints)
    lowest = tuple(_discounted(one, one.lowest, environments.spec, scale) for one in constraints)
    ranged = lowest != discounted
    if ranged:
        _check_ranged(config, values)
        values["validation_every"] = 0  # it plays at one limit
    spectra = tuple(constraint.spectrum.discretize(values["cells"]) for constraint in constraints)
    parts = algorithm_of(config.algorithm)
    static = parts.config(**{f.name: values[f.name] for f in dataclasses.fields(parts.config)})
    objection = parts.learner.objection(static, [constraint.spectrum for constraint in constraints])
    if objection is not None:
        raise InputError(objection)
    spec = environments.spec
    if static.fixed_log_std is not None and isinstance(spec.actions, DiscreteActions):
        raise InputError(f"fixed_log_std is for actions in a box; those of {spec.name} are discrete")
    algorithm = parts.learner(static, spec.observation_size, spec.actions, len(constraints))
    limited = _constraint_arrays(values, spec, spectra, discounted, lowest if ranged else None, scale)
    settings = _settings(parts.settings, values, spec, limited, scale, problem)
    check_state(algorithm, settings, config.seeds if is_jax(environments) else 1)
    # gamma of a finite problem may be 1, which no setting may be; it is in the problem.
    kept = {key: value for key, value in values.items() if problem is None or key != "gamma"}
    resolved = replace(
        config,
        task=found.reference if found.reference is not None else config.task,
        preset=preset,
        backend=found.backend,
        constraints=constraints,
        total_steps=values["total_steps"],
        settings=kept,
        env_args={},
    )
    return Plan(
        config=resolved,
        values=values,
        family=found.family,
        text=found.text,
        saved=found.reference is not None,
        problem=problem,
        environments=environments,
        constraints=constraints,
        discounted_limits=discounted,
        lowest_limits=lowest if ranged else None,
        spectra=spectra,
        settings=settings,
        algorithm=algorithm,
    )


def _problem(config: TrainConfig) -> FiniteCMDP | None:
    problem = config.settings.get("problem")
    if problem is None or isinstance(problem, FiniteCMDP):
        return problem
    if isinstance(problem, Mapping):
        return FiniteCMDP.from_dict(problem)
    return FiniteCMDP.load(problem)


def _constraints(
    config: TrainConfig, spec: EnvironmentSpec, risks: Sequence[Any], limits: Sequence[tuple[Limit, Unit]]
) -> tuple[Constraint, ...]:
    """One constraint per cost of the task, in its order."""
    if not config.constraints:
        return make_constraints(spec.cost_names, risks, limits, spec.limits)
    given = {constraint.name: constraint for constraint in config.constraints}
    if sorted(given) != sorted(spec.cost_names) or len(given) != len(config.constraints):
        names = ", ".join(constraint.name for constraint in config.constraints)
        raise InputError(
            f"constraints are for {names}; {spec.name} needs one for each of its costs: {', '.join(spec.cost_names)}"
        )
    unit = default_unit(config.task)
    return tuple(_portable(_with_unit(given[name], unit), config.settings) for name in spec.cost_names)


def _with_unit(constraint: Constraint, default: Unit | None) -> Constraint:
    if constraint.unit is not None:
        return constraint
    if default is None:
        raise InputError(f"constraint {constraint.name!r}: say in which unit its limit is: unit={' or '.join(UNITS)}")
    return replace(constraint, unit=default)


def _portable(constraint: Constraint, settings: Mapping[str, Any]) -> Constraint:
    """A measure without a text form (a user's function) as the steps it is learned with: a run must be resumable."""
    try:
        parse_spectrum(constraint.spectrum.spec)
    except InputError:
        steps = constraint.spectrum.discretize(settings.get("cells", 5))
        return replace(constraint, spectrum=parse_spectrum(steps.spec))
    return constraint


def _rate_scale(gamma: float, problem: FiniteCMDP | None) -> float:
    """The discounted sum of a cost of one per step: 1 / (1 - gamma); of a finite problem's whole horizon exactly."""
    return 1 / (1 - gamma) if problem is None else discounted_length(gamma, problem.horizon)


def _discounted(constraint: Constraint, limit: float, spec: EnvironmentSpec, scale: float) -> float:
    """A limit in the constraint's unit, on the discounted cost sum."""
    if constraint.unit == "discounted":
        return limit
    if constraint.unit == "step":
        return limit * scale
    if spec.episode_length is None:
        raise InputError(
            f"{spec.name} has no fixed episode length, so {limit:g}/episode has no meaning: use /discounted or /step"
        )
    return limit / spec.episode_length * scale


def _check_ranged(config: TrainConfig, values: Mapping[str, Any]) -> None:
    """A range of limits is for algorithms, and rules of them, that can keep it."""
    able = [name for name in ALGORITHMS if algorithm_of(name).learner.takes_range]
    if config.algorithm not in able:
        raise InputError(
            f"{config.algorithm} takes one limit for each cost; a range of limits needs {' or '.join(able)}"
        )
    if config.settings.get("validation_every"):
        raise InputError("validation_every must be 0 with a range of limits: validation plays at one limit")
    if values["sampler_gradient"] == "natural":
        raise InputError("sampler_gradient is natural, which takes one limit for each cost; a range needs another rule")


def _constraint_arrays(
    values: Mapping[str, Any],
    spec: EnvironmentSpec,
    spectra: Sequence[StepSpectrum],
    discounted: Sequence[float],
    lowest: Sequence[float] | None,
    scale: float,
) -> Constraints:
    largest = [_largest_return(c, d, scale, values) for c, d in zip(spec.largest_costs, discounted, strict=True)]
    if lowest is None:
        return stack_constraints(spectra, discounted, largest, values["least_cells"])
    lowest = [low if low == high else low * (1 - _below(values)) for low, high in zip(lowest, discounted, strict=True)]
    return stack_constraints(spectra, lowest, largest, values["least_cells"], discounted, values["regions"])


def _below(values: Mapping[str, Any]) -> float:
    """Requests that are answered by episodes need policies below the lowest of them too: estimates are never exact."""
    return _BELOW if values["request_episodes"] else 0.0


def _settings(
    kind: type[LearnerSettings],
    values: Mapping[str, Any],
    spec: EnvironmentSpec,
    constraints: Constraints,
    scale: float,
    problem: FiniteCMDP | None,
) -> LearnerSettings:
    length = problem.horizon if problem is not None else spec.episode_length
    horizon = scale if length is None else discounted_length(values["gamma"], length)
    return kind(
        constraints=constraints,
        horizon=jnp.asarray(horizon, float),
        **{name: jnp.asarray(values[name], float) for name in settings_of(kind)},
    )


def _largest_return(cost: float, limit: float, scale: float, values: Mapping[str, Any]) -> float:
    cost = values["largest_cost"] or cost
    if math.isfinite(cost):
        return cost * scale
    return _MANY_LIMITS * (limit if limit > 0 else scale)


def default_unit(task: Any) -> Unit | None:
    """The unit of a bare number: finite problems have one, others must say."""
    return "discounted" if task == FINITE else None
