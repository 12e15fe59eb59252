"""How long `study benchmark --scale paper` takes on N GPUs, from parts measured on one H200 (docs/performance.md).

usage: python scripts/cluster_estimate.py
A program is one algorithm on one task with five seeds. `--launcher ray` gives each a GPU of its own; they are dealt out
longest first, each to the GPU that is free first.
"""

import heapq

SEEDS = 5
# Control steps/s of five seeds on point-goal, seven programs on one H200 under MPS (five seeds together).
SHARED = {"srcpo": 22_400, "cppo": 7_200, "cvar_cpo": 23_500, "sdac": 22_100, "sdpo": 22_500, "wcsac": 21_500}
# SRCPO with 1024 environments: alone, and beside five other programs. Taken for all: no other was timed alone.
ALONE = 70_000 / 35_000
# Not timed: taken to be as fast as CVaR-CPO, whose updates are of the same kind.
LIKE = {"ppo_lag": "cvar_cpo", "ppo_pid": "cvar_cpo"}
# Millions of steps, and how much slower than point-goal: environments alone on MJX with 2048 of them (navigation),
# whole training runs with 4096 (legged).
TASKS = {
    "point-goal": (5, 1.0),
    "car-goal": (5, 203_400 / 51_200),
    "point-button": (10, 203_400 / 92_300),
    "car-button": (10, 203_400 / 26_900),
    "quadruped": (5, 200_000 / 98_000),
    "biped": (5, 200_000 / 56_000),
}
COMPILE_SECONDS = 100.0


def program_hours() -> dict[tuple[str, str], float]:
    """Of every program, alone on its GPU."""
    speeds = SHARED | {name: SHARED[like] for name, like in LIKE.items()}
    return {
        (task, algorithm): (SEEDS * 1e6 * millions * slower / (ALONE * speed) + COMPILE_SECONDS) / 3600
        for task, (millions, slower) in TASKS.items()
        for algorithm, speed in speeds.items()
    }


def makespan(hours: list[float], gpus: int) -> float:
    """Longest first, to whichever is free."""
    free = [0.0] * gpus
    for one in sorted(hours, reverse=True):
        heapq.heappush(free, heapq.heappop(free) + one)
    return max(free)


if __name__ == "__main__":
    found = program_hours()
    task, algorithm = max(found, key=found.__getitem__)
    print(f"{len(found)} programs, {sum(found.values()):.1f} GPU hours")
    print(f"the longest: {algorithm} on {task}, {found[task, algorithm]:.1f} h")
    print("| GPUs | hours | busy |\n|---|---|---|")
    for gpus in (1, 2, 4, 8, 16, 48):
        hours = makespan(list(found.values()), gpus)
        print(f"| {gpus} | {hours:.1f} | {sum(found.values()) / (gpus * hours):.0%} |")
    without = [hours for (_, algorithm), hours in found.items() if algorithm != "cppo"]
    print(f"without cppo: {sum(without):.1f} GPU hours, longest {max(without):.1f} h")
