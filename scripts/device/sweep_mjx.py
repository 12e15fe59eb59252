"""How the physics of one task costs on this device as solver iterations, line searches and contacts are varied.

    python scripts/device/sweep_mjx.py TASK NUM_ENVS OUT.json ITERATIONS:LINE_SEARCHES:CONTACTS ...

CONTACTS 0 leaves the model's own limit. Programs compile side by side; rates are control steps per second.
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
from tailsafe.physics.mjx_engine import MjxEngine
from tailsafe.tasks import get_task

STEPS = 20


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


def prepare(task: Any, num_envs: int, setting: str) -> tuple[Any, Any]:
    iterations, line_searches, contacts = map(int, setting.split(":"))
    engine = MjxEngine(Limited(task, contacts), iterations, line_searches)
    state = jax.jit(lambda keys: DeviceBatch.begin_episodes(task, keys))(environment_keys(0, num_envs))

    def step(physics: Any, key: Any) -> tuple[Any, Any]:
        def one(physics: Any, held: Any, action: Any) -> Any:
            return engine.step(physics, task.controls(held, action), lambda time: task.mocap(held, time))

        actions = jax.random.uniform(key, (num_envs, task.action_size), minval=-1.0, maxval=1.0)
        physics, readings = jax.vmap(one)(physics, state.task, actions)
        return physics, readings.sensors.sum()

    keys = jax.random.split(jax.random.key(1), STEPS)
    program = jax.jit(lambda physics: jax.lax.scan(step, physics, keys)).lower(state.physics).compile()
    return program, state.physics


def main() -> None:
    task, num_envs, out, settings = get_task(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:]
    with ThreadPoolExecutor(len(settings)) as pool:
        programs = list(pool.map(lambda setting: prepare(task, num_envs, setting), settings))
    rates = {}
    for setting, (program, physics) in zip(settings, programs, strict=True):
        jax.block_until_ready(program(physics))
        begun = time.perf_counter()
        jax.block_until_ready(program(physics))
        rates[setting] = STEPS * num_envs / (time.perf_counter() - begun)
        print(setting, round(rates[setting]), flush=True)
    with open(out, "w") as file:
        json.dump({"task": task.name, "num_envs": num_envs, "rates": rates}, file, indent=1)


if __name__ == "__main__":
    main()
