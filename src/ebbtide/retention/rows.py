"""Commits of a reading as plain rows, for many commits that are passed to another process.

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
"""The row of a commit. Its columns are id, parents' ids joined by blanks, date, tree id, checksum
of the tree's file, and end of the lease. Three flags follow: closed, content of a collection,
stub. The checksum is None if the tree was given up; the end is None without a lease. In a stub's
row only the id counts. Instants are microseconds since EPOCH."""


def micros_since_epoch(instant: datetime) -> int:
    """Returns an instant as rows store it."""
    return (instant - EPOCH) // ONE_MICROSECOND


def with_commits(head: Roots, rows: Iterable[CommitRow]) -> Roots:
    """Returns `head`, the roots without commits, with the commits of the rows."""
    kept: list[Commit] = []
    stub_ids: set[str] = set()
    checksums: dict[str, str] = {}
    ids: dict[str, str] = {}  # each id is stored once, however many children name it as a parent
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
