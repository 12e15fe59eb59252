"""Policies act in the units in which they were trained, wherever they play."""

from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest

from tailsafe.envs.training import task_spec
from tailsafe.evaluation.environments import BatchStage, open_stage
from tailsafe.evaluation.episodes import play
from tailsafe.learning.interface import EnvironmentSpec
from tailsafe.policies.policy import load_policy
from tailsafe.tasks import TASKS
from tests.policies.hand_made import constraint, describe, save

TASK = TASKS["point-goal"]
FULL = np.asarray([[1.0, -1.0], [0.5, 0.2]], np.float32)


class Heard:
    """A batch of two robots that only notes its actions."""

    task, num_envs = TASK, 2

    def step(self, actions, *, renew):
        self.actions = actions
        nothing = np.zeros(2)
        return SimpleNamespace(
            reward=nothing, costs=np.zeros((2, 1)), terminated=nothing > 0, truncated=nothing > 0, observation=nothing
        )

    observation = np.zeros(2)


@pytest.mark.parametrize("reach", [(0.05, 1.0), (1.0, 1.0)])
def test_a_policy_keeps_the_reach_it_was_trained_with(reach):
    """Policies of versions before `effective_reach` act in the whole box."""
    described = describe(task_spec(TASK), [constraint()], low=[-x for x in reach], high=reach)
    batch = Heard()
    BatchStage(batch, actions=described.actions).step(FULL)
    np.testing.assert_allclose(batch.actions, FULL * np.asarray(reach))
    BatchStage(batch).step(FULL)
    np.testing.assert_allclose(batch.actions, FULL * np.asarray([0.05, 1.0]))


def test_a_gymnasium_environment_hears_what_the_policy_says(tmp_path):
    """Of a policy for point-goal, played in a wrapper of the same task whose box goes to 1."""
    spec: EnvironmentSpec = task_spec(TASK)
    reach = TASK.effective_reach
    named = constraint("collision", limit=0.025, unit="step", discounted_limit=0.25)
    save(tmp_path / "run", describe(spec, [named], low=[-x for x in reach], high=reach), seed=1)
    policy, heard = load_policy(tmp_path / "run"), []

    class Listening(gymnasium.Wrapper):
        def step(self, action):
            heard.append(np.asarray(action))
            return self.env.step(action)

    stage = open_stage(
        policy.description,
        1,
        lambda: gymnasium.wrappers.TimeLimit(Listening(gymnasium.make("tailsafe/PointGoal-v0")), 5),
    )
    play(policy, stage, 1)
    stage.close()
    thrust = np.abs(np.asarray(heard))[:, 0]
    assert 0 < thrust.max() <= 0.05 * (1 + 1e-6)
