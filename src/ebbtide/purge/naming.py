"""Resolves a request to commits, entries, staged entries and collections, by ids that never change.

An *entry* is a path of a commit. A reference that uses one of the addresses, and was not named,
prevents the purge.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ebbtide.errors import NotFound
from ebbtide.escaping import shown
from ebbtide.purge.request import PathTarget, Request
from ebbtide.store.collecting.references import StagedAddress
from ebbtide.store.collections.queries import read_content_uses
from ebbtide.store.content.entries import Entry
from ebbtide.store.content.reading import find_entry
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.commits import CommitRecord, find_commits
from ebbtide.store.refs.revisions import Revision, resolve
from ebbtide.store.repository import Repository
from ebbtide.store.staging.queries import find_staged


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """The named things: all entries of `commits`; some `paths` of other commits, by the ids of
    these commits; `staged` entries; and `collections` with their kept versions. With
    `all_history`, every entry of any commit with one of these addresses is named too. Other
    collections are not."""

    commits: frozenset[str] = frozenset()
    collections: frozenset[str] = frozenset()
    paths: Mapping[str, frozenset[str]] = field(default_factory=dict, hash=False)
    staged: frozenset[StagedAddress] = frozenset()
    all_history: bool = False

    def to_json(self) -> dict[str, Any]:
        """Returns the named things as JSON, for the plan."""
        return {
            "commits": sorted(self.commits),
            "collections": sorted(self.collections),
            "paths": {commit_id: sorted(paths) for commit_id, paths in sorted(self.paths.items())},
            "staged": sorted([each.token, each.path, each.address] for each in self.staged),
            "all_history": self.all_history,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Named:
        """Parses the JSON that `to_json` returned."""
        return cls(
            commits=frozenset(content["commits"]),
            collections=frozenset(content["collections"]),
            paths={commit_id: frozenset(paths) for commit_id, paths in content["paths"].items()},
            staged=frozenset(StagedAddress(*each) for each in content["staged"]),
            all_history=content["all_history"],
        )


@dataclass(frozen=True, slots=True)
class NamedObjects:
    """The objects that a request names now: all objects of `commits`, which include the contents of
    collections, and the objects of `entries`."""

    named: Named
    commits: tuple[CommitRecord, ...]
    entries: tuple[Entry, ...]


def resolve_request(repository: Repository, request: Request) -> NamedObjects:
    """Looks up everything that a request names.

    Raises InvalidInput, NotFound (`ref_not_found`, `object_not_found`, `collection_not_found` and
    so on), and Gone `commit_expired`: an expired commit has nothing left to purge.
    """
    context = repository.context
    with context.metadata.snapshot() as tx:
        commits = [resolve(tx, context.repository_id, ref).commit for ref in request.commits]
    for commit in commits:
        commit.require_intact()
    collections = _collections(repository, request.collections)
    contents = _contents(context, collections)
    paths: dict[str, set[str]] = {}
    staged: set[StagedAddress] = set()
    entries: list[Entry] = []
    for target in request.paths:
        committed, on_top = _look_up(context, target)
        if committed is not None:
            commit_id, entry = committed
            paths.setdefault(commit_id, set()).add(target.path)
            entries.append(entry)
        staged.update(StagedAddress(token, entry.path, entry.address) for token, entry in on_top)
        entries += [entry for _, entry in on_top]
    named = Named(
        commits=frozenset(commit.commit_id for commit in commits),
        collections=collections,
        paths={commit_id: frozenset(found) for commit_id, found in paths.items()},
        staged=frozenset(staged),
        all_history=request.all_history,
    )
    records = {record.commit_id: record for record in (*commits, *contents)}
    return NamedObjects(named, tuple(records.values()), tuple(entries))


def _collections(repository: Repository, names: Iterable[str]) -> frozenset[str]:
    """Returns the ids of collections, trashed ones too, that are named by id or path."""
    found = (repository.collections.find(name, include_expired=True) for name in names)
    return frozenset(collection.collection_id for collection in found)


def _contents(context: RepositoryContext, collections: frozenset[str]) -> list[CommitRecord]:
    """Returns the contents of collections and of their kept versions, if their data exists."""
    if not collections:
        return []
    with context.metadata.snapshot() as tx:
        ids = {
            use.content_id
            for use in read_content_uses(tx, context.repository_id)
            if use.collection_id in collections
        }
        found = find_commits(tx, context.repository_id, ids)
    return [record for _, record in sorted(found.items()) if record.is_intact]


def _look_up(
    context: RepositoryContext, target: PathTarget
) -> tuple[tuple[str, Entry] | None, list[tuple[str, Entry]]]:
    """Returns the entry of the commit, with the commit's id, and the staged entries, with their
    tokens."""
    with context.metadata.snapshot() as tx:
        revision = resolve(tx, context.repository_id, target.ref)
        tokens = revision.branch.tokens if revision.branch is not None else ()
        found = find_staged(tx, context.repository_id, tokens, [target.path])
    staged = list(_entries(found, target.path))
    committed = _committed(context, revision, target.path)
    if committed is None and not staged:
        raise NotFound(
            "object_not_found", f"there is no object {shown(target.path)} on {shown(target.ref)}"
        )
    return None if committed is None else (revision.commit.commit_id, committed), staged


def _entries(
    found: Mapping[str, Mapping[str, Entry | None]], path: str
) -> Iterable[tuple[str, Entry]]:
    for token, changes in found.items():
        entry = changes.get(path)
        if entry is not None:
            yield token, entry


def _committed(context: RepositoryContext, revision: Revision, path: str) -> Entry | None:
    commit = revision.commit
    if revision.branch is None:
        commit.require_intact()
    elif not commit.is_intact:
        return None  # entries staged on the branch may still exist
    with context.reading(commit):
        return find_entry(context.storage, context.tree_of(commit), path, read=context.cache.range)
