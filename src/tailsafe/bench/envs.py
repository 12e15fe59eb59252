"""How fast the environments step, against the physics alone.

For engine `mujoco` the limit is raw `mujoco.rollout` on the same model with the same controls and mocap poses,
ten substeps per control step and no task logic; for `warp` and `mjx` it is the engine's control step alone in the same
scan. Both are measured in the same run and alternately with the whole environment, so that a busy machine slows
both.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import median
from typing import Any

import jax
import numpy as np

from tailsafe.envs.vector import BACKENDS
from tailsafe.errors import InputError
from tailsafe.physics.mjx_engine import import_mjx
from tailsafe.physics.warp_engine import import_warp
from tailsafe.tasks import TASKS, Task, action_size, get_task, task_units

_ROUNDS = 3


def bench_envs(
    tasks: Sequence[str] = tuple(TASKS),
    backends: Sequence[str] = ("mujoco",),
    num_envs: Sequence[int] = (32,),
    steps: int | None = None,
    threads: int | None = None,
) -> dict[str, Any]:
    """Measure every combination.

    Args:
      steps: control steps per measurement and environment; default 1000 for `mujoco`, 100 for `warp` and `mjx`.
      threads: cores for `mujoco`, default all.

    Returns:
      {"device", "results": [{"task", "backend", "num_envs", "steps_per_second", "raw_steps_per_second", "ratio",
      "compile_seconds"}]}; rates are control steps of single environments per second.
    """
    prepare: dict[str, Callable[..., Prepared]] = {
        "mujoco": _prepare_mujoco,
        "warp": partial(prepare_device, "warp"),
        "mjx": partial(prepare_device, "mjx"),
    }
    for backend in backends:
        if backend not in prepare:
            raise InputError(f"unknown backend {backend!r}; there are: {', '.join(BACKENDS)}")
    cases = [(get_task(name), backend, count) for name in tasks for backend in backends for count in num_envs]
    if "mjx" in backends:
        import_mjx()  # once, before threads do: it silences stdout for a moment
    if "warp" in backends:
        import_warp()
    # Programs for MJX take half a minute to compile, on one core each: side by side, and measured one after the other.
    workers = len(cases) if tuple(backends) == ("mjx",) else 1
    results = []
    with ThreadPoolExecutor(min(workers, os.cpu_count() or 1)) as pool:
        prepared = pool.map(lambda case: prepare[case[1]](case[0], case[2], steps, threads), cases)
        for (task, backend, count), (measure, compile_seconds) in zip(cases, list(prepared), strict=True):
            whole, raw = measure()
            results.append(
                {
                    "task": task.name,
                    "backend": backend,
                    "num_envs": count,
                    "steps_per_second": whole,
                    "raw_steps_per_second": raw,
                    "ratio": whole / raw,
                    "compile_seconds": compile_seconds,
                }
            )
    return {"device": jax.devices()[0].device_kind, "results": results}


# Measures (control steps per second whole, raw); and the seconds that compiling took.
Prepared = tuple[Callable[[], tuple[float, float]], float]


def _prepare_mujoco(task: Task[Any], num_envs: int, steps: int | None, threads: int | None) -> Prepared:
    from tailsafe.envs.host import HostBatch

    count = steps or 1000
    started = time.perf_counter()
    batch = HostBatch(task, num_envs, threads)
    batch.reset(seed=0)
    actions = np.random.default_rng(0).uniform(-1, 1, (count, num_envs, action_size(task)))
    actions = task_units(task, actions)
    batch.step(actions[0])
    batch.renew(np.zeros(num_envs, bool))  # compiles what the end of the episodes below needs
    compile_seconds = time.perf_counter() - started

    def measure() -> tuple[float, float]:
        # Step by step in turns, from the same states: contacts and gremlins make some steps dearer than others.
        seconds, raw_seconds = 0.0, 0.0
        for action in actions:
            raw = batch.engine.raw_call(batch.rows, batch.next_controls(action))
            raw_seconds += _seconds(raw)
            seconds += _seconds(partial(batch.step, action))
        batch.close()
        return count * num_envs / seconds, count * num_envs / raw_seconds

    return measure, compile_seconds


def prepare_device(
    backend: str,
    task: Task[Any],
    num_envs: int,
    steps: int | None = None,
    threads: int | None = None,
    *,
    rounds: int = _ROUNDS,
) -> Prepared:
    """Compile what measures `num_envs` environments inside JAX, and run it once: Warp's kernels are compiled then.

    threads: for the C engine alone. rounds: how often it is measured; medians count.
    """
    from tailsafe.envs.device import DeviceBatch, device_engine
    from tailsafe.envs.episodes import environment_keys
    from tailsafe.physics.compilation import prepare_jax

    prepare_jax(mjx=backend == "mjx")
    count = steps or 100
    batch = DeviceBatch(task, device_engine(task, backend))
    started = time.perf_counter()
    state = jax.jit(batch.init)(environment_keys(0, num_envs))
    keys = jax.random.split(jax.random.key(1), count)

    def act(key: Any) -> Any:
        return task_units(task, jax.random.uniform(key, (num_envs, action_size(task)), minval=-1.0, maxval=1.0))

    def whole_step(state: Any, key: Any) -> tuple[Any, Any]:
        state, step = batch.step(state, act(key))
        return state, (step.reward.sum(), step.costs.sum(), step.observation.sum())

    def raw_step(physics: Any, key: Any) -> tuple[Any, Any]:
        def one(physics: Any, state: Any, action: Any) -> Any:
            controls = task.controls(action, task.memory(state))
            return batch.engine.step(physics, controls, lambda time: task.mocap(state, time))

        physics, readings = jax.vmap(one)(physics, state.episode.task, act(key))
        return physics, readings.sensors.sum()

    ready: Callable[[Any], Any] = jax.block_until_ready
    run_whole = jax.jit(lambda state, keys: jax.lax.scan(whole_step, state, keys))
    later, _ = ready(run_whole(state, keys))
    compile_seconds = time.perf_counter() - started
    run_raw = jax.jit(lambda physics, keys: jax.lax.scan(raw_step, physics, keys))
    ready(run_raw(later.episode.physics, keys))

    def measure() -> tuple[float, float]:
        seconds, raw_seconds = _alternate(
            lambda: ready(run_whole(later, keys)),
            lambda: ready(run_raw(later.episode.physics, keys)),
            rounds,
        )
        batch.check(later)
        return count * num_envs / seconds, count * num_envs / raw_seconds

    return measure, compile_seconds


def _alternate(first: Callable[[], Any], second: Callable[[], Any], rounds: int) -> tuple[float, float]:
    """Median seconds of each, taken in turns."""
    pairs = [(_seconds(first), _seconds(second)) for _ in range(rounds)]
    return median(pair[0] for pair in pairs), median(pair[1] for pair in pairs)


def _seconds(run: Callable[[], Any]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started
