"""Files that show the jobs of one process to the other processes of the same server.

Each process writes the state of its jobs, and reads those of the others. The files are in a
directory that ends with the server. Not for: other servers of the store, which know a run from its
lease and its records.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from ebbtide.errors import Failed
from ebbtide.processes import is_dead, this_process

_SUFFIX: Final = ".json"


class JobFiles:
    """The files of one process, and a view of those of the others. `directory` exists."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._own = uuid4().hex
        self._holder = this_process()

    def write(self, number: int, state: dict[str, Any]) -> None:
        """Replaces the file of a job of this process. `number` names the job."""
        path = self._path(number)
        written = path.with_suffix(".part")
        written.write_text(json.dumps({"holder": self._holder, "job": state}))
        written.rename(path)

    def keep(self, numbers: Iterable[int]) -> None:
        """Deletes the files of all other jobs of this process."""
        kept = {self._path(number) for number in numbers}
        for path in self._directory.glob(f"{self._own}-*{_SUFFIX}"):
            if path not in kept:
                path.unlink(missing_ok=True)

    def others(self) -> list[dict[str, Any]]:
        """Returns the states of the jobs of the other processes. The jobs of a process that died
        have ended with it."""
        found = []
        for path in self._directory.glob(f"*{_SUFFIX}"):
            if path.name.startswith(self._own):
                continue
            try:
                document = json.loads(path.read_text())
            except FileNotFoundError:
                continue  # deleted by its process just now
            state = document["job"]
            if not state["ended"] and is_dead(document["holder"]):
                error = Failed("worker_died", "the process of the job died: start it again")
                state |= {"ended": True, "error": {"kind": error.kind, "message": error.message}}
            found.append(state)
        return found

    def _path(self, number: int) -> Path:
        return self._directory / f"{self._own}-{number}{_SUFFIX}"
