"""Which commits of a lakeFS repository stay, from the definition: lakeFS issue 1932, with tags."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from ebbtide.model import Commit, Ref
from tests.retention import oracle


@dataclass(frozen=True)
class KnownCommit:
    """Its parents, the first one first, and its date."""

    parents: tuple[str, ...]
    created: datetime


def active(
    commits: Mapping[str, KnownCommit],
    heads: Iterable[str],
    tags: Iterable[str],
    *,
    now: datetime,
    days: timedelta,
) -> set[str]:
    """The commits that stay if all branches have the same days."""
    known = [Commit(name, each.parents, each.created, name) for name, each in commits.items()]
    refs = [Ref("", "branch", each) for each in heads] + [Ref("", "tag", each) for each in tags]
    return oracle.active_ids(known, refs, {"default": f"{days.days}d"}, now)
