"""Selecting: reasons, reports, refusals, and a property against the oracle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ebbtide.errors import InvalidInput, Refused
from ebbtide.model import Commit, Ref, RefKind
from ebbtide.retention import Policy, Selection, rule_parts, select_commits
from tests.retention import histories, oracle
from tests.retention.histories import NOW
from tests.support.randomized import randomized

MICROSECOND = timedelta(microseconds=1)


def commit(commit_id: str, age: timedelta | float, *parents: str, **fields: Any) -> Commit:
    """A commit of that age, in days if it is a number."""
    span = age if isinstance(age, timedelta) else timedelta(days=age)
    return Commit(commit_id, parents, NOW - span, f"tree-{commit_id}", **fields)


def chain(*ages: timedelta | float, **fields: Any) -> list[Commit]:
    return [
        commit(f"c{place}", age, *([f"c{place - 1}"] if place else []), **fields)
        for place, age in enumerate(ages)
    ]


def branch(name: str, commit_id: str) -> Ref:
    return Ref(name, "branch", commit_id)


def select(
    commits: list[Commit], refs: Mapping[str, str] | list[Ref], policy: Mapping[str, Any] | str
) -> Selection:
    written = {"default": policy} if isinstance(policy, str) else policy
    named = refs if isinstance(refs, list) else [branch(*pair) for pair in refs.items()]
    return select_commits(commits, named, Policy.parse(written), NOW)


def test_a_tag_makes_a_commit_no_less_dangling() -> None:
    refs = [branch("main", "main"), Ref("v1", "tag", "c2")]
    selection = select([*chain(4, 3, 2), commit("main", 1)], refs, "7d")
    assert set(selection.active) == {"c0", "c1", "c2", "main"}
    assert selection.active["c2"] == "tag v1"
    assert selection.active["c1"] == (
        "in the history of dangling commit c2, created 3 days before now, "
        "within the default rule's 7d"
    )


class TestWhatElseKeeps:
    def test_a_rule_for_tags(self) -> None:
        refs = [branch("main", "c4"), *(Ref(f"v{n}", "tag", f"c{n}") for n in range(4))]
        policy = {"default": "1h", "tags": {"keep_within": "15d", "keep_last": 1}}
        selection = select(chain(40, 30, 10, 20, 5), refs, policy)
        assert dict(selection.active) == {
            "c2": "tag v2, created 10 days before now, within the 15d of tags",
            "c4": "head of branch main",
        }
        assert [entry.kind for entry in selection.by_ref] == ["branch", "tags", "beyond"]
        assert (selection.by_ref[1].kept_count, selection.by_ref[1].expired_count) == (1, 3)

    @pytest.mark.parametrize("is_tag", [True, False])
    @pytest.mark.parametrize("rule", ["1h", "40d", "keep"])
    def test_what_is_in_the_trash(self, is_tag: bool, rule: str) -> None:
        """It has expired, but can be restored; what expires later is no different from others."""
        kind: RefKind = "tag" if is_tag else "branch"
        refs = [
            branch("main", "main"),
            Ref("old", kind, "c0", NOW),
            Ref("new", kind, "c1", NOW + MICROSECOND),
        ]
        by_tags = {"default": "1h", "tags": "40d"}
        policy = by_tags if is_tag and rule == "40d" else {"default": rule}
        selection = select([*chain(4, 3), commit("main", 1)], refs, policy)
        assert f"{kind} old (in the trash)" in selection.active["c0"]
        assert f"{kind} new" in selection.active["c1"]
        assert "trash" not in selection.active["c1"]

    def test_collections_holds_leases_and_the_future(self) -> None:
        commits = [
            *chain(90, 80, 70, 60, 50),
            commit("leased", 45, "c4", leased_until=NOW + MICROSECOND),
            commit("ended", 44, "leased", leased_until=NOW),
            commit("ahead", -1, "ended"),
            commit("head", 30, "ahead"),
        ]
        refs = [branch("main", "head"), Ref("set", "collection", "c3")]
        policy = {"default": {"keep_last": 1}, "holds": {"c1": "legal case", "c2": ""}}
        selection = select(commits, refs, policy)
        assert dict(selection.active) == {
            "c1": "held: legal case",
            "c2": "held",
            "c3": "collection set",
            "leased": "leased until 2026-06-01T00:30:00.000001Z",
            "ahead": "dated 2026-06-02T00:30:00Z, which is after now",
            "head": "head of branch main",
        }
        beyond = selection.by_ref[-1]
        assert (beyond.kind, beyond.kept_count, beyond.expired_count) == ("beyond", 5, 0)
        assert beyond.rule == (
            "1 by a collection, 2 by a hold, 1 by a lease, 1 by a date in the future"
        )

    def test_a_head_and_what_was_the_head_before(self) -> None:
        refs = [branch("main", "c3"), branch("old", "c0"), Ref("v1", "tag", "c1")]
        by_ref = select(chain(90, 80, 30, 2), refs, "7d").by_ref
        assert by_ref[-1].rule == (
            "1 as the head of a branch, 1 by a tag, 1 as the head when a period began"
        )
        assert [each.kind for each in select(chain(2, 1), {"main": "c1"}, "7d").by_ref] == [
            "branch"
        ]

    def test_a_tombstone_outweighs_everything(self) -> None:
        lost = commit("c0", -1, tombstoned=True, leased_until=NOW + timedelta(days=1))
        refs = [branch("main", "c0"), Ref("v1", "tag", "c0"), Ref("set", "collection", "c0")]
        selection = select([lost], refs, {"default": "keep", "holds": ["c0"]})
        assert not selection.active
        assert selection.expired == {"c0"}

    def test_no_rule_applies(self) -> None:
        selection = select(chain(900, 800), {"other": "c1"}, {"branches": {"main": "1d"}})
        assert selection.active["c0"] == (
            "on branch other, to which no rule applies, so that everything on it is kept"
        )


class TestReasons:
    """One reason for each commit; of several, the strongest."""

    def test_of_several_branches_the_longest_period_then_the_first_name(self) -> None:
        commits = [commit("c", 2), *(commit(name, 1, "c") for name in ("x", "y", "z"))]
        refs = {"b": "x", "a": "y", "c": "z"}
        selection = select(commits, refs, "7d")
        assert selection.active["c"] == "on branch a, created 2 days before now, within its 7d"
        selection = select(commits, refs, {"default": "7d", "branches": {"c": "8d"}})
        assert selection.active["c"] == "on branch c, created 2 days before now, within its 8d"

    def test_the_order_of_strength(self) -> None:
        commits = [commit("c", 2, leased_until=NOW + timedelta(days=1)), commit("x", 1, "c")]
        policy: dict[str, Any] = {"default": {"keep_within": "7d", "keep_last": 5, "keep_daily": 5}}
        reasons = [select(commits, {"main": "x"}, policy).active["c"]]
        for refs, holds in (
            ([branch("main", "x")], {"c": "audit"}),
            ([branch("main", "x"), Ref("s", "collection", "c")], {"c": "audit"}),
            ([branch("main", "x"), Ref("v1", "tag", "c"), Ref("s", "collection", "c")], {}),
            ([branch("main", "x"), branch("old", "c"), Ref("v1", "tag", "c")], {}),
        ):
            reasons.append(select(commits, refs, {**policy, "holds": holds}).active["c"])
        assert reasons == [
            "leased until 2026-06-02T00:30:00Z",
            "held: audit",
            "collection s",
            "tag v1",
            "head of branch old",
        ]

    @pytest.mark.parametrize(
        ("rule", "reason"),
        [
            ("keep", "where everything is kept"),
            ("1h", "was the head of branch main when its 1h window opened"),
            ({"keep_last": 3, "keep_daily": 2}, "one of the last 3 of branch main"),
            ({"keep_hourly": 2, "keep_daily": 2}, "newest of hour 2026-05-30T00Z on branch main"),
            ({"keep_daily": 2, "keep_yearly": 2}, "newest of day 2026-05-30 on branch main"),
            ({"keep_weekly": 2}, "newest of week 2026-W22 on branch main (keep_weekly 2)"),
            ({"keep_monthly": 2}, "newest of month 2026-05 on branch main (keep_monthly 2)"),
            ({"keep_yearly": 2}, "newest of year 2026 on branch main (keep_yearly 2)"),
        ],
    )
    def test_sentences(self, rule: Any, reason: str) -> None:
        commits = [commit("c", 2), commit("x", timedelta(), "c"), commit("y", 600, "x")]
        if rule == {"keep_yearly": 2}:
            commits[1] = replace(commits[1], tombstoned=True)
        assert reason in select(commits, {"main": "y"}, {"default": rule}).active["c"]


def test_in_rewrite_mode_what_refs_reach_is_active() -> None:
    commits = [
        commit("root", 900),
        commit("side", 800, "root"),
        commit("main", 700, "root", "side"),
        commit("dangling", 1, "root"),
    ]
    policy = {"default": "7d", "mode": "rewrite"}
    selection = select(commits, {"main": "main"}, policy)
    assert dict(selection.active) == {
        "root": "reached from branch main",
        "side": "reached from branch main",
        "main": "head of branch main",
    }
    assert [(e.kind, e.kept_count, e.expired_count) for e in selection.by_ref] == [
        ("branch", 2, 0),
        ("dangling", 1, 1),
    ]


def test_warnings() -> None:
    commits = [commit(f"f{place}", -1) for place in range(12)]
    commits[0] = replace(commits[0], tombstoned=True)
    policy = {"default": "7d", "branches": {"dev": "1d", "user-*": "1d"}, "holds": ["x", "f0"]}
    assert select(commits, {"main": "f1"}, policy).warnings == (
        "dated in the future, and kept until then: commits "
        "f1, f2, f3, f4, f5, f6, f7, f8, f9, f10 and 1 more",
        "the rule for 'dev' matches no branch",
        "the rule for 'user-*' matches no branch",
        "held, but not in this repository: commit x",
        "held, but expired in an earlier run: commit f0",
    )


class TestRefusals:
    def test_naive_dates(self) -> None:
        policy, naive = Policy.parse({"default": "7d"}), NOW.replace(tzinfo=None)
        dated = Commit("a", (), naive, "t")
        leased = commit("a", 1, leased_until=naive)
        for commits, now in (([], naive), ([dated], NOW), ([leased], NOW)):
            with pytest.raises(InvalidInput) as caught:
                select_commits(commits, [], policy, now)
            assert caught.value.kind == "invalid_date"

    def test_a_ref_into_nothing(self) -> None:
        with pytest.raises(Refused, match="branch main points at commit nobody") as caught:
            select([], {"main": "nobody"}, "7d")
        assert caught.value.kind == "commit_not_found"

    def test_twice_the_same_id(self) -> None:
        with pytest.raises(InvalidInput, match="given twice"):
            select([commit("a", 1), commit("a", 1)], {}, "7d")

    @pytest.mark.parametrize("size", [1, 2, 3])
    def test_a_circle(self, size: int) -> None:
        circle = [commit(f"a{n}", 1, f"a{(n + 1) % size}") for n in range(size)]
        with pytest.raises(InvalidInput, match="their own ancestors"):
            select([*circle, commit("b", 1, "a0")], {}, "7d")


def test_dates_at_the_edge_of_the_calendar() -> None:
    now = datetime(50, 1, 1, tzinfo=UTC)
    first = Commit("a", (), datetime.min.replace(tzinfo=UTC), "t")
    commits = [first, replace(first, commit_id="b", parent_ids=("a",))]
    policy = Policy.parse({"default": "36500d"})
    assert set(select_commits(commits, [branch("main", "b")], policy, now).active) == {"a", "b"}


@randomized("selections")
def test_against_the_oracle(seed: int) -> None:
    commits, refs, written = histories.even(seed)
    policy = Policy.parse(written)
    selection = select_commits(commits, refs, policy, NOW)
    assert set(selection.active) == oracle.active_ids(commits, refs, written, NOW)
    assert selection.expired == {made.commit_id for made in commits} - set(selection.active)
    assert len(selection.active) == len(list(selection.active))
    check_by_ref(commits, refs, selection)
    other_way = select_commits(reversed(commits), reversed(refs), policy, NOW)
    assert other_way.active == selection.active, "the order of the input gives other reasons"


@pytest.mark.parametrize("rung_commits_max", [1, 2, 32])
@randomized("selections from long histories")
def test_long_histories_against_the_oracle(
    seed: int, rung_commits_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts that are large enough for ladders of many rungs, which are then put together."""
    monkeypatch.setattr(rule_parts, "RUNG_COMMITS_MAX", rung_commits_max)
    commits, refs = histories.large(seed)
    policy = {
        "default": {"keep_daily": 7, "keep_hourly": 90},
        "branches": {
            "main": {"keep_daily": 120, "keep_weekly": 30, "keep_last": 9},
            "dev": {"keep_hourly": 40, "keep_monthly": 5},
        },
    }
    selection = select_commits(commits, refs, Policy.parse(policy), NOW)
    assert set(selection.active) == oracle.active_ids(commits, refs, policy, NOW)
    other_way = select_commits(reversed(commits), reversed(refs), Policy.parse(policy), NOW)
    assert other_way.active == selection.active, "the order of the input gives other reasons"


def check_by_ref(commits: list[Commit], refs: list[Ref], selection: Selection) -> None:
    known = {made.commit_id: made for made in commits}
    branches = sorted((ref for ref in refs if ref.kind == "branch"), key=lambda ref: ref.name)
    on_branch: set[str] = set()
    for entry in selection.by_ref:
        if entry.commit_id is not None:
            line = {move.after for move in oracle.replay(entry.commit_id, known)}
            on_branch |= line
            assert entry.kept_count == len(line & set(selection.active))
            gone = {each for each in line if known[each].tombstoned}
            assert entry.expired_count == len((line & selection.expired) - gone)
            assert (entry.commit_count, entry.gone_count) == (len(line), len(gone))
    assert [e.name for e in selection.by_ref if e.kind == "branch"] == [b.name for b in branches]
    off_branch = [known[commit_id] for commit_id in set(known) - on_branch]
    counts = {entry.kind: entry.commit_count for entry in selection.by_ref}
    contents = sum(each.is_content for each in off_branch)
    assert counts.get("collections", 0) == contents
    assert counts.get("dangling", 0) == len(off_branch) - contents
