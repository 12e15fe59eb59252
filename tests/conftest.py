"""Test-wide settings: no wall-clock deadlines, reproducible property tests."""

from hypothesis import settings

# A shared machine must not turn a slow example into a failure; the examples are the same on every run.
settings.register_profile("tailsafe", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("tailsafe")
