"""Under which conditions studies of simulated robots train and measure, beside what presets say."""

from __future__ import annotations

from typing import Any

# The share of every limit that is kept free: presets differ in it, comparisons must not.
MARGIN = 0.15
# Of every run that is not finished: five seeds have as many as one evaluation of a finished run.
INTERIM_EPISODES = 100

# Preset `laptop` on a GPU: small updates learn more from a step than those of preset `gpu`.
SMALL_ON_GPU = {"precision": "tf32", "checkpoint_every": 500_000}
# A step of 128 environments takes a GPU hardly longer than one of 32, so that there the rows of an update come from
# more environments and fewer steps. (WCSAC: as many old rows to draw from, half as many updates per new row.)
_MANY = {"num_envs": 128}
WIDE: dict[str, dict[str, Any]] = {
    "srcpo": _MANY | {"chunk_steps": 32},
    "sdac": _MANY | {"chunk_steps": 32},
    "cvar_cpo": _MANY | {"chunk_steps": 64},
    "sdpo": _MANY | {"chunk_steps": 64},
    # Its costs are counted to the end of a chunk.
    "cppo": {"num_envs": 32, "chunk_steps": 250},
    "wcsac": _MANY | {"chunk_steps": 8, "replay_chunks": 250, "policy_iterations": 32},
}

# For scale `smoke`.
TINY = {
    "num_envs": 4,
    "chunk_steps": 8,
    "replay_chunks": 1,
    "batch_chunks": 1,
    "policy_chunks": 1,
    "policy_hidden": (8,),
    "critic_hidden": (8,),
    "quantiles": 5,
    "target_quantiles": 6,
    "critic_iterations": 2,
    "critic_minibatches": 1,
    "log_every": 1,
}
