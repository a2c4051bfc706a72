"""Finds the references that prevent a purge: they use its addresses, and the request does not name
them. If there are none, closes the addresses: one transaction looks again, and records them as
purged.

This transaction holds the repository's row exclusively. A transaction that makes a reference holds
the row shared, and asks whether the address was purged. Therefore either this transaction sees the
new reference, or the other sees the purge.

Leases and upload tokens do not prevent a purge. An address that was given out for an upload is in
no entry, because linking copies the bytes. The token of an object that was uploaded for a locator
counts as a lease. A hold prevents a purge even if the held commit was named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, Final

import pyarrow as pa

from ebbtide.arrow import make_schema
from ebbtide.documents import documented
from ebbtide.ids import new_id
from ebbtide.purge.request import Named
from ebbtide.purge.scanning import EXAMPLES_MAX, Hit, TreeScan
from ebbtide.retention.lifecycle import earliest
from ebbtide.store.collections.queries import ContentUse, clients_ids, read_content_uses
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.commit_rows import list_holds
from ebbtide.store.database.engine import Transaction
from ebbtide.store.gc.references import (
    IntactCommit,
    copies_among,
    drop_staged,
    last_promise,
    list_intact,
    names_of_commits,
    names_of_tokens,
    read_places,
    staged_among,
    writes_among,
)
from ebbtide.store.purge_records import PURGES, insert_purged
from ebbtide.store.repositories.leases import Lease
from ebbtide.store.repositories.repository_rows import promised

COMMIT: Final = "commit"
COLLECTION: Final = "collection"
HOLD: Final = "hold"
STAGED: Final = "staged"
WRITE: Final = "write"
COPY: Final = "copy"

ATTEMPTS: Final = 5
UNSEEN_MAX: Final = 16
"""The most new trees that are read while the repository is locked. If there are more, they are read
without the lock, and the transaction is tried again, up to the last of ATTEMPTS."""

REFERENCES_SCHEMA: Final = make_schema(
    ("kind", pa.string()),
    ("id", pa.string()),
    ("names", pa.list_(pa.string())),
    ("entry_count", pa.int64()),
    ("examples", pa.list_(pa.string())),
)
"""References, with the fields of `Reference`."""


@documented
@dataclass(frozen=True, slots=True)
class Reference:
    """A reference to some of the addresses. `entry_count` entries refer to them. `examples` are the
    first of their paths; for writes and copies they are addresses.

    `id` is the id of a commit or collection, or empty. `names` are the refs on the commit, the path
    of the collection and its id for Arvados's clients, the branch with the staged entries, or the
    reason of the hold.
    """

    kind: str
    id: str
    names: tuple[str, ...]
    entry_count: int
    examples: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns the reference as JSON, for answers and records."""
        return asdict(self) | {"names": list(self.names), "examples": list(self.examples)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Reference:
        """Parses the JSON that `to_json` returned."""
        lists = {name: tuple(content[name]) for name in ("names", "examples")}
        return cls(**{**content, **lists})


def to_table(references: Iterable[Reference]) -> pa.Table:
    """Returns a table of references (REFERENCES_SCHEMA)."""
    rows = [reference.to_json() for reference in references]
    return pa.Table.from_pylist(rows, schema=REFERENCES_SCHEMA)


@dataclass(frozen=True, slots=True)
class FoundReferences:
    """The references that a search found. `trees` are those of the commits and collections among
    them: their entries prevent the purge, except at the paths that are given with each tree.
    `addresses` are those of the other references. Until `promised_until`, signatures and locators
    of the data can be valid; None if none is."""

    references: tuple[Reference, ...]
    trees: Mapping[str, frozenset[str]]
    addresses: frozenset[str]
    promised_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class ReferenceSearch:
    """Searches for references to the addresses, and closes them."""

    context: RepositoryContext
    addresses: frozenset[str]
    named: Named
    scan: TreeScan

    def find(self) -> FoundReferences:
        """Returns all references that prevent the purge now. `close` finds references that are made
        later. Raises Refused if a tree cannot be read."""
        with self.context.metadata.snapshot() as tx:
            commits = self._intact(tx)
        self.scan.look_at(trees_of(commits))
        with self.context.metadata.snapshot() as tx:
            known = [each for each in self._intact(tx) if self.scan.knows(each.tree_id)]
            until = self._promised_until(tx, known)
            return replace(self._others(tx, known), promised_until=until)

    def shared(self, found: FoundReferences) -> frozenset[str]:
        """Returns the addresses to which the references refer."""
        of_trees = (
            self.scan.addresses_in(tree_id, but=paths) for tree_id, paths in found.trees.items()
        )
        return found.addresses.union(*of_trees)

    def close(self, lease: Lease, purge_id: str) -> tuple[Reference, ...]:
        """Closes the addresses, and drops the named staged entries. If a reference prevents this,
        changes nothing, and returns all such references.

        Raises Refused `lease_lost`, and Refused if a tree cannot be read.
        """
        metadata, repository_id = self.context.metadata, self.context.repository_id
        for attempt in range(1, ATTEMPTS + 1):
            with metadata.snapshot() as tx:
                commits = self._intact(tx)
            self.scan.look_at(trees_of(commits))
            with metadata.transaction() as tx:
                tx.lock_repository(repository_id, "exclusive")
                lease.check(tx)
                commits = self._intact(tx)
                unseen = self.scan.unseen(trees_of(commits))
                if len(unseen) > UNSEEN_MAX and attempt < ATTEMPTS:
                    continue
                self.scan.look_at(unseen)
                found = self._others(tx, commits).references
                if not found:
                    insert_purged(tx, repository_id, purge_id, self.addresses)
                    drop_staged(tx, repository_id, self.named.staged, oldest_token=new_id())
                    PURGES.update(tx, purge_id, state="deleting", closed_at=tx.now())
                return found
        raise AssertionError("the last attempt ends in one way or the other")

    def _intact(self, tx: Transaction) -> list[IntactCommit]:
        return intact_commits(tx, self.context.repository_id)

    def _others(self, tx: Transaction, commits: Iterable[IntactCommit]) -> FoundReferences:
        """Returns the references. `commits` are all intact commits, and the scan has looked at
        their trees."""
        found: list[Reference] = []
        trees: dict[str, frozenset[str]] = {}
        for reference, tree_id, named in self._uses_of_commits(tx, commits):
            found.append(reference)
            trees[tree_id] = trees.get(tree_id, named) & named
        ids = clients_ids(tx, {each.id for each in found if each.kind == COLLECTION})
        references = [
            replace(each, names=(*each.names, ids[each.id])) if each.id in ids else each
            for each in found
        ]
        addresses: set[str] = set()
        for kind, names, rows in self._other_rows(tx):
            addresses.update(address for address, _ in rows)
            examples = tuple(sorted(shown for _, shown in rows[:EXAMPLES_MAX]))
            references.append(Reference(kind, "", names, len(rows), examples))
        return FoundReferences(tuple(references), trees, frozenset(addresses))

    def _promised_until(self, tx: Transaction, commits: Iterable[IntactCommit]) -> datetime | None:
        """Returns the end of the last lease, upload token or signed URL on the addresses. None if
        none lasts any more."""
        dates = [commit.leased_until for commit in commits if self.scan.hits(commit.tree_id)]
        dates.append(last_promise(tx, self.context.repository_id, self.addresses))
        return max((date for date in dates if date is not None and date > tx.now()), default=None)

    def _uses_of_commits(
        self, tx: Transaction, commits: Iterable[IntactCommit]
    ) -> Iterator[tuple[Reference, str, frozenset[str]]]:
        """Yields each reference by a commit or by content, its tree, and those paths of it that the
        purge names."""
        repository_id = self.context.repository_id
        names = names_of_commits(tx, repository_id, gone_before=self._gone_before(tx))
        uses = self._uses(tx)
        holds = {hold.commit_id: hold.reason for hold in list_holds(tx, repository_id)}
        nothing: frozenset[str] = frozenset()
        for commit in commits:
            commit_id, hits = commit.commit_id, self.scan.hits(commit.tree_id)
            if not hits:
                continue
            if commit_id in holds:
                held = Reference(HOLD, commit_id, (holds[commit_id],), *_sum(hits, nothing))
                yield held, commit.tree_id, nothing
            if commit.collection_id is not None:
                # Only leases keep content that no collection has any more.
                for use, path in uses.get(commit_id, ()):
                    found = Reference(COLLECTION, use.collection_id, (path,), *_sum(hits, nothing))
                    yield found, commit.tree_id, nothing
                continue
            named = self.named.paths.get(commit_id, nothing)
            count, examples = _sum(hits, named)
            if count and not self.named.all_history and commit_id not in self.named.commits:
                refs = tuple(names.get(commit_id, ()))
                found = Reference(COMMIT, commit_id, refs, count, examples)
                yield found, commit.tree_id, named

    def _uses(self, tx: Transaction) -> dict[str, list[tuple[ContentUse, str]]]:
        """Returns for each content the collections that have it, or had it in a kept version, with
        their paths. Named and gone collections are left out."""
        repository_id = self.context.repository_id
        gone_before = self._gone_before(tx)
        places = read_places(tx, repository_id)
        found: dict[str, list[tuple[ContentUse, str]]] = {}
        for use in read_content_uses(tx, repository_id):
            place = places[use.project_id]
            ends_at = earliest(use.expires_at, place.ends_at)
            is_gone = ends_at is not None and ends_at <= gone_before
            if not is_gone and use.collection_id not in self.named.collections:
                version = "" if use.version is None else f"@{use.version}"
                path = f"{place.path}/{use.name}{version}"
                found.setdefault(use.content_id, []).append((use, path))
        return found

    def _other_rows(
        self, tx: Transaction
    ) -> Iterator[tuple[str, tuple[str, ...], list[tuple[str, str]]]]:
        """Yields the kind and the names of each reference without a commit, with its rows: the
        address, and the path or address to show. Staged entries that were named are left out."""
        repository_id = self.context.repository_id
        branches = names_of_tokens(tx, repository_id, gone_before=self._gone_before(tx))
        staged: dict[str, list[tuple[str, str]]] = {}
        for entry in staged_among(tx, repository_id, self.addresses):
            # Entries under other tokens were dropped with their branches: nobody can see them.
            if entry.token in branches and entry not in self.named.staged:
                staged.setdefault(branches[entry.token], []).append((entry.address, entry.path))
        yield from ((STAGED, (name,), rows) for name, rows in sorted(staged.items()))
        for kind, look in ((WRITE, writes_among), (COPY, copies_among)):
            rows = [(address, address) for address in look(tx, repository_id, self.addresses)]
            if rows:
                yield kind, (), rows

    def _gone_before(self, tx: Transaction) -> datetime:
        return tx.now() - promised(tx, self.context.settings).trash_time


def intact_commits(tx: Transaction, repository_id: str) -> list[IntactCommit]:
    """Returns all commits and contents that have their data, sorted by id."""
    return sorted(list_intact(tx, repository_id), key=lambda commit: commit.commit_id)


def trees_of(commits: Iterable[IntactCommit]) -> dict[str, str]:
    """Returns the checksums of the commits' trees, by tree id."""
    return {commit.tree_id: commit.tree_checksum for commit in commits}


def _sum(hits: list[Hit], named: frozenset[str]) -> tuple[int, tuple[str, ...]]:
    """Returns the number of entries at paths that are not `named`, and the first of these paths."""
    count = sum(hit.entry_count - len(hit.asked & named) for hit in hits)
    paths = (path for hit in hits for path in (*hit.examples, *(hit.asked - named)))
    return count, tuple(sorted(paths)[:EXAMPLES_MAX])


def count_by_kind(references: Iterable[Reference]) -> Mapping[str, int]:
    """Returns the number of references of each kind."""
    return Counter(reference.kind for reference in references)
