"""tailsafe: the best policy whose spectral risks stay under your limits."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

try:
    from tailsafe._version import __version__
    from tailsafe.envs.registration import register_tasks
    from tailsafe.errors import InputError
except KeyboardInterrupt:
    if not sys.argv[0].removesuffix(".exe").endswith("tailsafe"):
        raise
    # Of the program, in its first half second, before there is anybody to catch it.
    sys.stderr.write("interrupted\n")
    sys.exit(130)

if TYPE_CHECKING:
    from tailsafe.envs.jax_env import JaxEnv
    from tailsafe.envs.vector import make_vec
    from tailsafe.envs.wrappers import CostFromStep
    from tailsafe.evaluation.certificate import certify
    from tailsafe.evaluation.verdict import evaluate
    from tailsafe.policies.export import export
    from tailsafe.policies.policy import load_policy
    from tailsafe.risk import CVaR, Mean, Pow, SpectralRisk, Spectrum, StepSpectrum, Wang, parse_spectrum
    from tailsafe.tabular import FiniteCMDP, TabularSolution, solve_tabular
    from tailsafe.training.config import Constraint, TrainConfig
    from tailsafe.training.diagnosis import diagnose
    from tailsafe.training.train import resume, train
    from tailsafe.training.tune import tune
    from tailsafe.viz.inline import plot

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
    "CostFromStep": "envs.wrappers",
    "JaxEnv": "envs.jax_env",
    "make_vec": "envs.vector",
    "Constraint": "training.config",
    "TrainConfig": "training.config",
    "diagnose": "training.diagnosis",
    "resume": "training.train",
    "train": "training.train",
    "tune": "training.tune",
    "certify": "evaluation.certificate",
    "evaluate": "evaluation.verdict",
    "export": "policies.export",
    "load_policy": "policies.policy",
    "plot": "viz.inline",
    "FiniteCMDP": "tabular",
    "TabularSolution": "tabular",
    "solve_tabular": "tabular",
}

__all__ = [
    "CVaR",
    "Constraint",
    "CostFromStep",
    "FiniteCMDP",
    "InputError",
    "JaxEnv",
    "Mean",
    "Pow",
    "SpectralRisk",
    "Spectrum",
    "StepSpectrum",
    "TabularSolution",
    "TrainConfig",
    "Wang",
    "__version__",
    "certify",
    "diagnose",
    "evaluate",
    "export",
    "load_policy",
    "make_vec",
    "parse_spectrum",
    "plot",
    "resume",
    "solve_tabular",
    "train",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'tailsafe' has no attribute {name!r}")
    return getattr(importlib.import_module(f"tailsafe.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
