"""Finds the address behind a ref and a path, to explain what happens to the file.

Not for: reading objects, or finding what keeps them.
"""

from __future__ import annotations

from ebbtide.errors import InvalidInput, NotFound
from ebbtide.retention.lifecycle import earliest
from ebbtide.store.collecting.kept_collections import read_kept, read_places
from ebbtide.store.collections.queries import collections_with_id
from ebbtide.store.collections.reading import only_one
from ebbtide.store.content.entries import Entry, is_external
from ebbtide.store.content.trees import find_entry
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.commits import find_commits
from ebbtide.store.names import check_path
from ebbtide.store.objects import views
from ebbtide.store.refs.queries import find_branch, find_tag
from ebbtide.text import shown


def address_at(context: RepositoryContext, ref: str, path: str) -> str:
    """Returns the address of the object at a path of a revision, or of a collection.

    `ref` is the revision, or the path or an id of the collection. Raises NotFound `ref_not_found`,
    `object_not_found`; InvalidInput `invalid_path`; Gone `commit_expired`. Raises InvalidInput
    `invalid_argument` if the object lies outside the storage root.
    """
    check_path(path)
    content_id = _content_of(context, ref) or content_with_id(context, ref)
    if content_id is None:
        found = views.find(context, ref, path)
        entry = None if found is None else found.entry
    else:
        entry = _entry_of_content(context, content_id, path)
    if entry is None:
        raise NotFound("object_not_found", f"{shown(ref)} has nothing at {shown(path)}")
    if is_external(entry.address):
        raise InvalidInput(
            "invalid_argument",
            f"{shown(path)} of {shown(ref)} was imported from {entry.address}: files outside "
            "the storage root are never collected",
        )
    return entry.address


def _content_of(context: RepositoryContext, name: str) -> str | None:
    """Returns the content of the collection with that path, or None.

    For an earlier version, the path ends in `@` and its number. The collection must not be gone. If
    a branch or tag has the same name, the result is None.
    """
    with context.metadata.snapshot() as tx:
        kept = read_kept(
            tx,
            context.repository_id,
            now=tx.now(),
            lease_ttl=context.settings.lease_ttl,
            trash_time=context.trash_time,
        )
        found = next((ref.commit_id for ref in kept.refs if ref.name == name), None)
        if found is None or find_branch(tx, context.repository_id, name) is not None:
            return None
        return found if find_tag(tx, context.repository_id, name) is None else None


def content_with_id(context: RepositoryContext, name: str) -> str | None:
    """Returns the content of the collection that an id names, as `collections_with_id` describes
    ids. None if there is none that is not gone. Raises Conflict `ref_ambiguous`."""
    with context.metadata.snapshot() as tx:
        rows = collections_with_id(tx, context.repository_id, name)
        if not rows:
            return None
        places = read_places(tx, context.repository_id)
        gone_before = tx.now() - context.trash_time
        ends = [earliest(row.expires_at, places[row.project_id].ends_at) for row in rows]
        kept = [
            row
            for row, ends_at in zip(rows, ends, strict=True)
            if ends_at is None or ends_at > gone_before
        ]
        row = only_one(tx, name, kept)
    return None if row is None else row.content_id


def _entry_of_content(context: RepositoryContext, content_id: str, path: str) -> Entry | None:
    with context.metadata.snapshot() as tx:
        content = find_commits(tx, context.repository_id, [content_id])[content_id]
    with context.reading(content):
        tree = context.tree_of(content)
        return find_entry(context.storage, tree, path, read=context.cache.range)
