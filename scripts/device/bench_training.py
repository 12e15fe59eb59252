"""Training on a GPU, timed: `bench_training.py CASE...`, a line of JSON each.

CASE is TASK:RUNS[:KEY=VALUE...], as in point-goal:5:num_envs=1024. Preset `gpu`, engine BACKEND (an environment
variable, default warp). `steps_per_second` counts control steps of all runs, learning included, once everything is
compiled; `collect_per_second` those of collecting alone, in the same states. Several such processes may compile side by
side and measure one after the other (`meeting.py`).
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import jax
from meeting import alone

import tailsafe as ts
from tailsafe.physics.compilation import prepare_jax
from tailsafe.training.loop import DeviceLoop
from tailsafe.training.plan import make_plan

# ROUNDS and UPDATES: fewer where time is short.
_ROUNDS, _UPDATES = int(os.environ.get("ROUNDS", 3)), int(os.environ.get("UPDATES", 3))


def prepare(case: str) -> Callable[[], dict[str, Any]]:
    """Compile what measures a case, and run it once."""
    task, runs, *settings = case.split(":")
    values = dict(one.split("=", 1) for one in settings)
    backend = os.environ.get("BACKEND", "warp")
    plan = make_plan(ts.TrainConfig(task, preset="gpu", backend=backend, settings=values))
    loop = DeviceLoop(plan.algorithm, plan.environments, plan.settings, list(range(int(runs))))
    advance = partial(loop.advance, updates=_UPDATES, stop=lambda: False)
    started = time.perf_counter()
    state = jax.block_until_ready(advance(loop.begin()))
    first = time.perf_counter() - started

    def collect(state: Any, settings: Any, key: Any) -> Any:
        def chunk(carry: Any, key: Any) -> Any:
            actor, environment = carry
            rollout = partial(plan.algorithm.rollout, environments=plan.environments)
            actor, environment, rows = rollout(state.learner, settings, actor, env_state=environment, key=key)
            return (actor, environment), rows.reward.mean()

        return jax.lax.scan(chunk, (state.actor, state.environment), jax.random.split(key, _UPDATES))

    collecting = jax.jit(jax.vmap(collect, in_axes=(0, None, None)) if int(runs) > 1 else collect)
    jax.block_until_ready(collecting(state, plan.settings, jax.random.key(0)))

    def measure() -> dict[str, Any]:
        current, whole, alone_ = state, [], []
        for number in range(_ROUNDS):
            started = time.perf_counter()
            current = jax.block_until_ready(advance(current))
            whole.append((time.perf_counter() - started) / _UPDATES)
            started = time.perf_counter()
            jax.block_until_ready(collecting(current, plan.settings, jax.random.key(number)))
            alone_.append((time.perf_counter() - started) / _UPDATES)
        steps = plan.steps_per_update * int(runs)
        update, rollout = median(whole), median(alone_)
        return {
            "case": case,
            "backend": backend,
            "steps_per_second": steps / update,
            "collect_per_second": steps / rollout,
            "update_seconds": update,
            "collect_seconds": rollout,
            "first_seconds": first,
        }

    return measure


def main(cases: list[str]) -> None:
    prepare_jax()
    measures = [prepare(case) for case in cases]
    with alone(f"training-{'-'.join(cases)}"):
        for measure in measures:
            print(json.dumps(measure()), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
