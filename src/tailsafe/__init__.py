"""tailsafe: the best policy whose spectral risks stay under your limits."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tailsafe._version import __version__
from tailsafe.envs.registration import register_tasks
from tailsafe.errors import InputError

if TYPE_CHECKING:
    from tailsafe.envs.vector import make_vec
    from tailsafe.risk import CVaR, Mean, Pow, SpectralRisk, Spectrum, StepSpectrum, Wang, parse_spectrum
    from tailsafe.runs.config import Constraint, TrainConfig
    from tailsafe.runs.evaluation import evaluate
    from tailsafe.runs.export import export
    from tailsafe.runs.policy import load_policy
    from tailsafe.runs.training import resume, train
    from tailsafe.tabular import FiniteCMDP, TabularSolution, solve_tabular

# `gymnasium.make("tailsafe/PointGoal-v0")` works from here on; this imports neither JAX nor MuJoCo.
register_tasks()

# Where each public name lives. They are imported on first use: `tailsafe --help` must not wait for JAX or SciPy.
_HOME = {
    "CVaR": "risk",
    "Mean": "risk",
    "Pow": "risk",
    "SpectralRisk": "risk",
    "Spectrum": "risk",
    "StepSpectrum": "risk",
    "Wang": "risk",
    "parse_spectrum": "risk",
    "make_vec": "envs.vector",
    "Constraint": "runs.config",
    "TrainConfig": "runs.config",
    "resume": "runs.training",
    "train": "runs.training",
    "evaluate": "runs.evaluation",
    "export": "runs.export",
    "load_policy": "runs.policy",
    "FiniteCMDP": "tabular",
    "TabularSolution": "tabular",
    "solve_tabular": "tabular",
}

__all__ = [
    "CVaR",
    "Constraint",
    "FiniteCMDP",
    "InputError",
    "Mean",
    "Pow",
    "SpectralRisk",
    "Spectrum",
    "StepSpectrum",
    "TabularSolution",
    "TrainConfig",
    "Wang",
    "__version__",
    "evaluate",
    "export",
    "load_policy",
    "make_vec",
    "parse_spectrum",
    "resume",
    "solve_tabular",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'tailsafe' has no attribute {name!r}")
    return getattr(importlib.import_module(f"tailsafe.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
