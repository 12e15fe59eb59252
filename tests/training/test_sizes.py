"""Memory is added up before it is asked for."""

import jax
import pytest

from tailsafe.errors import InputError
from tailsafe.training import sizes
from tailsafe.training.plan import make_plan
from tests.training.tiny import finite_config


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"replay_chunks": 10**10}, "replay_chunks 7.68 TB"),
        ({"num_envs": 2 * 10**9}, r"num_envs .* TB"),
        ({"policy_hidden": (10**6, 10**6)}, "policy_hidden 4 TB"),
        ({"critic_hidden": (10**6, 10**6)}, "critic_hidden 4 TB"),
        ({"window": 10**13}, "window"),
        ({"validation_every": 10, "validation_episodes": 10**10}, "validation_episodes 10.2 TB"),
    ],
)
def test_what_cannot_fit_is_refused_with_the_sum(tmp_path, settings, words):
    with pytest.raises(InputError, match=rf"would need at least .*\({words}.*there are"):
        make_plan(finite_config(tmp_path / "run", 1, settings=settings))
    assert list(tmp_path.iterdir()) == []


def test_programs_have_a_length(tmp_path):
    """Sums over atoms are unrolled: a program over many would be traced and compiled for hours."""
    with pytest.raises(InputError, match=r"^quantiles is 1001; it must be in \[1, 1000\]$"):
        make_plan(finite_config(tmp_path / "run", 1, settings={"quantiles": 1001}))


def test_the_state_is_counted_exactly(tmp_path):
    plan = make_plan(finite_config(tmp_path / "run", 1))
    state = plan.algorithm.init(jax.random.key(0), plan.settings)
    total = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    sizes.check_state(plan.algorithm, plan.settings, 1, total)
    with pytest.raises(InputError, match="would need at least"):
        sizes.check_state(plan.algorithm, plan.settings, 1, total - 1)
    with pytest.raises(InputError, match="of 3 runs"):
        sizes.check_state(plan.algorithm, plan.settings, 3, 2 * total)


def test_memory_of_the_machine():
    assert sizes.machine_memory() > 2**28
