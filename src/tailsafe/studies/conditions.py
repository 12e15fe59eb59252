"""Under which conditions studies of simulated robots train and measure, beside what presets say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tailsafe.training.settings import preset_values

# The share of every limit that is kept free: presets differ in it, comparisons must not.
MARGIN = 0.15
# Of every run that is not finished: five seeds have as many as one evaluation of a finished run.
INTERIM_EPISODES = 100

# Preset `laptop` on a GPU: small updates learn more from a step than those of preset `gpu`.
SMALL_ON_GPU = {"precision": "tf32", "checkpoint_every": 500_000}
# A step of 128 environments takes a GPU hardly longer than one of 32, so that there the rows of an update come from
# more environments and fewer steps.
_MANY = 128
_OWN_SHAPES: dict[str, dict[str, Any]] = {
    # Its costs are counted to the end of a chunk.
    "cppo": {"num_envs": 32, "chunk_steps": 250},
    # As many old rows to draw from, half as many updates per new row.
    "wcsac": {"num_envs": _MANY, "chunk_steps": 8, "replay_chunks": 250, "policy_iterations": 32},
}


def wide(algorithm: str, family: str) -> dict[str, Any]:
    """Preset `laptop` for a GPU: updates from as many rows as it has, of 128 environments."""
    if algorithm in _OWN_SHAPES:
        return _OWN_SHAPES[algorithm]
    values = preset_values("laptop", family, algorithm)
    return {"num_envs": _MANY, "chunk_steps": max(1, values["num_envs"] * values["chunk_steps"] // _MANY)}


@dataclass(frozen=True)
class Tuning:
    """What of an algorithm's preset was chosen by looking at results on the simulated robots. runs: None where nobody
    counted.
    """

    settings: tuple[str, ...]
    runs: int | None

    def __str__(self) -> str:
        if not self.settings:
            return "nothing"
        return f"{', '.join(self.settings)}: {'runs not counted' if self.runs is None else f'{self.runs} runs'}"


# By docs/decisions.md and docs/baselines.md. What is not named here has not been tuned.
TUNED = {
    "srcpo": Tuning(("most of the preset",), None),
    "sdac": Tuning(("surrogate",), 1),
    "sdpo": Tuning(("max_kl",), 2),
}
UNTUNED = Tuning((), 0)

# For scale `smoke`.
TINY = {
    "num_envs": 4,
    "chunk_steps": 8,
    "replay_chunks": 1,
    "batch_chunks": 1,
    "policy_hidden": (8,),
    "critic_hidden": (8,),
    "quantiles": 5,
    "critic_iterations": 2,
    "critic_minibatches": 1,
    "log_every": 1,
}
