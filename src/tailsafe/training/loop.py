"""The programs of a run: how a run's state begins and how updates move it, for environments inside and outside of JAX.

Everything random comes from fold_in(key(seed), update), so a state and the number of its updates say all about what
follows: a run that was stopped and resumed takes the same path, bit for bit. (On engine `warp` it starts from the same
state too, but the kernels are not deterministic.)

Programs are jitted functions of this module; learners and environments inside JAX are static arguments, equal if they
are made alike. So JAX's own cache serves every run of a process that has the same shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from tailsafe.algorithms.learner import Learner, Metrics
from tailsafe.learning.chunks import Chunk, Transition
from tailsafe.learning.experience import Actor, as_chunk
from tailsafe.learning.interface import HostEnvironments, JaxEnvironments

# Each algorithm has its own classes for what it learns and for its settings.
LearnerState: TypeAlias = Any
Settings: TypeAlias = Any
Choice: TypeAlias = tuple[Array, Array]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Tally:
    """Metrics summed over the `count` updates since the last row of the log."""

    count: Int[Array, ""]
    sums: Metrics


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RunState:
    """All of a run. environment: the state of environments inside JAX; None where they keep their own."""

    learner: LearnerState
    actor: Actor
    environment: Any
    tally: Tally
    updates: Int[Array, ""]
    seed: Int[Array, ""]


def _keys(seed: Int[Array, ""]) -> tuple[PRNGKeyArray, PRNGKeyArray]:
    """One key for the beginning, one that updates are folded into."""
    beginning, updates = jax.random.split(jax.random.key(seed))
    return beginning, updates


@partial(jax.jit, static_argnums=0)
def _learn(
    algorithm: Learner[Any], learner: LearnerState, settings: Settings, chunk: Chunk, key: PRNGKeyArray
) -> tuple[LearnerState, Metrics]:
    """The update, with the means of its chunk among the metrics. Jitted: traced once for its shapes and its use."""
    learner, metrics = algorithm.update(learner, settings, chunk, key)
    return learner, metrics | {"step_reward": chunk.reward.mean(), "step_cost": chunk.costs.mean((0, 1))}


def _empty_tally(algorithm: Learner[Any], learner: LearnerState, settings: Settings) -> Tally:
    """Nothing summed yet."""
    chunk = jax.tree.map(lambda ring: ring[0], learner.replay.chunks)
    _, metrics = jax.eval_shape(partial(_learn, algorithm), learner, settings, chunk, jax.random.key(0))
    return Tally(jnp.int32(0), jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), metrics))


def cleared(tally: Tally) -> Tally:
    """After a row has been written."""
    return jax.tree.map(jnp.zeros_like, tally)  # type: ignore[no-any-return]


def _counted(tally: Tally, metrics: Metrics) -> Tally:
    return Tally(tally.count + 1, jax.tree.map(jnp.add, tally.sums, metrics))


def _begin_learner(
    algorithm: Learner[Any], settings: Settings, seed: Int[Array, ""]
) -> tuple[LearnerState, PRNGKeyArray, PRNGKeyArray]:
    for_learner, for_actor, for_environments = jax.random.split(_keys(seed)[0], 3)
    return algorithm.init(for_learner, settings), for_actor, for_environments


@jax.jit
def finite_flags(learner: LearnerState) -> dict[str, Bool[Array, ""]]:
    """Whether all numbers of each learned part are finite."""

    def finite(tree: Any) -> Any:
        leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
        return jnp.stack([jnp.isfinite(leaf).all() for leaf in leaves]).all()

    names = [f.name for f in fields(learner) if f.name != "replay" and not f.name.endswith("optimizer")]
    kept = {name: getattr(learner, name) for name in names if _has_floats(getattr(learner, name))}
    return {name: finite(part) for name, part in kept.items()}


def _has_floats(tree: Any) -> bool:
    return any(jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.size for leaf in jax.tree.leaves(tree))


def _stacked(trees: list[Any]) -> Any:
    """Equal pytrees side by side: every leaf with a run axis in front."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def _owned(tree: Any) -> Any:
    """Inside of `jit`: results that share no memory with arguments or each other, so that they can be donated later."""
    return jax.tree.map(jnp.copy, tree)


# --- environments inside JAX ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunAxis:
    """How the runs of one program lie beside each other.

    several: whether arrays have a run axis. own_settings: whether settings have it too, or are those of all runs.
    devices: over which the axis is spread.
    """

    several: bool
    own_settings: bool
    devices: tuple[jax.Device, ...]

    def over_runs(self, function: Callable[..., RunState], shared: int = 0) -> Callable[..., RunState]:
        """A function of (what each run has, settings, `shared` arguments that are the same for all), for all runs."""
        if self.several:
            axis = 0 if self.own_settings else None
            function = jax.vmap(function, in_axes=(0, axis, *(None,) * shared))
        if len(self.devices) > 1:
            mesh = Mesh(np.asarray(self.devices), ("runs",))
            parts, whole = PartitionSpec("runs"), PartitionSpec()  # type: ignore[no-untyped-call]
            specs = (parts, parts if self.own_settings else whole, *(whole,) * shared)
            function = jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=parts, check_vma=False)
        return function


@partial(jax.jit, static_argnums=(0, 1, 2))
def begin_runs(
    algorithm: Learner[Any], environments: JaxEnvironments, axis: RunAxis, seeds: Int[Array, ...], settings: Settings
) -> RunState:
    """The states before the first update."""

    def begin(seed: Int[Array, ""], settings: Settings) -> RunState:
        learner, for_actor, for_environments = _begin_learner(algorithm, settings, seed)
        environment = environments.init(for_environments)
        actor = algorithm.begin(learner, settings, environments.observe(environment), for_actor)
        tally = _empty_tally(algorithm, learner, settings)
        fresh: RunState = _owned(RunState(learner, actor, environment, tally, jnp.int32(0), seed))
        return fresh

    return axis.over_runs(begin)(seeds, settings)


@partial(jax.jit, static_argnums=(0, 1, 2), donate_argnums=3)
def advance_runs(
    algorithm: Learner[Any],
    environments: JaxEnvironments,
    axis: RunAxis,
    states: RunState,
    settings: Settings,
    updates: Int[Array, ""],
) -> RunState:
    """Rollouts and updates, so many of them."""

    def advance(state: RunState, settings: Settings, updates: Int[Array, ""]) -> RunState:
        def update(_: Array, state: RunState) -> RunState:
            key = jax.random.fold_in(_keys(state.seed)[1], state.updates)
            for_rollout, for_update = jax.random.split(key)
            actor, environment, chunk = algorithm.rollout(
                state.learner, settings, state.actor, environments, state.environment, for_rollout
            )
            learner, metrics = _learn(algorithm, state.learner, settings, chunk, for_update)
            return RunState(learner, actor, environment, _counted(state.tally, metrics), state.updates + 1, state.seed)

        advanced: RunState = jax.lax.fori_loop(0, updates, update, state)
        return advanced

    return axis.over_runs(advance, shared=1)(states, settings, updates)


class DeviceLoop:
    """Rollouts and updates as one program, several updates per call. With several seeds all leaves have a run axis.

    settings: of all runs, or a list with those of each. Several runs are spread over `devices` (default: all of this
    host): each device has a part of the run axis and its own copy of the program, and none waits for another. Copies of
    the last run fill up the axis where it cannot be divided evenly; `width` is its length with them.
    """

    def __init__(
        self,
        algorithm: Learner[Any],
        environments: JaxEnvironments,
        settings: Settings | list[Settings],
        seeds: list[int],
        devices: list[jax.Device] | None = None,
    ) -> None:
        self.several = len(seeds) > 1
        devices = (devices or jax.local_devices())[: len(seeds)]
        filling = -len(seeds) % len(devices)
        self.width = len(seeds) + filling
        self._seeds = jnp.asarray(seeds + seeds[-1:] * filling, jnp.int32)
        own = isinstance(settings, list)
        self._settings = _stacked([*settings, *settings[-1:] * filling]) if own else settings
        # One device is the default one: a program for it does not depend on which.
        axis = RunAxis(self.several, own, tuple(devices) if len(devices) > 1 else ())
        self._environments = environments
        self._static = (algorithm, environments, axis)

    def begin(self) -> RunState:
        """The state before the first update."""
        state: RunState = begin_runs(*self._static, self._seeds if self.several else self._seeds[0], self._settings)
        return state

    def advance(self, state: RunState, updates: int, stop: Callable[[], bool]) -> RunState:
        """`updates` more updates. They are one program: a stop request waits for its end."""
        advanced: RunState = advance_runs(*self._static, state, self._settings, jnp.int32(updates))
        if check := getattr(self._environments, "check", None):
            check(advanced.environment)
        return advanced

    def collect(self, state: RunState, key: PRNGKeyArray) -> tuple[RunState, Chunk]:
        """A chunk of one run, without learning from it."""
        algorithm, environments, _ = self._static
        rollout = jax.jit(partial(algorithm.rollout, environments=environments))
        actor, environment, chunk = rollout(
            state.learner, self._settings, state.actor, env_state=state.environment, key=key
        )
        return replace(state, actor=actor, environment=environment), chunk

    def snapshot(self) -> Any:
        """Environments are in the state."""
        return None

    def restore(self, snapshot: Any, state: RunState) -> RunState:
        """Nothing to do."""
        return state


# --- environments on the host: one jitted call per control step, one per update ---------------------------------------


@partial(jax.jit, static_argnums=0)
def begin_run(algorithm: Learner[Any], seed: Int[Array, ""], observation: Array, settings: Settings) -> RunState:
    """The state before the first update, with environments at these observations (N, O)."""
    learner, for_actor, _ = _begin_learner(algorithm, settings, seed)
    actor = algorithm.begin(learner, settings, observation, for_actor)
    tally = _empty_tally(algorithm, learner, settings)
    fresh: RunState = _owned(RunState(learner, actor, None, tally, jnp.int32(0), seed))
    return fresh


@partial(jax.jit, static_argnums=0)
def start_chunk(
    algorithm: Learner[Any], learner: LearnerState, settings: Settings, actor: Actor, key: PRNGKeyArray
) -> tuple[Actor, Chunk, PRNGKeyArray, Choice, Array]:
    """Before the first step: new betas if they change with chunks, the keys of all steps, the first actions."""
    for_chunk, for_steps = jax.random.split(key)
    actor = algorithm.start_chunk(learner, settings, actor, for_chunk)
    steps = algorithm.config.chunk_steps
    keys = jax.vmap(jax.random.split)(jax.random.split(for_steps, steps))
    choice, actions = _act(algorithm, learner, settings, actor, keys[0, 0])
    row = _row_shapes(algorithm, learner, settings, actor, choice)
    rows = jax.tree.map(lambda leaf: jnp.zeros((steps, *leaf.shape), leaf.dtype), row)
    return _owned(actor), rows, keys, choice, actions


@partial(jax.jit, static_argnums=0, donate_argnums=(3, 4))
def next_step(
    algorithm: Learner[Any],
    learner: LearnerState,
    settings: Settings,
    actor: Actor,
    rows: Chunk,
    keys: PRNGKeyArray,
    choice: Choice,
    transition: Transition,
    step: Int[Array, ""],
) -> tuple[Actor, Chunk, Choice, Array]:
    """Write down step number `step` and choose the next actions."""
    actor, row = algorithm.record(learner, settings, actor, choice, transition, keys[step, 1])
    rows = jax.tree.map(lambda all_, new: all_.at[step].set(new), rows, row)
    choice, actions = _act(algorithm, learner, settings, actor, keys[step + 1, 0])
    return actor, rows, choice, actions


@partial(jax.jit, static_argnums=0, donate_argnums=(3, 4))
def last_step(
    algorithm: Learner[Any],
    learner: LearnerState,
    settings: Settings,
    actor: Actor,
    rows: Chunk,
    keys: PRNGKeyArray,
    choice: Choice,
    transition: Transition,
) -> tuple[Actor, Chunk]:
    """Write down the last step of a chunk."""
    actor, row = algorithm.record(learner, settings, actor, choice, transition, keys[-1, 1])
    return actor, jax.tree.map(lambda all_, new: all_.at[-1].set(new), rows, row)


@partial(jax.jit, static_argnums=0, donate_argnums=(1, 3))
def improve(
    algorithm: Learner[Any], learner: LearnerState, settings: Settings, tally: Tally, rows: Chunk, key: PRNGKeyArray
) -> tuple[LearnerState, Tally]:
    """One update."""
    learner, metrics = _learn(algorithm, learner, settings, as_chunk(rows), key)
    return learner, _counted(tally, metrics)


def _act(
    algorithm: Learner[Any], learner: LearnerState, settings: Settings, actor: Actor, key: PRNGKeyArray
) -> tuple[Choice, Float[Array, "N A"]]:
    choice = algorithm.act(learner, settings, actor, key)
    return choice, algorithm.actions.embed(choice[0])


def _row_shapes(
    algorithm: Learner[Any], learner: LearnerState, settings: Settings, actor: Actor, choice: Choice
) -> Any:
    flags = jnp.zeros(actor.observation.shape[0], bool)
    like = Transition(actor.observation, actor.observation, actor.reward, actor.costs, flags, flags)
    key = jax.random.key(0)
    return jax.eval_shape(
        lambda learner, settings, actor: algorithm.record(learner, settings, actor, choice, like, key)[1],
        *(learner, settings, actor),
    )


class HostLoop:
    """Environments on the host, stepped between calls of the programs."""

    several, width = False, 1

    def __init__(self, algorithm: Learner[Any], environments: HostEnvironments, settings: Settings, seed: int) -> None:
        self._algorithm = algorithm
        self._environments = environments
        self._settings = settings
        self._seed = seed

    def begin(self) -> RunState:
        """The state before the first update; environments are reset."""
        observation = jnp.asarray(self._environments.reset(self._seed))
        state: RunState = begin_run(self._algorithm, jnp.int32(self._seed), observation, self._settings)
        return state

    def advance(self, state: RunState, updates: int, stop: Callable[[], bool]) -> RunState:
        """`updates` more updates, or fewer: after each one `stop` may say that it is enough."""
        for _ in range(updates):
            key = jax.random.fold_in(_keys(state.seed)[1], state.updates)
            for_rollout, for_update = jax.random.split(key)
            actor, rows = self._rollout(state, for_rollout)
            learner, tally = improve(self._algorithm, state.learner, self._settings, state.tally, rows, for_update)
            state = replace(state, learner=learner, actor=actor, tally=tally, updates=state.updates + 1)
            if stop():
                break
        return state

    def collect(self, state: RunState, key: PRNGKeyArray) -> tuple[RunState, Chunk]:
        """A chunk, without learning from it."""
        actor, rows = self._rollout(state, key)
        return replace(state, actor=actor), as_chunk(rows)

    def snapshot(self) -> Any:
        """The environments' own state, None where they cannot be saved."""
        return self._environments.snapshot()

    def restore(self, snapshot: Any, state: RunState) -> RunState:
        """Put the environments back. Where they cannot be saved, new episodes begin: seeded, but not the old ones."""
        if snapshot is not None:
            self._environments.restore(snapshot)
            return state
        own = np.random.SeedSequence([self._seed, int(state.updates)]).generate_state(1)[0]
        observation = jnp.asarray(self._environments.reset(int(own) % 2**31))
        actor = Actor.create(observation, state.actor.delta, state.actor.costs.shape[1], self._algorithm.config.window)
        return replace(state, actor=jax.jit(_owned)(replace(actor, finished=state.actor.finished)))

    # --- one chunk ----------------------------------------------------------------------------------------------------

    def _rollout(self, state: RunState, key: PRNGKeyArray) -> tuple[Actor, Chunk]:
        """As `Learner.rollout`, with the environments' steps between jitted calls. Rows (T, N, ...)."""
        learner = self._algorithm.acting(state.learner)
        fixed = (self._algorithm, learner, self._settings)
        actor, rows, keys, choice, actions = start_chunk(*fixed, state.actor, key)
        for step in range(self._algorithm.config.chunk_steps - 1):
            transition = self._environments.step(np.asarray(actions))
            actor, rows, choice, actions = next_step(*fixed, actor, rows, keys, choice, transition, step)
        transition = self._environments.step(np.asarray(actions))
        return last_step(*fixed, actor, rows, keys, choice, transition)  # type: ignore[no-any-return]
