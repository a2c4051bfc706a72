"""Compares policies: the commits and files that a plan with each policy would expire and delete.

The plans are not written. The comparison changes nothing, and takes no lease. The figures are those
of a plan made at the same time, and are computed by the same code.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from ebbtide.formats.base import RepositoryFormat
from ebbtide.gc.engines.base import Engine
from ebbtide.gc.inventory_report import InventoryReport
from ebbtide.gc.options import RunOptions
from ebbtide.gc.parts import Count
from ebbtide.gc.planner import Planner
from ebbtide.gc.runs import RunFolder
from ebbtide.gc.steps import Observer, Steps, Unheld, silent
from ebbtide.ids import descending_id
from ebbtide.model import EPOCH, Commit
from ebbtide.prices import Prices, price_json
from ebbtide.retention import Policy
from ebbtide.retention.decision import Decision, Roots
from ebbtide.retention.selection import RefSummary
from ebbtide.storage import open_storage

_NONE: Final[Mapping[str, Count]] = {}
_NO_BYTES: Final[Mapping[str, int]] = {}


@dataclass(frozen=True, slots=True)
class RefOutlook:
    """The effect of a policy on a branch, on all dangling commits, or on all tagged commits.

    `kept_count` counts the commits that are kept, and `expired_count` those that expire next.
    `fewer_count` is the number that the
    present policy keeps, less `kept_count`. It can be negative. `oldest_at` is the date of
    the oldest kept commit of a branch, without the repository's initial commit. It is None if there
    is no such commit, and for dangling and tagged commits.
    """

    kind: str
    name: str
    rule: str
    commit_count: int
    kept_count: int
    expired_count: int
    fewer_count: int
    oldest_at: datetime | None


@dataclass(frozen=True, slots=True)
class RuleOutlook:
    """The effect of a policy on all refs under one rule. A commit on several branches counts once
    for each of them."""

    rule: str
    ref_count: int
    commit_count: int
    kept_count: int
    fewer_count: int


@dataclass(frozen=True, slots=True)
class LostCommit:
    """A commit that the present policy keeps and another policy expires."""

    commit_id: str
    created_at: datetime
    reason: str  # why the present policy keeps it


@dataclass(frozen=True, slots=True)
class Alternative:
    """The result of a plan with a policy.

    `counts` are the plan's counts by class, `kinds` its candidates by kind, and `classes` their
    bytes by storage class. `expired_count`
    counts the commits that would lose data which they still have. `lost` are those of them that the
    present policy keeps. `regained_count` counts the commits that the present policy expires and
    this one keeps.
    """

    policy: Mapping[str, Any] | None  # as Policy.to_mapping returns it
    counts: Mapping[str, Count]
    kinds: Mapping[str, Count]
    active_count: int
    expired_count: int
    gone_count: int
    lost: tuple[LostCommit, ...]
    regained_count: int
    by_ref: tuple[RefOutlook, ...]
    warnings: tuple[str, ...]
    classes: Mapping[str, int] = field(default_factory=dict)

    @property
    def commits(self) -> tuple[int, int, int]:
        """The numbers of commits that are kept, that expire next, and that runs closed."""
        return self.active_count, self.expired_count, self.gone_count

    @property
    def reclaimable(self) -> Count:
        """The count of all candidates."""
        return self.counts["candidate"]

    @property
    def by_rule(self) -> tuple[RuleOutlook, ...]:
        """The effect on the refs under each rule, in the order of the rules' first refs."""
        found: dict[str, RuleOutlook] = {}
        for ref in (each for each in self.by_ref if each.kind != "beyond"):
            known = found.get(ref.rule, RuleOutlook(ref.rule, 0, 0, 0, 0))
            found[ref.rule] = RuleOutlook(
                ref.rule,
                known.ref_count + 1,
                known.commit_count + ref.commit_count,
                known.kept_count + ref.kept_count,
                known.fewer_count + ref.fewer_count,
            )
        return tuple(found.values())


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The results with the present policy, and with other policies in the given order."""

    repository: str
    now: datetime
    grace_seconds: float
    present: Alternative
    others: tuple[Alternative, ...]

    def to_json(self, names: Sequence[str], prices: Prices | None) -> dict[str, Any]:
        """Returns the content of `--json`. `names` are those of the other policies."""
        pairs = zip(("present", *names), (self.present, *self.others), strict=True)
        return {
            "repository": self.repository,
            "now": self.now.isoformat(),
            "grace_seconds": self.grace_seconds,
            "price_gb_month": None if prices is None else prices.gb_month,
            "prices": price_json(prices),
            "policies": [_policy_json(name, each, self.present, prices) for name, each in pairs],
        }


def what_if(
    repository: RepositoryFormat,
    policies: Sequence[Policy],
    *,
    engine: Engine,
    options: RunOptions,
    given: InventoryReport | None = None,
    observer: Observer = silent,
    found: Callable[[Alternative], None] = lambda _each: None,
) -> WhatIf:
    """Compares policies with the repository's present policy. Calls `found` with each result when
    it is known, the present policy's first. Raises Refused as a plan does.

    Files are written to a temporary directory, or under the options' `run_dir`, and deleted at the
    end.
    """
    alternatives = []
    with looking(repository, engine, options, given, observer, name="what-if") as planner:
        outlooks = planner.look_ahead(policies)
        first = next(outlooks)
        for outlook in chain([first], outlooks):
            basis = outlook.basis
            alternatives.append(
                alternative_of(
                    basis.roots,
                    basis.decision,
                    first.basis.decision,
                    counts=outlook.counts,
                    kinds=outlook.kinds,
                    classes=outlook.classes,
                )
            )
            found(alternatives[-1])
    present, *others = alternatives
    return WhatIf(
        repository=repository.identity.repository_name,
        now=first.basis.roots.now,
        grace_seconds=options.grace.total_seconds(),
        present=present,
        others=tuple(others),
    )


@contextmanager
def looking(
    repository: RepositoryFormat,
    engine: Engine,
    options: RunOptions,
    given: InventoryReport | None,
    observer: Observer,
    *,
    name: str,
) -> Iterator[Planner]:
    """Provides a planner for a look that changes nothing. Its files lie in a temporary directory,
    or under the options' `run_dir`, and are deleted at the end. `name` is that of its jobs."""
    with _temporary_folder(options.run_dir, repository.now()) as folder:
        try:
            yield Planner(
                engine=engine,
                repository=repository,
                folder=folder,
                # With a `run_dir`, the index is not written to.
                options=replace(options, run_dir=folder.path),
                steps=Steps(Unheld(), observer, name=partial(engine.name_jobs, name)),
                given=given,
            )
        finally:
            engine.forget()  # the engine's session may outlast the look


@contextmanager
def _temporary_folder(run_dir: str | None, now: datetime) -> Iterator[RunFolder]:
    """Provides a folder for parts, and deletes it with its content at the end."""
    parts = None if run_dir is None else urlsplit(open_storage(run_dir).url)
    if run_dir is None or parts is None or parts.scheme == "file":
        parent = None if parts is None else Path(unquote(parts.path))
        if parent is not None:
            parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="ebbtide-", dir=parent) as directory:
            yield RunFolder(open_storage(directory), "what-if/")
        return
    folder = RunFolder(open_storage(run_dir), f"what-if-{descending_id(now)}/")
    try:
        yield folder
    finally:
        folder.delete()


def alternative_of(
    roots: Roots,
    decision: Decision,
    present: Decision,
    *,
    counts: Mapping[str, Count] = _NONE,
    kinds: Mapping[str, Count] = _NONE,
    classes: Mapping[str, int] = _NO_BYTES,
) -> Alternative:
    """Compares a decision by the policy of `roots` with the `present` decision. Without `counts`,
    the result has figures of commits only."""
    active, kept_now = decision.active, present.active
    lost = tuple(
        LostCommit(commit.commit_id, commit.created_at, kept_now[commit.commit_id])
        for commit in roots.commits
        if commit.commit_id in kept_now and commit.commit_id not in active
    )
    gone_count = sum(commit.tombstoned for commit in roots.commits)
    before = {(each.kind, each.name): each for each in present.by_ref}
    oldest = _oldest_kept(roots, active)
    return Alternative(
        policy=None if roots.policy is None else roots.policy.to_mapping(),
        counts=counts,
        kinds=kinds,
        active_count=len(active),
        expired_count=len(decision.expired) - gone_count,
        gone_count=gone_count,
        lost=tuple(sorted(lost, key=lambda each: (each.created_at, each.commit_id))),
        regained_count=sum(commit_id not in kept_now for commit_id in active),
        by_ref=tuple(
            _ref_outlook(each, before.get((each.kind, each.name)), oldest)
            for each in decision.by_ref
        ),
        warnings=decision.warnings,
        classes=classes,
    )


def _ref_outlook(
    found: RefSummary, before: RefSummary | None, oldest: Mapping[str, datetime | None]
) -> RefOutlook:
    # If the present policy has no rule for tags, each tag keeps its commit, and `before` is None.
    kept_before = found.commit_count if before is None else before.kept_count
    return RefOutlook(
        kind=found.kind,
        name=found.name,
        rule=found.rule,
        commit_count=found.commit_count,
        kept_count=found.kept_count,
        expired_count=found.expired_count,
        fewer_count=kept_before - found.kept_count,
        oldest_at=None if found.commit_id is None else oldest[found.commit_id],
    )


def _oldest_kept(roots: Roots, active: Mapping[str, str]) -> dict[str, datetime | None]:
    """Returns for each commit the date of the oldest kept commit on its main ancestry, or None."""
    known = {commit.commit_id: commit for commit in roots.commits}
    found: dict[str, datetime | None] = {}
    for commit in roots.commits:
        chain: list[Commit] = []
        place: Commit | None = commit
        while place is not None and place.commit_id not in found:
            chain.append(place)
            place = known.get(place.first_parent_id or "")
        oldest = None if place is None else found[place.commit_id]
        for each in reversed(chain):
            if each.commit_id in active and each.created_at != EPOCH:
                oldest = each.created_at if oldest is None else min(oldest, each.created_at)
            found[each.commit_id] = oldest
    return found


def _policy_json(
    name: str, found: Alternative, present: Alternative, prices: Prices | None
) -> dict[str, Any]:
    return {
        "name": name,
        "policy": None if found.policy is None else dict(found.policy),
        **reclaimable_json(found, present, prices),
        "counts": {key: count.to_json() for key, count in found.counts.items()},
        "kinds": {key: count.to_json() for key, count in found.kinds.items()},
        "active_count": found.active_count,
        "expired_count": found.expired_count,
        "gone_count": found.gone_count,
        "lost_count": len(found.lost),
        "regained_count": found.regained_count,
        "lost": [asdict(each) | {"created_at": each.created_at.isoformat()} for each in found.lost],
        "by_ref": [
            asdict(each)
            | {"oldest_at": None if each.oldest_at is None else each.oldest_at.isoformat()}
            for each in found.by_ref
        ],
        "by_rule": [asdict(each) for each in found.by_rule],
        "warnings": list(found.warnings),
    }


def reclaimable_json(
    found: Alternative, present: Alternative, prices: Prices | None
) -> dict[str, Any]:
    """Returns the files and bytes that a policy would free, and the difference from the present
    policy."""
    size = found.reclaimable.bytes_total
    return {
        "candidate_count": found.reclaimable.objects,
        "candidate_bytes": size,
        "more_count": found.reclaimable.objects - present.reclaimable.objects,
        "more_bytes": size - present.reclaimable.bytes_total,
        **money_json(found, present, prices),
    }


def money_json(
    found: Alternative, present: Alternative, prices: Prices | None
) -> dict[str, float | None]:
    """Returns what the files that a policy would free cost a month, the difference from the present
    policy, and the price of the requests of a sweep."""
    if prices is None:
        names = ("money_month", "more_money_month", "sweep_cost", "quarantine_cost")
        return dict.fromkeys(names)
    own, now = prices.month(found.classes), prices.month(present.classes)
    count = found.reclaimable.objects
    return {
        "money_month": own,
        "more_money_month": None if own is None or now is None else own - now,
        "sweep_cost": prices.sweep(count, quarantine=False),
        "quarantine_cost": prices.sweep(count, quarantine=True),
    }
