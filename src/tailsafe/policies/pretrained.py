"""Policies that come with the package: `pretrained:NAME` stands for one wherever a run is asked for.

Each is a folder of `tailsafe/pretrained`: the policy, its evaluation, its certificate if it has one, and the settings
and a thinned log of its training. The package itself is never written to: what a command finds out about one goes into
a copy in the user's own folder.
"""

from __future__ import annotations

import difflib
import shutil
from pathlib import Path

from tailsafe.errors import InputError
from tailsafe.files import new_folder, read_object

PREFIX = "pretrained:"
HOME = Path(__file__).parents[1] / "pretrained"
# As in `policies.policy`, which reads what this module finds.
_JSON, _TENSORS = Path("policy", "policy.json"), Path("policy", "policy.safetensors")


def is_pretrained(path: Path | str) -> bool:
    """Whether a path stands for a policy of the package."""
    return str(path).startswith(PREFIX)


def pretrained_names(task: str | None = None) -> list[str]:
    """The policies of the package, or those for one task."""
    # What begins with a dot is half-written, see `new_folder`.
    names = sorted(file.parents[1].name for file in HOME.glob(f"[!.]*/{_JSON}"))
    if task is None:
        return names
    tasks = {name: read_object(HOME / name / _JSON).get("task") for name in names}
    return [name for name, described in tasks.items() if isinstance(described, dict) and described.get("name") == task]


def pretrained_folder(path: Path | str) -> Path:
    """The folder in the package of what `pretrained:NAME` names, to read from."""
    name, names = str(path).removeprefix(PREFIX), pretrained_names()
    if name in names:
        return HOME / name
    near = difflib.get_close_matches(name, names, n=1)
    there = ", ".join(PREFIX + known for known in names) or "none"
    told = f"did you mean {PREFIX}{near[0]}?" if near else f"there are {there}"
    raise InputError(f"there is no pretrained policy {name!r}; {told}")


def own_copy(path: Path, parent: Path = Path("runs")) -> Path:
    """A copy of a pretrained policy in a folder of the user's, `runs/pretrained-NAME`; any other path as it is.

    A copy that is there already is used, with all that was found out about it since.
    """
    if not is_pretrained(path):
        return path
    source = pretrained_folder(path)
    target = parent / f"pretrained-{source.name}"
    if (target / _JSON).is_file():
        if (target / _TENSORS).is_file() and (target / _TENSORS).read_bytes() == (source / _TENSORS).read_bytes():
            return target
        raise InputError(f"{target}: holds another policy than {path}, perhaps of an earlier version; move it away")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{target.parent}: {error.strerror or error}") from None
    with new_folder(target) as partial:
        shutil.copytree(source, partial, dirs_exist_ok=True, copy_function=shutil.copyfile)
    return target
