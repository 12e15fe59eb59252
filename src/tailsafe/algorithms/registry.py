"""The algorithms by name, and what each is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tailsafe.algorithms.cppo import Cppo
from tailsafe.algorithms.cvar_cpo import CvarCpo
from tailsafe.algorithms.learner import Learner
from tailsafe.algorithms.ppo import CriticPpoConfig, LagrangianSettings, PpoConfig
from tailsafe.algorithms.sdac import Sdac, SdacConfig
from tailsafe.algorithms.sdpo import Sdpo, SdpoSettings
from tailsafe.algorithms.srcpo import Srcpo
from tailsafe.algorithms.srcpo_state import Settings, SrcpoConfig
from tailsafe.algorithms.state import LearnerConfig, LearnerSettings, PrimalSettings
from tailsafe.algorithms.wcsac import Wcsac, WcsacConfig, WcsacSettings


@dataclass(frozen=True)
class Algorithm:
    """A learner and the classes of its static configuration and of its settings."""

    learner: type[Learner[Any]]
    config: type[LearnerConfig]
    settings: type[LearnerSettings]


REGISTRY: dict[str, Algorithm] = {
    "srcpo": Algorithm(Srcpo, SrcpoConfig, Settings),
    "cppo": Algorithm(Cppo, PpoConfig, LagrangianSettings),
    "cvar_cpo": Algorithm(CvarCpo, CriticPpoConfig, LagrangianSettings),
    "sdac": Algorithm(Sdac, SdacConfig, PrimalSettings),
    "sdpo": Algorithm(Sdpo, CriticPpoConfig, SdpoSettings),
    "wcsac": Algorithm(Wcsac, WcsacConfig, WcsacSettings),
}
