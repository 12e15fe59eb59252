"""Where things stand: keep-out distances hold, and positions are distributed like the original's."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from tailsafe.tasks import TASKS, reset
from tailsafe.tasks.placement import EXTENT, draw_goal, draw_index
from tests import recorded

DRAWS = 400
KEEPOUTS = {"robot": 0.4, "hazards": 0.18, "vase": 0.15, "goal": 0.305, "buttons": 0.2, "gremlins": 0.4}


@cache
def drawn(name: str) -> Any:
    keys = jax.random.split(jax.random.key(5), DRAWS)
    draw = jax.jit(lambda keys: jax.lax.map(lambda key: reset(TASKS[name], key), keys))
    return jax.device_get(draw(keys))


def objects(state: Any) -> list[tuple[str, np.ndarray]]:
    """Every placed object: its kind and (DRAWS, 2) positions."""
    found = []
    for kind in KEEPOUTS:
        if not hasattr(state, kind):
            continue
        points = np.asarray(getattr(state, kind))
        found += [(kind, points)] if points.ndim == 2 else [(kind, points[:, i]) for i in range(points.shape[1])]
    return found


@pytest.mark.parametrize("name", ["point-goal", "point-button"])
def test_keepouts_hold(name: str) -> None:
    placed = objects(drawn(name))
    for i, (kind, points) in enumerate(placed):
        assert np.abs(points).max() <= EXTENT - KEEPOUTS[kind] + 1e-6
        for other_kind, others in placed[:i]:
            distance = np.linalg.norm(points - others, axis=1)
            assert distance.min() >= KEEPOUTS[kind] + KEEPOUTS[other_kind] - 1e-6, (kind, other_kind)


@pytest.mark.parametrize("kind", ["goal", "button"])
def test_positions_are_distributed_like_the_original(kind: str, report: Any) -> None:
    """Two-sample Kolmogorov-Smirnov tests of coordinates, distance from the centre, and distance to the nearest
    other object.

    The tests of one layout's objects are not independent; with Bonferroni's correction the result errs towards
    passing, never towards a false alarm.
    """
    recorded_layouts = recorded.layouts(kind)
    ours = drawn(f"point-{kind}")
    kinds = [name for name in ("robot", "hazards", "vase", "buttons", "gremlins") if hasattr(ours, name)]
    mine = {name: np.asarray(getattr(ours, name)).reshape(DRAWS, -1, 2) for name in kinds}
    theirs = {name: np.stack([layout[name] for layout in recorded_layouts]) for name in kinds}
    p_values = {}
    for name in kinds:
        for label, statistic in (("x", _x), ("y", _y), ("radius", _radius)):
            p_values[f"{name} {label}"] = stats.ks_2samp(statistic(mine[name]), statistic(theirs[name])).pvalue
    p_values["nearest"] = stats.ks_2samp(_nearest(mine), _nearest(theirs)).pvalue
    report(
        kind,
        f"layouts: {len(recorded_layouts)} recorded, smallest of {len(p_values)} p-values {min(p_values.values()):.2g}",
    )
    assert min(p_values.values()) > 0.01 / len(p_values), p_values


def _x(points: np.ndarray) -> np.ndarray:
    return points[..., 0].ravel()


def _y(points: np.ndarray) -> np.ndarray:
    return points[..., 1].ravel()


def _radius(points: np.ndarray) -> np.ndarray:
    return np.linalg.norm(points, axis=-1).ravel()


def _nearest(layouts: dict[str, np.ndarray]) -> np.ndarray:
    """Distance from each object to its nearest neighbour, of any kind."""
    points = np.concatenate(list(layouts.values()), axis=1)
    distance = np.linalg.norm(points[:, :, None] - points[:, None], axis=-1)
    return (distance + 10 * np.eye(points.shape[1])).min(axis=-1).ravel()


def test_headings_are_uniform() -> None:
    for name in ("point-goal", "point-button"):
        yaw = np.asarray(drawn(name).robot_yaw)
        assert stats.kstest(yaw / (2 * np.pi), "uniform").pvalue > 1e-3


def test_designated_buttons_are_uniform() -> None:
    counts = np.bincount(drawn("point-button").designated, minlength=4)
    assert stats.chisquare(counts).pvalue > 1e-3


def test_later_buttons_are_hashed_from_key_and_number_and_only_when_needed() -> None:
    keys = jax.random.split(jax.random.key(3), 8)
    numbers, needed = jnp.arange(8, dtype=jnp.int32), jnp.arange(8) % 2 == 0
    draw = jax.jit(jax.vmap(lambda key, number, wanted: draw_index(key, number, 4, needed=wanted)))
    expected = [
        int(jax.random.randint(jax.random.fold_in(keys[i], i), (), 0, 4)) if i % 2 == 0 else 0 for i in range(8)
    ]
    np.testing.assert_array_equal(draw(keys, numbers, needed), expected)
    # Every hash is a loop of its own: none may stand before the loop that runs where something is needed.
    program = draw.lower(keys, numbers, needed).compile().as_text()
    assert program[program.index("ENTRY") :].count(" while(") == 1


def test_a_goal_without_room_is_not_found() -> None:
    """Others on a fine grid leave no room: ten thousand tries, then the task is told."""
    grid = jnp.stack(jnp.meshgrid(*[jnp.linspace(-1.2, 1.2, 9)] * 2), -1).reshape(-1, 2)
    _, found = draw_goal(jax.random.key(0), jnp.int32(0), 0.305, grid, (0.18,) * len(grid))
    assert not bool(found)


def test_a_goal_without_room_ends_the_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    task = TASKS["point-goal"]
    state = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), drawn("point-goal"))
    at_the_goal = task.spawn(replace(state, robot=state.goal))
    monkeypatch.setattr("tailsafe.tasks.goal.draw_goal", lambda *_, **__: (jnp.zeros(2), jnp.bool_(False)))
    after, outcome = task.advance(state, jnp.zeros(2), at_the_goal, task.spawn_readings(state))
    assert bool(outcome.success)
    assert bool(outcome.terminated)
    np.testing.assert_array_equal(after.goal, state.goal)
