"""How long commits stay: the same as looking at every instant at which anything may change."""

from __future__ import annotations

import random
from collections.abc import Container, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from ebbtide.retention import Policy
from ebbtide.retention.decision import Outlook, Roots, decide, outlook
from tests.retention.histories import NOW, even
from tests.support.randomized import randomized

MICROSECOND = timedelta(microseconds=1)
DAY = timedelta(days=1)


def random_roots(seed: int) -> Roots:
    """Roots whose refs expire and whose holds end, some of them."""
    history, pointed, written = even(seed)
    source = random.Random(seed)
    trash_time = source.choice((timedelta(), DAY, 5 * DAY))
    refs = []
    for number, ref in enumerate(pointed):
        expires_at = NOW + timedelta(hours=source.randint(-20, 400))
        if source.random() < 0.4 or NOW - expires_at >= trash_time:
            refs.append(replace(ref, name=f"{ref.name}{number}"))
        else:
            refs.append(replace(ref, name=f"{ref.name}{number}", expires_at=expires_at))
    policy = Policy.parse(written)
    held = [commit_id for commit_id in policy.holds if source.random() < 0.5]
    return Roots(
        now=NOW,
        refs=tuple(refs),
        commits=tuple(history),
        stub_ids=frozenset({"gone"}),
        tree_checksums={commit.tree_id: "" for commit in history},
        policy=policy,
        trash_time=trash_time,
        holds_end={name: NOW + timedelta(hours=source.randint(1, 300)) for name in held},
    )


def every_instant(roots: Roots) -> list[datetime]:
    """Whatever may matter, by whatever rule, and what lies between."""
    periods = [timedelta(), *(timedelta(hours=h) for h in (1, 5, 24, 72, 168, 720))]
    instants = [commit.created_at + period for commit in roots.commits for period in periods]
    instants += [c.leased_until for c in roots.commits if c.leased_until is not None]
    instants += [r.expires_at + roots.trash_time for r in roots.refs if r.expires_at is not None]
    instants += roots.holds_end.values()
    around = {instant + off for instant in instants for off in (-MICROSECOND, timedelta())}
    return [NOW, *sorted(instant for instant in around if instant > NOW), NOW + 3_000 * DAY]


@randomized("outlooks")
def test_it_is_what_looking_at_every_instant_finds(seed: int) -> None:
    roots = random_roots(seed)
    decisions = {instant: decide(roots.at(instant)) for instant in every_instant(roots)}
    active = {instant: decision.active for instant, decision in decisions.items()}
    recorded = {instant: decision.recorded for instant, decision in decisions.items()}
    for commit in roots.commits:
        name = commit.commit_id
        _check(outlook(roots, data=[name]), active, name)
        _check(outlook(roots, records=[name]), recorded, name)


def _check(found: Outlook, kept: Mapping[datetime, Container[str]], name: str) -> None:
    first = next((i for i, names in kept.items() if name not in names), None)
    assert found.ends_at == first, name
    assert (found.reason is not None) == (first is None), name
