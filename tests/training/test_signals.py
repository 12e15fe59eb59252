"""Stop requests: the first signal is one, the second stops at once, inner watchers know what outer ones have seen."""

import signal
import subprocess
import sys
import time

import pytest

from tailsafe.training.signals import Signals


@pytest.fixture(autouse=True)
def python_s_own_handlers():
    """Whatever this process inherited: under nohup, or in the background of a script, SIGINT is ignored."""
    wanted = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in wanted.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_the_first_is_a_request_and_the_second_stops_at_once(capfd):
    with Signals() as stop:
        assert not stop.wanted()
        signal.raise_signal(signal.SIGINT)
        assert stop.wanted()
        assert "once more stops at once" in capfd.readouterr().err
        assert stop.caught == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_inner_ones_know_what_outer_ones_have_caught():
    with Signals():
        signal.raise_signal(signal.SIGTERM)
        with Signals() as inner:
            assert inner.caught == signal.SIGTERM
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)


def test_a_request_caught_inside_is_not_one_outside():
    """What it was about is over: a study that saved its runs still writes its table."""
    with Signals() as outer:
        with Signals() as inner:
            signal.raise_signal(signal.SIGINT)
            assert inner.wanted()
        assert not outer.wanted()


STUCK = """
import signal, sys, time
from tailsafe.training import signals
signals.PATIENCE = 1.0  # in place of five seconds
with signals.Signals(unsaved=True) as stop:
    if sys.argv[1] == "settled":
        stop.settle()
    print("ready", flush=True)
    # As while a program compiles: the signal comes, but the main thread runs no handler.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    time.sleep(signals.PATIENCE + 2)
"""


@pytest.mark.parametrize(("state", "code"), [("unsaved", 143), ("settled", 0)])
def test_a_process_inside_of_compiled_code_ends_where_nothing_needs_saving(state, code):
    process = subprocess.Popen([sys.executable, "-c", STUCK, state], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=120)
    assert process.returncode == code
    assert (b"stopped before there was anything new to save" in err) == (state == "unsaved")


def test_a_third_signal_interrupts_nothing():
    with Signals():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_time():
    assert Signals(time.monotonic()).wanted()
    assert not Signals(time.monotonic() + 60).wanted()
