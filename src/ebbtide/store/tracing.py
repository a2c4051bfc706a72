"""From a name and a path to the address behind them, for who asks what becomes of a file.

Not for: reading objects, or whether anything keeps them.
"""

from __future__ import annotations

from ebbtide.errors import InvalidInput, NotFound
from ebbtide.escaping import shown
from ebbtide.store import views
from ebbtide.store.content.entries import Entry, is_external
from ebbtide.store.content.reading import find_entry
from ebbtide.store.context import RepositoryContext
from ebbtide.store.metadata.branches import find_branch
from ebbtide.store.metadata.commits import find_commits
from ebbtide.store.metadata.tags import find_tag
from ebbtide.store.names import check_path
from ebbtide.store.places import read_kept


def address_at(context: RepositoryContext, ref: str, path: str) -> str:
    """The address of what a revision, or the collection of that path, has at a path.

    Raises NotFound `ref_not_found`, `object_not_found`; InvalidInput `invalid_path`, and
    `invalid_argument` for what lies outside the storage root; Gone `commit_expired`.
    """
    check_path(path)
    content_id = _content_of(context, ref)
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
            f"{shown(path)} of {shown(ref)} was imported from {entry.address}: what lies outside "
            "the storage root is never collected",
        )
    return entry.address


def _content_of(context: RepositoryContext, name: str) -> str | None:
    """What a collection that is not gone has, by its path; None for what is a branch's name or a
    tag's, or no collection's. An earlier version has its number behind an @."""
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


def _entry_of_content(context: RepositoryContext, content_id: str, path: str) -> Entry | None:
    with context.metadata.snapshot() as tx:
        content = find_commits(tx, context.repository_id, [content_id])[content_id]
    with context.reading(content):
        tree = context.tree_of(content)
        return find_entry(context.storage, tree, path, read=context.cache.range)
