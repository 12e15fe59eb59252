"""Settings of runs that earlier versions began, in the terms of this one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tailsafe.errors import InputError

# Settings that became constants, with their values.
_FIXED = {
    "ensemble": 2,
    "conjugate_gradient_iterations": 10,
    "damping": 0.01,
    "max_weight": 1000.0,
    "ipo_kappa": 0.05,
    "p3o_kappa": 20.0,
    "recovery_share": 0.7,
    "penalty": 10.0,
}


def of_this_version(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Stored settings, of this version or an earlier one, with which a run means the same today.

    An `InputError` names a value that this version cannot have: the version that began the run can.
    """
    found = dict(settings)
    for key, value in _FIXED.items():
        _same(key, found.pop(key, value), value)
    if "quantiles" in found:
        both = 2 * int(found["quantiles"])
        _same("target_quantiles", found.pop("target_quantiles", both), both)
    if "violated" in found:
        rule = found.pop("violated")
        if found.get("strategy", "proposed") == "proposed":
            found["strategy"] = "proposed" if rule == "paper" else rule
    updates = found.pop("joint_updates", 40)
    if found.get("strategy") == "joint":
        _same("joint_updates", updates, 40)
    if "num_envs" in found:  # what a run stores is complete: then requests were answered at their own places
        found.setdefault("request_episodes", 0)
    batch = found.get("batch_chunks", 1)
    _same("policy_chunks", found.pop("policy_chunks", batch), batch)
    if found.pop("join_chunks", False) and batch > 1:
        _same("groups", found.get("groups", 1), 1)
        found["groups"] = 0
    return found


def _same(key: str, value: Any, fixed: float) -> None:
    if float(value) != float(fixed):
        raise InputError(
            f"this run was begun by an earlier version with {key}={value}; in this version it is {fixed:g}: continue "
            "the run with the version that began it"
        )
