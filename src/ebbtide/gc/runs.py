"""A run's folder: its id, its files, and how its state is read from them.

```
<run_id>/plan.json      the plan, with the checksum of each part and of itself
<run_id>/inventory/     what was listed            <run_id>/live/         what is live
<run_id>/uncommitted/   what is protected          <run_id>/candidates/   what may go
<run_id>/remaining/     what stays, not live       <run_id>/settled/      the same, until dropped
<run_id>/expired/       what commits held before   <run_id>/dropped/      of the settled, perhaps
<run_id>/purged/        what goes, live or not     <run_id>/unsettled/    keys that were so once
<run_id>/fence.json     what the sweep closed      <run_id>/deleted/      what became of each
<run_id>/report.json    the outcome                <run_id>/trees.parquet the trees of commits
<run_id>/intended/      what was about to be deleted, until its outcome is on record
```

Not for: what is in them (`plan`, `sweep`, `report`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from ebbtide.arrow import texts
from ebbtide.errors import NotFound, Refused
from ebbtide.formats.base import EPOCH_ADDRESS, RUNS_PREFIX
from ebbtide.storage import Storage, open_storage

PLAN_FILE: Final = "plan.json"
FENCE_FILE: Final = "fence.json"
REPORT_FILE: Final = "report.json"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """One run's files, under `prefix` of a storage. Picklable, for executors."""

    storage: Storage
    prefix: str

    @classmethod
    def inside(cls, storage: Storage, run_id: str) -> RunFolder:
        """The usual place: under `_ebbtide/gc/runs/` of the repository's own storage."""
        return cls(storage, f"{RUNS_PREFIX}{run_id}/")

    @classmethod
    def at(cls, path: str) -> RunFolder:
        """The folder that `path` (as `path` below gave it) names."""
        parent, _, name = path.rstrip("/").rpartition("/")
        return cls(open_storage(parent or "/"), f"{name}/")

    @property
    def path(self) -> str:
        """Where the folder lies: a plain path on a local disk, a URL elsewhere."""
        url = f"{self.storage.url.rstrip('/')}/{self.prefix}".rstrip("/")
        parts = urlsplit(url)
        return str(Path(unquote(parts.path))) if parts.scheme == "file" else url

    def address(self, name: str) -> str:
        """The address of a file of the folder, within the storage."""
        return self.prefix + name

    def put_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Write `content`, replacing the file in one step."""
        self.storage.put(self.address(name), json.dumps(content, indent=1).encode())

    def get_json(self, name: str) -> dict[str, Any] | None:
        """The content of a JSON file; None when it is not there. Refused `plan_corrupt`."""
        try:
            found = json.loads(self.storage.get(self.address(name)))
        except NotFound:
            return None
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise Refused("plan_corrupt", f"{self.path}/{name} is no JSON object: plan again")
        return found

    def has(self, name: str) -> bool:
        """Whether there is a file of that name, damaged or not."""
        return self.storage.head(self.address(name)) is not None

    def delete(self) -> None:
        """Delete all files of the run."""
        for batch in self.storage.list(self.prefix):
            self.storage.delete(texts(batch.column("address")))

    def names(self, folder: str) -> list[str]:
        """The parts under `folder` ("candidates"), as names within the run's folder, sorted.

        Not what a writer that was killed left behind: a temporary file is no part.
        """
        found: list[str] = []
        for batch in self.storage.list(self.address(f"{folder}/")):
            found += texts(batch.column("address"))
        return sorted(name.removeprefix(self.prefix) for name in found if name.endswith(".parquet"))


def checksum_of(content: Mapping[str, Any]) -> str:
    """SHA-256 of `content` in one canonical spelling, without its own `checksum` field."""
    bare = {key: value for key, value in content.items() if key != "checksum"}
    canonical = json.dumps(bare, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def announce_epoch(storage: Storage, *, run_epoch: int, run_id: str) -> None:
    """Tell the executors of earlier runs, through the storage, that their time is over."""
    content = {"run_epoch": run_epoch, "run_id": run_id}
    storage.put(EPOCH_ADDRESS, json.dumps(content).encode())


def epoch_is_ours(storage: Storage, *, run_epoch: int, run_id: str) -> bool:
    """Whether no other run has announced itself. For executors, before each batch of deletes.

    Both are compared: two copies of one database count their epochs alike.
    """
    found = json.loads(storage.get(EPOCH_ADDRESS))
    return bool(found["run_epoch"] == run_epoch and found["run_id"] == run_id)
