"""Where a run starts that does not start from scratch: at the policy of another one.

The policy and its normaliser come from the policy file, which is all that a shared policy has. Where the run's last
checkpoint is beside it, critics, the sampler of dual variables and the normaliser's count come from there. Optimisers,
memory and multipliers start anew: they belong to the limits and the task they were learned for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tailsafe.checkpoints import Arrays, Checkpoints, from_arrays, readable, to_arrays
from tailsafe.envs.training import FINITE
from tailsafe.errors import InputError
from tailsafe.files import read_object
from tailsafe.learning.actions import DiscreteActions
from tailsafe.policies.acting import LoadedPolicy
from tailsafe.policies.policy import FOLDER, load_policy
from tailsafe.policies.pretrained import is_pretrained, pretrained_folder
from tailsafe.training.config import Constraint, TrainConfig
from tailsafe.training.loop import RunState
from tailsafe.training.plan import Plan
from tailsafe.training.settings import known_settings

_LEARNER = "state/learner."
_FIRST = "policy.body.weights.0"
# Settings that decide the shapes of networks: they follow the run that is started from, unless somebody sets them.
_SHAPES = ("critic_hidden", "quantiles", "cells", "least_cells")
# Unbounded for a policy that saw raw observations: its normaliser is the identity.
_NO_CLIP = 1e5


@dataclass(frozen=True)
class Start:
    """A policy to start from. path: as given. arrays: of its learner in the last checkpoint, by name; none without.

    settings: of its run, where there is one.
    """

    path: Path
    policy: LoadedPolicy
    arrays: Arrays
    settings: Mapping[str, Any]

    @property
    def words(self) -> str:
        """What it is, for people."""
        return f"{self.path}, a policy after {self.policy.description.steps:,} steps"


def read_start(path: str | Path) -> Start:
    """The policy in a run folder, its `policy` folder or an export, or `pretrained:NAME`, with what the run's last
    checkpoint adds.
    """
    path = Path(path)
    policy = load_policy(path)
    place = pretrained_folder(path) if is_pretrained(path) else path
    run = place.parent if place.name == FOLDER else place
    arrays: Arrays = {}
    if (run / FOLDER).is_dir():
        checkpoints = Checkpoints(run / "checkpoints")
        found = next(readable([checkpoints], {}), None) if checkpoints.steps() else None
        checkpoints.close()
        if found is not None:
            saved = found[1][0][0]
            arrays = {name.removeprefix(_LEARNER): saved[name] for name in saved if name.startswith(_LEARNER)}
    return Start(path, policy, arrays, _settings(run))


def _settings(run: Path) -> Mapping[str, Any]:
    try:
        settings = read_object(run / "config.json")["settings"]
    except (InputError, KeyError):
        return {}
    return settings if isinstance(settings, dict) else {}


def following(config: TrainConfig, start: Start) -> TrainConfig:
    """`config` with what nobody said taken from the run it starts from: the networks' shapes, a finite problem."""
    described = start.policy.description
    network = described.network
    wanted: dict[str, Any] = {
        "policy_hidden": network.hidden,
        "fixed_log_std": network.fixed_log_std,
        "augmented": network.augmented,
        "normalize": network.clip_observation < _NO_CLIP,
    }
    if wanted["normalize"]:
        wanted["clip_observation"] = network.clip_observation
    wanted |= {key: start.settings[key] for key in _SHAPES if key in start.settings}
    if config.task == FINITE and described.task.problem is not None:
        wanted["problem"] = described.task.problem
    known = known_settings(config.algorithm)
    inherited = {key: value for key, value in wanted.items() if key in known and key not in config.settings}
    return replace(config, settings={**inherited, **config.settings})


def constraints_of(start: Start) -> tuple[Constraint, ...]:
    """The constraints that the policy was trained under."""
    described = start.policy.description.constraints
    return tuple(
        Constraint(one.name, one.measure, one.limit if one.span is None else one.ends, one.unit) for one in described
    )


def check_fits(plan: Plan, start: Start) -> None:
    """An `InputError` where the policy cannot act in the plan's task, or its network is not the plan's."""
    described, spec = start.policy.description, plan.spec
    task, actions = described.task, described.actions
    kind = "discrete" if isinstance(spec.actions, DiscreteActions) else "box"
    network = described.network

    def need(holds: bool, theirs: str, ours: str) -> None:
        if not holds:
            raise InputError(f"{start.path}: does not fit {plan.text}: its policy {theirs}, {plan.text} {ours}")

    need(
        task.observation_size == spec.observation_size,
        f"sees {task.observation_size} numbers",
        f"shows {spec.observation_size}",
    )
    need(
        (actions.kind, actions.size) == (kind, spec.actions.size),
        f"has {actions.size} {actions.kind} actions",
        f"takes {spec.actions.size} {kind} ones",
    )
    if task.name == spec.name and spec.native_actions is not None:
        reach = spec.native_actions.high
        need(actions.high == reach, f"acts up to {actions.high}", f"up to {reach}")
    values = plan.values
    pairs = (("policy_hidden", network.hidden), ("fixed_log_std", network.fixed_log_std))
    for key, own in pairs:
        if values[key] != own:
            raise InputError(
                f"{start.path}: does not fit: its policy has {key} {own}, this run {values[key]}; leave --set {key} out"
            )
    extra = len(described.constraints) if network.augmented else 0
    if network.augmented and (not values["augmented"] or extra != len(plan.constraints)):
        raise InputError(
            f"{start.path}: does not fit: its policy sees {extra} costs so far; this run needs augmented=true and "
            f"{extra} costs"
        )


def started(state: RunState, several: bool, starts: list[tuple[Start, Plan] | None]) -> RunState:
    """The beginning of runs with what they start from (None: from scratch). several: leaves have a run axis, as long
    as `starts`.
    """
    fresh = to_arrays(state)
    width = len(starts)
    rows = [{name: array[i] for name, array in fresh.items()} for i in range(width)] if several else [fresh]
    rows = [row if start is None else _begun(row, *start) for row, start in zip(rows, starts, strict=True)]
    arrays = {name: np.stack([row[name] for row in rows]) for name in fresh} if several else rows[0]
    result: RunState = from_arrays(state, arrays)
    return result


def _begun(fresh: Arrays, start: Start, plan: Plan) -> Arrays:
    prefix = "learner."
    learner = {name.removeprefix(prefix): array for name, array in fresh.items() if name.startswith(prefix)}
    found = _policy(learner, start, plan) | _normalizer(start) | _critics(learner, start, plan)
    result = dict(fresh)
    modes = np.asarray(start.policy.modes)
    if "sampler.phi" in learner and learner["sampler.phi"].shape == modes.shape and modes.size:
        mode = np.clip(modes.astype(np.float64), 1e-6, 1 - 1e-6)
        found["sampler.phi"] = np.log(mode / (1 - mode))
        if modes.ndim == 1:
            # Episodes that run already were given a beta by the sampler of before.
            result["actor.delta"] = np.broadcast_to(modes, fresh["actor.delta"].shape)
    return result | {prefix + name: np.asarray(found[name], learner[name].dtype) for name in found}


def _policy(learner: Arrays, start: Start, plan: Plan) -> Arrays:
    """The network. Where the new one has other dual variables as inputs, it acts as the old one did at its own.

    Features are (observation, [costs so far, discount], increments of beta and regions), see `ActorCritic.features`.
    Of a range of limits, that is at the limit that the file says.
    """
    body = start.policy.network.body
    found: Arrays = {f"policy.body.weights.{i}": np.asarray(weight) for i, weight in enumerate(body.weights)}
    found |= {f"policy.body.biases.{i}": np.asarray(bias) for i, bias in enumerate(body.biases)}
    described = start.policy.description
    if found[_FIRST].shape == learner[_FIRST].shape and described.network.augmented == plan.values["augmented"]:
        return found
    seen = described.task.observation_size
    seen += len(described.constraints) + 1 if described.network.augmented else 0
    old: NDArray[Any] = found[_FIRST]
    first = np.zeros_like(learner[_FIRST])
    first[:seen] = old[:seen]
    found["policy.body.biases.0"] = found["policy.body.biases.0"] + start.policy.conditions @ old[seen:]
    return found | {_FIRST: first}


def _normalizer(start: Start) -> Arrays:
    own = start.policy.normalizer
    count = start.arrays.get("normalizer.count", np.asarray(float(max(start.policy.description.steps, 1))))
    return {
        "normalizer.mean": np.asarray(own.mean),
        "normalizer.variance": np.asarray(own.variance),
        "normalizer.count": np.minimum(count, 1e8),
    }


def _critics(learner: Arrays, start: Start, plan: Plan) -> Arrays:
    """Those of the reward and of costs of the same name; none where shapes or the discount differ."""
    described = start.policy.description
    before = ["", *(one.name for one in described.constraints)]
    now = ["", *(one.name for one in plan.constraints)]
    found: Arrays = {}
    for part in ("critics.", "target_critics."):
        for name in (name for name in learner if name.startswith(part)):
            old = start.arrays.get("critics." + name.removeprefix(part))
            new = learner[name]
            if old is None or old.shape[1:] != new.shape[1:] or described.gamma != plan.values["gamma"]:
                return {}
            merged = np.array(new)
            for i, cost in enumerate(now[: len(new)]):
                if cost in before[: len(old)]:
                    merged[i] = old[before.index(cost)]
            found[name] = merged
    return found
