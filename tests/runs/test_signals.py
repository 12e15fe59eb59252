"""Wishes to stop: the first signal is one, the second one acts, and inner watchers know what outer ones have seen."""

import signal
import time

import pytest

from tailsafe.runs.signals import Signals


def test_the_first_is_a_wish_and_the_second_acts(capfd):
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


def test_a_wish_caught_inside_is_not_one_outside():
    """What it was about is over: a study that saved its runs still writes its table."""
    with Signals() as outer:
        with Signals() as inner:
            signal.raise_signal(signal.SIGINT)
            assert inner.wanted()
        assert not outer.wanted()


def test_time():
    assert Signals(time.monotonic()).wanted()
    assert not Signals(time.monotonic() + 60).wanted()
