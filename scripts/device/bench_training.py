"""Training on a GPU, timed: `bench_training.py CASE...`, a line of JSON each.

CASE is TASK:RUNS[:KEY=VALUE...], as in point-goal:5:num_envs=1024. Preset `gpu`, engine BACKEND (an environment
variable, default warp). `steps_per_second` counts control steps of all runs, learning included, once everything is
compiled; `collect_per_second` those of collecting alone, in the same states.
"""

from __future__ import annotations

import json
import os
import sys
import time
from functools import partial
from typing import Any

import jax

import tailsafe as ts
from tailsafe.physics.compilation import prepare_jax
from tailsafe.training.loop import DeviceLoop
from tailsafe.training.plan import make_plan

_ROUNDS = 3


def measure(case: str, updates: int) -> dict[str, Any]:
    """Seconds per update, whole and of collecting alone; medians of `_ROUNDS`."""
    task, runs, *settings = case.split(":")
    values = dict(one.split("=", 1) for one in settings)
    backend = os.environ.get("BACKEND", "warp")
    plan = make_plan(ts.TrainConfig(task, preset="gpu", backend=backend, settings=values))
    loop = DeviceLoop(plan.algorithm, plan.environments, plan.settings, list(range(int(runs))))
    started = time.perf_counter()
    state = jax.block_until_ready(loop.advance(loop.begin(), updates, lambda: False))
    first = time.perf_counter() - started
    whole = []
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        state = jax.block_until_ready(loop.advance(state, updates, lambda: False))
        whole.append((time.perf_counter() - started) / updates)

    def collect(state: Any, settings: Any, key: Any) -> Any:
        def chunk(carry: Any, key: Any) -> Any:
            actor, environment = carry
            rollout = partial(plan.algorithm.rollout, environments=plan.environments)
            actor, environment, rows = rollout(state.learner, settings, actor, env_state=environment, key=key)
            return (actor, environment), rows.reward.mean()

        return jax.lax.scan(chunk, (state.actor, state.environment), jax.random.split(key, updates))

    program = jax.vmap(collect, in_axes=(0, None, None)) if int(runs) > 1 else collect
    collecting = jax.jit(program).lower(state, plan.settings, jax.random.key(0)).compile()
    alone = []
    for number in range(_ROUNDS):
        started = time.perf_counter()
        jax.block_until_ready(collecting(state, plan.settings, jax.random.key(number)))
        alone.append((time.perf_counter() - started) / updates)
    steps = plan.steps_per_update * int(runs)
    update, rollout = sorted(whole)[_ROUNDS // 2], sorted(alone)[_ROUNDS // 2]
    return {
        "case": case,
        "backend": backend,
        "steps_per_second": steps / update,
        "collect_per_second": steps / rollout,
        "update_seconds": update,
        "collect_seconds": rollout,
        "first_seconds": first,
    }


def main(cases: list[str]) -> None:
    prepare_jax()
    for case in cases:
        try:
            print(json.dumps(measure(case, updates=5)), flush=True)
        except Exception as error:  # the other cases still count
            print(json.dumps({"case": case, "error": f"{type(error).__name__}: {error}"[:400]}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
