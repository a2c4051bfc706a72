"""Imports: one commit on a branch whose entries are objects outside the repository.

The objects are listed, not read, and stay where they are. Their entries are sorted on the local
disk, and then applied to the tree of the branch's commit. The transaction that moves the branch
also ends the import. So an import that was cancelled, or that was told as failed, never commits;
and an import that has committed cannot be cancelled. Not for: single objects that are staged
(`staging.addresses`).
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from heapq import merge
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from ebbtide.errors import Conflict, EbbtideError, Failed, InvalidInput, NotFound
from ebbtide.ids import new_id
from ebbtide.store.commits.publication import (
    CommitDetails,
    Publication,
    building,
    publish,
    until_published,
)
from ebbtide.store.content.entries import Entry
from ebbtide.store.content.ranges import ReadRange
from ebbtide.store.content.trees import PathChange, Tree
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.commit_rows import CommitRecord, require_commit
from ebbtide.store.database.engine import Transaction
from ebbtide.store.import_sources import (
    SILENCE_MAX,
    ImportRow,
    ImportSource,
    SortedEntries,
    cancel_running,
    delete_old_imports,
    find_import,
    insert_import,
    list_entries,
    places_of,
    require_sources_allowed,
    update_running,
)
from ebbtide.store.refs.ref_rows import BranchRow, require_branch
from ebbtide.store.repositories.known_roots import (
    known_roots,
    lock_known_roots,
    require_no_root,
    require_outside,
)
from ebbtide.store.staging.staged_rows import has_staged
from ebbtide.text import shown

CHANGES_PER_SIGN: Final = 10_000

_path: Final = itemgetter(0)


@dataclass(frozen=True, slots=True)
class ImportChanges:
    """The changes, ascending by path. Can be iterated repeatedly.

    Each path of `entries` gets its entry. Other paths of the tree that begin with one of `replaced`
    are deleted. `sign` is called after each CHANGES_PER_SIGN changes, and may raise.
    """

    entries: Iterable[Entry]
    replaced: tuple[str, ...]
    tree: Tree
    read: ReadRange
    sign: Callable[[], None]

    def __iter__(self) -> Iterator[PathChange]:
        deleted = ((path, 0, None) for path in self._deletable())
        written = ((entry.path, 1, entry) for entry in self.entries)
        both: Iterator[tuple[str, int, Entry | None]]
        both = merge(deleted, written, key=itemgetter(0, 1))
        for count, (path, changes) in enumerate(groupby(both, _path), 1):
            # If the path is imported, its entry comes after its deletion.
            *_, (_, _, entry) = changes
            yield path, entry
            if count % CHANGES_PER_SIGN == 0:
                self.sign()

    def _deletable(self) -> Iterator[str]:
        """Yields the paths of the tree that begin with one of `replaced`, ascending."""
        done: str | None = None
        for prefix in sorted(set(self.replaced)):
            if done is not None and prefix.startswith(done):
                continue
            done = prefix
            for info in self.tree.overlapping(prefix):
                yield from (
                    entry.path for entry in self.read(info) if entry.path.startswith(prefix)
                )


logger = logging.getLogger(__name__)

DEFAULT_MESSAGE: Final = "Import objects"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportRequest:
    """What to import. If two sources have the same path, the later source counts.

    Only URLs that begin with one of `allowed_prefixes` may be imported; None allows all.
    """

    branch: str
    sources: tuple[ImportSource, ...]
    details: CommitDetails
    allowed_prefixes: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class ImportState:
    """How an import stands. `commit` is set when it has committed, and `error` (`kind`, `message`)
    when it has failed or was cancelled. `object_count` is the number of objects listed so far."""

    import_id: str
    branch: str
    updated_at: datetime
    object_count: int
    commit: CommitRecord | None
    error: tuple[str, str] | None


@dataclass(frozen=True, slots=True)
class Signs:
    """The functions that a running import calls between two steps. `stopping` returns true if the
    import must stop, and `counted` receives the number of objects listed so far."""

    stopping: Callable[[], bool] = lambda: False
    counted: Callable[[int], None] = lambda _: None


class Imports:
    """The imports of one repository."""

    def __init__(self, context: RepositoryContext) -> None:
        self._context = context

    def begin(self, request: ImportRequest) -> str:
        """Checks and records a new import, and returns its id. `run` or `carry_out` executes it.

        Raises InvalidInput `invalid_argument`, `invalid_path`, or `invalid_address` as
        `require_no_root` does. Raises Denied `import_forbidden`, NotFound `branch_not_found`,
        Conflict `branch_dirty`, and Gone `commit_expired`.
        """
        context = self._context
        sources = _checked(request)
        require_no_root(context.metadata, context.settings, places_of(sources), must_know=False)
        context.touch_owner()
        import_id = new_id()
        with context.metadata.transaction() as tx:
            self._require_outside(sources, tx)
            branch, _ = self._require_importable(tx, request.branch)
            # As for a merge. Changes that are staged later stay staged over the imported paths.
            if has_staged(tx, context.repository_id, branch.tokens):
                raise Conflict(
                    "branch_dirty",
                    f"branch {request.branch!r} has staged changes: commit or reset them first",
                )
            kept = max(context.settings.run_retention, timedelta(days=1))
            delete_old_imports(tx, context.repository_id, before=tx.now() - kept)
            insert_import(tx, context.repository_id, import_id, request.branch)
        return import_id

    def carry_out(self, import_id: str, request: ImportRequest, signs: Signs | None = None) -> None:
        """Executes an import in the background. Raises no EbbtideError: `state` has the error.

        If the error could not be recorded, `state` reports the import as failed after SILENCE_MAX.
        """
        try:
            self.run(import_id, request, signs)
        except EbbtideError as error:
            logger.info("import %s: %s", import_id, error.message)

    def run(
        self, import_id: str, request: ImportRequest, signs: Signs | None = None
    ) -> CommitRecord:
        """Executes an import, and returns its commit.

        Paths of the branch below the destination of a prefix that the import does not have are
        deleted by the commit. If other commits of the branch come first, the commit is made again.

        Raises Conflict `import_ended` if it was cancelled; NotFound `object_not_found` for a source
        without objects; the errors of `begin`, `list_entries`, `building`, `publish`; Failed
        `interrupted` if `signs.stopping` returns true.
        """
        work = _Work(self._context, import_id, request, signs or Signs())
        try:
            with tempfile.TemporaryDirectory(
                prefix="ebbtide-import-", ignore_cleanup_errors=True
            ) as directory:
                entries = work.listed(Path(directory))
                return until_published(
                    self._context, request.branch, lambda _: self._commit(work, entries)
                )
        except BaseException as error:
            work.fail(error)
            raise

    def wait(self, import_id: str) -> None:
        """Records a sign of life of an import that has not started to list. Raises Conflict
        `import_ended` if it was cancelled."""
        _update(self._context, import_id)

    def state(self, branch: str, import_id: str) -> ImportState:
        """Returns how an import of a branch stands. Raises NotFound `task_not_found`."""
        context = self._context
        with context.metadata.snapshot() as tx:
            row = self._require(tx, branch, import_id)
            commit = None
            if row.commit_id is not None:
                commit = require_commit(tx, context.repository_id, row.commit_id)
            # A date far in the future is no sign of life either: a clock was ahead.
            is_late = abs(tx.now() - row.updated_at) >= SILENCE_MAX
        return ImportState(
            import_id, row.branch, row.updated_at, row.object_count, commit, _error_of(row, is_late)
        )

    def cancel(self, branch: str, import_id: str) -> None:
        """Cancels an import of a branch. It does not commit from now on. An import that has failed
        stays as it is.

        Raises NotFound `task_not_found`, and Conflict `import_ended` if it has committed.
        """
        context = self._context
        with context.metadata.transaction() as tx:
            self._require(tx, branch, import_id)
            cancel_running(tx, context.repository_id, import_id)
            # Read again: on PostgreSQL the import may have ended while this transaction waited.
            row = self._require(tx, branch, import_id)
        if row.state == "done":
            raise Conflict(
                "import_ended",
                f"import {import_id} has committed {row.commit_id}, and cannot be cancelled: "
                "revert the commit instead",
            )

    def _commit(self, work: _Work, entries: SortedEntries) -> CommitRecord:
        """Applies the entries to the branch as it is now, and publishes the result."""
        context = self._context
        with context.metadata.snapshot() as tx:
            branch, head = self._require_importable(tx, work.request.branch)
        replaced = tuple(source.destination for source in work.sources if source.is_prefix)
        with context.reading(head):
            changes = ImportChanges(
                entries, replaced, context.tree_of(head), context.cache.range, work.sign
            )
            with building(context, head, changes) as tree:
                work.sign()
                return publish(
                    context,
                    Publication(
                        branch=branch,
                        parent_ids=(head.commit_id,),
                        tree=tree,
                        details=work.details,
                        first=partial(self._require_outside, work.sources),
                        last=work.end,
                    ),
                )

    def _require_outside(self, sources: Sequence[ImportSource], tx: Transaction) -> None:
        """Raises InvalidInput `invalid_address`, as `require_outside` does, until the transaction
        ends."""
        require_outside(places_of(sources), lock_known_roots(tx, self._context.settings))

    def _require_importable(self, tx: Transaction, name: str) -> tuple[BranchRow, CommitRecord]:
        """Returns a branch that an import may commit to, and its commit. Every check of the branch
        belongs here: it runs when the import begins, and before each attempt to commit.

        Raises NotFound `branch_not_found`, and Gone `commit_expired`.
        """
        branch = require_branch(tx, self._context.repository_id, name)
        head = require_commit(tx, self._context.repository_id, branch.commit_id)
        head.require_intact()
        return branch, head

    def _require(self, tx: Transaction, branch: str, import_id: str) -> ImportRow:
        row = find_import(tx, self._context.repository_id, import_id)
        if row is None or row.branch != branch:
            raise NotFound(
                "task_not_found", f"there is no import {shown(import_id)} on branch {shown(branch)}"
            )
        return row


class _Work:
    """One import while it runs in this process."""

    def __init__(
        self, context: RepositoryContext, import_id: str, request: ImportRequest, signs: Signs
    ) -> None:
        self._context = context
        self._import_id = import_id
        self._signs = signs
        self._object_count = 0
        self.request = request
        self.sources = _checked(request)
        self.details = request.details
        if not request.details.message:
            self.details = replace(request.details, message=DEFAULT_MESSAGE)

    def listed(self, directory: Path) -> SortedEntries:
        """Lists the sources. Returns their entries, which lie in files in `directory`."""
        context = self._context
        # `begin` did not insist on an answer of the storages, which takes time if they fail.
        require_no_root(context.metadata, context.settings, places_of(self.sources), must_know=True)
        with context.metadata.snapshot() as tx:
            existing = known_roots(tx, context.settings)
        entries = SortedEntries(directory)
        self.sign()
        for batch in list_entries(self.sources, existing):
            entries.add(batch)
            self._object_count += len(batch)
            self._signs.counted(self._object_count)
            self.sign()
        return entries

    def sign(self) -> None:
        """Records a sign of life. Raises Conflict `import_ended` if the import was cancelled or
        was silent for too long, and Failed `interrupted` if it must stop."""
        if self._signs.stopping():
            raise Failed(
                "interrupted", "the server ended before the import was done: start it again"
            )
        _update(self._context, self._import_id, object_count=self._object_count)

    def end(self, tx: Transaction, commit: CommitRecord) -> None:
        """Records, in the transaction that publishes it, that the import has committed. Raises
        Conflict `import_ended`, which prevents the commit."""
        _update_in(
            tx,
            self._context,
            self._import_id,
            state="done",
            object_count=self._object_count,
            commit_id=commit.commit_id,
        )

    def fail(self, error: BaseException) -> None:
        """Records why the import failed, unless it has ended: also if only the answer to the COMMIT
        of its end was lost."""
        if isinstance(error, EbbtideError):
            told = {"kind": error.kind, "message": error.message}
        elif isinstance(error, Exception):
            text = f"a defect in this program: {type(error).__name__}: {error}"
            told = {"kind": "internal", "message": text}
        else:
            told = {"kind": "interrupted", "message": "the import was interrupted: start it again"}
        context = self._context
        try:
            with context.metadata.transaction() as tx:
                update_running(
                    tx,
                    context.repository_id,
                    self._import_id,
                    state="failed",
                    object_count=self._object_count,
                    error=told,
                )
        except EbbtideError as failed:
            logger.error(
                "import %s: %s; this error could not be recorded: %s",
                self._import_id,
                told["message"],
                failed.message,
            )


def _checked(request: ImportRequest) -> tuple[ImportSource, ...]:
    """Returns the sources in their normalized spelling. Raises InvalidInput and Denied, as
    `Imports.begin` does."""
    request.details.check()
    if not request.sources:
        raise InvalidInput("invalid_argument", "an import needs at least one source")
    sources = tuple(source.normalized() for source in request.sources)
    if request.allowed_prefixes is not None:
        require_sources_allowed(sources, request.allowed_prefixes)
    return sources


def _update(
    context: RepositoryContext,
    import_id: str,
    **values: Any,  # values of the columns' types
) -> None:
    with context.metadata.transaction() as tx:
        _update_in(tx, context, import_id, **values)


def _update_in(tx: Transaction, context: RepositoryContext, import_id: str, **values: Any) -> None:
    """Changes a running import. Raises Conflict `import_ended` if it does not run any more."""
    if not update_running(tx, context.repository_id, import_id, **values):
        raise Conflict(
            "import_ended",
            f"import {import_id} was cancelled, or gave no sign of life for too long: nothing was "
            "committed",
        )


def _error_of(row: ImportRow, is_late: bool) -> tuple[str, str] | None:
    if row.state == "cancelled":
        return "import_ended", "the import was cancelled"
    if row.error is not None:
        return row.error["kind"], row.error["message"]
    if row.state == "running" and is_late:
        return "worker_died", "the process that ran the import died: start it again"
    return None
