"""Programs are compiled once: runs that are made alike share them, whoever makes them."""

from dataclasses import replace

import jax.numpy as jnp

from tailsafe.training.loop import DeviceLoop, advance_runs, begin_runs
from tailsafe.training.plan import make_plan
from tests.training.tiny import finite_config


def never():
    return False


def test_learners_and_environments_that_are_made_alike_are_equal(tmp_path):
    first, again = (make_plan(finite_config(tmp_path, 1)) for _ in range(2))
    wider = make_plan(finite_config(tmp_path, 1, settings={"critic_hidden": (9,)}))
    assert first.algorithm is not again.algorithm
    assert first.algorithm == again.algorithm
    assert hash(first.algorithm) == hash(again.algorithm)
    assert first.algorithm != wider.algorithm
    assert first.environments == again.environments
    assert hash(first.environments) == hash(again.environments)
    problem = first.problem
    dearer = make_plan(finite_config(tmp_path, 1, settings={"problem": replace(problem, costs=problem.costs * 2)}))
    assert first.environments != dearer.environments


def test_a_second_run_compiles_nothing(tmp_path):
    def run(**settings):
        plan = make_plan(finite_config(tmp_path, 1, settings=settings))
        loop = DeviceLoop(plan.algorithm, plan.environments, plan.settings, [3])
        return loop.advance(loop.begin(), 1, never)

    first = run()
    sizes = begin_runs._cache_size(), advance_runs._cache_size()
    again, slower = run(), run(critic_rate=1e-9)
    assert (begin_runs._cache_size(), advance_runs._cache_size()) == sizes
    assert jnp.array_equal(first.learner.critics.body.weights[0], again.learner.critics.body.weights[0])
    # Settings are arguments of the program, not part of it.
    assert not jnp.array_equal(first.learner.critics.body.weights[0], slower.learner.critics.body.weights[0])
