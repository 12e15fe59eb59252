"""Several processes on one GPU that measure one after the other, once all of them have compiled what they measure.

MEETING: an empty folder that they share, PROCESSES: how many they are. Without MEETING a process is by itself. AFTER: a
file that must be there too before this one measures. MEETING_ENDS: when nobody waits for others any more (seconds since
1970), so that one that failed cannot hold up the rest for ever. MEETING_TURN: how many seconds one may
measure before it is ended.
"""

import fcntl
import os
import signal
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
        signal.alarm(int(os.environ.get("MEETING_TURN", 0)))
        yield
        signal.alarm(0)


def wait(meeting: Path, name: str) -> None:
    """Until as many as PROCESSES have come."""
    (meeting / f"{name}.ready").touch()
    expected, ends = int(os.environ["PROCESSES"]), float(os.environ.get("MEETING_ENDS", "inf"))
    while len(list(meeting.glob("*.ready"))) < expected and time.time() < ends:
        time.sleep(0.2)
    while (after := os.environ.get("AFTER")) and not Path(after).exists():
        time.sleep(0.2)
