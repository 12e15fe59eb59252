"""Programs of both engines take a few steps: compile them fast."""

from tests.compile_fast import compile_fast

__all__ = ["compile_fast"]
