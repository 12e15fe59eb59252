"""Before the first update: what is about to be trained can be saved, loaded back and played."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import numpy as np

from tailsafe.envs.jax_user import JaxStage, JaxUserEnvironments
from tailsafe.envs.user import GymnasiumEnvironments
from tailsafe.errors import InputError
from tailsafe.policies.policy import load_policy
from tailsafe.training.plan import Plan
from tailsafe.training.policy_file import share_policy


def rehearse(plan: Plan, learner: Any) -> None:
    """Write the untrained policy of a user's environment, load it, play one step in a copy of its own."""
    environments = plan.environments
    stage: Any
    if isinstance(environments, GymnasiumEnvironments):
        stage = environments.another()
    elif isinstance(environments, JaxUserEnvironments):
        stage = JaxStage(environments)
    else:
        return
    try:
        with TemporaryDirectory() as folder:
            share_policy(Path(folder), plan, learner, 0)
            policy = load_policy(folder)
        described = policy.description
        if (described.actions, described.task.observations) != (plan.spec.native_actions, plan.spec.observations):
            raise InputError("its spaces are others when they are read back from a policy file")
        observation = np.asarray(stage.reset(0), np.float32)
        rows, costs = len(observation), len(plan.constraints)
        paid, discount = np.zeros((rows, costs), np.float32), np.ones(rows, np.float32)
        stage.step(policy.choose(observation, paid, discount, jax.random.key(0)))
    except InputError as error:
        raise InputError(f"{plan.text}: a policy for it could not be saved and played: {error}") from error
    finally:
        stage.close()
