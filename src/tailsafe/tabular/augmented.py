"""The augmented state space of a finite problem, enumerated exactly as a layered graph.      Eq. (augmented state)

The paper's augmented state is (s, e, b) with b = gamma^t and b e = D, the discounted costs so far. With a horizon it is
one-to-one with (t, s, D): layer t holds every reachable (s, D), and D is a vector with one entry per cost. After the
last step only D matters, so the terminal layer holds cost sums alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tailsafe.errors import InputError
from tailsafe.tabular.problem import FiniteCMDP

# Cost sums closer than this, relative to the largest cost sum, are one sum reached by different roundings.
MERGE_TOLERANCE = 1e-10
GIB = 2**30
DEFAULT_MEMORY_LIMIT = 2 * GIB


@dataclass(frozen=True, eq=False)
class Layer:
    """The augmented states of one time step t, n of them, and where each action leads.

    state: (n,) s. cost_so_far: (n, N) D. reward: (n, A) r(s, a), undiscounted.
    successor: (n, A, K) indices into the next layer; probability: (n, A, K), zero where K is only padding.
    """

    state: np.ndarray
    cost_so_far: np.ndarray
    reward: np.ndarray
    successor: np.ndarray
    probability: np.ndarray


@dataclass(frozen=True, eq=False)
class AugmentedMDP:
    """Layers 0..T-1, the initial distribution over layer 0, and the attainable cost vectors at the end.

    initial: (n_0,). terminal_cost: (L, N), each row one attainable value of D_T.
    """

    problem: FiniteCMDP
    layers: tuple[Layer, ...]
    initial: np.ndarray
    terminal_cost: np.ndarray

    @property
    def nodes(self) -> int:
        """Augmented states in which an action is taken."""
        return sum(layer.state.size for layer in self.layers)

    def attainable(self, cost: int) -> np.ndarray:
        """Every value that the discounted sum of this cost can take, sorted."""
        return np.unique(self.terminal_cost[:, cost])


def augment(problem: FiniteCMDP, memory_limit: float = DEFAULT_MEMORY_LIMIT) -> AugmentedMDP:
    """Enumerate the reachable augmented states, merging equal cost sums.

    memory_limit: bytes; a layer that would take the total above it is refused before it is built.
    """
    start = np.flatnonzero(problem.initial)
    state, cost_so_far = start, np.zeros((start.size, problem.num_costs))
    if not memory_limit > 0:
        raise InputError(f"the memory limit is {memory_limit / GIB:g} GiB; it must be positive")
    # The largest sum there can be is at most this; only its order of magnitude matters.
    largest_sum = float(problem.costs.max()) * min(problem.horizon, problem.effective_horizon)
    tolerance = MERGE_TOLERANCE * max(largest_sum, 1e-300)
    targets, chances = _successors(problem)
    layers: list[Layer] = []
    used = 0.0
    for t in range(problem.horizon):
        last = t == problem.horizon - 1
        width = 1 if last else targets.shape[2]
        used += _layer_bytes(state.size, problem, width)
        if used > memory_limit:
            raise InputError(
                f"the augmented state space needs more than {used / GIB:.3g} GiB at step {t} of {problem.horizon} "
                f"({state.size} states there); the memory limit is {memory_limit / GIB:.3g} GiB: raise it, shorten the "
                "horizon, or use costs with fewer distinct sums"
            )
        # D' = D + gamma^t c(s, a): (n, A, N), the same for every successor s'
        reached = cost_so_far[:, None] + problem.discount**t * problem.costs[:, state].transpose(1, 2, 0)
        next_state = np.zeros((*reached.shape[:2], 1), int) if last else targets[state]
        probability = np.ones(next_state.shape) if last else chances[state]
        real = probability > 0
        keys = np.broadcast_to(reached[:, :, None, :], (*next_state.shape, problem.num_costs))[real]
        merged, index = _merge(next_state[real], keys, tolerance)
        successor = np.zeros(next_state.shape, int)
        successor[real] = index
        layers.append(Layer(state, cost_so_far, problem.rewards[state], successor, probability))
        state, cost_so_far = merged
    return AugmentedMDP(problem, tuple(layers), problem.initial[start], cost_so_far)


def _successors(problem: FiniteCMDP) -> tuple[np.ndarray, np.ndarray]:
    """The states each (s, a) can lead to and their probabilities, (S, A, K), K the largest number of them."""
    width = int((problem.transitions > 0).sum(-1).max())
    targets = np.argsort(-problem.transitions, axis=-1, kind="stable")[..., :width]
    return targets, np.take_along_axis(problem.transitions, targets, axis=-1)


def _layer_bytes(nodes: int, problem: FiniteCMDP, width: int) -> float:
    """Memory of a layer and of the temporary arrays that make the next one."""
    edges = nodes * problem.actions * width
    return 8.0 * (nodes * (1 + problem.num_costs + problem.actions) + edges * (6 + 3 * problem.num_costs))


def _merge(state: np.ndarray, cost: np.ndarray, tolerance: float) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    """The distinct (state, cost vector) pairs, ((n,), (n, N)), and for each input row its index among them."""
    ids = np.empty((state.size, 1 + cost.shape[1]), int)
    ids[:, 0] = state
    values = np.empty_like(cost)
    for i in range(cost.shape[1]):
        # Values in one chain of gaps below the tolerance are one value, represented by the smallest.
        order = np.argsort(cost[:, i], kind="stable")
        ordered = cost[order, i]
        new = np.diff(ordered, prepend=-np.inf) > tolerance
        group = np.cumsum(new) - 1
        ids[order, 1 + i] = group
        values[order, i] = ordered[new][group]
    _, first, index = np.unique(ids, axis=0, return_index=True, return_inverse=True)
    return (state[first], values[first]), index.reshape(-1)
