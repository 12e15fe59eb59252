"""Lower precision of matrix products, on the machines that have it: learning reaches the optimum all the same."""

import jax
import pytest

from tests.optimum.test_known_optimum import GAP, learned

# A CPU computes tf32 as float32 and only emulates bfloat16.
pytestmark = [pytest.mark.slow, pytest.mark.skipif(jax.default_backend() != "gpu", reason="needs a GPU")]


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
@pytest.mark.parametrize("name", ["two roads", "five steps"])
def test_learning_does_not_suffer_from(tmp_path, name, precision):
    found = learned(tmp_path, name, precision=precision)
    print(f"{name} in {precision}: reward {found.reward:.4f} of {found.optimum:.4f}, risks {found.risks}")
    assert found.feasible
    assert found.gap <= GAP * found.optimum
