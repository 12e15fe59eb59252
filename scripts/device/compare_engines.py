"""One control step on engine `warp` against the C engine: `compare_engines.py TASK STATES`, a line of JSON.

From states that the C engine visits under held random actions, all over episodes. Errors come as quantiles, for
positions and velocities, next to what the C engine itself does with a start that is off by the rounding of single
precision (`wobble`, the most of several draws): contacts that begin or end within the step amplify it. `unexplained`
counts steps whose velocity is off by more than `tolerance` and by more than ten times their wobble; `worst` names those
that are farthest off.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tailsafe.envs.host import HostBatch
from tailsafe.physics.compilation import prepare_jax
from tailsafe.physics.interface import PhysicsState
from tailsafe.physics.warp_engine import WarpEngine
from tailsafe.tasks import action_size, get_task, task_units

ENVIRONMENTS, EVERY, HELD = 64, 7, 5
DRAWS, FACTOR, TOLERANCE = 6, 10.0, 2e-3
QUANTILES = (0.5, 0.9, 0.99, 0.999, 1.0)


def main(name: str, states: int) -> None:
    prepare_jax()
    task = get_task(name)
    began = time.perf_counter()
    visited, starts, controls, ends, touches, wobble = visit(task, -(-states // ENVIRONMENTS))
    seconds = {"c_engine": time.perf_counter() - began}
    began = time.perf_counter()
    engine = WarpEngine(task)
    nq = engine._host.nq

    @jax.jit
    @jax.vmap
    def step(state: Any, row: Any, control: Any) -> Any:
        physics = PhysicsState(row[0], row[1 : 1 + nq], row[1 + nq :])
        return engine.step_counted(physics, control, lambda time: task.mocap(state, time))

    single = jax.tree.map(lambda leaf: leaf.astype(np.float32) if leaf.dtype == np.float64 else leaf, visited)
    physics, readings, use = step(single, jnp.asarray(starts, jnp.float32), jnp.asarray(controls, jnp.float32))
    engine.check(use)
    seconds["warp"] = time.perf_counter() - began
    ours = np.concatenate([np.asarray(physics.time)[:, None], physics.qpos, physics.qvel], axis=1)
    position, velocity = errors(ours, ends, nq)
    unlike = (np.asarray(readings.touches) != touches).any(axis=1)
    odd = (velocity > TOLERANCE) & (velocity > FACTOR * wobble[1])
    worst = np.argsort(-velocity)[:8]
    row = {
        "task": name,
        "device": jax.devices()[0].device_kind,
        "states": len(starts),
        "quantiles": QUANTILES,
        "position": quantiles(position),
        "velocity": quantiles(velocity),
        "wobble_position": quantiles(wobble[0]),
        "wobble_velocity": quantiles(wobble[1]),
        "tolerance": TOLERANCE,
        "over_tolerance": int((velocity > TOLERANCE).sum()),
        "unexplained": int(odd.sum()),
        "unexplained_velocity": sorted(velocity[odd].tolist(), reverse=True)[:20],
        "touches_unlike": int(unlike.sum()),
        "touches_unlike_unexplained": int((unlike & odd).sum()),
        "not_finite": int((~np.isfinite(ours).all(axis=1)).sum()),
        "rows": int(use.rows.max()),
        "contacts": int(use.contacts.max()),
        "worst": [
            {
                "state": int(i),
                "velocity": float(velocity[i]),
                "wobble": float(wobble[1][i]),
                "time": float(starts[i, 0]),
                "coordinate": int(np.abs(ours[i] - ends[i])[1 + nq :].argmax()),
            }
            for i in worst
        ],
        "seconds": seconds,
    }
    print(json.dumps(row), flush=True)


def visit(task: Any, times: int) -> tuple[Any, ...]:
    """`times` control steps of every environment: task state, start, controls, end, touches, and wobble (2, N)."""
    batch = HostBatch(task, ENVIRONMENTS)
    batch.reset(seed=0)
    rng = np.random.default_rng(0)
    nq = batch.engine.model.nq
    kept: list[Any] = []
    action = np.zeros((ENVIRONMENTS, action_size(task)))
    for step in range(times * EVERY):
        if step % HELD == 0:
            action = task_units(task, rng.uniform(-1, 1, action.shape))
        if step % EVERY == EVERY - 1:
            controls = batch.next_controls(action)
            start = batch.rows.copy()
            end, _, touches, _ = (np.copy(part) for part in batch.engine.step(start, controls))
            wobble = np.zeros((2, ENVIRONMENTS))
            for draw in range(DRAWS):
                size = 0.0 if draw == 0 else 2.0**-24
                moved = start.astype(np.float32) * (1 + size * rng.choice([-1.0, 1.0], start.shape))
                off, *_ = batch.engine.step(moved, controls.astype(np.float32).astype(float))
                wobble = np.maximum(wobble, errors(np.copy(off), end, nq))
            kept.append((jax.tree.map(words, batch.episode.task), start, controls, end, touches, wobble.T))
        batch.step(action)
    batch.close()
    *found, wobble = jax.tree.map(lambda *parts: np.concatenate(parts), *kept)
    return *found, wobble.T


def words(leaf: Any) -> np.ndarray:
    """A leaf as NumPy array; the random key plays no part here."""
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)


def errors(ours: np.ndarray, theirs: np.ndarray, nq: int) -> tuple[np.ndarray, np.ndarray]:
    """Largest difference of positions and of velocities, by row; what is not finite is infinitely far off."""
    off = np.nan_to_num(np.abs(ours - theirs), nan=np.inf)
    return off[:, 1 : 1 + nq].max(axis=1), off[:, 1 + nq :].max(axis=1)


def quantiles(values: np.ndarray) -> list[float]:
    return [float(x) for x in np.quantile(values, QUANTILES)]


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
