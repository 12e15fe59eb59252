"""Pictures and videos inside of a page: bytes as text, with a limit on how many."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path

from tailsafe.errors import InputError

# What a page takes up: larger files are named, not shown.
MOST_BYTES = 8_000_000
TYPES = {".png": "image/png", ".gif": "image/gif", ".svg": "image/svg+xml", ".mp4": "video/mp4"}


@dataclass(frozen=True)
class Media:
    """A picture or video. uri: its content as a data: address, None if it is too large to be shown."""

    path: Path
    size: int
    uri: str | None

    @property
    def kind(self) -> str:
        """How the file's name ends."""
        return self.path.suffix.lower()

    @property
    def left_out(self) -> str | None:
        """Why it is not shown."""
        if self.uri is not None:
            return None
        return f"{self.path}: {self.size / 1e6:.1f} MB, left out (a page takes files of up to {MOST_BYTES / 1e6:g} MB)"


def is_regular(path: Path) -> bool:
    """Whether it is a file of the folder itself: a page must not carry what a link in a stranger's folder points to."""
    return path.is_file() and not path.is_symlink()


def read_media(path: Path) -> Media:
    """A file for the page."""
    try:
        size = path.stat().st_size
        content = path.read_bytes() if size <= MOST_BYTES else None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    if content is None:
        return Media(path, size, None)
    encoded = base64.b64encode(content).decode("ascii")
    return Media(path, size, f"data:{TYPES[path.suffix.lower()]};base64,{encoded}")
