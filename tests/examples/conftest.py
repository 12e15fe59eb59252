"""The documented code trains for a few updates, like the tests of runs."""

from tests.compile_fast import compile_fast

__all__ = ["compile_fast"]
