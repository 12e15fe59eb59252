"""Policies of a run's checkpoints before the last, as they would have been shared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.numpy as jnp

from tailsafe.learning.normalizer import Normalizer
from tailsafe.learning.sampler import Sampler
from tailsafe.policies.acting import LoadedPolicy
from tailsafe.policies.policy import tensors_of

_LEARNER = "state/learner."


def late_policies(run: Path, shipped: LoadedPolicy) -> dict[int, LoadedPolicy]:
    """Steps -> policy, the latest first, without the one that was shipped. Empty where a run has no checkpoints.

    Checkpoints that cannot be read, or are of another shape, are passed over.
    """
    folder = run / "checkpoints"
    if not folder.is_dir():
        return {}
    # Orbax takes seconds to import.
    from tailsafe.checkpoints import Checkpoints

    checkpoints = Checkpoints(folder)
    found = {}
    try:
        for steps in reversed(checkpoints.steps()):
            if steps >= shipped.description.steps:
                continue
            try:
                found[steps] = _policy(checkpoints.load(steps)[0], steps, shipped)
            except Exception:  # whatever a broken checkpoint makes orbax raise
                continue
    finally:
        checkpoints.close()
    return found


def _policy(arrays: dict[str, Any], steps: int, shipped: LoadedPolicy) -> LoadedPolicy:
    names = list(tensors_of(shipped.network))
    # As the learner shares it: the average of the latest policies, where it keeps one.
    part = "average" if f"{_LEARNER}average.{names[0]}" in arrays else "policy"
    tensors = [jnp.asarray(arrays[f"{_LEARNER}{part}.{name}"], jnp.float32) for name in names]
    network = eqx.tree_at(lambda policy: list(tensors_of(policy).values()), shipped.network, tensors)
    mean, variance = (jnp.asarray(arrays[f"{_LEARNER}normalizer.{name}"], jnp.float32) for name in ("mean", "variance"))
    if [tensor.shape for tensor in (*tensors, mean)] != [
        tensor.shape for tensor in (*tensors_of(shipped.network).values(), shipped.normalizer.mean)
    ]:
        raise ValueError("the checkpoint has networks of another shape")
    delta = shipped.modes
    if delta.size:
        phi, deviation = (jnp.asarray(arrays[f"{_LEARNER}sampler.{name}"]) for name in ("phi", "deviation"))
        delta = Sampler(phi, deviation).mode
    description = replace(shipped.description, steps=steps, certificate=None)
    return LoadedPolicy(description, network, Normalizer(jnp.float32(1.0), mean, variance), delta)
