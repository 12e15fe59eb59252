"""Small problems for the tests, and a slow reference that knows nothing of layers: enumeration of trajectories."""

import numpy as np

from tailsafe.tabular import FiniteCMDP


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


def gamble():
    """Safe earns 0. Gambling earns 1 and costs 10 with probability 0.1. Two steps, no discount.

    Gambling with probability q has CVaR_0.75 = 10 * 0.1 q / 0.25 = 4 q, so a limit of 2 allows q = 1/2, reward 1/2, and
    the 0.75-quantile of the cost is beta = 0.
    """
    start, fine, hurt = range(3)
    transitions = np.zeros((3, 2, 3))
    transitions[start, 0, fine] = 1.0
    transitions[start, 1, [fine, hurt]] = 0.9, 0.1
    transitions[fine, :, fine] = transitions[hurt, :, hurt] = 1.0
    rewards = np.zeros((3, 2))
    rewards[start, 1] = 1.0
    costs = np.zeros((1, 3, 2))
    costs[0, hurt] = 10.0
    return FiniteCMDP(2, 1.0, np.array([1.0, 0.0, 0.0]), transitions, rewards, costs)


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
