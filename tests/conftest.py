"""Test-wide settings: no wall-clock deadlines, reproducible property tests, numbers worth reading at the end."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import jaxlib
import pytest
from hypothesis import settings

from tailsafe.cli import main
from tailsafe.physics.compilation import make_room, prepare_jax

# Compiled programs are kept, small ones too: for processes that tests start, for when a worker had to drop them and for
# the next run. Each worker has a folder of its own, since JAX may read files that another process still writes.
PROGRAMS = Path(__file__).parents[1] / ".pytest_cache" / "programs"
os.environ["TAILSAFE_CACHE"] = str(PROGRAMS / os.environ.get("PYTEST_XDIST_WORKER", "alone"))
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)

# Before JAX's first computation: on few cores its CPU thread pool is too small for MJX.
prepare_jax()

# A shared machine must not turn a slow example into a failure; the examples are the same on every run.
settings.register_profile("tailsafe", deadline=None, derandomize=True, max_examples=40)
settings.load_profile("tailsafe")

# XLA's newer code generator for the CPU takes twice as long per program (8.3 against 4.2 CPU seconds for a tiny
# learner), which programs of a few updates never earn back. Nor do they the 32 parts that it compiles a program in, for
# as many cores: in one, a tenth less. Read once per process, those that tests start included.
FAST = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
KNOWN_SINCE, UNTRIED = (0, 8), (0, 11)  # versions of jaxlib; one that does not know a flag ends the process


def pytest_configure(config: pytest.Config) -> None:
    """The quick suite compiles fast; the slow one, which runs before a release, as users do."""
    version = tuple(int(part) for part in jaxlib.__version__.split(".")[:2])
    given = os.environ.get("XLA_FLAGS", "")
    if config.getoption("markexpr") == "not slow" and KNOWN_SINCE <= version < UNTRIED and FAST not in given:
        os.environ["XLA_FLAGS"] = f"{given} {FAST}".strip()


@pytest.fixture(autouse=True)
def room_for_programs() -> Iterator[None]:
    """A worker compiles more programs than a process has memory maps for. Looked at after tests that may compile."""
    start = time.monotonic()
    yield
    if time.monotonic() - start > 0.5:
        make_room()


@pytest.fixture(autouse=True)
def own_state_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests note what they train on in a folder of their own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state"))


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """The program: call(*arguments) -> (exit code, stdout, stderr)."""

    def program(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return int(stop.value.code or 0), out, err

    return program


@pytest.fixture
def report(record_property: Callable[[str, object], None]) -> Callable[..., None]:
    """Call it with words to print at the end of the run: what a comparison measured, beyond passed or failed."""
    return lambda *words: record_property("report", ": ".join(map(str, words)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [
        str(value)
        for outcome in ("passed", "failed")
        for test in terminalreporter.getreports(outcome)
        for name, value in test.user_properties
        if name == "report"
    ]
    if reports:
        terminalreporter.section("measured")
        for line in sorted(reports):
            terminalreporter.write_line(line)
