"""Refs of version 1 beside the file `repo` of version 2.

An upgrade leaves these refs if an option says so, or if it ends before it deletes them. Clients of
version 2 do not read them. But a client of version 1 reads only them: it does not see `repo`, and
no list of version 2 has its commits. Not for: repositories of version 1 alone.
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
"""The most refs that a message names."""


@dataclass(frozen=True, slots=True)
class _Upgrade:
    """An upgrade: its time, and the refs that it took over (kind, name, snapshot).

    `copy` is the name of the copy of `repo` with these refs. It is None if `repo` itself has the
    entry of the upgrade, or if the copy is gone.
    """

    at: datetime
    refs: frozenset[tuple[str, str, str]] = frozenset()
    copy: str | None = None


def check_unmixed(storage: Storage) -> str | None:
    """Checks that the refs of version 1 are harmless.

    Such a ref is harmless if it is as it was at the upgrade, or if refs of version 2 reach its
    snapshot. For any other ref this raises Refused `repository_mixed`, because the files that the
    ref keeps would count as unneeded. Also raises Refused `corrupt_ref`, `corrupt_repo` and
    `unknown_format_version`.

    Returns the name of the copy of `repo` with the refs at the upgrade, or None. The copy must stay
    as long as there are refs of version 1.
    """
    refs = read_refs(storage)
    if not refs:
        return None
    repo = load_repo(storage)
    upgrade = _upgrade(storage, repo)
    before = frozenset[tuple[str, str, str]]() if upgrade is None else upgrade.refs
    reached = history_of(repo).reached()

    def is_harmless(ref: Ref) -> bool:
        # A name that looks encoded may be the real name, if the files came from another storage.
        spelt = {ref.name, stored_name(storage, ref.name)}
        return ref.commit_id in reached or any(
            (ref.kind, name, ref.commit_id) in before for name in spelt
        )

    written = [ref for ref in refs if not is_harmless(ref)]
    if written:
        raise _mixed(storage, written, upgrade)
    return None if upgrade is None else upgrade.copy


def _upgrade(storage: Storage, repo: RepoFile) -> _Upgrade | None:
    """Returns the upgrade in the operations log; None if the log has none or is cut short."""
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
        f"they differ from the refs that its upgrade on {upgrade.at:%Y-%m-%d %H:%M} UTC found"
        if upgrade is not None
        else "its operations log has no upgrade"
    )
    return Refused(
        "repository_mixed",
        f"{storage.url} is of version 2, but refs of version 1 lie beside its file {REPO_ADDRESS}, "
        f"and {since}: {'; '.join(told)}. Clients older than Icechunk 2 write such refs, and do "
        f"not see {REPO_ADDRESS}. The upgrade also skips tags whose names a directory spells in "
        "another way. Stop all such clients, read the data that is still needed with one of them, "
        "and write it with a newer client. Then delete everything under "
        f"{storage.url}/{REFS_PREFIX}",
    )


def _told(storage: Storage, ref: Ref) -> str:
    """Returns the text for a ref of version 1, with its file and the date of the file."""
    files = files_of(storage, ref)
    info = storage.head(files[0]) if files else None
    written = "" if info is None else f" ({info.address}, {info.last_modified:%Y-%m-%d %H:%M} UTC)"
    return f"{ref.kind} {ref.name} at snapshot {ref.commit_id}{written}"
