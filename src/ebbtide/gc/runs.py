"""The folder of a run: its files, and how they are read and written.

docs/files.md lists the files. Not for: their content (`plan`, `deletes`, `report`).
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from ebbtide.arrow import texts
from ebbtide.errors import NotFound, Refused
from ebbtide.formats.base import EPOCH_ADDRESS, RUNS_PREFIX, Layout, RepositoryFormat
from ebbtide.formats.capabilities import Held
from ebbtide.ids import instant_of, is_ahead, is_id, newest_first
from ebbtide.storage import Storage, open_storage
from ebbtide.text import shown

PLAN_FILE: Final = "plan.json"
FENCE_FILE: Final = "fence.json"
REPORT_FILE: Final = "report.json"
RECORD_FILE: Final = "record.json"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """One run's files, under `prefix` of a storage. Picklable, for executors."""

    storage: Storage
    prefix: str

    @classmethod
    def inside(cls, storage: Storage, run_id: str) -> RunFolder:
        """Returns the usual folder of a run, under `_ebbtide/gc/runs/` of the repository's own
        storage."""
        return cls(storage, f"{RUNS_PREFIX}{run_id}/")

    @classmethod
    def at(cls, path: str) -> RunFolder:
        """Returns the folder at `path`, which has the form of the property `path`. Only for a path
        that a database recorded: whoever can write to a bucket could name any place in it."""
        parent, _, name = path.rstrip("/").rpartition("/")
        return cls(open_storage(parent or "/"), f"{name}/")

    @property
    def name(self) -> str:
        """The last part of the path: the run's id."""
        return self.prefix.rstrip("/").rpartition("/")[2]

    @property
    def path(self) -> str:
        """The location of the folder: a path on a local disk, or a URL."""
        url = f"{self.storage.url.rstrip('/')}/{self.prefix}".rstrip("/")
        parts = urlsplit(url)
        return str(Path(unquote(parts.path))) if parts.scheme == "file" else url

    def address(self, name: str) -> str:
        """Returns the address of a file of the folder within the storage."""
        return self.prefix + name

    def put_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Writes `content`, and replaces the file in one step."""
        self.storage.put(self.address(name), json.dumps(content, indent=1).encode())

    def get_json(self, name: str) -> dict[str, Any] | None:
        """Returns the content of a JSON file, or None if there is no such file. Raises Refused
        `plan_corrupt`."""
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
        """Whether the folder has a file of this name, damaged or not."""
        return self.storage.head(self.address(name)) is not None

    def get_record(self) -> dict[str, Any] | None:
        """Returns the run's record; None if there is none, or if it is damaged."""
        try:
            found = self.get_json(RECORD_FILE)
        except Refused:
            return None
        return found if found is not None and "plan_checksum" in found else None

    def delete(self) -> None:
        """Deletes all files of the run."""
        for batch in self.storage.list(self.prefix):
            self.storage.delete(texts(batch.column("address")))

    def names(self, folder: str, *, suffix: str = ".parquet") -> list[str]:
        """Returns the names of the parts under `folder`, such as "candidates", sorted. The names
        are relative to the run's folder.

        Temporary files, which a killed writer left, do not end in `suffix`.
        """
        found: list[str] = []
        for batch in self.storage.list(self.address(f"{folder}/")):
            found += texts(batch.column("address"))
        return sorted(name.removeprefix(self.prefix) for name in found if name.endswith(suffix))


@dataclass(frozen=True, slots=True)
class RunFolders:
    """The folders of a repository's runs.

    A folder is in the repository's own storage, at the place that the run's id gives. It is
    elsewhere only if the caller names the directory (`run_dir`, a path or URL), or if a database
    recorded the place. No file of the storage says where a folder is: a copy of the storage would
    still name the original, and a forged file any other place.
    """

    repository: RepositoryFormat
    run_dir: str | None = None

    def of(self, run_id: str) -> RunFolder:
        """Returns the folder of a run: of its places, the first that has its plan or its report.
        Raises NotFound `run_not_found`."""
        return self.among(run_id, self.places(run_id))

    def among(self, run_id: str, places: Sequence[RunFolder]) -> RunFolder:
        """Returns the folder of a run whose places are known, as `of` does."""
        for folder in places:
            if folder.has(PLAN_FILE) or folder.has(REPORT_FILE):
                return folder
        where = " or ".join(each.path.removesuffix(run_id) for each in places)
        raise NotFound(
            "run_not_found",
            f"no run {shown(run_id)} of {self.repository.identity.repository_name} in {where}: see "
            "'ebbtide gc runs'. If its files are in another directory, name it with --run-dir",
        )

    def places(self, run_id: str) -> list[RunFolder]:
        """Returns the folders that a run can have, the likeliest first. Raises NotFound
        `run_not_found` for a text that is no id."""
        return self._places(run_id, self._path_of(run_id))

    def is_elsewhere(self, run_id: str) -> bool:
        """Whether a database recorded a place of the run's folder outside of the storage."""
        return self._path_of(run_id) is not None

    def _path_of(self, run_id: str) -> str | None:
        repository = self.repository
        return repository.run_paths().get(run_id) if isinstance(repository, Held) else None

    def inside(self, run_id: str) -> RunFolder:
        """Returns the place of a run in the repository's own storage. Files of an undo lie there
        even if the run's folder is elsewhere."""
        return RunFolder.inside(self.repository.storage, run_id)

    def known(self) -> dict[str, list[RunFolder]]:
        """Returns the places of all runs that are recorded, or have files in the repository's own
        storage, newest first: run id to places."""
        found = self.recorded()
        for folder in _folders_in(self.repository.storage, RUNS_PREFIX):
            if folder.name not in found:
                found[folder.name] = self._places(folder.name, None)
        return {each: found[each] for each in newest_first(found, self.repository.now())}

    def recorded(self) -> dict[str, list[RunFolder]]:
        """Returns the places of all recorded runs, newest first: run id to places."""
        return {run_id: self._places(run_id, path) for run_id, path in self.paths().items()}

    def paths(self) -> Mapping[str, str | None]:
        """Returns all recorded runs, newest first: run id to the path of the folder, if a database
        recorded one outside of the storage. Other folders have the record themselves."""
        if isinstance(self.repository, Held):
            return self.repository.run_paths()
        folders = _folders_in(self.repository.storage, RUNS_PREFIX)
        if self.run_dir is not None:
            folders += _folders_in(open_storage(self.run_dir), "")
        found = {each.name for each in folders if each.get_record() is not None}
        return dict.fromkeys(newest_first(found, self.repository.now()))

    def plan_checksum(self, folder: RunFolder) -> str | None:
        """Returns the recorded checksum of a run's plan, or None if no plan was recorded."""
        if isinstance(self.repository, Held):
            return self.repository.plan_checksum(folder.name)
        record = folder.get_record()
        return None if record is None else record["plan_checksum"]

    def record(self, folder: RunFolder, state: str, plan_checksum: str | None) -> None:
        """Records the run's state, and the checksum of its plan if it is a new one."""
        if isinstance(self.repository, Held):
            path = None if folder == self.inside(folder.name) else folder.path
            self.repository.record_run(
                folder.name, state=state, run_path=path, plan_checksum=plan_checksum
            )
        else:
            checksum = plan_checksum or self.plan_checksum(folder)
            folder.put_json(RECORD_FILE, {"state": state, "plan_checksum": checksum})

    def drop(self, run_id: str, places: Sequence[RunFolder]) -> None:
        """Deletes the files and the record of a run."""
        for folder in places:
            folder.delete()
        if isinstance(self.repository, Held):
            self.repository.drop_run(run_id)

    def _places(self, run_id: str, path: str | None) -> list[RunFolder]:
        if not is_id(run_id):
            raise NotFound("run_not_found", f"{shown(run_id)} is not the id of a run")
        inside = self.inside(run_id)
        found = [inside] if path is None else [RunFolder.at(path), inside]
        if self.run_dir is None:
            return found
        return [RunFolder(open_storage(self.run_dir), f"{run_id}/"), *found]


def _folders_in(storage: Storage, prefix: str) -> list[RunFolder]:
    """Returns the folders of runs under a prefix."""
    folders = (RunFolder(storage, each) for each in storage.list_prefixes(prefix))
    return [each for each in folders if is_id(each.name)]


def checksum_of(content: Mapping[str, Any]) -> str:
    """Returns the SHA-256 of `content` as canonical JSON, without the field `checksum`."""
    bare = {key: value for key, value in content.items() if key != "checksum"}
    canonical = json.dumps(bare, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def announce_epoch(storage: Storage, *, run_epoch: int, run_id: str) -> None:
    """Records on the storage that only this run may delete files. Executors of earlier runs read
    the record and stop."""
    content = {"run_epoch": run_epoch, "run_id": run_id}
    storage.put(EPOCH_ADDRESS, json.dumps(content).encode())


def epoch_is_ours(storage: Storage, *, run_epoch: int, run_id: str) -> bool:
    """Whether no other run has announced itself. Executors ask this before each batch of deletes.

    Both epoch and id are compared: two copies of one database can give the same epoch to two runs.
    """
    found = json.loads(storage.get(EPOCH_ADDRESS))
    return bool(found["run_epoch"] == run_epoch and found["run_id"] == run_id)


@dataclass(frozen=True, slots=True)
class TaskFiles:
    """The files of a repository, and the parts `<name>/…` of a run's folder. Picklable."""

    storage: Storage
    layout: Layout
    folder: RunFolder
    name: str

    def named(self, stem: str) -> str:
        """Returns the name of a part within the folder."""
        return f"{self.name}/{stem}.parquet"

    def prefixed(self, stem: str) -> str:
        """Returns a common prefix for the names of parts that are written together."""
        return f"{self.name}/{stem}-"


def told_ahead(run_id: str) -> str:
    """Returns a clause about a run that is dated in the future."""
    return f"run {run_id} is dated {instant_of(run_id):%Y-%m-%d %H:%M} UTC, in the future"


def ahead_warnings(run_ids: Iterable[str], now: datetime) -> tuple[str, ...]:
    """Returns a warning for each run that is dated in the future."""
    return tuple(
        f"{told_ahead(each)}: a clock was ahead when it was made. It does not count as the latest "
        "run, and no run continues from it"
        for each in run_ids
        if is_ahead(each, now)
    )


def fence_epoch(places: Iterable[RunFolder]) -> int:
    """Returns the epoch of a run's last fence, or 0 if it has none. `places` are the folders that
    the run can have.

    Epochs tell the order of sweeps, whatever the clocks say. A fence that cannot be read counts as
    newer than all others.
    """
    try:
        fences = [folder.get_json(FENCE_FILE) for folder in places]
    except Refused:
        return sys.maxsize
    return max((int(each["run_epoch"]) for each in fences if each is not None), default=0)
