"""An environment of your own: a road on which fast driving slips. Train, judge, and drive it.

Any Gymnasium environment with a cost in info["cost"] will do. About two minutes on two cores:

python examples/own_environment.py
tailsafe train examples/own_environment.py:IcyRoad --limit 3/discounted --steps 200000
"""

import gymnasium as gym
import numpy as np

import tailsafe as ts


class IcyRoad(gym.Env):
    observation_space = action_space = gym.spaces.Box(0, 1, (1,), np.float32)  # part of the road left; speed
    cost_names, largest_costs = ("slip",), (1.0,)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 20
        return np.ones(1, np.float32), {}

    def step(self, speed):
        self.left -= 1
        cost = float(self.np_random.random() < 0.2 * speed[0] ** 2)
        return np.float32([self.left / 20]), float(speed[0]), self.left == 0, False, {"cost": cost}


def main():
    # The worst quarter of all drives may slip 3 times on average.
    constraint = ts.Constraint("slip", ts.CVaR(0.75), limit=3.0, unit="discounted")
    run = ts.train(ts.TrainConfig(task=IcyRoad, constraints=[constraint], total_steps=200_000))
    print(run.evaluate(episodes=500))

    env, policy = IcyRoad(), run.policy()
    observation, _ = env.reset(seed=0)
    ended, reward = False, 0.0
    while not ended:
        observation, earned, terminated, truncated, _ = env.step(policy(observation))
        reward, ended = reward + earned, terminated or truncated
    print(f"one drive: {reward:.1f}")


if __name__ == "__main__":
    main()
