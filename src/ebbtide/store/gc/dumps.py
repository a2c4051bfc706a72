"""Dumps of a repository's refs and commits, and the restoring of refs from them.

A dump is three files of JSON lines under `_ebbtide/gc/dumps/`: the branches, the tags, and the
commits with the ids of their trees. The name of a file is its SHA-256, so that a damaged file is
found, and equal dumps share their files. No run deletes them. Not for: lists for other collectors
(`exports`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from ebbtide.errors import Failed, InvalidInput, NotFound
from ebbtide.ids import new_id
from ebbtide.store.content.layout import DUMPS_PREFIX
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.commit_rows import require_intact_commits
from ebbtide.store.database.engine import Transaction
from ebbtide.store.database.schema import commits
from ebbtide.store.gc.exports import Tasks
from ebbtide.store.lifecycle import ends_after
from ebbtide.store.names import check_ref_name
from ebbtide.store.refs.ref_rows import BRANCHES, TAGS, BranchRow, RefTable, TagRow
from ebbtide.store.refs.refs import require_free_name
from ebbtide.text import shown

_NAME: Final = re.compile(r"[0-9a-f]{64}")
_COLUMNS: Final = tuple(
    commits.c[name]
    for name in (
        "commit_id",
        "parent_ids",
        "created_at",
        "tree_id",
        "tree_checksum",
        "message",
        "committer",
        "metadata",
        "tombstoned_by",
        "forgotten_by",
        "given_up_at",
    )
)


@dataclass(frozen=True, slots=True)
class Dump:
    """The names of the three files of a dump."""

    branches_id: str
    tags_id: str
    commits_id: str


@dataclass(frozen=True, slots=True)
class DumpTask:
    """The progress of a dump or restore that `begin` recorded. `dump` is the result of a dump."""

    task_id: str
    updated_at: datetime
    done: bool
    dump: Dump | None
    error: str | None


class Dumps:
    """The dumps of one repository."""

    def __init__(self, context: RepositoryContext) -> None:
        self._context = context
        self._tasks = Tasks(context)

    def begin(self) -> str:
        """Records a new task, and returns its id. `carry_out_dump` or `carry_out_restore` executes
        it."""
        return self._tasks.begin()

    def carry_out_dump(self, task_id: str) -> None:
        """Dumps, and records the result, as `Tasks.carry_out` does."""
        self._tasks.carry_out(task_id, lambda: {"dump": asdict(self.dump())})

    def carry_out_restore(self, task_id: str, dump: Dump) -> None:
        """Restores, and records the result, as `Tasks.carry_out` does."""

        def work() -> dict[str, Any]:
            self.restore(dump)
            return {}

        self._tasks.carry_out(task_id, work)

    def state(self, task_id: str) -> DumpTask:
        """Returns the state of a task. Raises as `Tasks.read` does."""
        found = self._tasks.read(task_id)
        result = found.result or {}
        dump = Dump(**result["dump"]) if "dump" in result else None
        return DumpTask(
            task_id,
            found.updated_at,
            found.result is not None or found.error is not None,
            dump,
            found.error,
        )

    def dump(self) -> Dump:
        """Writes a dump of all live refs and all commits, as one snapshot of the database has them.

        Staged changes, the trash and collections are not in it. Of an expired commit it has no
        tree. Raises Refused `storage_foreign`, Failed.
        """
        context = self._context
        context.touch_owner()
        with context.metadata.snapshot() as tx:
            files = [
                _lines(_live_refs(tx, context.repository_id, BRANCHES)),
                _lines(_live_refs(tx, context.repository_id, TAGS)),
                _lines(_commits(tx, context.repository_id)),
            ]
        names = [hashlib.sha256(data).hexdigest() for data in files]
        for name, data in zip(names, files, strict=True):
            context.storage.put(_place(name), data)
        return Dump(*names)

    def restore(self, dump: Dump) -> None:
        """Makes the branches and tags of a dump again, in one transaction: all of them, or none.

        A branch that exists stays where it is, and so does a tag that is at its commit already. A
        ref that would have expired by now is left out. No commit is made: the database must have
        the commits, with their data. Then no run can be deleting the data, because the fence of a
        run closes commits in a transaction that excludes this one.

        Raises InvalidInput `invalid_argument` if the names are not those of a dump; NotFound
        `object_not_found` or Failed `corrupt_object` for its files; NotFound `commit_not_found`;
        Gone `commit_expired`; Conflict `branch_exists` or `tag_exists`; Refused `storage_foreign`.
        """
        context = self._context
        branches = self._read(dump.branches_id, "branch")
        tags = self._read(dump.tags_id, "tag")
        known = {row["commit_id"] for row in self._read(dump.commits_id, "commit")}
        for row in (*branches, *tags):
            if row["commit_id"] not in known:
                raise InvalidInput(
                    "invalid_argument",
                    f"the three files are not of one dump: {shown(row['name'])} is at a commit "
                    "that the list of commits lacks",
                )
        with context.changing("exclusive") as tx:
            for each in self._wanted(tx, branches, BRANCHES):
                BRANCHES.insert(tx, context.repository_id, _branch(each, now=tx.now()))
            for each in self._wanted(tx, tags, TAGS):
                TAGS.insert(tx, context.repository_id, _tag(each, now=tx.now()))

    def _wanted(
        self,
        tx: Transaction,
        rows: Iterable[Mapping[str, Any]],
        table: RefTable[BranchRow] | RefTable[TagRow],
    ) -> Iterator[Mapping[str, Any]]:
        """Yields the refs that are to be made. Raises as `restore` does."""
        repository_id = self._context.repository_id
        for row in rows:
            expires_at = _instant(row["expires_at"])
            if expires_at is not None and expires_at <= tx.now():
                continue
            present = table.find(tx, repository_id, row["name"])
            is_branch = isinstance(present, BranchRow)
            if present is not None and (is_branch or present.commit_id == row["commit_id"]):
                continue
            check_ref_name(row["name"])
            require_free_name(tx, repository_id, row["name"])
            require_intact_commits(tx, repository_id, [row["commit_id"]])
            yield row

    def _read(self, name: str, kind: str) -> list[dict[str, Any]]:
        """Returns the rows of a file of a dump. Raises as `restore` does."""
        if not _NAME.fullmatch(name):
            raise InvalidInput("invalid_argument", f"{shown(name)} names no file of a dump")
        try:
            data = self._context.storage.get(_place(name))
        except NotFound:
            raise NotFound(
                "object_not_found", f"this repository has no dump with the file {name}"
            ) from None
        if hashlib.sha256(data).hexdigest() != name:
            raise Failed(
                "corrupt_object",
                f"the bytes at {_place(name)} are not those that were stored: restore them from a "
                "backup",
            )
        rows: list[dict[str, Any]] = [json.loads(line) for line in data.splitlines()]
        if any(row["kind"] != kind for row in rows):
            raise InvalidInput("invalid_argument", f"the file {name} of a dump has no {kind} rows")
        return rows


def _live_refs(
    tx: Transaction, repository_id: str, table: RefTable[BranchRow] | RefTable[TagRow]
) -> Iterator[dict[str, Any]]:
    for row in table.all(tx, repository_id, ends_after(table.table.c.expires_at, tx.now())):
        yield {
            "kind": table.kind,
            "name": row.name,
            "commit_id": row.commit_id,
            "created_at": row.created_at,
            "expires_at": row.expires_at,
            **({"hidden": row.hidden} if isinstance(row, BranchRow) else {}),
        }


def _commits(tx: Transaction, repository_id: str) -> Iterator[dict[str, Any]]:
    """Yields the commits that no collection has, by date and id."""
    rows = tx.execute(
        sa.select(*_COLUMNS)
        .where(commits.c.repository_id == repository_id, commits.c.collection_id.is_(None))
        .order_by(commits.c.created_at, commits.c.commit_id)
    )
    for row in rows:
        is_expired = any((row.tombstoned_by, row.forgotten_by, row.given_up_at))
        yield {
            "kind": "commit",
            "commit_id": row.commit_id,
            "parent_ids": row.parent_ids,
            "created_at": row.created_at,
            "tree_id": None if is_expired else row.tree_id,
            "tree_checksum": None if is_expired else row.tree_checksum,
            "message": row.message,
            "committer": row.committer,
            "metadata": row.metadata,
            "expired": is_expired,
        }


def _lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    return b"".join(
        json.dumps(row, default=datetime.isoformat, separators=(",", ":")).encode() + b"\n"
        for row in rows
    )


def _branch(row: Mapping[str, Any], *, now: datetime) -> BranchRow:
    """Returns the branch of a dump as a new one, without staged changes."""
    return BranchRow(
        branch_id=new_id(),
        name=row["name"],
        commit_id=row["commit_id"],
        staging_token=new_id(),
        sealed_tokens=(),
        created_at=now,
        expires_at=_instant(row["expires_at"]),
        hidden=row["hidden"],
    )


def _tag(row: Mapping[str, Any], *, now: datetime) -> TagRow:
    return TagRow(
        tag_id=new_id(),
        name=row["name"],
        commit_id=row["commit_id"],
        created_at=now,
        expires_at=_instant(row["expires_at"]),
    )


def _instant(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _place(name: str) -> str:
    return f"{DUMPS_PREFIX}{name}.jsonl"
