"""Several processes on one GPU that measure one after the other, once all of them have compiled what they measure.

MEETING: an empty folder that they share, PROCESSES: how many they are. Without MEETING a process is by itself.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def alone(name: str) -> Iterator[None]:
    """Inside, nobody else measures. Entered when all processes have come here; `name` is this one's."""
    if "MEETING" not in os.environ:
        yield
        return
    meeting = Path(os.environ["MEETING"])
    wait(meeting, name)
    with (meeting / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def wait(meeting: Path, name: str) -> None:
    """Until as many as PROCESSES have come."""
    (meeting / f"{name}.ready").touch()
    while len(list(meeting.glob("*.ready"))) < int(os.environ["PROCESSES"]):
        time.sleep(0.2)
