"""The certificate: exact optima by linear programs over augmented occupancy measures.

With x(s, a) = P(step t is in augmented state s and takes a), the reward and every sub-risk for a fixed beta are linear:

    maximise   sum gamma^t r(s, a) x(s, a)
    subject to the flow of probability,   sum_last-step x(s, a) g_{beta_i}(D_T) + I_i(beta_i) <= d_i   for all i.

Every policy on the augmented states, deterministic or not, is such an x and vice versa; solved by HiGHS.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse
from scipy.optimize import linprog

from tailsafe.tabular.augmented import AugmentedMDP

OPTIMAL, INFEASIBLE = 0, 2
TOLERANCES = {"primal_feasibility_tolerance": 1e-9, "dual_feasibility_tolerance": 1e-9}


@dataclass(frozen=True, eq=False)
class InnerOptimum:
    """The exact solution for one beta. reward: J_R (-inf if infeasible). multipliers: (N,) duals of the limits."""

    reward: float
    multipliers: np.ndarray
    policy: list[np.ndarray] | None


@dataclass(frozen=True, eq=False)
class OccupancyLP:
    """The part of the linear program that does not depend on beta, built once per problem."""

    mdp: AugmentedMDP

    @cached_property
    def offsets(self) -> np.ndarray:
        """Where each layer's block of variables x(s, a) starts; the last entry is the number of variables."""
        return np.cumsum([0, *(layer.reward.size for layer in self.mdp.layers)])

    @cached_property
    def reward(self) -> np.ndarray:
        """gamma^t r(s, a), one per variable."""
        gamma = self.mdp.problem.discount
        return np.concatenate([gamma**t * layer.reward.ravel() for t, layer in enumerate(self.mdp.layers)])

    @cached_property
    def flow(self) -> scipy.sparse.csr_array:
        """One row per augmented state: what leaves it minus what arrives. (nodes, variables)."""
        rows, columns, entries = [], [], []
        node = 0
        for t, layer in enumerate(self.mdp.layers):
            states, actions = layer.reward.shape
            variables = self.offsets[t] + np.arange(states * actions)
            rows.append(node + np.repeat(np.arange(states), actions))
            columns.append(variables)
            entries.append(np.ones(variables.size))
            node += states
            if t + 1 < len(self.mdp.layers):
                rows.append(node + layer.successor.ravel())
                columns.append(np.repeat(variables, layer.successor.shape[2]))
                entries.append(-layer.probability.ravel())
        triplets = np.concatenate(entries), (np.concatenate(rows), np.concatenate(columns))
        return scipy.sparse.coo_array(triplets, shape=(node, self.offsets[-1])).tocsr()

    @cached_property
    def source(self) -> np.ndarray:
        """The right-hand side of `flow`: the initial distribution, then zeros."""
        return np.concatenate([self.mdp.initial, np.zeros(self.mdp.nodes - self.mdp.initial.size)])

    def terminal_rows(self, terminal_value: np.ndarray) -> scipy.sparse.csr_array:
        """The linear functions x -> E[g_i(D_T)] for g given on the terminal cost vectors, (L, N) -> (N, variables)."""
        successor = self.mdp.layers[-1].successor[..., 0].ravel()
        block = scipy.sparse.csr_array(terminal_value[successor].T)
        before = scipy.sparse.csr_array((terminal_value.shape[1], int(self.offsets[-2])))
        return scipy.sparse.hstack([before, block], format="csr")

    def maximise_reward(self, terminal_value: np.ndarray, room: np.ndarray) -> InnerOptimum:
        """The best policy with E[g_i(D_T)] <= room_i = d_i - I_i(beta_i)."""
        # HiGHS works with absolute tolerances: rewards and every constraint in units of their largest entry.
        unit = float(np.abs(self.reward).max()) or 1.0
        largest = np.abs(terminal_value).max(0)
        scale = np.where(largest > 0, largest, 1.0)
        rows = self.terminal_rows(terminal_value / scale)
        # On the edge of feasibility HiGHS may give up without an answer; another of its solvers then has one.
        for method, presolve in (("highs", True), ("highs-ds", False), ("highs-ipm", True)):
            result = linprog(
                -self.reward / unit,
                A_ub=rows,
                b_ub=room / scale,
                A_eq=self.flow,
                b_eq=self.source,
                bounds=(0, None),
                method=method,
                options={"presolve": presolve} | TOLERANCES,
            )
            if result.status == OPTIMAL:
                multipliers = -result.ineqlin.marginals * unit / scale
                return InnerOptimum(-result.fun * unit, multipliers, self.policy(result.x))
            if result.status == INFEASIBLE:
                return InnerOptimum(-np.inf, np.full(room.size, np.inf), None)
        raise RuntimeError(f"no solver finished the linear program, the last with: {result.message}")

    def policy(self, x: np.ndarray) -> list[np.ndarray]:
        """The policy behind an occupancy measure; uniform where the state is never reached."""
        blocks = [x[a:b] for a, b in zip(self.offsets[:-1], self.offsets[1:], strict=True)]
        policy = []
        for layer, block in zip(self.mdp.layers, blocks, strict=True):
            mass = np.maximum(block.reshape(layer.reward.shape), 0.0)
            total = mass.sum(1, keepdims=True)
            policy.append(np.where(total > 0, mass / np.where(total > 0, total, 1.0), 1.0 / mass.shape[1]))
        return policy
