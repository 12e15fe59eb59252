"""The episodes of a certificate's search, kept on disk so that an interrupted search resumes."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from tailsafe.errors import InputError
from tailsafe.evaluation.episodes import Episodes, read_episodes
from tailsafe.evaluation.played_environment import PlayedEnvironment
from tailsafe.files import read_object, write_json


class Recordings:
    """The episodes of a search on disk, a table for each candidate; of another policy, seed or environment they do not
    count.

    about.json also holds digests of the tables: episodes that were damaged do not count either. Whoever can write the
    tables can write digests that fit, so a stranger's certificate is believed only when replayed (`certificate.check`).
    """

    def __init__(self, folder: Path | None, digest: str, seed: int, played: PlayedEnvironment) -> None:
        if folder is not None and folder.is_symlink():
            raise InputError(f"{folder}: is a link; what is written into a run stays in its folder")
        self._folder, self._names = folder, played.description.task.cost_names
        self._about = {"policy": digest, "seed": seed, "environment": played.to_json()["environment"]}

    def read(self, name: str) -> Episodes | None:
        if self._folder is None:
            return None
        table = self._folder / f"{name}.csv"
        if not table.is_file() or _digest(table) not in self._tables().get(name, []):
            return None
        return read_episodes(table)[0]

    def write(self, name: str, episodes: Episodes) -> None:
        if self._folder is None:
            return
        self._folder.mkdir(exist_ok=True)
        table, partial = self._folder / f"{name}.csv", self._folder / f".{name}.{os.getpid()}.csv"
        tables = self._tables()
        if not tables:
            for stale in self._folder.glob("*.csv"):
                stale.unlink()
        try:
            episodes.save(partial, self._names)
            # Both tables fit until the new one has its name: a process may be killed in between.
            fitting = [_digest(partial), *([_digest(table)] if table.is_file() else [])]
            write_json(self._folder / "about.json", {**self._about, "tables": {**tables, name: fitting}})
            os.replace(partial, table)
        finally:
            partial.unlink(missing_ok=True)

    def _tables(self) -> dict[str, list[str]]:
        """Digests of the tables that are about this policy, seed and environment."""
        about = self._folder / "about.json" if self._folder is not None else None
        if about is None or not about.is_file():
            return {}
        content = read_object(about)
        tables = content.get("tables")
        if any(content.get(key) != value for key, value in self._about.items()) or not isinstance(tables, dict):
            return {}
        return {name: fitting for name, fitting in tables.items() if isinstance(fitting, list)}


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
