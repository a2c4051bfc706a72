"""Refs of version 1 beside the file `repo` of version 2.

An upgrade leaves them there if it is told to, or if it dies before it deletes them, and nothing
reads them any more. But a client of version 1 goes by them alone: it does not see `repo`, and no
list of version 2 has what it writes. Not for: repositories of version 1 alone.
Source: Icechunk 2.3, `migrations/mod.rs`, and `fetch_spec_version` in `repository.rs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from ebbtide.errors import Refused
from ebbtide.formats.icechunk.refs import REFS_PREFIX, files_of, read_refs, stored_name
from ebbtide.formats.icechunk.repo import MIGRATED, REPO_ADDRESS, RepoFile
from ebbtide.formats.icechunk.state import copies, copy_of, history_of, load_repo, operations
from ebbtide.model import Ref
from ebbtide.storage import Storage

NAMED_MAX: Final = 3
"""Refs that a message names."""


@dataclass(frozen=True, slots=True)
class _Upgrade:
    """When it was, what refs it took over (kind, name, snapshot), and the name of the copy of
    `repo` that says so: None where `repo` itself does, or where there is none any more."""

    at: datetime
    refs: frozenset[tuple[str, str, str]] = frozenset()
    copy: str | None = None


def check_unmixed(storage: Storage) -> str | None:
    """The name of the copy of `repo` that must stay for as long as refs of version 1 are there,
    which it tells from those that were written since.

    A ref of version 1 is harmless if it is as it was at the upgrade, or if refs of version 2 reach
    its snapshot. Refused `repository_mixed` for any other, since what it keeps would look dead;
    `corrupt_ref`, `corrupt_repo`, `unknown_format_version`.
    """
    refs = read_refs(storage)
    if not refs:
        return None
    repo = load_repo(storage)
    upgrade = _upgrade(storage, repo)
    before = frozenset[tuple[str, str, str]]() if upgrade is None else upgrade.refs
    reached = history_of(repo).reached()

    def is_harmless(ref: Ref) -> bool:
        # Icechunk took names over as the directory spells them.
        spelt = {ref.name, stored_name(storage, ref.name)}
        return ref.commit_id in reached or any(
            (ref.kind, name, ref.commit_id) in before for name in spelt
        )

    written = [ref for ref in refs if not is_harmless(ref)]
    if written:
        raise _mixed(storage, written, upgrade)
    return None if upgrade is None else upgrade.copy


def _upgrade(storage: Storage, repo: RepoFile) -> _Upgrade | None:
    """None where the operations log tells of none, or is cut short."""
    try:
        for number, update in enumerate(operations(storage, repo)):
            if update.kind != MIGRATED:
                continue
            if not number:
                return _Upgrade(update.at, _triples(repo))
            try:
                name, file = copy_of(storage, update, copies(storage).keys())
            except Refused:
                return _Upgrade(update.at)
            return _Upgrade(update.at, _triples(file), name)
    except Refused:
        return None
    return None


def _triples(file: RepoFile) -> frozenset[tuple[str, str, str]]:
    return frozenset((ref.kind, ref.name, ref.commit_id) for ref in file.refs)


def _mixed(storage: Storage, written: Sequence[Ref], upgrade: _Upgrade | None) -> Refused:
    told = [_told(storage, ref) for ref in written[:NAMED_MAX]]
    if len(written) > NAMED_MAX:
        told.append(f"and {len(written) - NAMED_MAX:,} more")
    since = (
        f"its upgrade on {upgrade.at:%Y-%m-%d %H:%M} UTC took over none of these as they are"
        if upgrade is not None
        else "it tells of no upgrade"
    )
    return Refused(
        "repository_mixed",
        f"{storage.url} is of version 2, by its file {REPO_ADDRESS}; but there are refs of version "
        f"1, and {since}: {'; '.join(told)}. A client that is older than Icechunk 2 has written "
        f"them, and sees no {REPO_ADDRESS}; or the upgrade passed over tags whose names are spelt "
        "otherwise in a directory. Stop such clients, read with one of them what is needed, and "
        f"write that with a newer one; then delete everything under {storage.url}/{REFS_PREFIX}",
    )


def _told(storage: Storage, ref: Ref) -> str:
    """A ref of version 1 with its file, and when that was written."""
    files = files_of(storage, ref)
    info = storage.head(files[0]) if files else None
    written = "" if info is None else f" ({info.address}, {info.last_modified:%Y-%m-%d %H:%M} UTC)"
    return f"{ref.kind} {ref.name} at snapshot {ref.commit_id}{written}"
