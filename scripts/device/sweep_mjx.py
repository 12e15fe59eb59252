"""How whole environments cost on this device as solver iterations, line searches and contacts are varied.

    python scripts/device/sweep_mjx.py OUT.json TASK:NUM_ENVS:ITERATIONS:LINE_SEARCHES:CONTACTS ...

CONTACTS 0 leaves the model's own limit. Programs compile side by side; rates are control steps per second in steps 50
to 100 after a reset, under random actions of 0.3 of their bounds.
"""

from __future__ import annotations

import json
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax

from tailsafe.envs.device import DeviceBatch
from tailsafe.envs.episodes import environment_keys
from tailsafe.physics.compilation import prepare_jax
from tailsafe.physics.mjx_engine import MjxEngine
from tailsafe.tasks import action_size, get_task, task_units

STEPS = 50
SIZE = 0.3
MOST_SIDE_BY_SIDE = 8


class Limited:
    """A task whose MJX model keeps at most `contacts` contact points."""

    def __init__(self, task: Any, contacts: int) -> None:
        self._task, self._contacts = task, contacts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def mjcf(self, engine: str) -> str:
        xml: str = self._task.mjcf(engine)
        if not self._contacts:
            return xml
        xml = re.sub(r"<numeric name=\"max_contact_points\"[^>]*/>", "", xml)
        limit = f'<custom><numeric name="max_contact_points" data="{self._contacts}"/></custom>'
        return xml.replace("<worldbody>", limit + "<worldbody>", 1)


def prepare(case: str) -> tuple[Any, Any, float]:
    """The compiled program, its first state, and how long compiling took [s]."""
    name, *numbers = case.split(":")
    num_envs, iterations, line_searches, contacts = map(int, numbers)
    task = get_task(name)
    batch = DeviceBatch(task, MjxEngine(Limited(task, contacts), iterations, line_searches))
    started = time.perf_counter()
    state = jax.jit(batch.init)(environment_keys(0, num_envs))

    def step(state: Any, key: Any) -> tuple[Any, Any]:
        drawn = jax.random.uniform(key, (num_envs, action_size(task)), minval=-SIZE, maxval=SIZE)
        state, taken = batch.step(state, task_units(task, drawn))
        return state, (taken.reward.mean(), taken.costs.mean(0), taken.unstable.sum())

    keys = jax.random.split(jax.random.key(1), STEPS)
    program = jax.jit(lambda state: jax.lax.scan(step, state, keys)).lower(state).compile()
    return program, state, time.perf_counter() - started


def main() -> None:
    prepare_jax()
    out, cases = sys.argv[1], sys.argv[2:]
    with ThreadPoolExecutor(min(len(cases), MOST_SIDE_BY_SIDE)) as pool:
        programs = list(pool.map(prepare, cases))
    rates = {}
    for case, (program, state, compiling) in zip(cases, programs, strict=True):
        state, _ = jax.block_until_ready(program(state))
        started = time.perf_counter()
        _, (reward, costs, unstable) = jax.block_until_ready(program(state))
        rates[case] = STEPS * int(case.split(":")[1]) / (time.perf_counter() - started)
        print(
            case,
            round(rates[case]),
            f"compiled in {compiling:.0f} s",
            reward.mean(),
            costs.mean(0),
            unstable.sum(),
            flush=True,
        )
    with open(out, "w") as file:
        json.dump(rates, file, indent=1)


if __name__ == "__main__":
    main()
