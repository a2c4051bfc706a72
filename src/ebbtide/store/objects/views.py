"""The entries that a revision shows: those of a commit, and a branch's staged changes over them.

Not for: reading bytes, or whether they are still there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import merge
from operator import itemgetter
from typing import Final

from ebbtide.store.content.entries import Entry
from ebbtide.store.content.trees import find_entry, iterate_entries
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.commit_rows import CommitRecord
from ebbtide.store.database.engine import Transaction
from ebbtide.store.refs.ref_rows import require_branch
from ebbtide.store.refs.revisions import resolve
from ebbtide.store.staging.staged_rows import Change, find_staged, page_of_staged

PAGE_ROWS: Final = 1000
PAGE_GROWTH: Final = 4
"""The factor by which each page is larger than the page before it, up to PAGE_ROWS."""

StagedChange = tuple[str, Change]


@dataclass(frozen=True, slots=True)
class FoundEntry:
    """An entry, and its commit. `commit` is None for a staged entry."""

    entry: Entry
    commit: CommitRecord | None

    @property
    def path(self) -> str:
        """The path of the entry."""
        return self.entry.path


def find(context: RepositoryContext, ref: str, path: str) -> FoundEntry | None:
    """Returns the entry that `ref` shows at `path`, or None.

    Raises as `resolve` does, and Gone `commit_expired` if the commit was forgotten.
    """
    with context.metadata.snapshot() as tx:
        revision = resolve(tx, context.repository_id, ref)
        tokens = revision.branch.tokens if revision.branch is not None else ()
        staged = find_staged(tx, context.repository_id, tokens, [path])
    for token in tokens:
        if path in staged[token]:
            change = staged[token][path]
            return None if change is None else FoundEntry(change, None)
    with context.reading(revision.commit):
        tree = context.tree_of(revision.commit)
        entry = find_entry(context.storage, tree, path, read=context.cache.range)
    return None if entry is None else FoundEntry(entry, revision.commit)


def walk(
    context: RepositoryContext,
    ref: str,
    *,
    prefix: str = "",
    after: str = "",
    wanted: int | None = None,
) -> Iterator[Entry]:
    """Yields the entries that `ref` shows, by path: those with `prefix` behind `after`.

    `wanted` is the number of entries that the caller probably takes. It only affects the speed.

    An entry that exists all the time comes once, whatever is staged or committed meanwhile. Each
    page of staged changes is read in one snapshot with the commit below it. Raises as `find` does.
    """
    for page in _pages(context, ref, prefix=prefix, after=after, wanted=wanted):
        committed = _committed(context, page, prefix=prefix)
        yield from _overlaid(committed, iter(page.staged), until=page.until)


def walk_found(
    context: RepositoryContext, ref: str, *, prefix: str = "", after: str = ""
) -> Iterator[FoundEntry]:
    """Yields the entries of `walk`, each with its commit."""
    for page in _pages(context, ref, prefix=prefix, after=after):
        staged = {path for path, _ in page.staged}
        committed = _committed(context, page, prefix=prefix)
        for entry in _overlaid(committed, iter(page.staged), until=page.until):
            yield FoundEntry(entry, None if entry.path in staged else page.commit)


def _committed(context: RepositoryContext, page: _Page, *, prefix: str) -> Iterator[Entry]:
    with context.reading(page.commit):
        yield from iterate_entries(
            context.storage,
            context.tree_of(page.commit),
            prefix=prefix,
            after=page.after,
            read=context.cache.range,
        )


def staged_pages(
    context: RepositoryContext, branch_name: str, *, prefix: str, after: str
) -> Iterator[tuple[CommitRecord, list[StagedChange]]]:
    """Yields the staged changes of a branch by path, in pages, each with the commit below it.

    Raises NotFound `branch_not_found`.
    """
    with context.metadata.snapshot() as tx:
        require_branch(tx, context.repository_id, branch_name)
    for page in _pages(context, branch_name, prefix=prefix, after=after):
        yield page.commit, page.staged


@dataclass(frozen=True, slots=True)
class _Page:
    """The staged changes with `after` < path <= `until`, and the commit below them."""

    commit: CommitRecord
    staged: list[StagedChange]
    after: str
    until: str | None


def _pages(
    context: RepositoryContext, ref: str, *, prefix: str, after: str, wanted: int | None = None
) -> Iterator[_Page]:
    """Yields pages, each from one snapshot. The last one has `until` None."""
    until: str | None = after
    amount = PAGE_ROWS if wanted is None else wanted
    while until is not None:
        after = until
        with context.metadata.snapshot() as tx:
            revision = resolve(tx, context.repository_id, ref)
            tokens = revision.branch.tokens if revision.branch is not None else ()
            staged, until = _staged_page(
                tx, context.repository_id, tokens, prefix=prefix, after=after, amount=amount
            )
        yield _Page(revision.commit, staged, after, until)
        amount = min(amount * PAGE_GROWTH, PAGE_ROWS)


def _staged_page(
    tx: Transaction,
    repository_id: str,
    tokens: tuple[str, ...],
    *,
    prefix: str,
    after: str,
    amount: int,
) -> tuple[list[StagedChange], str | None]:
    """Returns the staged changes up to a horizon, and the horizon.

    The horizon is the path up to which all tokens were read. None means that all changes were
    read.
    """
    pages = [
        page_of_staged(tx, repository_id, token, prefix=prefix, after=after, amount=amount)
        for token in tokens
    ]
    horizon = min((page[-1][0] for page in pages if len(page) == amount), default=None)
    merged = (
        change
        for change in newest_first(*map(iter, pages))
        if horizon is None or change[0] <= horizon
    )
    return list(merged), horizon


def newest_first(*by_token: Iterator[StagedChange]) -> Iterator[StagedChange]:
    """Merges the changes under several tokens by path, the newest token first.

    If several changes have one path, the newest one is used.
    """
    last: str | None = None
    # The merge is stable: of changes with one path, the one of the first token comes first.
    for change in merge(*by_token, key=itemgetter(0)):
        if change[0] != last:
            last = change[0]
            yield change


def _overlaid(
    committed: Iterator[Entry], staged: Iterator[StagedChange], *, until: str | None
) -> Iterator[Entry]:
    """Yields committed entries with the staged changes made, up to and including the path
    `until`."""
    change = next(staged, None)
    for entry in committed:
        if until is not None and entry.path > until:
            break
        while change is not None and change[0] < entry.path:
            if change[1] is not None:
                yield change[1]
            change = next(staged, None)
        if change is not None and change[0] == entry.path:
            if change[1] is not None:
                yield change[1]
            change = next(staged, None)
        else:
            yield entry
    while change is not None:
        if change[1] is not None:
            yield change[1]
        change = next(staged, None)
