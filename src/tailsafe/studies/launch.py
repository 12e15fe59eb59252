"""Where the jobs of a study run: in this process, or as tasks of a Ray cluster."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

from tailsafe.errors import InputError
from tailsafe.extras import install_hint
from tailsafe.studies.groups import Job, Outcome, broken, finished
from tailsafe.training.signals import RunInterrupted

LAUNCHERS = ("here", "ray")
# How often a job is given to another worker of a cluster when its own has died.
RETRIES = 2


def check_launcher(name: str) -> None:
    """An `InputError` where jobs cannot be launched this way."""
    if name not in LAUNCHERS:
        raise InputError(f"unknown launcher {name!r}; there are: {', '.join(LAUNCHERS)}")
    if name == "ray" and importlib.util.find_spec("ray") is None:
        raise InputError(f"the launcher ray needs Ray: {install_hint('ray')}")


def launch(name: str, jobs: Sequence[Job]) -> Iterator[Outcome]:
    """The outcomes of all jobs, in the order in which they are ready."""
    return _on_ray(jobs) if name == "ray" else _in_turn(jobs)


def _in_turn(jobs: Sequence[Job]) -> Iterator[Outcome]:
    """One after the other in this process; none begins when its time is over."""
    for job in jobs:
        if time.time() < job.until:
            yield from job.run()


def _on_ray(jobs: Sequence[Job]) -> Iterator[Outcome]:
    """One task per job: on one GPU each where the cluster has some, else on one core.

    Connects to the cluster that RAY_ADDRESS or `ray start` names, or starts one on this machine. Runs write into the
    study's folder, which must be the same place on all machines; what the tasks return is small.
    """
    import ray

    own = not ray.is_initialized()
    if own:
        # The workers are of the same installation; nothing is to be packed up and sent.
        ray.init(ignore_reinit_error=True, log_to_driver=False, include_dashboard=False)
    try:
        share: dict[str, Any] = {"num_gpus": 1} if ray.cluster_resources().get("GPU") else {"num_cpus": 1}
        passed_on = {name: os.environ[name] for name in ("TAILSAFE_CACHE", "JAX_PLATFORMS") if name in os.environ}
        # A worker that dies: its job resumes in another one from the last checkpoint, and what was measured is kept. A
        # job that keeps killing its workers is given up; the next call of the study tries it again.
        task = ray.remote(**share, max_retries=RETRIES, runtime_env={"env_vars": passed_on})(_run)
        waiting = {task.remote(job): job for job in jobs}
        while waiting:
            (ready, *_), _ = ray.wait(list(waiting))
            job = waiting.pop(ready)
            try:
                yield from ray.get(ready)
            except ray.exceptions.RayError as error:
                yield from (broken(group, error) for group in job.groups if finished(group) is None)
    finally:
        if own:
            ray.shutdown()


def _run(job: Job) -> list[Outcome]:
    """What a task returns: all outcomes, or those until its time was over."""
    found: list[Outcome] = []
    with contextlib.suppress(RunInterrupted):
        found.extend(_in_turn([job]))
    return found
