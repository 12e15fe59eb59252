"""Environments on the GPU: `bench_envs.py BACKEND TASK STEPS SIZE...` measures one task at several batch sizes.

`bench_envs.sh` starts one such process per task, because tracing MJX holds Python's lock for most of a compilation.
They wait for each other before the first measurement and measure one at a time (`meeting.py`), so that nothing else
runs on the GPU meanwhile. ROUNDS: how often each is measured (default 3; the median counts).
"""

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor

from meeting import alone

from tailsafe.bench.envs import prepare_device
from tailsafe.physics.mjx_engine import import_mjx
from tailsafe.tasks import get_task


def main(backend: str, task: str, steps: int, sizes: list[int]) -> None:
    import_mjx()
    rounds = int(os.environ.get("ROUNDS", 3))
    # Threads for MJX alone, whose programs take a minute each to compile.
    with ThreadPoolExecutor(len(sizes) if backend == "mjx" else 1) as pool:
        prepared = list(
            pool.map(lambda size: prepare_device(backend, get_task(task), size, steps, rounds=rounds), sizes)
        )
    with alone(f"{backend}-{task}"):
        for size, (measure, compile_seconds) in zip(sizes, prepared, strict=True):
            whole, raw = measure()
            row = {
                "task": task,
                "backend": backend,
                "num_envs": size,
                "steps": steps,
                "steps_per_second": whole,
                "raw": raw,
            }
            print(json.dumps(row | {"compile_seconds": compile_seconds}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), [int(size) for size in sys.argv[4:]])
