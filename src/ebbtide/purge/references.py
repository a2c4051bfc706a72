"""Finds the references that prevent a purge: they use its addresses, and the request does not name
them.

Leases and upload tokens do not prevent a purge. An address that was given out for an upload is in
no entry, because linking copies the bytes. The token of an object that was uploaded for a locator
counts as a lease. A hold prevents a purge even if the held commit was named.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, Final

import pyarrow as pa

from ebbtide.arrow import make_schema
from ebbtide.purge.addresses import AddressSet
from ebbtide.purge.naming import Named
from ebbtide.purge.scanning import EXAMPLES_MAX, Hit, TreeScan
from ebbtide.retention.lifecycle import earliest
from ebbtide.store.collecting.kept_collections import read_places
from ebbtide.store.collecting.references import (
    IntactCommit,
    StagedAddress,
    copies_among,
    last_token,
    list_intact,
    names_of_commits,
    names_of_tokens,
    staged_among,
    writes_among,
)
from ebbtide.store.collections.queries import ContentUse, clients_ids, read_content_uses
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.commits import list_holds
from ebbtide.store.database.engine import Transaction
from ebbtide.store.repositories.promises import promised

COMMIT: Final = "commit"
COLLECTION: Final = "collection"
HOLD: Final = "hold"
STAGED: Final = "staged"
WRITE: Final = "write"
COPY: Final = "copy"

REFERENCES_SCHEMA: Final = make_schema(
    ("kind", pa.string()),
    ("id", pa.string()),
    ("names", pa.list_(pa.string())),
    ("entry_count", pa.int64()),
    ("examples", pa.list_(pa.string())),
)
"""References, with the fields of `Reference`."""


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
        return cls(
            content["kind"],
            content["id"],
            tuple(content["names"]),
            content["entry_count"],
            tuple(content["examples"]),
        )


def to_table(references: Iterable[Reference]) -> pa.Table:
    """Returns a table of references (REFERENCES_SCHEMA)."""
    rows = [reference.to_json() for reference in references]
    return pa.Table.from_pylist(rows, schema=REFERENCES_SCHEMA)


def trees_of(commits: Iterable[IntactCommit]) -> dict[str, str]:
    """Returns the checksums of the commits' trees, by tree id."""
    return {commit.tree_id: commit.tree_checksum for commit in commits}


@dataclass(frozen=True, slots=True)
class _Use:
    """A reference by a commit or by content, and those paths of it that the purge names."""

    reference: Reference
    commit: IntactCommit
    named: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ReferenceSearch:
    """Searches for references, in a transaction of the caller's."""

    context: RepositoryContext
    addresses: AddressSet
    named: Named
    scan: TreeScan

    def others(self, tx: Transaction, commits: Iterable[IntactCommit]) -> list[Reference]:
        """Returns all references that prevent the purge. `commits` are all intact commits, and the
        scan has looked at their trees."""
        found = [use.reference for use in self._uses_of_commits(tx, commits)]
        ids = clients_ids(tx, {each.id for each in found if each.kind == COLLECTION})
        return [
            *(
                replace(each, names=(*each.names, ids[each.id])) if each.id in ids else each
                for each in found
            ),
            *self._staged(tx),
            *self._addressed(tx),
        ]

    def shared_trees(
        self, tx: Transaction, commits: Iterable[IntactCommit]
    ) -> dict[str, frozenset[str]]:
        """Returns the trees of the commits and collections that `others` returns. Their entries
        prevent the purge, except at the paths that are given with each tree."""
        named: dict[str, frozenset[str]] = {}
        for use in self._uses_of_commits(tx, commits):
            tree_id = use.commit.tree_id
            named[tree_id] = named.get(tree_id, use.named) & use.named
        return named

    def shared_rows(self, tx: Transaction) -> Iterator[str]:
        """Yields the addresses of the other references that `others` returns, some more than
        once."""
        for _, entry in self._staged_entries(tx):
            yield entry.address
        for look in (writes_among, copies_among):
            yield from look(tx, self.context.repository_id, self.addresses)

    def promised_until(
        self, tx: Transaction, commits: Iterable[IntactCommit], *, now: datetime
    ) -> datetime | None:
        """Returns the end of the last lease or upload token on the addresses, or None if none lasts
        beyond `now`. Until then, signatures and locators of the data can be valid."""
        dates = [commit.leased_until for commit in commits if self.scan.hits(commit.tree_id)]
        dates.append(last_token(tx, self.context.repository_id, self.addresses))
        return max((date for date in dates if date is not None and date > now), default=None)

    def _uses_of_commits(self, tx: Transaction, commits: Iterable[IntactCommit]) -> Iterator[_Use]:
        repository_id = self.context.repository_id
        names = names_of_commits(tx, repository_id, gone_before=self._gone_before(tx))
        uses = self._uses(tx)
        holds = {hold.commit_id: hold.reason for hold in list_holds(tx, repository_id)}
        for commit in commits:
            hits = self.scan.hits(commit.tree_id)
            if not hits:
                continue
            if commit.commit_id in holds:
                held = Reference(HOLD, commit.commit_id, (holds[commit.commit_id],), *_sum(hits))
                yield _Use(held, commit)
            count, examples = self._not_named(commit.commit_id, hits)
            if commit.collection_id is not None:
                # Only leases keep content that no collection has any more.
                for use, path in uses.get(commit.commit_id, ()):
                    found = Reference(COLLECTION, use.collection_id, (path,), *_sum(hits))
                    yield _Use(found, commit)
            elif count:
                refs = tuple(names.get(commit.commit_id, ()))
                found = Reference(COMMIT, commit.commit_id, refs, count, examples)
                yield _Use(found, commit, self.named.paths.get(commit.commit_id, frozenset()))

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

    def _not_named(self, commit_id: str, hits: list[Hit]) -> tuple[int, tuple[str, ...]]:
        """Returns the number of the commit's entries that were not named, and the first of their
        paths."""
        if self.named.all_history or commit_id in self.named.commits:
            return 0, ()
        named = self.named.paths.get(commit_id, frozenset())
        count = sum(hit.entry_count - len(hit.asked & named) for hit in hits)
        paths = (path for hit in hits for path in (*hit.examples, *sorted(hit.asked - named)))
        return count, tuple(sorted(paths)[:EXAMPLES_MAX])

    def _staged_entries(self, tx: Transaction) -> Iterator[tuple[str, StagedAddress]]:
        """Yields the staged entries that were not named, each with the name of its branch."""
        repository_id = self.context.repository_id
        branches = names_of_tokens(tx, repository_id, gone_before=self._gone_before(tx))
        for entry in staged_among(tx, repository_id, self.addresses):
            # Entries under other tokens were dropped with their branches: nobody can see them.
            if entry.token in branches and entry not in self.named.staged:
                yield branches[entry.token], entry

    def _staged(self, tx: Transaction) -> Iterator[Reference]:
        counts: dict[str, int] = {}
        examples: dict[str, list[str]] = {}
        for name, entry in self._staged_entries(tx):
            counts[name] = counts.get(name, 0) + 1
            if counts[name] <= EXAMPLES_MAX:
                examples.setdefault(name, []).append(entry.path)
        for name, count in sorted(counts.items()):
            yield Reference(STAGED, "", (name,), count, tuple(sorted(examples[name])))

    def _addressed(self, tx: Transaction) -> Iterator[Reference]:
        for kind, look in ((WRITE, writes_among), (COPY, copies_among)):
            count = 0
            examples: list[str] = []
            for address in look(tx, self.context.repository_id, self.addresses):
                count += 1
                if count <= EXAMPLES_MAX:
                    examples.append(address)
            if count:
                yield Reference(kind, "", (), count, tuple(sorted(examples)))

    def _gone_before(self, tx: Transaction) -> datetime:
        return tx.now() - promised(tx, self.context.settings).trash_time


def intact_commits(tx: Transaction, repository_id: str) -> list[IntactCommit]:
    """Returns all commits and contents that have their data, sorted by id."""
    return sorted(list_intact(tx, repository_id), key=lambda commit: commit.commit_id)


def _sum(hits: list[Hit]) -> tuple[int, tuple[str, ...]]:
    paths = (path for hit in hits for path in (*hit.examples, *hit.asked))
    return sum(hit.entry_count for hit in hits), tuple(sorted(paths)[:EXAMPLES_MAX])


def count_by_kind(references: Iterable[Reference]) -> Mapping[str, int]:
    """Returns the number of references of each kind."""
    counts: dict[str, int] = {}
    for reference in references:
        counts[reference.kind] = counts.get(reference.kind, 0) + 1
    return counts
