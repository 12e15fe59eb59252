"""The programs of a run: how a run's state begins and how updates move it, for environments inside and outside of JAX.

Everything random comes from fold_in(key(seed), update), so a state and the number of its updates say all about what
follows: a run that was stopped and resumed takes the same path, bit for bit.
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
from tailsafe.learning.environments import HostEnvironments, JaxEnvironments
from tailsafe.learning.experience import Actor, as_chunk

# Each algorithm has its own classes for what it learns and for its settings.
LearnerState: TypeAlias = Any
Settings: TypeAlias = Any
Learn = Callable[[LearnerState, Settings, Chunk, PRNGKeyArray], tuple[LearnerState, Metrics]]


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


def _empty_tally(learn: Learn, learner: LearnerState, settings: Settings) -> Tally:
    """Nothing summed yet."""
    chunk = jax.tree.map(lambda ring: ring[0], learner.replay.chunks)
    _, metrics = jax.eval_shape(learn, learner, settings, chunk, jax.random.key(0))
    return Tally(jnp.int32(0), jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), metrics))


def cleared(tally: Tally) -> Tally:
    """After a row has been written."""
    return jax.tree.map(jnp.zeros_like, tally)  # type: ignore[no-any-return]


def _learning(algorithm: Learner[Any]) -> Learn:
    """The update, with the means of its chunk among the metrics. Jitted: traced once for its shapes and its use."""

    def learn(
        learner: LearnerState, settings: Settings, chunk: Chunk, key: PRNGKeyArray
    ) -> tuple[LearnerState, Metrics]:
        learner, metrics = algorithm.update(learner, settings, chunk, key)
        return learner, metrics | {"step_reward": chunk.reward.mean(), "step_cost": chunk.costs.mean((0, 1))}

    return jax.jit(learn)


def _counted(tally: Tally, metrics: Metrics) -> Tally:
    return Tally(tally.count + 1, jax.tree.map(jnp.add, tally.sums, metrics))


def _begin_learner(
    algorithm: Learner[Any], settings: Settings, seed: Int[Array, ""]
) -> tuple[LearnerState, PRNGKeyArray, PRNGKeyArray]:
    for_learner, for_actor, for_environments = jax.random.split(_keys(seed)[0], 3)
    return algorithm.init(for_learner, settings), for_actor, for_environments


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
        self._algorithm = algorithm
        self._environments = environments
        self.several = len(seeds) > 1
        devices = (devices or jax.local_devices())[: len(seeds)]
        filling = -len(seeds) % len(devices)
        self.width = len(seeds) + filling
        self._seeds = jnp.asarray(seeds + seeds[-1:] * filling, jnp.int32)
        own = isinstance(settings, list)
        self._settings = _stacked([*settings, *settings[-1:] * filling]) if own else settings
        self._learn = _learning(algorithm)
        begin: Callable[..., RunState] = self._begin
        program: Callable[..., RunState] = self._advance
        if self.several:
            axis = 0 if own else None
            begin, program = jax.vmap(begin, in_axes=(0, axis)), jax.vmap(program, in_axes=(0, axis, None))
        if len(devices) > 1:
            mesh = Mesh(np.asarray(devices), ("runs",))
            parts, whole = PartitionSpec("runs"), PartitionSpec()  # type: ignore[no-untyped-call]
            of_settings = parts if own else whole
            spread = partial(jax.shard_map, mesh=mesh, out_specs=parts, check_vma=False)
            begin = spread(begin, in_specs=(parts, of_settings))
            program = spread(program, in_specs=(parts, of_settings, whole))
        self._first = jax.jit(begin)
        self._program = jax.jit(program, donate_argnums=0)

    def begin(self) -> RunState:
        """The state before the first update."""
        state: RunState = self._first(self._seeds if self.several else self._seeds[0], self._settings)
        return state

    def advance(self, state: RunState, updates: int, stop: Callable[[], bool]) -> RunState:
        """`updates` more updates. They are one program: a wish to stop waits for its end."""
        advanced: RunState = self._program(state, self._settings, jnp.int32(updates))
        return advanced

    def snapshot(self) -> Any:
        """Environments are in the state."""
        return None

    def restore(self, snapshot: Any, state: RunState) -> RunState:
        """Nothing to do."""
        return state

    def _begin(self, seed: Int[Array, ""], settings: Settings) -> RunState:
        algorithm, environments = self._algorithm, self._environments
        learner, for_actor, for_environments = _begin_learner(algorithm, settings, seed)
        environment = environments.init(for_environments)
        actor = algorithm.begin(learner, settings, environments.observe(environment), for_actor)
        tally = _empty_tally(self._learn, learner, settings)
        begun: RunState = _owned(RunState(learner, actor, environment, tally, jnp.int32(0), seed))
        return begun

    def _advance(self, state: RunState, settings: Settings, updates: Int[Array, ""]) -> RunState:
        algorithm = self._algorithm

        def update(_: Array, state: RunState) -> RunState:
            key = jax.random.fold_in(_keys(state.seed)[1], state.updates)
            for_rollout, for_update = jax.random.split(key)
            actor, environment, chunk = algorithm.rollout(
                state.learner, settings, state.actor, self._environments, state.environment, for_rollout
            )
            learner, metrics = self._learn(state.learner, settings, chunk, for_update)
            return RunState(learner, actor, environment, _counted(state.tally, metrics), state.updates + 1, state.seed)

        advanced: RunState = jax.lax.fori_loop(0, updates, update, state)
        return advanced


class HostPrograms:
    """What runs of one algorithm with environments on the host compute: one jitted call per control step, one per
    update. Traced once for all runs that share it; settings are arguments.
    """

    def __init__(self, algorithm: Learner[Any]) -> None:
        self.algorithm = algorithm
        self._learn = _learning(algorithm)
        self.begin = jax.jit(self._begin)
        self.first = jax.jit(self._start)
        self.next = jax.jit(self._move, donate_argnums=(2, 3))
        self.last = jax.jit(self._end, donate_argnums=(2, 3))
        self.improve = jax.jit(self._update, donate_argnums=(0, 2))

    def _begin(self, seed: Int[Array, ""], observation: Array, settings: Settings) -> RunState:
        learner, for_actor, _ = _begin_learner(self.algorithm, settings, seed)
        actor = self.algorithm.begin(learner, settings, observation, for_actor)
        tally = _empty_tally(self._learn, learner, settings)
        begun: RunState = _owned(RunState(learner, actor, None, tally, jnp.int32(0), seed))
        return begun

    def _start(
        self, learner: LearnerState, settings: Settings, actor: Actor, key: PRNGKeyArray
    ) -> tuple[Actor, Chunk, PRNGKeyArray, tuple[Array, Array], Array]:
        """Before the first step: new betas if they change with chunks, the keys of all steps, the first actions."""
        algorithm = self.algorithm
        for_chunk, for_steps = jax.random.split(key)
        actor = algorithm.start_chunk(learner, settings, actor, for_chunk)
        steps = algorithm.config.chunk_steps
        keys = jax.vmap(jax.random.split)(jax.random.split(for_steps, steps))
        choice, actions = self._act(learner, settings, actor, keys[0, 0])
        row = self._row_shapes(learner, settings, actor, choice)
        rows = jax.tree.map(lambda leaf: jnp.zeros((steps, *leaf.shape), leaf.dtype), row)
        return _owned(actor), rows, keys, choice, actions

    def _move(
        self,
        learner: LearnerState,
        settings: Settings,
        actor: Actor,
        rows: Chunk,
        keys: PRNGKeyArray,
        choice: tuple[Array, Array],
        transition: Transition,
        step: Int[Array, ""],
    ) -> tuple[Actor, Chunk, tuple[Array, Array], Array]:
        """Write down step number `step` and choose the next actions."""
        actor, row = self.algorithm.record(learner, settings, actor, choice, transition, keys[step, 1])
        rows = jax.tree.map(lambda all_, new: all_.at[step].set(new), rows, row)
        choice, actions = self._act(learner, settings, actor, keys[step + 1, 0])
        return actor, rows, choice, actions

    def _end(
        self,
        learner: LearnerState,
        settings: Settings,
        actor: Actor,
        rows: Chunk,
        keys: PRNGKeyArray,
        choice: tuple[Array, Array],
        transition: Transition,
    ) -> tuple[Actor, Chunk]:
        """Write down the last step."""
        actor, row = self.algorithm.record(learner, settings, actor, choice, transition, keys[-1, 1])
        return actor, jax.tree.map(lambda all_, new: all_.at[-1].set(new), rows, row)

    def _act(
        self, learner: LearnerState, settings: Settings, actor: Actor, key: PRNGKeyArray
    ) -> tuple[tuple[Array, Array], Float[Array, "N A"]]:
        choice = self.algorithm.act(learner, settings, actor, key)
        return choice, self.algorithm.actions.embed(choice[0])

    def _row_shapes(self, learner: LearnerState, settings: Settings, actor: Actor, choice: tuple[Array, Array]) -> Any:
        count = actor.observation.shape[0]
        flags = jnp.zeros(count, bool)
        like = Transition(actor.observation, actor.observation, actor.reward, actor.costs, flags, flags)
        key = jax.random.key(0)
        return jax.eval_shape(
            lambda learner, settings, actor: self.algorithm.record(learner, settings, actor, choice, like, key)[1],
            *(learner, settings, actor),
        )

    def _update(
        self, learner: LearnerState, settings: Settings, tally: Tally, rows: Chunk, key: PRNGKeyArray
    ) -> tuple[LearnerState, Tally]:
        learner, metrics = self._learn(learner, settings, as_chunk(rows), key)
        return learner, _counted(tally, metrics)


class HostLoop:
    """Environments on the host, stepped between calls of the programs."""

    several, width = False, 1

    def __init__(self, programs: HostPrograms, environments: HostEnvironments, settings: Settings, seed: int) -> None:
        self._programs = programs
        self._algorithm = programs.algorithm
        self._environments = environments
        self._settings = settings
        self._seed = seed

    def begin(self) -> RunState:
        """The state before the first update; environments are reset."""
        observation = jnp.asarray(self._environments.reset(self._seed))
        state: RunState = self._programs.begin(jnp.int32(self._seed), observation, self._settings)
        return state

    def advance(self, state: RunState, updates: int, stop: Callable[[], bool]) -> RunState:
        """`updates` more updates, or fewer: after each one `stop` may say that it is enough."""
        for _ in range(updates):
            key = jax.random.fold_in(_keys(state.seed)[1], state.updates)
            for_rollout, for_update = jax.random.split(key)
            actor, rows = self._rollout(state, for_rollout)
            learner, tally = self._programs.improve(state.learner, self._settings, state.tally, rows, for_update)
            state = replace(state, learner=learner, actor=actor, tally=tally, updates=state.updates + 1)
            if stop():
                break
        return state

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
        acting = self._algorithm.acting(state.learner)
        settings = self._settings
        actor, rows, keys, choice, actions = self._programs.first(acting, settings, state.actor, key)
        for step in range(self._algorithm.config.chunk_steps - 1):
            transition = self._environments.step(np.asarray(actions))
            actor, rows, choice, actions = self._programs.next(
                acting, settings, actor, rows, keys, choice, transition, step
            )
        transition = self._environments.step(np.asarray(actions))
        return self._programs.last(acting, settings, actor, rows, keys, choice, transition)  # type: ignore[no-any-return]
