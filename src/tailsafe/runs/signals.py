"""Stopping: the first Ctrl-C is a wish, which long work asks about; the second one acts at once."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
import time
from typing import Any

STOPPING = b"\nstopping as soon as all is saved; once more stops at once\n"


class Signals:
    """While it is entered, the first SIGINT or SIGTERM is a wish to stop, and the second one acts as it would have
    before. until: from this moment of `time.monotonic` on there is such a wish, too.

    May be entered inside of another one, and then knows of the wishes that the outer one has caught: commands enter one
    before they import what is slow, since an exception that a signal raises just anywhere may be lost there.
    """

    def __init__(self, until: float = math.inf) -> None:
        self.caught: int | None = None
        self._until = until
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._catch)
                outer = getattr(self._before[number], "__self__", None)
                if isinstance(outer, Signals) and outer.caught is not None:
                    self.caught = outer.caught
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _catch(self, number: int, _: Any) -> None:
        if self.caught is None:
            self.caught = number
            # Past all buffers: a signal may come while one of them is being written.
            with contextlib.suppress(OSError):
                os.write(2, STOPPING)
            return
        signal.signal(number, self._root(number))
        signal.raise_signal(number)

    def _root(self, number: int) -> Any:
        """The handler from outside of all of them."""
        handler = self._before[number]
        outer = getattr(handler, "__self__", None)
        return outer._root(number) if isinstance(outer, Signals) else handler

    def wanted(self) -> bool:
        """Whether to stop."""
        return self.caught is not None or time.monotonic() >= self._until
