"""Follow a run with a function, and end it when it is good enough: every row of the log comes by.

python examples/callback.py
"""

from own_environment import IcyRoad

import tailsafe as ts


def good_enough(row):
    """Rows have the columns of metrics.csv; None where nothing is known yet. False ends the run."""
    risk, limit = row["risk_slip"], row["limit_slip"]
    print(row["steps"], row["reward"], risk)
    return risk is None or risk > limit or row["reward"] < 12


def main():
    constraint = ts.Constraint("slip", ts.CVaR(0.75), limit=3.0, unit="discounted")
    config = ts.TrainConfig(task=IcyRoad, constraints=[constraint], total_steps=500_000)
    run = ts.train(config, callback=good_enough, progress=False)
    print(f"{run.steps} steps; ts.resume({str(run.folder)!r}) would train it further")


if __name__ == "__main__":
    main()
