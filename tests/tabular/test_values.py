"""Augmented states, exact values, and the paper's theorems about them, against enumerated trajectories."""

import jax
import numpy as np
import pytest

import tailsafe as ts
from tailsafe.tabular import augment
from tailsafe.tabular.augmented import GIB
from tailsafe.tabular.values import evaluate, evaluate_exactly, expected_reward, occupancy, return_distributions
from tests.tabular.problems import gamble, random_policy, random_problem, trajectories

CASES = [
    random_problem(0),
    random_problem(1, states=2, actions=3, horizon=3, costs=2),
    random_problem(2, horizon=5, cost_values=(0.0, 0.5, 1.0), discount=0.8),
    random_problem(3, states=4, horizon=3, costs=2, discount=1.0),
    gamble(),
]
STEPS = ts.Pow(0.75).discretize(3)


def terminal_values(mdp, beta=(0.5, 1.2)):
    """g_beta on the attainable sums of each cost, (L, N)."""
    return STEPS.g_beta(mdp.terminal_cost, np.array(beta))


@pytest.mark.parametrize("problem", CASES)
def test_terminal_law_and_reward_agree_with_trajectories(problem):
    mdp = augment(problem)
    policy = random_policy(mdp, 0)
    distribution: dict[tuple[float, ...], float] = {}
    reward = 0.0
    for chance, _, earned, sums in trajectories(mdp, policy):
        key = tuple(np.round(sums, 8))
        distribution[key] = distribution.get(key, 0.0) + chance
        reward += chance * earned
    assert expected_reward(mdp, policy) == pytest.approx(reward, rel=1e-12)
    found = {tuple(np.round(d, 8)): p for d, p in zip(mdp.terminal_cost, occupancy(mdp, policy)[-1], strict=True)}
    assert found.keys() == distribution.keys()
    assert found == pytest.approx(distribution, abs=1e-12)


@pytest.mark.parametrize("problem", CASES)
def test_risk_values_are_expectations_of_g_under_the_return_distributions(problem):
    mdp = augment(problem)
    policy = random_policy(mdp, 0)
    terminal = terminal_values(mdp)
    values = evaluate_exactly(mdp, policy, terminal)
    for value, distribution in zip(values.value, return_distributions(mdp, policy), strict=True):
        np.testing.assert_allclose(distribution.sum(1), 1.0, rtol=1e-12)
        np.testing.assert_allclose(value[:, 1:], distribution @ terminal, rtol=1e-11)


@pytest.mark.parametrize("problem", CASES)
def test_performance_difference_theorem(problem):
    """Thm. 5.2: J(pi') - J(pi) = E_{d^pi', pi'}[A^pi] / (1 - gamma) = sum_t gamma^t E_pi'[A^pi]."""
    mdp = augment(problem)
    for seed in range(5):
        policy, other = random_policy(mdp, seed), random_policy(mdp, seed + 100)
        values = evaluate_exactly(mdp, policy, terminal_values(mdp))
        after = evaluate_exactly(mdp, other, terminal_values(mdp))
        gain = sum(
            problem.discount**t * np.einsum("n,na,nac->c", reach, pi, advantage)
            for t, (reach, pi, advantage) in enumerate(
                zip(occupancy(mdp, other)[:-1], other, values.advantage, strict=True)
            )
        )
        np.testing.assert_allclose(after.objective - values.objective, gain, atol=1e-12)


@pytest.mark.parametrize("problem", [c for c in CASES if c.discount < 1])
def test_risk_value_bounds(problem):
    """Lemma 5.1: g(D) <= V, Q <= g(D + b C_max / (1 - gamma)) and |Q - V| <= b C_max / (1 - gamma) g'(.)."""
    mdp = augment(problem)
    worst = problem.costs.max() / (1 - problem.discount)
    steepest = STEPS.eta[-1]  # g' at the far end
    beta = np.array([0.5, 1.2])
    for seed in range(5):
        values = evaluate_exactly(mdp, random_policy(mdp, seed), terminal_values(mdp))
        for t, layer in enumerate(mdp.layers):
            b = problem.discount**t
            low, high = STEPS.g_beta(layer.cost_so_far, beta), STEPS.g_beta(layer.cost_so_far + b * worst, beta)
            q, v = values.q[t][..., 1:], values.value[t][:, 1:]
            assert np.all((low - 1e-12 <= v) & (v <= high + 1e-12))
            assert np.all((low[:, None] - 1e-12 <= q) & (q <= high[:, None] + 1e-12))
            assert np.all(np.abs(q - v[:, None]) <= b * worst * steepest + 1e-12)
            np.testing.assert_allclose(values.advantage[t][..., 1:], (q - v[:, None]) / b, atol=1e-12)


@pytest.mark.parametrize("problem", CASES[:4])
def test_gradients_and_their_inner_products(problem):
    """JAX's gradient of the exact objectives in the logits, and the explicit Fisher matrix, against the closed forms.

    grad J_x in logit space is h d(s) pi(a) A_x(s, a), F is h-normalised, and <x, y> = grad_x' F^+ grad_y is `gram`.
    """
    mdp = augment(problem)
    terminal = terminal_values(mdp)
    sizes = [layer.reward.shape for layer in mdp.layers]
    logits = [np.random.default_rng(t).normal(size=size) for t, size in enumerate(sizes)]
    h = problem.effective_horizon

    def objectives(parameters):
        policy = [jax.nn.softmax(x, axis=1) for x in parameters]
        return evaluate(mdp.layers, mdp.initial, policy, jax.numpy.asarray(terminal), problem.discount, h).objective

    with jax.enable_x64(True):
        gradients = jax.device_get(jax.jit(jax.jacrev(objectives))([jax.numpy.asarray(x) for x in logits]))
        policy = [np.asarray(jax.nn.softmax(x, axis=1)) for x in logits]
    values = evaluate_exactly(mdp, policy, terminal)
    reach = occupancy(mdp, policy)[:-1]
    columns = 1 + terminal.shape[1]
    gram = np.zeros((columns, columns))
    for t, gradient in enumerate(gradients):
        weight = problem.discount**t * reach[t][:, None, None] * policy[t][..., None]
        closed = np.moveaxis(weight * values.advantage[t], -1, 0)
        np.testing.assert_allclose(gradient, closed, atol=1e-10)
        for n in range(sizes[t][0]):
            # The Fisher matrix is block diagonal over states: d(s) (diag(pi) - pi pi'), d = gamma^t P(s) / h.
            pi = policy[t][n]
            fisher = problem.discount**t * reach[t][n] / h * (np.diag(pi) - np.outer(pi, pi))
            block = np.asarray(gradient)[:, n]
            gram += block @ np.linalg.pinv(fisher, rcond=1e-10) @ block.T
    np.testing.assert_allclose(values.gram, gram, rtol=1e-7, atol=1e-10)


def test_batched_evaluation_equals_one_by_one():
    mdp = augment(CASES[1])
    policies = [random_policy(mdp, seed) for seed in range(3)]
    terminals = [terminal_values(mdp, (0.1 * k, 1.0)) for k in range(3)]
    stacked = evaluate_exactly(mdp, [np.stack(p, -1) for p in zip(*policies, strict=True)], np.stack(terminals, -1))
    for k in range(3):
        alone = evaluate_exactly(mdp, policies[k], terminals[k])
        np.testing.assert_allclose(stacked.objective[..., k], alone.objective, rtol=1e-12)
        np.testing.assert_allclose(stacked.gram[..., k], alone.gram, rtol=1e-12)
        np.testing.assert_allclose(stacked.advantage[1][..., k], alone.advantage[1], atol=1e-12)


def test_states_are_merged_when_cost_sums_coincide():
    # gamma + gamma^2 = 1: paying in step 0 equals paying in steps 1 and 2.
    golden = (np.sqrt(5) - 1) / 2
    merged, plain = (augment(random_problem(0, horizon=6, discount=g)) for g in (golden, 0.9))
    assert len(plain.attainable(0)) == 2**6
    every = {round(sum(golden**t for t in range(6) if bits >> t & 1), 9) for bits in range(2**6)}
    assert len(merged.attainable(0)) == len(every) == 33
    assert np.min(np.diff(merged.attainable(0))) > 1e-3
    policy = random_policy(merged, 0)
    direct = sum(chance * sums[0] for chance, _, _, sums in trajectories(merged, policy))
    assert occupancy(merged, policy)[-1] @ merged.terminal_cost[:, 0] == pytest.approx(direct, rel=1e-12)


def test_unreachable_states_are_left_out():
    problem = gamble()
    mdp = augment(problem)
    assert [layer.state.tolist() for layer in mdp.layers] == [[0], [1, 2]]
    assert mdp.terminal_cost.ravel().tolist() == [0.0, 10.0]


def test_memory_limit_is_checked_before_the_layer_is_built():
    problem = random_problem(0, states=4, horizon=40)
    with pytest.raises(
        ts.InputError, match=r"needs more than .* GiB at step \d+ of 40 .* the memory limit is 0.01 GiB"
    ):
        augment(problem, memory_limit=0.01 * GIB)
