"""Documented programs, run as they are: only trainings and evaluations are shortened."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest

from tailsafe.evaluation import front, verdict
from tailsafe.training import multirun
from tailsafe.training import train as training
from tailsafe.training.config import TrainConfig
from tailsafe.training.settings import known_settings
from tests.training.tiny import TINY

UPDATES, EPISODES = 1, 2


def shorter(config: TrainConfig, algorithm: str) -> TrainConfig:
    """The same run for an update, by an algorithm that compiles fast: what SRCPO does is tested elsewhere.

    A range of limits stays with the algorithm that takes one.
    """
    if any(constraint.ranged for constraint in config.constraints):
        algorithm = config.algorithm
    newest_alone = dict.fromkeys(("replay_chunks", "batch_chunks"), 1)
    tiny = {key: value for key, value in (TINY | newest_alone).items() if key in known_settings(algorithm)}
    steps = UPDATES * TINY["num_envs"] * TINY["chunk_steps"]
    own = {key: value for key, value in config.settings.items() if key in known_settings(algorithm)}
    settings = {**own, **tiny, "total_steps": steps, "log_every": 1}
    changes = {"algorithm": algorithm, "preset": "laptop", "total_steps": steps, "settings": settings}
    return dataclasses.replace(config, **changes)


def shorten(
    patch: pytest.MonkeyPatch,
    changed: Callable[[TrainConfig], TrainConfig] = lambda config: config,
    algorithm: str = "cppo",
) -> None:
    """Make all that trains or plays short. changed: what else is to be done to a configuration."""
    train, evaluate, together, all_points = training.train, verdict.evaluate, multirun.train_together, front.front

    @wraps(train)
    def train_shortly(config: TrainConfig, **options: Any) -> Any:
        return train(shorter(changed(config), algorithm), **options)

    def together_shortly(configs: list[TrainConfig], **options: Any) -> Any:
        return together([shorter(config, algorithm) for config in configs], **options)

    patch.setattr(training, "train", train_shortly)
    patch.setattr(multirun, "train_together", together_shortly)
    few = {"episodes": EPISODES}
    patch.setattr(verdict, "evaluate", wraps(evaluate)(lambda run, *_, **options: evaluate(run, **options | few)))
    patch.setattr(front, "front", lambda runs, *_, **options: all_points(runs, **options | few))
