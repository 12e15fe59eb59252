"""What a person sees of a run while it goes: a live table on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol

from tailsafe.terminal import printable
from tailsafe.training.logs import Row

# The unit of each cost's limit, as it stands behind a number.
Units = Mapping[str, str]

# Where nobody watches live, a line this often [s] is enough.
_SECONDS_BETWEEN_LINES = 10.0


class Progress(Protocol):
    """Called with every row of the log, and with messages."""

    def start(self, name: str, total_steps: int, units: Units) -> None: ...
    def row(self, row: Row) -> None: ...
    def say(self, message: str) -> None: ...
    def stop(self) -> None: ...


class Silence:
    """Says nothing."""

    def start(self, name: str, total_steps: int, units: Units) -> None: ...
    def row(self, row: Row) -> None: ...
    def say(self, message: str) -> None: ...
    def stop(self) -> None: ...


class Lines:
    """A plain line now and then, for logs and pipes."""

    def __init__(self, write: Callable[[str], Any] | None = None, every: float = _SECONDS_BETWEEN_LINES) -> None:
        self._write = write or (lambda text: print(printable(text), file=sys.stderr, flush=True))
        self._every = every
        self._last = -every
        self._name, self._total = "", 1
        self._units: Units = {}

    def start(self, name: str, total_steps: int, units: Units) -> None:
        """Begin with a name."""
        self._name, self._total, self._units = name, total_steps, units
        self._write(f"{name}: training for {total_steps:,} steps")

    def row(self, row: Row) -> None:
        """A line, unless the last one is young; the end of a run always gets one."""
        now = time.monotonic()
        if now - self._last < self._every and (row["steps"] or 0) < self._total:
            return
        self._last = now
        shown = summary(row, self._total, self._units)
        self._write(f"{self._name}: " + "  ".join(f"{name} {value}" for name, value in shown))

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

        self._console = Console(stderr=True, highlight=False, markup=False)
        self._live = RichLive(console=self._console, auto_refresh=False)
        self._name, self._total = "", 1
        self._units: Units = {}

    def start(self, name: str, total_steps: int, units: Units) -> None:
        """Open the display."""
        name = printable(name)
        self._name, self._total, self._units = name, total_steps, units
        self._live.start()
        self._live.update(f"{name}: compiling, then {total_steps:,} steps", refresh=True)

    def row(self, row: Row) -> None:
        """Show the latest numbers."""
        from rich.table import Table

        table = Table(title=self._name, show_header=False, title_justify="left")
        table.add_column(justify="left", no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
        for name, value in summary(row, self._total, self._units):
            style = "red" if name.startswith("risk") and " > " in value else None
            table.add_row(printable(name), value, style=style)
        self._live.update(table, refresh=True)

    def say(self, message: str) -> None:
        """A line above the table."""
        self._console.print(printable(message))

    def stop(self) -> None:
        """Leave the last table standing."""
        self._live.stop()


class Notebook:
    """A bar and a table in the cell's output, rewritten with every row."""

    def __init__(self, display: Callable[..., Any] | None = None) -> None:
        self._display: Callable[..., Any] = display or import_module("IPython.display").display
        self._handle: Any = None
        self._name, self._total = "", 1
        self._units: Units = {}

    def start(self, name: str, total_steps: int, units: Units) -> None:
        """Open the output."""
        self._name, self._total, self._units = name, total_steps, units
        self._handle = self._display(_Html(self._bar(0, "compiling")), display_id=True)

    def row(self, row: Row) -> None:
        """Show the latest numbers."""
        shown = summary(row, self._total, self._units)
        cells = "".join(f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>" for name, value in shown)
        self._handle.update(_Html(self._bar(int(row["steps"] or 0), "") + f"<table>{cells}</table>"))

    def say(self, message: str) -> None:
        """A line below."""
        self._display(_Html(f"<p>{html.escape(message)}</p>"))

    def stop(self) -> None:
        """Leave the last table standing."""

    def _bar(self, steps: int, words: str) -> str:
        bar = f'<progress value="{steps}" max="{self._total}" style="width:60%"></progress>'
        return f"<p>{html.escape(self._name)} {bar} {words or f'{steps:,} of {self._total:,} steps'}</p>"


class _Html:
    """What a notebook shows as it is."""

    def __init__(self, content: str) -> None:
        self._content = content

    def _repr_html_(self) -> str:
        return self._content


def _in_notebook() -> bool:
    """Whether this is the kernel of a notebook, not a terminal's IPython."""
    if "IPython" not in sys.modules:
        return False
    shell = sys.modules["IPython"].get_ipython()
    return shell is not None and hasattr(shell, "kernel")


def make_progress(show: bool) -> Progress:
    """What fits where stderr goes."""
    if not show:
        return Silence()
    if _in_notebook():
        return Notebook()
    return Live() if sys.stderr.isatty() else Lines()


def summary(row: Row, total_steps: int, units: Units) -> Sequence[tuple[str, str]]:
    """The numbers a person follows: steps, reward, each risk against its limit, beta, KL, speed, time left.

    With a range of limits, how much of its limit each region uses, by the learner's estimates.
    """
    steps, speed = row["steps"] or 0, row["steps_per_second"] or 0.0
    recent = f" ({row['recent_episodes']} episodes)"
    shown = [("steps", f"{steps:,} ({100 * steps / total_steps:.0f} %)"), ("reward", _number(row["reward"]))]
    used = [value for column, value in row.items() if column.startswith("region_use_") and value is not None]
    shown += [("risk", f"{min(used):.0%} to {max(used):.0%} of each limit")] if used else []
    for name in [] if used else [column.removeprefix("limit_") for column in row if column.startswith("limit_")]:
        risk, limit = row[f"risk_{name}"], row[f"limit_{name}"] or 0.0
        relation = "?" if risk is None else "<=" if risk <= limit else ">"
        shown.append((f"risk {name}", f"{_number(risk)} {relation} {limit:.4g}{units.get(name, '')}{recent}"))
    betas = [f"{value:.3g}" for column, value in row.items() if column.startswith("beta_") and value is not None]
    shown += [("beta", " ".join(betas))] if betas else []
    shown.append(("KL", _number(row.get("kl"))))
    left = (total_steps - steps) / speed if speed else 0.0
    return [*shown, ("steps/s", f"{speed:,.0f}"), ("left", _duration(left))]


def _number(value: float | int | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(max(seconds, 0.0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
