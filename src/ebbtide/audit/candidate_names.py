"""Names of the candidates of a plan: the paths, keys and messages that people know them by."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Final, cast

from ebbtide.arrow import texts
from ebbtide.errors import NotFound
from ebbtide.formats.base import RepositoryFormat, tree_address
from ebbtide.formats.file_names import TREES_MAX, FileNames, file_names
from ebbtide.gc.parts import read_part
from ebbtide.gc.plan import COMMITS_FILE, COMMITS_SCHEMA, Plan
from ebbtide.gc.quarantine import prefix_of
from ebbtide.gc.runs import RunFolder
from ebbtide.model import Commit
from ebbtide.storage import Storage
from ebbtide.text import one_line

_COLUMNS: Final = [
    name for name in COMMITS_SCHEMA.names if name not in ("recorded", "reason", "companions")
]


@dataclass(frozen=True, slots=True)
class _WithQuarantine:
    """A storage that also reads the files which a run moved to its quarantine."""

    storage: Storage
    prefix: str

    def get(self, address: str) -> bytes:
        """Returns the content of a file. Raises as `Storage.get`."""
        try:
            return self.storage.get(address)
        except NotFound:
            return self.storage.get(self.prefix + address)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.storage, name)


def expired_commits(plan: Plan, folder: RunFolder) -> list[Commit]:
    """Returns the commits that the plan expires, the newest first, then the commits that had
    expired before; none if the plan has no list of commits. Raises Refused `plan_corrupt`."""
    if plan.commits is None:
        return []
    rows = read_part(folder, COMMITS_FILE, plan.commits.checksum, columns=_COLUMNS).to_pylist()
    gone = [
        Commit(**row | {"parent_ids": tuple(row["parent_ids"])})
        for row in rows
        if not row.pop("active")
    ]
    return sorted(gone, key=lambda each: (each.tombstoned, -each.created_at.timestamp()))


def names_of_candidates(
    repository: RepositoryFormat, plan: Plan, folder: RunFolder, addresses: Collection[str]
) -> FileNames:
    """Returns the names of some of a plan's candidates, each by the newest expired commit that has
    it. Trees and nodes are read from the quarantine too. Raises Refused `plan_corrupt`."""

    def among(kind: str) -> Sequence[str]:
        parts = (part for part in plan.candidates if part.kind == kind)
        read = (read_part(folder, each.name, each.checksum, columns=["address"]) for each in parts)
        found = chain.from_iterable(texts(table.column("address")) for table in read)
        return list(islice(found, TREES_MAX))

    storage = cast("Storage", _WithQuarantine(repository.storage, prefix_of(plan.run_id)))
    return file_names(repository, addresses, expired_commits(plan, folder), among, storage=storage)


def with_names(
    repository: RepositoryFormat, rows: Sequence[Mapping[str, Any]], commits: Sequence[Commit]
) -> list[dict[str, Any]]:
    """Returns rows of files with a `name` each: by the first of the `commits` that has the file, or
    None."""
    named = file_names(
        repository,
        [row["address"] for row in rows],
        commits,
        lambda kind: [row["address"] for row in rows if row["kind"] == kind],
    ).by_address
    names = [named.get(row["address"]) for row in rows]
    return [
        {**row, "name": None if name is None else name.name}
        for row, name in zip(rows, names, strict=True)
    ]


def names_of_commits(repository: RepositoryFormat, commits: Sequence[Commit]) -> list[str]:
    """Returns the names of commits, such as the messages of snapshots; "" for one without."""
    trees = [tree_address(repository.layout, commit.tree_id) for commit in commits]
    named = file_names(repository, trees, ()).by_address
    return [one_line(named[each].name) if each in named else "" for each in trees]
