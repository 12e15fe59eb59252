"""Several costs, each with a measure and a limit of its own: a courier who hurries bumps into things and tires.

python examples/several_costs.py
tailsafe train examples/several_costs.py:Courier --risk cvar:0.9 --limit 3/discounted --risk mean --limit 0.3/step
"""

import gymnasium as gym
import numpy as np

import tailsafe as ts


class Courier(gym.Env):
    """30 steps; the action is how fast the left and the right foot go."""

    observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
    action_space = gym.spaces.Box(0, 1, (2,), np.float32)
    cost_names, largest_costs = ("bump", "effort"), (1.0, 1.0)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, feet):
        self.steps += 1
        speed, unlike = float(feet.mean()), float(abs(feet[0] - feet[1]))
        bump = self.np_random.random() < 0.3 * speed**2 + 0.3 * unlike
        cost = np.array([bump, speed**2], float)  # one entry for each
        return np.float32([self.steps / 30]), speed, self.steps == 30, False, {"cost": cost}


def main():
    constraints = [
        ts.Constraint("bump", ts.CVaR(0.9), limit=3.0, unit="discounted"),  # rare: look at the worst tenth
        ts.Constraint("effort", ts.Mean(), limit=0.3, unit="step"),  # spent all the time: the mean will do
    ]
    run = ts.train(ts.TrainConfig(task=Courier, constraints=constraints, total_steps=300_000))
    for report in run.evaluate(episodes=500).constraints:
        name, limit = report.description.name, report.description.limit
        print(f"{name}: {report.risk:.3g} of {limit:g} per {report.description.unit}: {report.verdict}")


if __name__ == "__main__":
    main()
