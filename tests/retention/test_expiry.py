"""Which refs expire, what a policy keeps, and what can be asked for. Not: `test_rewrite.py`."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import pytest

from ebbtide.durations import format_duration
from ebbtide.errors import EbbtideError, InvalidInput, Refused
from ebbtide.model import Commit, Ref, RefKind
from ebbtide.retention.expiry import Expiry, ExpiryRequest, plan_expiry, plan_rewrite
from ebbtide.retention.policy import Policy
from ebbtide.retention.selection import select_commits
from tests.support.randomized import randomized

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)
KINDS: tuple[RefKind, ...] = get_args(RefKind)
DELETIONS: tuple[tuple[RefKind, ...], ...] = ((), ("branch",), ("tag",), ("branch", "tag"))
Parents = dict[str, str | None]


def forest(choices: random.Random, size: int) -> dict[str, Commit]:
    """Commits with at most one parent, mostly older than themselves; some of the same date."""
    found: dict[str, Commit] = {}
    for number in range(size):
        parents = sorted(found) if number and choices.random() < 0.9 else []
        ago = choices.randint(0, 10) if choices.random() < 0.3 else 10 - number * 10 // size
        name = f"c{number:02}"
        parent = (choices.choice(parents[-4:]),) if parents else ()
        found[name] = Commit(name, parent, NOW - ago * DAY, name)
    return found


def some_refs(choices: random.Random, commits: Mapping[str, Commit], count: int) -> list[Ref]:
    names = sorted(commits)
    return [
        Ref(
            "main" if not number else f"r{number}",
            "branch" if not number else choices.choice(("branch", "tag")),
            choices.choice(names[-3:] if number < 2 else names),
        )
        for number in range(count)
    ]


def reached(parents: Parents, refs: Iterable[Ref]) -> set[str]:
    found = set()
    for ref in refs:
        place: str | None = ref.commit_id
        while place is not None:
            found.add(place)
            place = parents[place]
    return found


def after(commits: Mapping[str, Commit], expiry: Expiry) -> Parents:
    return {name: each.first_parent_id for name, each in commits.items()} | dict(expiry.new_parents)


def kept_refs(refs: Sequence[Ref], expiry: Expiry) -> list[Ref]:
    return [ref for ref in refs if ref not in expiry.deleted_refs]


def test_a_ref_into_nothing_is_refused() -> None:
    commits = {"root": Commit("root", (), NOW, "root")}
    for policy in (None, Policy.parse({"default": "keep"})):
        request = ExpiryRequest(older_than=NOW, younger=NOW, policy=policy)
        with pytest.raises(Refused) as error:
            plan_expiry(commits, [Ref("main", "branch", "lost")], request, now=NOW)
        assert error.value.kind == "commit_not_found"


class TestDeletedRefs:
    def plan(self, *refs: Ref, delete: tuple[RefKind, ...], ago: int = 3) -> set[str]:
        commits = {
            f"c{n}": Commit(f"c{n}", (f"c{n - 1}",) if n else (), NOW - (9 - n) * DAY, f"c{n}")
            for n in range(10)
        }
        request = ExpiryRequest(older_than=NOW - ago * DAY, younger=NOW, delete_refs=delete)
        expiry = plan_expiry(commits, refs, request, now=NOW)
        assert set(expiry.deleted_refs) <= set(refs)
        rewrite = plan_rewrite(commits.values(), kept_refs(refs, expiry), request.older_than)
        assert expiry.new_parents == {name: new[0] for name, new in rewrite.new_parents.items()}
        before: Parents = {name: each.first_parent_id for name, each in commits.items()}
        left = reached(after(commits, expiry), kept_refs(refs, expiry))
        assert expiry.released == reached(before, refs) - left
        return {f"{ref.kind} {ref.name}" for ref in expiry.deleted_refs}

    @pytest.mark.parametrize("delete", DELETIONS)
    def test_those_of_the_kinds_asked_for_whose_commit_is_older(
        self, delete: tuple[RefKind, ...]
    ) -> None:
        refs = [
            Ref(f"{kind}{n}", kind, f"c{n}") for kind in ("branch", "tag") for n in (0, 1, 5, 6, 9)
        ]
        # c5 is four days old, c6 three, which is not older; c0 is the root.
        expected = {f"{kind} {kind}{n}" for kind in delete for n in (1, 5)}
        assert self.plan(Ref("main", "branch", "c9"), *refs, delete=delete) == expected

    def test_the_default_branch_stays(self) -> None:
        main = Ref("main", "branch", "c1")
        assert self.plan(main, delete=KINDS) == set()
        tag = Ref("main", "tag", "c1")
        assert self.plan(main, tag, delete=KINDS) == {"tag main"}


class TestWithPolicy:
    RULES: tuple[Any, ...] = (
        "keep",
        "3d",
        {"keep_last": 1},
        {"keep_last": 3},
        {"keep_daily": 4},
        {"keep_within": "2d", "keep_last": 2},
    )

    @randomized("expiries")
    def test_what_it_keeps_and_what_is_young_stays_reached(self, seed: int) -> None:
        choices = random.Random(seed)
        commits = forest(choices, choices.randint(2, 14))
        refs = some_refs(choices, commits, choices.randint(1, 4))
        written: dict[str, Any] = {"default": choices.choice(self.RULES)}
        if choices.random() < 0.5:
            written["branches"] = {choices.choice(("main", "r*")): choices.choice(self.RULES)}
        policy = Policy.parse(written)
        request = ExpiryRequest(
            older_than=NOW - choices.randint(0, 9) * DAY,
            younger=NOW - choices.randint(0, 9) * DAY,
            policy=policy,
            delete_refs=choices.choice(DELETIONS),
        )
        expiry = plan_expiry(commits, refs, request, now=NOW)
        left = kept_refs(refs, expiry)
        before: Parents = {name: each.first_parent_id for name, each in commits.items()}
        known = reached(before, refs)
        later = reached(after(commits, expiry), left)
        history = [commits[name] for name in known]
        chosen = set(select_commits(history, left, policy, NOW).active)
        young = {each.commit_id for each in history if each.created_at >= request.younger}
        still = reached(before, left)
        assert later >= chosen & still
        assert later >= young & still
        assert {ref.commit_id for ref in left} <= later
        assert expiry.released == known - later
        # And no more than that: what stays is a ref's own commit, a root, chosen or young.
        roots = {name for name, parent in before.items() if parent is None}
        assert later <= chosen | young | roots | {ref.commit_id for ref in left}


class TestRequest:
    SESSIONS = timedelta(hours=6)

    def of(self, **arguments: Any) -> ExpiryRequest:
        return ExpiryRequest.of(now=NOW, sessions=self.SESSIONS, **arguments)

    def refusal(self, **arguments: Any) -> EbbtideError:
        with pytest.raises(InvalidInput) as error:
            self.of(**arguments)
        return error.value

    @pytest.mark.parametrize("micros", [0, 1, 999_999])
    def test_a_part_of_a_second_is_kept_too(self, micros: int) -> None:
        older_than = NOW - DAY - timedelta(microseconds=micros)
        request = self.of(older_than=older_than, rule={"keep_last": 1})
        commits = {
            name: Commit(name, parents, at, name)
            for name, parents, at in (
                ("root", (), NOW - 9 * DAY),
                ("expired", ("root",), NOW - 8 * DAY),
                ("edge", ("expired",), older_than),
                ("next", ("edge",), older_than + timedelta(microseconds=micros // 2 + 1)),
                ("head", ("next",), NOW),
            )
        }
        expiry = plan_expiry(commits, [Ref("main", "branch", "head")], request, now=NOW)
        assert "edge" not in expiry.released

    def test_what_cannot_be_asked_for(self) -> None:
        policy, rule = Policy.parse({"default": "30d"}), {"keep_last": 1}
        asked: list[tuple[dict[str, Any], str]] = [
            ({}, "--older-than"),
            ({}, "--keep"),
            ({}, "--policy"),
            ({"policy": policy, "rule": rule}, "--policy or rules"),
            ({"policy": policy, "older_than": NOW - DAY}, "--policy or rules"),
            ({"delete_refs": ("branch",)}, "--older-than"),
            ({"delete_refs": ("branch",), "rule": rule}, "--older-than"),
        ]
        for arguments, says in asked:
            error = self.refusal(**arguments)
            assert error.kind == "invalid_argument"
            assert says in error.message

    def test_a_date_within_a_sessions_time(self) -> None:
        assert self.of(older_than=NOW - self.SESSIONS)
        for older_than in (NOW - self.SESSIONS + timedelta(microseconds=1), NOW, NOW + DAY):
            error = self.refusal(older_than=older_than)
            assert error.kind == "unsafe_grace"
            for part in (format_duration(self.SESSIONS), "older date", "--unsafe"):
                assert part in error.message
            assert self.refusal(older_than=older_than, rule={"keep_last": 1}).kind == "unsafe_grace"

    def test_unsafe_says_that_nobody_is_there(self) -> None:
        request = self.of(older_than=NOW, unsafe=True)
        assert request.older_than == NOW
        commits = {
            "root": Commit("root", (), NOW - 2 * DAY, "root"),
            "a": Commit("a", ("root",), NOW - DAY, "a"),
            "b": Commit("b", ("a",), NOW - timedelta(minutes=2), "b"),
            "c": Commit("c", ("b",), NOW - timedelta(minutes=1), "c"),
        }
        refs = [Ref("main", "branch", "c")]
        for unsafe, released in ((False, {"a"}), (True, {"a", "b"})):
            rule = self.of(rule={"keep_last": 1}, unsafe=unsafe)
            assert plan_expiry(commits, refs, rule, now=NOW).released == released
