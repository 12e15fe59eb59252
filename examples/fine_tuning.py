"""Start from a trained policy: learn to drive under a loose limit, then tighten it in a quarter of the steps.

python examples/fine_tuning.py
tailsafe train my_env:MyEnv --from runs/a --limit 2/discounted
"""

from own_environment import IcyRoad

import tailsafe as ts


def limit(slips):
    return [ts.Constraint("slip", ts.CVaR(0.75), limit=slips, unit="discounted")]


def main():
    loose = ts.train(ts.TrainConfig(task=IcyRoad, constraints=limit(4.0), total_steps=200_000))
    strict = ts.train(ts.TrainConfig(task=IcyRoad, constraints=limit(2.0), total_steps=50_000, start=loose.folder))
    for run in (loose, strict):
        print(run.evaluate(episodes=500))


if __name__ == "__main__":
    main()
