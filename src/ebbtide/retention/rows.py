"""Commits of a reading as plain rows, for where they are many and go elsewhere to be decided on.

Not for: deciding anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import TypeAlias

from ebbtide.model import EPOCH, ONE_MICROSECOND, Commit
from ebbtide.retention.decision import Roots

CommitRow: TypeAlias = tuple[str, str, int, str, str | None, int | None, int, int, int]
"""Id; parents' ids with blanks between; date; tree, and the checksum of its file, None where that
was given up; end of the lease; and whether it is tombstoned, content of a collection, a stub, of
which nothing else counts. Instants are microseconds since EPOCH."""


def micros_since_epoch(instant: datetime) -> int:
    """An instant as rows have it."""
    return (instant - EPOCH) // ONE_MICROSECOND


def with_commits(head: Roots, rows: Iterable[CommitRow]) -> Roots:
    """A reading from `head`, which has all but what the rows say."""
    kept: list[Commit] = []
    stub_ids: set[str] = set()
    checksums: dict[str, str] = {}
    ids: dict[str, str] = {}  # each id once, however often it is somebody's parent
    once = ids.setdefault
    for row in rows:
        commit_id, parent_ids, made_at, tree_id, checksum, leased_until, gone, content, stub = row
        if stub:
            stub_ids.add(commit_id)
            continue
        kept.append(
            Commit(
                once(commit_id, commit_id),
                tuple([once(each, each) for each in parent_ids.split()]),
                EPOCH + made_at * ONE_MICROSECOND,
                tree_id,
                bool(gone),
                None if leased_until is None else EPOCH + leased_until * ONE_MICROSECOND,
                bool(content),
            )
        )
        if checksum is not None:
            checksums[tree_id] = checksum
    return replace(
        head, commits=tuple(kept), stub_ids=frozenset(stub_ids), tree_checksums=checksums
    )
