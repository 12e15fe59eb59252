"""A cost on a wrapper: Gymnasium's hopper, with a speed limit. `pip install "gymnasium[mujoco]"`

python examples/velocity_cost.py
tailsafe train examples/velocity_cost.py:make_hopper --env-arg fastest=0.5 --limit 25/episode --set env_workers=2
"""

import gymnasium as gym

import tailsafe as ts


class SpeedLimit(gym.Wrapper):
    """Costs 1 in every step that is faster than `fastest` [m/s]."""

    cost_names, largest_costs = ("speeding",), (1.0,)

    def __init__(self, env, fastest):
        super().__init__(env)
        self.fastest = fastest

    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        cost = float(info["x_velocity"] > self.fastest)
        return observation, reward, terminated, truncated, info | {"cost": cost}


def make_hopper(fastest=0.75, render_mode=None):
    return SpeedLimit(gym.make("Hopper-v5", render_mode=render_mode), fastest)


def main():
    constraint = ts.Constraint("speeding", ts.CVaR(0.5), limit=25, unit="episode")
    run = ts.train(ts.TrainConfig(task=make_hopper, constraints=[constraint], total_steps=1_000_000))
    print(run.evaluate(episodes=200, interval="bootstrap"))


if __name__ == "__main__":
    main()
