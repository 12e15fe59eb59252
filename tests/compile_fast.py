"""Tests of runs compile whole learners for a few updates: what XLA would gain by optimising is never earned back."""

import jax
import pytest

OPTION = "jax_disable_most_optimizations"


@pytest.fixture(autouse=True, scope="module")
def compile_fast():
    """For the tests of a module and the processes they start: both must compile alike to be equal bit for bit."""
    before = jax.config.read(OPTION)
    jax.config.update(OPTION, True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(OPTION.upper(), "1")
        yield
    jax.config.update(OPTION, before)
