"""A training run that ends at a time: `learn.py FOLDER TASK SEEDS [KEY=VALUE...]`.

LEARN_ENDS: seconds since 1970; the run is saved after the first row of its log behind that. GATE: a file that must be
there before it goes on after its first row: until then it has compiled what it needs, and others may measure. PRESET
(default gpu), BACKEND (default warp), RISK and LIMIT (default cvar:0.75 and 0.025/step): as `tailsafe train` has them.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import yaml

import tailsafe as ts
from tailsafe.training.config import parse_limit


def main(folder: str, task: str, seeds: str, *settings: str) -> None:
    ends, gate = float(os.environ["LEARN_ENDS"]), os.environ.get("GATE")
    first = True

    def goes_on(row: dict[str, Any]) -> bool:
        nonlocal first
        while first and gate and not Path(gate).exists() and time.time() < ends:
            time.sleep(0.5)
        first = False
        return time.time() < ends

    values = {name: yaml.safe_load(text) for name, text in (one.split("=", 1) for one in settings)}
    config = ts.TrainConfig(
        task,
        seed=int(values.pop("seed", 0)),
        seeds=int(seeds),
        total_steps=int(values.pop("total_steps", 1_000_000_000)),
        preset=os.environ.get("PRESET", "gpu"),
        backend=os.environ.get("BACKEND", "warp"),
        settings=values,
        log=["csv"],
        out=Path(folder),
    )
    risk = os.environ.get("RISK", "cvar:0.75")
    ts.train(config, callback=goes_on, risks=[risk], limits=[parse_limit(os.environ.get("LIMIT", "0.025/step"))])


if __name__ == "__main__":
    main(*sys.argv[1:])
