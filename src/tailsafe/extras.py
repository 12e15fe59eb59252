"""Optional packages: how to get one that is missing, from a clone and from an index alike."""

from __future__ import annotations

import importlib.util
import re
from importlib import metadata

from tailsafe.errors import InputError

# What an extra is made of where tailsafe itself is not installed, as in a checkout on PYTHONPATH.
_PACKAGES = {
    "plot": ("matplotlib",),
    "onnx": ("onnx", "onnxruntime"),
    "ray": ("ray",),
    "wandb": ("wandb",),
    "mlflow": ("mlflow",),
    "gpu": ("jax[cuda13]", "mujoco-mjx", "warp-lang"),
    "tune": ("optuna",),
}


def install_hint(extra: str) -> str:
    """The command that installs what an extra needs. It names the packages: it works wherever tailsafe came from."""
    packages = _declared(extra) or _PACKAGES[extra]
    return "pip install " + " ".join(f"'{one}'" if re.search(r"[<>=!~\[]", one) else one for one in packages)


def need(module: str, what: str, extra: str) -> None:
    """An `InputError` that says how to install `module`, unless it is there. what: begins the sentence."""
    if importlib.util.find_spec(module) is None:
        raise InputError(f"{what}: {install_hint(extra)}")


def _declared(extra: str) -> list[str]:
    """The requirements of an extra as the installed package declares them."""
    try:
        requirements = metadata.requires("tailsafe") or []
    except metadata.PackageNotFoundError:
        return []
    # After other markers, as those of a platform, too: whoever asks for the hint is where it is needed.
    marker = re.compile(rf";(.*\band)?\s*extra\s*==\s*['\"]{re.escape(extra)}['\"]\s*$")
    return [marker.sub("", one).strip() for one in requirements if marker.search(one)]
