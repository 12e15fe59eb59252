"""Task `finite`: a tabular problem as an environment, so that a learner can be compared with the exact optimum."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from tailsafe.learning.actions import DiscreteActions
from tailsafe.learning.chunks import Transition
from tailsafe.learning.interface import EnvironmentSpec
from tailsafe.tabular.problem import FiniteCMDP


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class FiniteState:
    """state (N,), time (N,): where each environment is and how many steps its episode has taken."""

    state: Int[Array, " N"]
    time: Int[Array, " N"]
    key: PRNGKeyArray


class FiniteEnvironments:
    """`num_envs` copies of a finite problem. Observation: one-hot state, one-hot time. An episode terminates after
    `horizon` steps, as nothing follows. Copies of equal problems are equal, so that they share compiled programs.
    """

    def __init__(self, problem: FiniteCMDP, num_envs: int, name: str = "finite") -> None:
        self.problem = problem
        self.num_envs = num_envs
        costs = problem.num_costs
        self.spec = EnvironmentSpec(
            name=name,
            observation_size=problem.states + problem.horizon,
            actions=DiscreteActions(problem.actions),
            cost_names=("cost",) if costs == 1 else tuple(f"cost{i}" for i in range(costs)),
            episode_length=problem.horizon,
            largest_costs=tuple(float(c) for c in problem.costs.max((1, 2))),
        )
        with jax.ensure_compile_time_eval():
            self._initial = jnp.cumsum(jnp.asarray(problem.initial, float))
            self._transitions = jnp.cumsum(jnp.asarray(problem.transitions, float), axis=-1)
            self._rewards = jnp.asarray(problem.rewards, float)
            self._costs = jnp.asarray(problem.costs, float)

        arrays = (problem.initial, problem.transitions, problem.rewards, problem.costs)
        self._made_of = (num_envs, self.spec, *((array.shape, array.tobytes()) for array in arrays))

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, FiniteEnvironments) and self._made_of == other._made_of)

    def __hash__(self) -> int:
        return hash(self._made_of)

    def init(self, key: PRNGKeyArray) -> FiniteState:
        """Every environment in an initial state."""
        for_state, key = jax.random.split(key)
        return FiniteState(self._draw_initial(for_state), jnp.zeros(self.num_envs, jnp.int32), key)

    def observe(self, state: FiniteState) -> Float[Array, "N O"]:
        """What the learner sees."""
        return self.encode(state.state, state.time)

    def encode(self, state: Int[Array, ...], time: Int[Array, ...]) -> Float[Array, "... O"]:
        """The observation of a state at a time; at the horizon no time is hot."""
        problem = self.problem
        return jnp.concatenate([jax.nn.one_hot(state, problem.states), jax.nn.one_hot(time, problem.horizon)], axis=-1)

    def step(self, state: FiniteState, actions: Float[Array, "N A"]) -> tuple[FiniteState, Transition]:
        """One step everywhere."""
        for_next, for_initial, key = jax.random.split(state.key, 3)
        action = jnp.argmax(actions, axis=-1)
        levels = jax.random.uniform(for_next, (self.num_envs,))
        following = _invert(self._transitions[state.state, action], levels)
        time = state.time + 1
        ended = time >= self.problem.horizon
        after = FiniteState(
            jnp.where(ended, self._draw_initial(for_initial), following), jnp.where(ended, 0, time), key
        )
        transition = Transition(
            next_observation=self.encode(following, time),
            observation=self.observe(after),
            reward=self._rewards[state.state, action],
            costs=self._costs[:, state.state, action].T,
            terminated=ended,
            truncated=jnp.zeros_like(ended),
        )
        return after, transition

    def _draw_initial(self, key: PRNGKeyArray) -> Int[Array, " N"]:
        levels = jax.random.uniform(key, (self.num_envs,))
        return _invert(jnp.broadcast_to(self._initial, (self.num_envs, *self._initial.shape)), levels)


def _invert(cumulative: Float[Array, "N S"], level: Float[Array, " N"]) -> Int[Array, " N"]:
    """The index whose probability interval holds `level`; rounding of the last sum cannot lead outside."""
    return jnp.minimum((cumulative <= level[:, None]).sum(-1), cumulative.shape[-1] - 1)
