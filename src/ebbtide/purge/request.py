"""The request for a purge: the requester, the reason, and the named things.

A request is resolved to commits, entries, staged entries and collections, by ids that never change.
An *entry* is a path of a commit. A reference that uses one of the addresses, and was not named,
prevents the purge.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from ebbtide.errors import InvalidInput, NotFound
from ebbtide.store.collections.queries import read_content_uses
from ebbtide.store.content.entries import Entry
from ebbtide.store.content.trees import find_entry
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.commit_rows import CommitRecord, find_commits
from ebbtide.store.gc.references import StagedAddress
from ebbtide.store.names import check_path, check_text
from ebbtide.store.refs.revisions import Revision, resolve
from ebbtide.store.repository import Repository
from ebbtide.store.staging.staged_rows import find_staged
from ebbtide.text import shown

REASON_BYTES_MAX: Final = 4096
TARGETS_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class PathTarget:
    """A path at a revision. If `ref` is the plain name of a branch, entries that are staged there
    are included."""

    ref: str
    path: str

    @classmethod
    def parse(cls, text: str) -> PathTarget:
        """Parses `REF:PATH`. Names of refs contain no colon. Raises InvalidInput `invalid_argument`
        or `invalid_path`."""
        ref, colon, path = text.partition(":")
        if not (ref and colon):
            raise InvalidInput(
                "invalid_argument", f"{shown(text)} is no path at a ref: write REF:PATH"
            )
        return cls.of(ref, path)

    @classmethod
    def of(cls, ref: str, path: str) -> PathTarget:
        """Returns a checked target. Raises InvalidInput `invalid_argument` or `invalid_path`."""
        check_path(path)
        if not ref or ":" in ref:
            raise InvalidInput("invalid_argument", f"{shown(ref)} is no name of a ref")
        return cls(ref, path)

    def __str__(self) -> str:
        return f"{self.ref}:{self.path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request for a purge. `who` describes the requester, as names and values.

    `all_history` also names every commit that has one of the named objects. `repository` names the
    whole repository. With `keep_shared`, objects that other data needs are left out, and do not
    prevent the purge. `delete_versions` includes the versions that a bucket keeps of the objects.
    """

    reason: str
    who: Mapping[str, str] = field(hash=False)
    paths: tuple[PathTarget, ...] = ()
    commits: tuple[str, ...] = ()
    collections: tuple[str, ...] = ()
    repository: bool = False
    all_history: bool = False
    keep_shared: bool = False
    delete_versions: bool = False

    def check(self) -> None:
        """Checks the request. Raises InvalidInput `invalid_argument`."""
        check_text("the reason", self.reason, bytes_max=REASON_BYTES_MAX)
        if not self.reason.strip():
            raise InvalidInput("invalid_argument", "a purge needs a reason: give one")
        count = len(self.paths) + len(self.commits) + len(self.collections)
        if self.repository and (count or self.all_history or self.keep_shared):
            raise InvalidInput(
                "invalid_argument",
                "a purge of the whole repository cannot name or keep anything else",
            )
        if not self.repository and not count:
            raise InvalidInput(
                "invalid_argument",
                "nothing is named: name collections, commits, paths, or the whole repository",
            )
        if count > TARGETS_MAX:
            raise InvalidInput(
                "invalid_argument", f"a purge can name at most {TARGETS_MAX} targets: {count}"
            )

    def to_json(self) -> dict[str, Any]:
        """Returns the request as JSON, for the database and the record."""
        return {
            **{each.name: getattr(self, each.name) for each in fields(self)},
            "who": dict(self.who),
            "paths": [str(target) for target in self.paths],
            "commits": list(self.commits),
            "collections": list(self.collections),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Request:
        """Parses the JSON that `to_json` returned, or an older program without later fields."""
        paths = tuple(map(PathTarget.parse, content["paths"]))
        names = {name: tuple(content[name]) for name in ("commits", "collections")}
        return cls(**{**content, **names, "paths": paths})


def asked_by(who: Mapping[str, str]) -> str:
    """Returns the requester, for people: a user and host, or the name and id of an access key."""
    if "user" in who:
        return f"{who['user']}@{who.get('host', '')}"
    return f"{who.get('name', '')} ({who.get('access_key_id', '')})".strip()


def require_confirmed(repository_name: str, confirmation: str) -> None:
    """Raises InvalidInput `invalid_argument` unless the repository's name was typed as
    confirmation."""
    if confirmation != repository_name:
        raise InvalidInput(
            "invalid_argument",
            f"a purge cannot be undone: confirm it with the name of the repository, "
            f"{repository_name!r}. Nothing was changed",
        )


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
    entries = ((token, changes.get(target.path)) for token, changes in found.items())
    staged = [(token, entry) for token, entry in entries if entry is not None]
    committed = _committed(context, revision, target.path)
    if committed is None and not staged:
        raise NotFound(
            "object_not_found", f"there is no object {shown(target.path)} on {shown(target.ref)}"
        )
    return None if committed is None else (revision.commit.commit_id, committed), staged


def _committed(context: RepositoryContext, revision: Revision, path: str) -> Entry | None:
    commit = revision.commit
    if revision.branch is None:
        commit.require_intact()
    elif not commit.is_intact:
        return None  # entries staged on the branch may still exist
    with context.reading(commit):
        return find_entry(context.storage, context.tree_of(commit), path, read=context.cache.range)
