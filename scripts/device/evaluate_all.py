"""Many runs judged at once on engine mujoco, a process per core: `evaluate_all.py OUT.jsonl EPISODES RUN...`.

Verdicts are counted on another engine than the one that trained. RUN is a run folder, a folder with several seeds or a
policy's folder. OUT.jsonl gets a line per run as soon as its episodes are played: `run`, and what `tailsafe evaluate
--json` prints; `error` instead for a run that could not be judged. Runs that have such a report there already, over as
many episodes with the same seed, are left out, so that a call that was cut off is simply repeated. `--keep` writes
evaluation.json and episodes.csv into each run's folder too. The exit code is 1 if a run could not be judged.

The episodes of a run are played in parts, each by a process of its own with environments of its own: part p of seed s
is what `tailsafe evaluate --seed 1000s+p` plays. Needs nothing but the package and what trains (no typer, no rich).
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tailsafe.evaluation.episodes import Episodes
    from tailsafe.evaluation.verdict import Evaluation

# Twice what plays side by side at most (`evaluation.environments`): no environment idles while the last ones end.
PART = 256
SEEDS_PER_RUN = 1000


def main(arguments: list[str] | None = None) -> int:
    asked = _parsed(arguments)
    # Before anything imports JAX, here and in the processes: one core each, and no GPU.
    os.environ["JAX_PLATFORMS"] = "cpu"
    from tailsafe.policies.policy import policy_folders

    every = dict.fromkeys(folder for run in asked.runs for folder in policy_folders(run))
    judged = set(_judged(asked.out, asked.episodes, asked.seed))
    folders = [folder for folder in every if str(folder) not in judged]
    print(f"{len(folders)} runs to judge, {len(every) - len(folders)} are there already", file=sys.stderr)
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    began, failed = time.monotonic(), 0
    context = multiprocessing.get_context("spawn")
    cores = context.Queue()
    for core in sorted(os.sched_getaffinity(0)):
        cores.put(core)
    processes = min(asked.processes or math.inf, len(os.sched_getaffinity(0)))
    with ProcessPoolExecutor(int(processes), context, _take_core, (cores,)) as pool, asked.out.open("a") as lines:
        playing = {folder: _submit(pool, folder, asked.episodes, asked.seed) for folder in folders}
        for folder, parts in playing.items():
            row = _row(folder, parts, asked)
            failed += "error" in row
            lines.write(json.dumps({"run": str(folder)} | row) + "\n")
            lines.flush()
            print(f"{time.monotonic() - began:6.0f} s  {folder}: {_told(row)}", file=sys.stderr, flush=True)
    return 1 if failed else 0


def _parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="where to append a line of JSON per run")
    parser.add_argument("episodes", type=int, help="fresh episodes of each run")
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--confidence", type=float, default=0.95)
    parser.add_argument("--interval", choices=["distribution-free", "bootstrap"], default="distribution-free")
    parser.add_argument("--processes", type=int, help="default: a process for each core")
    parser.add_argument("--keep", action="store_true", help="write evaluation.json and episodes.csv into the runs")
    asked = parser.parse_args(arguments)
    if not 2 <= asked.episodes <= PART * SEEDS_PER_RUN:
        parser.error(f"EPISODES is {asked.episodes}; it must be from 2 to {PART * SEEDS_PER_RUN}")
    if asked.processes is not None and asked.processes < 1:
        parser.error(f"--processes is {asked.processes}; it must be at least 1")
    return asked


def _judged(out: Path, episodes: int, seed: int) -> Iterator[str]:
    """The runs whose reports are in `out`. A line that was cut off counts for nothing."""
    if not out.is_file():
        return
    for line in out.read_text().splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if (row.get("episodes"), row.get("seed")) == (episodes, seed):
            yield row["run"]


def _take_core(cores: Any) -> None:
    """MuJoCo's and XLA's thread pools are as large as the cores that a process may use."""
    os.sched_setaffinity(0, {cores.get()})


def _submit(pool: ProcessPoolExecutor, folder: Path, episodes: int, seed: int) -> list[Future[Episodes]]:
    sizes = [min(PART, episodes - begin) for begin in range(0, episodes, PART)]
    return [pool.submit(play_part, folder, size, SEEDS_PER_RUN * seed + part) for part, size in enumerate(sizes)]


def play_part(folder: Path, episodes: int, seed: int) -> Episodes:
    """Episodes of a run, in a process of its own."""
    from tailsafe.evaluation.environments import open_stage
    from tailsafe.evaluation.episodes import play
    from tailsafe.policies.policy import load_policy

    policy = load_policy(folder)
    stage = open_stage(policy.description, episodes, backend="mujoco")
    try:
        return play(policy, stage, episodes, seed)
    finally:
        stage.close()


def _row(folder: Path, parts: list[Future[Episodes]], asked: argparse.Namespace) -> dict[str, Any]:
    try:
        found = _summary(folder, parts, asked)
    except Exception as error:  # one broken run must not cost the others their reports
        return {"error": f"{type(error).__name__}: {error}"}
    if asked.keep:
        found.keep(folder)
    return found.to_json()


def _summary(folder: Path, parts: list[Future[Episodes]], asked: argparse.Namespace) -> Evaluation:
    from tailsafe.evaluation.verdict import summarize
    from tailsafe.policies.policy import load_policy

    played, *others = (part.result() for part in parts)
    for other in others:
        played = played.followed_by(other)
    return summarize(load_policy(folder), played, asked.seed, asked.confidence, interval=asked.interval)


def _told(row: dict[str, Any]) -> str:
    if "error" in row:
        return str(row["error"])
    risks = (
        f"{one['name']} {one['risk_measure']} {one['risk']:.4g} of {one['limit']:g}: {one['verdict']}"
        for one in row["constraints"]
    )
    return f"reward {row['reward']['mean']:.4g}, {', '.join(risks)}"


if __name__ == "__main__":
    sys.exit(main())
