"""Small problems for the tests, and a slow reference that knows nothing of layers: enumeration of trajectories."""

import numpy as np

from tailsafe.tabular import FiniteCMDP
from tailsafe.tabular.suite import gamble

__all__ = ["gamble", "random_policy", "random_problem", "trajectories"]


def random_problem(seed, states=3, actions=2, horizon=4, costs=1, discount=0.9, cost_values=(0.0, 1.0)):
    """Transitions from a sparse-ish Dirichlet, rewards in [0, 1], costs from a few values so that sums coincide."""
    rng = np.random.default_rng(seed)
    transitions = rng.dirichlet(np.full(states, 0.5), size=(states, actions))
    return FiniteCMDP(
        horizon,
        discount,
        rng.dirichlet(np.ones(states)),
        transitions,
        rng.uniform(size=(states, actions)).round(2),
        rng.choice(cost_values, size=(costs, states, actions)),
    )


def random_policy(mdp, seed):
    rng = np.random.default_rng(seed)
    return [rng.dirichlet(np.ones(layer.reward.shape[1]), size=layer.state.size) for layer in mdp.layers]


def trajectories(mdp, policy):
    """Yield (probability, [(t, node, action)], discounted reward, cost vector), by walking the original problem.

    Costs are accumulated here, from the problem's own numbers; the augmented state is only looked up to ask the policy.
    """
    problem = mdp.problem
    lookup = [
        {(int(s), *np.round(d, 8)): k for k, (s, d) in enumerate(zip(layer.state, layer.cost_so_far, strict=True))}
        for layer in mdp.layers
    ]

    def walk(t, state, sums, reward, chance, path):
        if t == problem.horizon:
            yield chance, path, reward, sums
            return
        node = lookup[t][(state, *np.round(sums, 8))]
        for action in range(problem.actions):
            then = sums + problem.discount**t * problem.costs[:, state, action]
            earned = reward + problem.discount**t * problem.rewards[state, action]
            for target in range(problem.states):
                p = chance * policy[t][node, action] * problem.transitions[state, action, target]
                if p > 0:
                    yield from walk(t + 1, target, then, earned, p, [*path, (t, node, action)])

    for state in range(problem.states):
        if problem.initial[state] > 0:
            yield from walk(0, state, np.zeros(problem.num_costs), 0.0, problem.initial[state], [])
