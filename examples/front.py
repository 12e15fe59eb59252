"""Which limit should I choose? Reward against risk, of policies that were trained for several limits.

python examples/front.py
tailsafe front runs/a runs/b runs/c
"""

from own_environment import IcyRoad

import tailsafe as ts
from tailsafe.evaluation.front import front

LIMITS = (1.0, 2.0, 4.0)


def main():
    runs = []
    for limit in LIMITS:
        constraint = ts.Constraint("slip", ts.CVaR(0.75), limit=limit, unit="discounted")
        runs.append(ts.train(ts.TrainConfig(task=IcyRoad, constraints=[constraint], total_steps=200_000)))
    for point in front([run.folder for run in runs], episodes=500).points:
        (slip,) = point.evaluation.constraints
        print(f"limit {point.request[0]:g}: risk {slip.risk:.2f}, reward {point.evaluation.reward.mean:.2f}")


if __name__ == "__main__":
    main()
