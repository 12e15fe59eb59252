"""A study of one's own: two algorithms under two limits with three seeds each, and what can be said about them.

All runs of an algorithm train in one program. What is there already is resumed: stop it, and start it again.

python examples/own_study.py
"""

from pathlib import Path

import tailsafe as ts
from tailsafe.evaluation.exact import evaluate_on_problem
from tailsafe.studies.statistics import estimate, improvement, interquartile_mean
from tailsafe.training.multirun import train_together

PROBLEM = str(Path(__file__).with_name("two_roads.json"))
ALGORITHMS, LIMITS, SEEDS = ("srcpo", "cppo"), (2.0, 2.5), (0, 1, 2)
FOLDER = Path("studies/own")


def config(algorithm, limit, seed):
    return ts.TrainConfig(
        task="finite",
        algorithm=algorithm,
        constraints=[ts.Constraint("cost", ts.CVaR(0.75), limit, "discounted")],
        seed=seed,
        total_steps=200_000,
        settings={"problem": PROBLEM},
        out=FOLDER / f"{algorithm}-{limit:g}-{seed}",
    )


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    for algorithm in ALGORITHMS:
        train_together([config(algorithm, limit, seed) for limit in LIMITS for seed in SEEDS])

    # The problem is finite: reward and risk of every policy are exact.
    scores = {}
    for algorithm in ALGORITHMS:
        for limit in LIMITS:
            folders = [config(algorithm, limit, seed).folder for seed in SEEDS]
            exact = [evaluate_on_problem(ts.load_policy(folder)) for folder in folders]
            kept = sum(one.feasible for one in exact)
            scores.setdefault(algorithm, []).append([one.reward for one in exact])
            found = estimate(interquartile_mean, [scores[algorithm][-1]])
            print(
                f"{algorithm}, limit {limit:g}: reward {found.mean:.3f} [{found.low:.3f}, {found.high:.3f}], "
                f"optimum {exact[0].optimum:.3f}, limit kept by {kept} of {len(SEEDS)}"
            )
    better = improvement(scores["srcpo"], scores["cppo"])
    print(f"a run of srcpo earns more than one of cppo with probability {better.mean:.2f}")


if __name__ == "__main__":
    main()
