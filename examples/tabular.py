"""A finite problem, solved with a proof: how far from the optimum is the policy at most?

python examples/tabular.py
tailsafe tabular examples/two_roads.json --risk cvar:0.75 --limit 2
"""

from pathlib import Path

import tailsafe as ts


def main():
    problem = ts.FiniteCMDP.load(Path(__file__).with_name("two_roads.json"))
    for limit in (2.0, 2.5, 3.0):
        found = ts.solve_tabular(problem, ts.CVaR(0.75), limit)
        print(
            f"limit {limit:g}: risk {found.risks[0]:.4f}, reward {found.reward:.4f}, at most {found.gap:.1g} below best"
        )
    # A history matters through its cost so far: driving on after a slip.
    print(found.action_probabilities(step=2, state=1, cost_so_far=0.95))


if __name__ == "__main__":
    main()
