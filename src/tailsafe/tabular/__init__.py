"""The exact tabular method: a finite problem in, the best policy and a proof of its optimality gap out."""

from tailsafe.tabular.augmented import AugmentedMDP, augment
from tailsafe.tabular.problem import FiniteCMDP
from tailsafe.tabular.solution import TabularSolution
from tailsafe.tabular.solve import solve_tabular
from tailsafe.tabular.srcpo import Settings

__all__ = ["AugmentedMDP", "FiniteCMDP", "Settings", "TabularSolution", "augment", "solve_tabular"]
