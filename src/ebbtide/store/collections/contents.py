"""Builds the content of collections from files, locators, commits and other collections.

Content is a tree with a row in `commits` that has no parents and belongs to no branch. Its files
are written outside any transaction, like those of a commit. `Built.finish` then checks again
everything that the content refers to, in the transaction that makes it visible. Not for: the
collections themselves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from heapq import merge
from itertools import islice
from operator import itemgetter
from typing import TypeAlias

from ebbtide.errors import InvalidInput, NotFound
from ebbtide.ids import new_id
from ebbtide.store.commits.publication import BuiltTree, building
from ebbtide.store.content.entries import Entry
from ebbtide.store.content.trees import PathChange, find_entry, iterate_entries
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.commit_rows import CommitRecord, insert_commit, require_still_intact
from ebbtide.store.database.engine import Transaction
from ebbtide.store.names import check_path, checked_total
from ebbtide.store.objects.locators import Locator, Locators, require_unexpired
from ebbtide.store.purge_records import require_not_purged
from ebbtide.store.refs.revisions import resolve
from ebbtide.store.staging.pending_writes import Writes, keep_uploads, publish_writes
from ebbtide.store.staging.uploads import BATCH_MAX, THREADS, NewObject, write_objects
from ebbtide.text import shown


@dataclass(frozen=True, slots=True)
class Files:
    """New files to write. Their data is read once."""

    files: Iterable[NewObject]


@dataclass(frozen=True, slots=True)
class Located:
    """Objects that locators refer to. `locators` maps each new path to a locator."""

    locators: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Verified:
    """Objects of locators that the caller has verified, by new path. Whether they have ended is
    checked again when the content becomes visible."""

    locators: Mapping[str, Locator]


@dataclass(frozen=True, slots=True)
class FromRef:
    """The files of a commit below `prefix`. In their new paths, `into` replaces `prefix`.

    A branch stands for its commit, without its staged changes.
    """

    ref: str
    prefix: str = ""
    into: str = ""


@dataclass(frozen=True, slots=True)
class FromCollection:
    """The files of another collection below `prefix`. In their new paths, `into` replaces `prefix`.
    `version` names an earlier version."""

    collection_id: str
    version: int | None = None
    prefix: str = ""
    into: str = ""


Source: TypeAlias = Files | Located | Verified | FromRef | FromCollection


@dataclass(frozen=True, slots=True)
class ContentChange:
    """A change of content: the files to add, and the paths to remove.

    The sources are applied in order: a later one wins over an earlier one, and all win over the
    existing files. `removed` has paths, and prefixes that end in a slash. With `replaces`, the
    sources replace all existing files.
    """

    sources: Sequence[Source] = ()
    removed: Sequence[str] = ()
    replaces: bool = False

    def check(self) -> None:
        """Raises InvalidInput `invalid_path` or `invalid_argument`."""
        for path in self.removed:
            check_path(path)
        for source in self.sources:
            if isinstance(source, Located | Verified):
                for path in source.locators:
                    check_path(path)
        if self.replaces and self.removed:
            raise InvalidInput(
                "invalid_argument", "content that is replaced has nothing that could be removed"
            )


@dataclass(frozen=True, slots=True)
class Summary:
    """The hash and size of content. Both depend on its files only, not on its tree."""

    content_hash: str
    file_count: int
    size_bytes: int


@dataclass(slots=True)
class Built:
    """Content whose files are all written, and everything that it refers to."""

    context: RepositoryContext
    tree: BuiltTree
    summary: Summary
    sources: list[CommitRecord]
    locators: list[Locator]
    written: list[str]
    shared: CommitRecord | None = None
    promised_until: datetime | None = None
    """The time until which somebody may have a locator of one of the files. `finish` sets it."""

    def finish(self, tx: Transaction, collection_id: str) -> CommitRecord:
        """Records the content, in the transaction that makes it visible.

        The caller has locked the repository's row. If another collection is the only source, and is
        taken whole, the result is the record of its content.

        Raises Gone `commit_expired` or `purged`, Conflict `token_expired` or `write_expired`.
        """
        repository_id = self.context.repository_id
        require_still_intact(tx, repository_id, self.sources)
        # Uploads become content, and their tokens are used up. This comes before the check of the
        # time: a token that has ended can be dropped at any moment, and its file deleted.
        uploaded = [locator.address for locator in self.locators]
        self.promised_until = keep_uploads(tx, repository_id, uploaded)
        for locator in self.locators:
            require_unexpired(tx, locator)
            self.promised_until = max(locator.expires_at, self.promised_until or locator.expires_at)
        # Reads the whole content, but only in a repository with purged addresses, which are rare.
        require_not_purged(tx, repository_id, self._addresses())
        if self.shared is not None:
            return self.shared
        publish_writes(tx, repository_id, [*self.tree.registered, *self.written])
        now = tx.now()
        content = CommitRecord(
            commit_id=new_id(),
            parent_ids=(),
            created_at=now,
            written_at=now,
            tree_id=self.tree.tree_id,
            tree_checksum=self.tree.checksum,
            collection_id=collection_id,
        )
        insert_commit(tx, repository_id, content)
        return content

    def _addresses(self) -> Iterator[str]:
        context = self.context
        tree = context.cache.tree(self.tree.tree_id, self.tree.checksum)
        for entry in iterate_entries(context.storage, tree, read=context.cache.range):
            yield entry.address


@dataclass(slots=True)
class ResolvedPart:
    """A part of other content: its record, the prefix of the files, and their new prefix."""

    record: CommitRecord
    prefix: str = ""
    into: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether all files are taken, with their paths."""
        return not self.prefix and not self.into


@dataclass(slots=True)
class _Work:
    """Everything that is gathered while content is built."""

    parts: list[Iterable[PathChange]] = field(default_factory=list)
    sources: list[CommitRecord] = field(default_factory=list)
    locators: list[Locator] = field(default_factory=list)
    written: list[str] = field(default_factory=list)


class Contents:
    """Builds content in one repository."""

    def __init__(self, context: RepositoryContext, locators: Locators) -> None:
        self._context = context
        self._locators = locators
        self._writes = Writes(context)

    @contextmanager
    def building(
        self,
        base: CommitRecord | None,
        change: ContentChange,
        resolved: Mapping[int, ResolvedPart],
    ) -> Iterator[Built]:
        """Builds the content that results from a change of `base`. The block calls `finish`.

        `resolved` has the other content that the sources name, by the index of the source. If the
        block fails, the written files are deleted. Raises InvalidInput, as `Locators.verify` does,
        and as `publication.building` does.
        """
        base = None if change.replaces else base
        work = _Work(sources=[part.record for part in resolved.values()])
        if base is not None:
            work.sources.append(base)
        with self._writes.abandoning(work.written), self._context.reading(*work.sources):
            self._gather(work, base, change, resolved)
            whole = _whole(base, change, resolved)
            if whole is not None:
                # The tree exists: nothing is written, and `finish` checks that it is intact.
                built = self._built(work, BuiltTree(*whole.require_tree()))
                built.shared = whole if whole.collection_id is not None else None
                yield built
                return
            with building(self._context, base, _merged(work.parts)) as tree:
                yield self._built(work, tree)

    def _built(self, work: _Work, tree: BuiltTree) -> Built:
        summary = self._summarize(tree.tree_id, tree.checksum)
        return Built(self._context, tree, summary, work.sources, work.locators, work.written)

    def _summarize(self, tree_id: str, checksum: str) -> Summary:
        context = self._context
        tree = context.cache.tree(tree_id, checksum)
        return summary_of(iterate_entries(context.storage, tree, read=context.cache.range))

    def _gather(
        self,
        work: _Work,
        base: CommitRecord | None,
        change: ContentChange,
        resolved: Mapping[int, ResolvedPart],
    ) -> None:
        """Gathers all parts of the change. If two parts have the same path, the later one wins."""
        if change.removed:
            work.parts.append(self._removals(base, change.removed))
        for place, source in enumerate(change.sources):
            if isinstance(source, Files):
                work.parts.append(self._upload(work, source))
            elif isinstance(source, Located):
                work.parts.append(self._located(work, source))
            elif isinstance(source, Verified):
                work.parts.append(self._verified(work, source))
            else:
                work.parts.append(self._entries_of(resolved[place]))

    def _removals(self, base: CommitRecord | None, removed: Sequence[str]) -> Iterator[PathChange]:
        """Returns deletions by path. Raises NotFound `object_not_found` for a missing path."""
        prefixes = [path for path in removed if path.endswith("/")]
        plain = sorted(set(removed) - set(prefixes))
        for path in plain:
            if base is None or self._find(base, path) is None:
                raise _missing(path)
        parts: list[Iterable[PathChange]] = [[(path, None) for path in plain]]
        for prefix in prefixes:
            if base is None or next(self._walk(base, prefix), None) is None:
                raise _missing(prefix)
            parts.append((entry.path, None) for entry in self._walk(base, prefix))
        return _merged(parts)

    def _located(self, work: _Work, source: Located) -> list[PathChange]:
        with self._context.metadata.snapshot() as tx:
            now = tx.now()
            found = {
                path: self._locators.verify(tx, token) for path, token in source.locators.items()
            }
        work.locators += found.values()
        return [(path, found[path].entry(path, mtime=now)) for path in sorted(found)]

    def _verified(self, work: _Work, source: Verified) -> list[PathChange]:
        with self._context.metadata.snapshot() as tx:
            now = tx.now()
        work.locators += source.locators.values()
        return [
            (path, found.entry(path, mtime=now)) for path, found in sorted(source.locators.items())
        ]

    def _upload(self, work: _Work, source: Files) -> list[PathChange]:
        """Writes the files. If two files have the same path, the later one is used."""
        context = self._context
        context.touch_owner()
        entries: dict[str, Entry] = {}
        remaining = iter(source.files)
        with ThreadPoolExecutor(THREADS) as pool:
            while batch := list(islice(remaining, BATCH_MAX)):
                for new in batch:
                    new.check()
                with context.metadata.transaction() as tx:
                    now = tx.now()
                    addresses = context.slices.new_addresses(len(batch), now=now)
                    self._writes.register_in(tx, addresses)
                work.written += addresses
                written = write_objects(context, iter(batch), addresses, now, pool)
                entries.update((entry.path, entry) for entry in written)
        return [(path, entries[path]) for path in sorted(entries)]

    def _entries_of(self, part: ResolvedPart) -> Iterator[PathChange]:
        for entry in self._walk(part.record, part.prefix):
            path = part.into + entry.path.removeprefix(part.prefix)
            if path != entry.path:
                check_path(path)
                entry = replace(entry, path=path)
            yield path, entry

    def _find(self, record: CommitRecord, path: str) -> Entry | None:
        context = self._context
        return find_entry(context.storage, context.tree_of(record), path, read=context.cache.range)

    def _walk(self, record: CommitRecord, prefix: str) -> Iterator[Entry]:
        context = self._context
        return iterate_entries(
            context.storage, context.tree_of(record), prefix=prefix, read=context.cache.range
        )


def resolve_ref(tx: Transaction, repository_id: str, source: FromRef) -> ResolvedPart:
    """Returns the commit that a source names. Raises as `resolve` does, and Gone
    `commit_expired`."""
    commit = resolve(tx, repository_id, source.ref).commit
    commit.require_intact()
    return ResolvedPart(commit, source.prefix, source.into)


def summary_of(entries: Iterable[Entry]) -> Summary:
    """Returns the hash, number of files and bytes of content.

    The hash is a SHA-256 over one record for each file, in the order of the paths: path, size and
    checksum, each followed by a zero byte. Only imported files can have no checksum. Their address
    replaces it. Raises InvalidInput `invalid_argument` as `checked_total` does.
    """
    digest = hashlib.sha256()
    count = size = 0
    for entry in entries:
        told = entry.checksum or entry.address
        digest.update(f"{entry.path}\0{entry.size_bytes}\0{told}\0".encode())
        count += 1
        size += entry.size_bytes
    return Summary(digest.hexdigest(), count, checked_total(size))


def _missing(path: str) -> NotFound:
    return NotFound("object_not_found", f"the content has no {shown(path)} that could be removed")


def _whole(
    base: CommitRecord | None, change: ContentChange, resolved: Mapping[int, ResolvedPart]
) -> CommitRecord | None:
    """Returns the record of the only source, if all its files and no others are taken, or None."""
    if base is None and len(change.sources) == 1 and 0 in resolved and resolved[0].is_whole:
        return resolved[0].record
    return None


def _merged(parts: Sequence[Iterable[PathChange]]) -> Iterator[PathChange]:
    """Merges the parts by path. If parts have the same path, the entry of the last part is used."""
    last: str | None = None
    # The merge is stable: for equal paths, the entry of the first argument comes first. This is
    # the last part, because the parts are passed in reverse order.
    for path, entry in merge(*reversed(parts), key=itemgetter(0)):
        if path != last:
            last = path
            yield path, entry
