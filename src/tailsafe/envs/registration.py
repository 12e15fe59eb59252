"""The tasks' names in Gymnasium.

`import tailsafe` registers them, so this module is light: the tasks themselves, JAX and MuJoCo are imported by
`gymnasium.make`.
"""

from __future__ import annotations

from gymnasium.envs.registration import register, registry

GYMNASIUM_IDS = {
    "tailsafe/PointGoal-v0": "point-goal",
    "tailsafe/CarGoal-v0": "car-goal",
    "tailsafe/PointButton-v0": "point-button",
    "tailsafe/CarButton-v0": "car-button",
    "tailsafe/Quadruped-v0": "quadruped",
    "tailsafe/Biped-v0": "biped",
}


def register_tasks() -> None:
    """Make every task known to Gymnasium, once."""
    for gymnasium_id, task in GYMNASIUM_IDS.items():
        if gymnasium_id not in registry:
            # The environment truncates by itself, alike in every wrapper and batch: no TimeLimit is needed.
            register(id=gymnasium_id, entry_point="tailsafe.envs.single:TaskEnv", kwargs={"task": task})
