"""A cost on a wrapper: Gymnasium's pendulum, with a speed limit.

Of MuJoCo's robots, as gym.make("Hopper-v5"), the speed is info["x_velocity"].

python examples/velocity_cost.py
tailsafe train examples/velocity_cost.py:make_pendulum --env-arg fastest=3 --limit 10/episode --set env_workers=2
"""

import gymnasium as gym

import tailsafe as ts


class SpeedLimit(gym.Wrapper):
    """Costs 1 in every step that is faster than `fastest` [rad/s]."""

    cost_names, largest_costs = ("speeding",), (1.0,)

    def __init__(self, env, fastest):
        super().__init__(env)
        self.fastest = fastest

    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        cost = float(abs(observation[2]) > self.fastest)
        return observation, reward, terminated, truncated, info | {"cost": cost}


def make_pendulum(fastest=4.0, render_mode=None):
    return SpeedLimit(gym.make("Pendulum-v1", render_mode=render_mode), fastest)


def main():
    constraint = ts.Constraint("speeding", ts.CVaR(0.5), limit=10, unit="episode")
    run = ts.train(ts.TrainConfig(task=make_pendulum, constraints=[constraint], total_steps=500_000))
    print(run.evaluate(episodes=200))


if __name__ == "__main__":
    main()
