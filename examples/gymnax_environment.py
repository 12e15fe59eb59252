"""An environment of gymnax with a cost: keep the pole up, and the cart near the middle. `pip install gymnax six`

python examples/gymnax_environment.py
tailsafe train examples/gymnax_environment.py:make_cartpole --limit 2/discounted --steps 500000

`BraxEnv` does the same for Brax and MuJoCo Playground.
"""

import gymnax
import jax.numpy as jnp

import tailsafe as ts
from tailsafe.envs.jax_packages import GymnaxEnv


def far_out(state, action, following):
    return jnp.abs(following.x) > 0.3


def make_cartpole():
    env, params = gymnax.make("CartPole-v1")
    return GymnaxEnv(env, params, far_out, cost_names=("far",), largest_costs=(1.0,))


if __name__ == "__main__":
    constraint = ts.Constraint("far", ts.CVaR(0.75), limit=2.0, unit="discounted")
    run = ts.train(ts.TrainConfig(task=make_cartpole, constraints=[constraint], total_steps=500_000))
    print(run.evaluate(episodes=200))
