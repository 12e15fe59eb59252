"""What a person sees of a run while it goes: a live table on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tailsafe.runs.logs import Row

# Where nobody watches live, a line this often [s] is enough.
_SECONDS_BETWEEN_LINES = 10.0


class Progress(Protocol):
    """Told about every row, and about things that happen."""

    def start(self, name: str, total_steps: int) -> None: ...
    def row(self, row: Row) -> None: ...
    def say(self, message: str) -> None: ...
    def stop(self) -> None: ...


class Silence:
    """Says nothing."""

    def start(self, name: str, total_steps: int) -> None: ...
    def row(self, row: Row) -> None: ...
    def say(self, message: str) -> None: ...
    def stop(self) -> None: ...


class Lines:
    """A plain line now and then, for logs and pipes."""

    def __init__(self, write: Callable[[str], Any] | None = None, every: float = _SECONDS_BETWEEN_LINES) -> None:
        self._write = write or (lambda text: print(text, file=sys.stderr, flush=True))
        self._every = every
        self._last = -every
        self._name, self._total = "", 1

    def start(self, name: str, total_steps: int) -> None:
        """Begin with a name."""
        self._name, self._total = name, total_steps
        self._write(f"{name}: training for {total_steps:,} steps")

    def row(self, row: Row) -> None:
        """A line, unless the last one is young; the end of a run always gets one."""
        now = time.monotonic()
        if now - self._last < self._every and (row["steps"] or 0) < self._total:
            return
        self._last = now
        self._write(f"{self._name}: " + "  ".join(f"{name} {value}" for name, value in summary(row, self._total)))

    def say(self, message: str) -> None:
        """A line of its own."""
        self._write(message)

    def stop(self) -> None:
        """Nothing is left open."""


class Live:
    """A table that rewrites itself."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live as RichLive

        self._console = Console(stderr=True, highlight=False)
        self._live = RichLive(console=self._console, auto_refresh=False)
        self._name, self._total = "", 1

    def start(self, name: str, total_steps: int) -> None:
        """Open the display."""
        self._name, self._total = name, total_steps
        self._live.start()
        self._live.update(f"{name}: compiling, then {total_steps:,} steps", refresh=True)

    def row(self, row: Row) -> None:
        """Show the latest numbers."""
        from rich.table import Table

        table = Table(title=self._name, show_header=False, title_justify="left")
        table.add_column(justify="left", no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
        for name, value in summary(row, self._total):
            style = "red" if name.startswith("risk") and " > " in value else None
            table.add_row(name, value, style=style)
        self._live.update(table, refresh=True)

    def say(self, message: str) -> None:
        """A line above the table."""
        self._console.print(message)

    def stop(self) -> None:
        """Leave the last table standing."""
        self._live.stop()


def make_progress(show: bool) -> Progress:
    """What fits where stderr goes."""
    if not show:
        return Silence()
    return Live() if sys.stderr.isatty() else Lines()


def summary(row: Row, total_steps: int) -> Sequence[tuple[str, str]]:
    """The numbers a person follows: steps, reward, each risk against its limit, beta, KL, speed, time left."""
    steps, speed = row["steps"] or 0, row["steps_per_second"] or 0.0
    shown = [("steps", f"{steps:,} ({100 * steps / total_steps:.0f} %)"), ("reward", _number(row["reward"]))]
    for name in [column.removeprefix("limit_") for column in row if column.startswith("limit_")]:
        risk, limit = row[f"risk_{name}"], row[f"limit_{name}"] or 0.0
        relation = "?" if risk is None else "<=" if risk <= limit else ">"
        shown.append((f"risk {name}", f"{_number(risk)} {relation} {limit:.4g}"))
    betas = [f"{value:.3g}" for column, value in row.items() if column.startswith("beta_") and value is not None]
    shown += [("beta", " ".join(betas)), ("KL", _number(row.get("kl")))]
    left = (total_steps - steps) / speed if speed else 0.0
    return [*shown, ("steps/s", f"{speed:,.0f}"), ("left", _duration(left))]


def _number(value: float | int | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(max(seconds, 0.0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
