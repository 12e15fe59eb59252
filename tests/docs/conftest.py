"""The documented code trains for a few updates, like the tests of runs."""

from tests.runs.conftest import compile_fast

__all__ = ["compile_fast"]
