"""How much faster processes step Gymnasium's Hopper with a velocity cost: `--set env_workers=N` against one process.

Both take turns in one run, so that a busy machine slows both. Processes of others still distort the ratio, since a
worker that sleeps between two steps must be given a core at once; `chrt -f 5` before the command sees to that.

python scripts/env_workers.py [--num-envs 32] [--workers 2] [--rounds 8]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import median
from typing import Any

import gymnasium
import numpy as np

from tailsafe.envs.finding import find_environment
from tailsafe.envs.user import user_environments

_STEPS = 300


class SafeHopper(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Costs 1 in every step that is faster than `fastest` [m/s]."""

    cost_names, largest_costs = ("speeding",), (1.0,)

    def __init__(self, fastest: float = 0.7) -> None:
        super().__init__(gymnasium.make("Hopper-v5"))
        self.fastest = fastest

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated, truncated, info | {"cost": float(info["x_velocity"] > self.fastest)}


def ratios(num_envs: int, workers: int, rounds: int) -> list[tuple[float, float]]:
    """Steps per second of one process and of `workers`, round by round."""
    found = find_environment(f"{Path(__file__).resolve()}:SafeHopper")
    environments = [user_environments(found, num_envs, workers=count) for count in (1, workers)]
    actions = np.random.default_rng(0).uniform(-1, 1, (_STEPS, num_envs, 3)).astype(np.float32)

    def rate(one: Any) -> float:
        started = time.perf_counter()
        for action in actions:
            one.step(action)
        return _STEPS * num_envs / (time.perf_counter() - started)

    try:
        for one in environments:
            one.reset(0)
            rate(one)
        return [(rate(environments[0]), rate(environments[1])) for _ in range(rounds)]
    finally:
        for one in environments:
            one.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("--num-envs", 32), ("--workers", 2), ("--rounds", 8)):
        parser.add_argument(name, type=int, default=default)
    given = parser.parse_args()
    pairs = ratios(given.num_envs, given.workers, given.rounds)
    for one, several in pairs:
        print(f"steps/s: one process {one:,.0f}, {given.workers} processes {several:,.0f}, ratio {several / one:.2f}")
    print(f"median ratio {median(several / one for one, several in pairs):.2f}, {given.num_envs} environments")


if __name__ == "__main__":
    main()
