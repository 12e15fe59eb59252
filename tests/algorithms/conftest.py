"""Small programs that run once: compile them fast."""

from tests.runs.conftest import compile_fast

__all__ = ["compile_fast"]
