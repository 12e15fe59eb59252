"""What the GPU does while a policy is trained: `profile_training.py TASK UPDATES OUT_FOLDER [KEY=VALUE...]`.

Preset `gpu` with these settings, engine BACKEND (an environment variable, default warp).

Prints seconds per update with and without the profiler, the time the GPU is busy, and the copies between host and
device, by size; a copy of one byte is the condition of a loop whose length only the data know.
"""

import gzip
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path

import jax
from meeting import alone

import tailsafe as ts
from tailsafe.physics.compilation import prepare_jax
from tailsafe.training.loop import DeviceLoop
from tailsafe.training.plan import make_plan


def main(task: str, updates: int, out: Path, settings: dict[str, str]) -> None:
    prepare_jax()
    config = ts.TrainConfig(task, preset="gpu", backend=os.environ.get("BACKEND", "warp"), settings=settings)
    plan = make_plan(config, ["cvar:0.75"], [(0.025, "step")])
    loop = DeviceLoop(plan.algorithm, plan.environments, plan.settings, [0])
    state = jax.block_until_ready(loop.advance(loop.begin(), updates, lambda: False))
    with alone("profile"):
        started = time.perf_counter()
        state = jax.block_until_ready(loop.advance(state, updates, lambda: False))
        found = {"task": task, "settings": settings, "seconds_per_update": (time.perf_counter() - started) / updates}
        print(json.dumps(found), flush=True)
        with jax.profiler.trace(str(out / "trace")):
            started = time.perf_counter()
            jax.block_until_ready(loop.advance(state, updates, lambda: False))
            found["with_profiler"] = (time.perf_counter() - started) / updates
    for file in (out / "trace").rglob("*.trace.json.gz"):
        found |= summary(json.loads(gzip.decompress(file.read_bytes()))["traceEvents"], updates)
        file.unlink()
    print(json.dumps(found, indent=1))


def summary(events: list, updates: int) -> dict:
    """Busy time and copies, from the rows of the trace that belong to the GPU's streams."""
    names = {e["pid"]: e["args"]["name"] for e in events if e.get("name") == "process_name"}
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e.get("name") == "thread_name"}
    on_gpu = [
        e
        for e in events
        if e.get("ph") == "X" and "GPU" in names.get(e["pid"], "") and "Stream" in threads.get((e["pid"], e["tid"]), "")
    ]
    spans = sorted((e["ts"], e["ts"] + e["dur"]) for e in on_gpu)
    busy, end = 0.0, 0.0
    gaps = []
    for begin, until in spans:
        if end and begin > end:
            gaps.append(begin - end)
        busy += max(0.0, until - max(begin, end))
        end = max(end, until)
    copies = Counter(
        f"{e['name']} {e.get('args', {}).get('memcpy_details', '')}"[:90] for e in on_gpu if "emcpy" in e["name"]
    )
    kernels: Counter = Counter()
    for e in on_gpu:
        kernels[e["name"][:80]] += e["dur"] / 1e6 / updates
    total = (spans[-1][1] - spans[0][0]) if spans else 0.0
    return {
        "streams": len({(e["pid"], e["tid"]) for e in on_gpu}),
        "events_per_update": len(on_gpu) / updates,
        "busy_share": busy / total if total else None,
        "longest_gaps_us": sorted(gaps)[-5:],
        "copies_per_update": {k: v / updates for k, v in copies.most_common(8)},
        "seconds_per_update_by_kernel": dict(kernels.most_common(40)),
    }


if __name__ == "__main__":
    main(
        sys.argv[1],
        int(sys.argv[2]),
        Path(sys.argv[3]),
        dict(setting.split("=", 1) for setting in sys.argv[4:]),
    )
