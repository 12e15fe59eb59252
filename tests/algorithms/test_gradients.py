"""The learner's gradient of J_C, put together from budgets and exact expectations, against the problem's own J_C."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tailsafe.learning.actions import DiscreteActions
from tailsafe.learning.constraints import stack_constraints
from tailsafe.risk import CVaR, Wang
from tests.tabular.problems import random_problem

DELTA = 0.4


def nodes(problem):
    """Every (t, state, cost so far) that can be reached, by enumeration."""
    found = [set() for _ in range(problem.horizon + 1)]
    found[0] = {(s, 0.0) for s in range(problem.states) if problem.initial[s] > 0}
    for t, layer in enumerate(found[:-1]):
        for (s, d), a, after in itertools.product(layer, range(problem.actions), range(problem.states)):
            if problem.transitions[s, a, after] > 0:
                found[t + 1].add((after, round(d + problem.discount**t * problem.costs[0, s, a], 9)))
    return [sorted(layer) for layer in found]


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def walk(problem, layers, logits, g):
    """Reach probabilities per node, E[g(D_H)], and per node and action the distribution of the cost still to come."""
    reach = [dict.fromkeys(layer, 0.0) for layer in layers]
    for s, d in layers[0]:
        reach[0][s, d] = problem.initial[s]
    distributions = [{} for _ in layers]  # node -> [(value, probability)] under the policy
    action_laws = [{} for _ in layers]
    for node in layers[-1]:
        distributions[-1][node] = [(0.0, 1.0)]
    for t in range(problem.horizon - 1, -1, -1):
        for s, d in layers[t]:
            pi = softmax(logits[t][s, d])
            per_action = []
            for a in range(problem.actions):
                cost = problem.costs[0, s, a]
                distribution = []
                for after in range(problem.states):
                    p = problem.transitions[s, a, after]
                    if p > 0:
                        node = (after, round(d + problem.discount**t * cost, 9))
                        distribution += [(cost + problem.discount * z, p * q) for z, q in distributions[t + 1][node]]
                per_action.append(distribution)
            action_laws[t][s, d] = per_action
            distributions[t][s, d] = [(z, pi[a] * q) for a in range(problem.actions) for z, q in per_action[a]]
    for t, layer in enumerate(layers[:-1]):
        for (s, d), a, after in itertools.product(layer, range(problem.actions), range(problem.states)):
            p = problem.transitions[s, a, after]
            if p > 0:
                node = (after, round(d + problem.discount**t * problem.costs[0, s, a], 9))
                reach[t + 1][node] += reach[t][s, d] * softmax(logits[t][s, d])[a] * p
    value = sum(p * g(d) for (_, d), p in reach[-1].items())
    return reach, value, action_laws


@pytest.mark.parametrize("measure", [CVaR(0.6), Wang(0.7)], ids=["cvar", "wang"])
def test_budget_gradients_are_the_policy_gradient_of_the_sub_risk(measure):
    problem = random_problem(0, states=2, actions=2, horizon=3)
    step = measure.discretize(3)
    with jax.enable_x64(True):
        constraints = stack_constraints([step], [1.5], [10.0])
        beta = constraints.beta(jnp.full(constraints.num_betas, DELTA))[0]
    layers = nodes(problem)
    rng = np.random.default_rng(0)
    logits = [{node: rng.normal(size=problem.actions) for node in layer} for layer in layers[:-1]]

    def g(total):
        return float(step.g_beta(np.array(total), np.asarray(beta)))

    reach, _, distributions = walk(problem, layers, logits, g)
    actions = DiscreteActions(problem.actions)
    for t, layer in enumerate(layers[:-1]):
        for node in layer:
            discount = problem.discount**t
            with jax.enable_x64(True):
                budget = constraints.budget(beta[None, None], jnp.asarray([[node[1]]]), jnp.asarray([discount]))
                table = jnp.asarray(
                    [
                        sum(q * float(constraints.g(jnp.asarray([[[z]]]), budget)[0, 0, 0]) for z, q in distribution)
                        for distribution in distributions[t][node]
                    ]
                )
                _, gradient = actions.output_gradients(
                    jnp.asarray(logits[t][node])[None], jnp.zeros((1, 2)), lambda copies, table=table: copies @ table, 1
                )
            learned = reach[t][node] * discount * np.asarray(gradient)[0, 0]
            for a in range(problem.actions):
                shift = 1e-5
                values = []
                for sign in (1, -1):
                    moved = [dict(layer_logits) for layer_logits in logits]
                    moved[t][node] = logits[t][node] + sign * shift * np.eye(problem.actions)[a]
                    values.append(walk(problem, layers, moved, g)[1])
                assert learned[a] == pytest.approx((values[0] - values[1]) / (2 * shift), abs=1e-8)
