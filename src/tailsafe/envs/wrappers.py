"""Wrappers for environments that report their costs in another way."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


class CostFromStep(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Safety-Gymnasium's steps, (observation, reward, cost, terminated, truncated, info), as Gymnasium's five values.

    The cost goes to `info["cost"]`. Put it directly around the environment: other wrappers know five values only.

        env = ts.CostFromStep(safety_gymnasium.make("SafetyPointGoal1-v0"))
    """

    def step(self, action: Any) -> Any:
        """Five values of six."""
        return five_values(self.env.step(action))


def five_values(answer: Any) -> Any:
    """What `step` returned, with the cost of Safety-Gymnasium's six values in a copy of `info`."""
    if not (isinstance(answer, tuple) and len(answer) == 6 and isinstance(answer[5], dict)):
        return answer
    observation, reward, cost, terminated, truncated, info = answer
    if np.ndim(cost) > 1 or isinstance(terminated, dict):
        return answer
    return observation, reward, terminated, truncated, {**info, "cost": cost}
