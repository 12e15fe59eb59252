"""Is a policy file what was written? Digests in both files of a policy, checked on every load.

policy.json holds the digest of its own content. The header of policy.safetensors holds one of all tensors and one of
the description they belong to, under one key: several have no fixed order, and the same policy must give the same
bytes. They find damage and mixed-up files. They are not a signature: whoever can write the files can write the digests.

What changes from one checkpoint of a run to the next is left out of the description's digest, and so is what is found
out about a policy later: the two files are replaced one after the other, and between the two replacements they must
still fit.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tailsafe.errors import InputError
from tailsafe.files import json_digest

SEAL = "digest"
_DIGESTS = "digests"
_CHANGING = ("steps", "delta", "version", "certificate", "request", SEAL)


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content of policy.json with its digest."""
    return {**content, SEAL: json_digest(content)}


def seals(tensors: Mapping[str, NDArray[Any]], content: Mapping[str, Any]) -> dict[str, str]:
    """The metadata in the header of policy.safetensors."""
    return {_DIGESTS: f"{tensors_digest(tensors)} {_lasting(content)}"}


def check_seals(
    found: Mapping[str, str],
    tensors: Mapping[str, NDArray[Any]],
    content: Mapping[str, Any],
    description: Path,
    path: Path,
) -> None:
    """Refuse tensors or a description that are not what was written, or that do not belong together.

    found: metadata in the header of `path`. content: of the file `description`. Policies of versions without digests
    are read, and said to be unchecked. Where only one of both files lacks its digests, that one is damaged.
    """
    if _DIGESTS not in found and SEAL not in content:
        logging.getLogger("tailsafe").warning(
            "%s: of a version of tailsafe that wrote no digests; whether it is damaged was not checked", path
        )
        return
    if _DIGESTS not in found or SEAL not in content:
        lacking = description if SEAL not in content else path
        raise InputError(f"{lacking}: is damaged, or not of the file beside it: it holds no digests, the other does")
    if content[SEAL] != json_digest({key: value for key, value in content.items() if key != SEAL}):
        raise InputError(f"{description}: is damaged or was edited: its content is not what its digest was made of")
    of_tensors, _, of_description = found[_DIGESTS].partition(" ")
    if of_tensors != tensors_digest(tensors):
        raise InputError(f"{path}: is damaged: its tensors are not what its digest was made of")
    if of_description != _lasting(content):
        raise InputError(f"{path}: is not of the {description.name} beside it; copy both files of a policy together")


def tensors_digest(tensors: Mapping[str, NDArray[Any]]) -> str:
    """SHA-256 of names, types, shapes and numbers."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        array = np.ascontiguousarray(tensors[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _lasting(content: Mapping[str, Any]) -> str:
    return json_digest({key: value for key, value in content.items() if key not in _CHANGING})
