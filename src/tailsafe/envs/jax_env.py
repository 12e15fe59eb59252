"""The protocol of a user's environments that are written in JAX. Importing it does not import JAX."""

from __future__ import annotations

from typing import Any, ClassVar


class JaxEnv:
    """An environment as pure functions: training compiles it into one program and never returns to Python.

    Subclass it, give it Gymnasium spaces, and write `reset` and `step` for one environment; tailsafe makes batches of
    them, begins new episodes, and cuts episodes after `episode_length` steps.

        class Slide(ts.JaxEnv):
            observation_space = gymnasium.spaces.Box(-1, 1, (1,))
            action_space = gymnasium.spaces.Box(-1, 1, (1,))
            cost_names, largest_costs, episode_length = ("fast",), (1.0,), 50

            def reset(self, key):
                place = jax.random.uniform(key, (1,))
                return place, place

            def step(self, place, action):
                place = jnp.clip(place + 0.1 * action, -1, 1)
                return place, place, place[0], (jnp.abs(action) > 0.5).astype(float), False
    """

    observation_space: Any
    action_space: Any
    cost_names: ClassVar[tuple[str, ...] | None] = None
    largest_costs: ClassVar[tuple[float, ...] | None] = None
    episode_length: int | None = None

    def reset(self, key: Any) -> tuple[Any, Any]:
        """(state, observation) at the beginning of an episode. state: any pytree of arrays; randomness of later steps
        comes from a key in it.
        """
        raise NotImplementedError

    def step(self, state: Any, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        """(state, observation, reward, cost, terminated). action: in the bounds and shape of `action_space`, or an
        integer. cost: a number, or a vector with one entry per constraint.
        """
        raise NotImplementedError
