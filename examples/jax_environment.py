"""An environment written in JAX: slide to the right, but fast steps cost. Trained without Python in between.

python examples/jax_environment.py
tailsafe train examples/jax_environment.py:Slide --limit 2/discounted --steps 200000
"""

import gymnasium
import jax
import jax.numpy as jnp

import tailsafe as ts


class Slide(ts.JaxEnv):
    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Box(-1, 1, (1,))
    cost_names, largest_costs, episode_length = ("fast",), (1.0,), 50

    def reset(self, key):
        place = jax.random.uniform(key, (1,), minval=-1.0, maxval=0.0)
        return place, place  # state, observation

    def step(self, place, action):
        place = jnp.clip(place + 0.1 * action, -1, 1)
        cost = jnp.abs(action) > 0.5
        return place, place, place[0], cost, False  # state, observation, reward, cost, terminated


if __name__ == "__main__":
    constraint = ts.Constraint("fast", ts.CVaR(0.75), limit=2.0, unit="discounted")
    run = ts.train(ts.TrainConfig(task=Slide, constraints=[constraint], total_steps=200_000))
    print(run.evaluate(episodes=500))
