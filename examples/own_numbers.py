"""Numbers of your own, from info: followed in the log, judged in the evaluation.

python examples/own_numbers.py
tailsafe train my_env:MyEnv --metric success --metric max:speed --limit 3/discounted
"""

from own_environment import IcyRoad

import tailsafe as ts


class Measured(IcyRoad):
    """Says in every step how fast it is, and whether all is well so far."""

    def reset(self, **arguments):
        self.slips = 0
        return super().reset(**arguments)

    def step(self, speed):
        observation, reward, terminated, truncated, info = super().step(speed)
        self.slips += info["cost"]
        info |= {"success": self.slips == 0, "speed": float(speed[0])}
        return observation, reward, terminated, truncated, info


def main():
    constraint = ts.Constraint("slip", ts.CVaR(0.75), limit=3.0, unit="discounted")
    # Of an episode's last step, or summed up over all of them: max, mean, sum, min.
    metrics = ["success", "max:speed"]
    run = ts.train(ts.TrainConfig(task=Measured, constraints=[constraint], metrics=metrics, total_steps=100_000))
    for name, found in run.evaluate(episodes=200).metrics.items():
        print(f"{name}: {found.mean:.3f} [{found.student.low:.3f}, {found.student.high:.3f}]")


if __name__ == "__main__":
    main()
