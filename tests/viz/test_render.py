"""Pictures and videos of a policy, without a display."""

import json
from typing import ClassVar

import gymnasium
import numpy as np
import pytest
from PIL import Image

from tailsafe.errors import InputError
from tailsafe.evaluation.verdict import evaluate
from tailsafe.learning.actions import BoxActions
from tailsafe.learning.interface import EnvironmentSpec
from tailsafe.policies.policy import load_policy
from tailsafe.tasks import action_size, get_task, observation_size
from tailsafe.viz.scenes import user_scenes
from tailsafe.viz.video import render_video
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


def test_pictures_and_videos(call, run, tmp_path):
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
    with Image.open(run / "video.gif") as opened:
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
        render_video(load_policy(run), tmp_path / "x.mp4")


class Shining(gymnasium.Env):
    """Draws its step number as a grey level; episodes have 6 steps."""

    metadata: ClassVar = {"render_modes": ["rgb_array"]}
    observation_space = action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, render_mode=None, length=6):
        self.render_mode, self.length = render_mode, length

    def reset(self, *, seed=None, options=None):
        self.count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.count += 1
        return np.zeros(1, np.float32), 1.0, self.count == self.length, False, {"cost": 0.5}

    def render(self):
        return np.full((8, 12, 3), 40 * self.count % 256, np.uint8) if self.render_mode == "rgb_array" else None


def hidden():
    return Shining()


@pytest.fixture
def own(tmp_path):
    folder = tmp_path / "own"
    spec = EnvironmentSpec(f"{__name__}:Shining", 1, BoxActions(1), ("cost",), None, (1.0,))
    save(folder, describe(spec, [constraint()], low=(-1.0,), high=(1.0,)))
    return folder


def test_an_environment_of_ones_own_draws_itself(call, own):
    code, out, _ = call("render", own, "--trust", "--episodes", 2, "--json")
    assert code == 0
    shown = json.loads(out.splitlines()[-1])
    # Moments 0 to 6 of each; the last one is of the end, not of the reset after it.
    assert (shown["frames"], shown["episodes"]) == (14, [{"steps": 6, "reward": 6.0, "costs": [3.0]}] * 2)
    with Image.open(own / "video.gif") as opened:
        levels = []
        for frame in range(opened.n_frames):
            opened.seek(frame)
            levels.append(int(np.asarray(opened.convert("RGB"))[0, 0, 0]))
    assert levels == [40 * step for step in range(7)] * 2
    code, _, _ = call("render", own, "--trust", "--out", own / "sheet.png", "--steps", 3)
    assert code == 0
    with Image.open(own / "sheet.png") as opened:
        assert np.asarray(opened)[0, ::12, 0].tolist() == [0, 40, 80, 120]


def test_a_long_episode_is_thinned_out(own):
    scenes = user_scenes(
        load_policy(own), 1, 100, 0, 10, deterministic=True, environment=lambda: Shining("rgb_array", 1000)
    )
    steps = [scene.step for scene in scenes]
    assert len(steps) <= 12
    assert (steps[0], steps[-1]) == (0, 100)


def test_an_environment_that_does_not_draw_is_one_line(call, own):
    for arguments, words in [
        ([], "--trust"),
        (["--env", f"{__name__}:hidden"], "returned nothing"),
        (["--env", f"{__name__}:Shinning"], "did you mean Shining?"),
    ]:
        code, out, err = call("render", own, *arguments)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert words in err
        assert not (own / "video.gif").exists()


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
