"""Pictures and films of a policy, without a display."""

import json

import numpy as np
import pytest
from PIL import Image

from tailsafe.errors import InputError
from tailsafe.evaluation.verdict import evaluate
from tailsafe.learning.actions import BoxActions
from tailsafe.learning.interface import EnvironmentSpec
from tailsafe.policies.policy import load_policy
from tailsafe.tasks import action_size, get_task, observation_size
from tailsafe.viz.video import film
from tests.policies.hand_made import constraint, describe, finite_description, save
from tests.tabular.problems import gamble


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A random policy for point-goal, seeing the costs so far."""
    folder = tmp_path_factory.mktemp("point-goal")
    task = get_task("point-goal")
    spec = EnvironmentSpec(
        task.name, observation_size(task), BoxActions(action_size(task)), ("collision",), task.episode_length, (1.0,)
    )
    limit = constraint("collision", limit=0.025, unit="step", discounted_limit=2.5)
    save(folder, describe(spec, [limit], 0.99, augmented=True))
    return folder


def test_pictures_and_films(call, run, tmp_path):
    sheet = tmp_path / "run.png"
    code, out, _ = call("render", run, "--out", sheet, "--steps", 240, "--episodes", 2, "--size", 96, "--json")
    assert code == 0
    shown = json.loads(out.splitlines()[-1])
    assert (shown["frames"], [e["steps"] for e in shown["episodes"]]) == (8, [240, 240])
    with Image.open(sheet) as opened:
        picture = np.asarray(opened).astype(int)
    assert picture.shape == (2 * 96, 4 * 96, 3)
    # Another layout below, and the robot has moved from the first moment to the last.
    assert not np.array_equal(picture[:96], picture[96:])
    assert not np.array_equal(picture[:96, :96], picture[:96, -96:])
    # The robot's way is marked in dark red, from nothing to a trail.
    red = (picture[..., 0] > 100) & (picture[..., 1:].max(-1) < 80)
    marked = red[:96].reshape(96, 4, 96).sum((0, 2))
    assert marked[0] < marked[1] < marked[3]
    code, out, _ = call("render", run, "--steps", 5, "--size", 64)
    assert code == 0
    assert "5 steps" in out
    with Image.open(run / "film.gif") as opened:
        assert (opened.n_frames, opened.size) == (6, (64, 64))


def test_a_map_shows_the_same_episodes_from_above(call, run, tmp_path, monkeypatch):
    def refuse(*_):
        raise AssertionError("a map needs no graphics library")

    monkeypatch.setattr("tailsafe.envs.rendering.ImageRenderer", refuse)
    code, out, _ = call("render", run, "--map", "--steps", 40, "--episodes", 2, "--json")
    assert code == 0
    shown = json.loads(out.splitlines()[-1])
    assert shown["file"] == str(run / "paths.png")
    assert [e["steps"] for e in shown["episodes"]] == [40, 40]
    with Image.open(run / "paths.png") as opened:
        picture = np.asarray(opened.convert("RGB")).astype(int)
    left, right = picture[:, : picture.shape[1] // 2], picture[:, picture.shape[1] // 2 :]
    for panel in (left, right):
        # The colours of the video: pale blue hazards, a red robot.
        hazards = (panel[..., 2] > 240) & (panel[..., 0] > 120) & (panel[..., 0] < 230)
        trajectory = (panel[..., 0] > 140) & (panel[..., 1] < 120) & (panel[..., 2] < 120)
        assert hazards.mean() > 0.01
        assert trajectory.any()
    code, _, err = call("render", run, "--map", "--out", tmp_path / "x.gif")
    assert (code, err.count("\n")) == (2, 1)


def test_what_cannot_be_shown_is_one_line(call, run, tmp_path, monkeypatch):
    save(tmp_path, finite_description(gamble()))
    for arguments, words in [
        (["render", tmp_path], "cannot be shown"),
        (["render", run, "--out", tmp_path / "x.avi"], "ends in"),
        (["render", run, "--out", tmp_path / "no" / "x.gif"], "does not exist"),
        (["render", tmp_path / "no"], "no such run"),
    ]:
        code, out, err = call(*arguments)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert words in err
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match="imageio"):
        film(load_policy(run), tmp_path / "x.mp4")


def test_a_navigation_task_is_evaluated_in_batch(run, monkeypatch):
    """Whole episodes take 1000 steps; shorter ones will do here."""
    import dataclasses

    import tailsafe.tasks

    task = dataclasses.replace(get_task("point-goal"), episode_length=20)
    monkeypatch.setitem(tailsafe.tasks.TASKS, "point-goal", task)
    result = evaluate(run, 6, backend="mujoco")
    assert list(result.episodes.length) == [20.0] * 6
    assert len(set(result.episodes.reward)) == 6
    (report,) = result.constraints
    assert report.risk == pytest.approx(report.discounted_risk * 0.01)
    assert report.description.unit == "step"
