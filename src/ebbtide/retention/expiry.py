"""Plans an expiry: refs to delete, cuts in the history, and commits that nothing reaches then.

Pure: it only plans. The format makes the edits in place, and keeps ids and dates. A cut gives
commits other parents. Each plan starts from the original history, so that the order of the refs
does not matter. Source: Icechunk design document 007, basic expiration; the counting rules are this
program's own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ebbtide.durations import format_duration
from ebbtide.errors import InvalidInput, NotFound
from ebbtide.model import EPOCH, Commit, Ref, RefKind
from ebbtide.retention.dates import to_utc
from ebbtide.retention.decision import reachable
from ebbtide.retention.forest import NO_PARENT, History, main_ancestries, reached_from
from ebbtide.retention.policy import Policy
from ebbtide.retention.selection import select_commits

DEFAULT_BRANCH = "main"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """`new_parents` maps each commit to edit to all its new parents.

    `released` are the commits that no ref reaches after all edits, through any parents. A commit
    that a ref points at is never among them.
    """

    new_parents: Mapping[str, tuple[str, ...]]
    released: frozenset[str]


def plan_rewrite(commits: Iterable[Commit], refs: Iterable[Ref], older_than: datetime) -> Rewrite:
    """Plans to cut commits older than `older_than` from the refs' histories. A commit of exactly
    that date is kept.

    For each ref whose own commit is not older, the main ancestry is walked up to the first older
    commit. The last commit before it gets the root of that ancestry as its only parent. Refs on
    older commits keep their history. Raises InvalidInput (`invalid_date`; `invalid_argument` for a
    duplicate commit or a cycle) and Refused `commit_not_found`.
    """
    threshold = to_utc(older_than, what="older_than")
    history = History.of(commits)
    starts = [history.index_of(ref) for ref in refs]
    young = [
        to_utc(commit.created_at, what=f"commit {commit.commit_id}") >= threshold
        for commit in history.commits
    ]
    parent = history.parent
    root = _roots(parent)
    new_parents: dict[str, tuple[str, ...]] = {}
    passed = bytearray(len(parent))
    for position in starts:
        while young[position] and not passed[position]:
            passed[position] = True
            above = parent[position]
            if above == NO_PARENT:
                break
            if not young[above] and above != root[position]:
                commit, bottom = history.commits[position], history.commits[root[position]]
                new_parents[commit.commit_id] = (bottom.commit_id,)
            position = above
    return _rewrite(history, starts, new_parents)


def plan_rewrite_keep(commits: Iterable[Commit], refs: Iterable[Ref], keep: Set[str]) -> Rewrite:
    """Plans to cut every commit that is not in `keep` from the refs' histories.

    The refs' own commits and the roots of their ancestries are kept too. If the first parent of a
    kept commit is cut, the commit gets the nearest kept commit on its main ancestry as its only
    parent. All others stay as they are. Raises as `plan_rewrite` does, and NotFound
    `commit_not_found` for an id in `keep` that is not given: it may be a mistyped id of a commit
    that must stay.
    """
    history = History.of(commits)
    starts = [history.index_of(ref) for ref in refs]
    for commit_id in keep:
        if commit_id not in history.index:
            raise NotFound(
                "commit_not_found", f"{commit_id} is to be kept, but is not among the commits"
            )
    parent = history.parent
    kept = [commit.commit_id in keep for commit in history.commits]
    for position in starts:
        kept[position] = True
    on_ancestry = main_ancestries(parent, starts)
    new_parents: dict[str, tuple[str, ...]] = {}
    nearest = [NO_PARENT] * len(parent)  # the nearest kept commit or root at or above each
    for position, above in enumerate(parent):
        if kept[position] or above == NO_PARENT:
            nearest[position] = position
        else:
            nearest[position] = nearest[above]
        if on_ancestry[position] and kept[position] and above not in (NO_PARENT, nearest[above]):
            bottom = history.commits[nearest[above]]
            new_parents[history.commits[position].commit_id] = (bottom.commit_id,)
    return _rewrite(history, starts, new_parents)


def _roots(parent: list[int]) -> list[int]:
    """Returns the last commit of each commit's main ancestry."""
    root = list(range(len(parent)))
    for position, above in enumerate(parent):  # a first parent comes before its children
        if above != NO_PARENT:
            root[position] = root[above]
    return root


def _rewrite(
    history: History, starts: list[int], new_parents: dict[str, tuple[str, ...]]
) -> Rewrite:
    reached = reached_from(history, starts, new_parents=new_parents)
    released = frozenset(
        commit.commit_id
        for position, commit in enumerate(history.commits)
        if position not in reached
    )
    return Rewrite(new_parents=new_parents, released=released)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiryRequest:
    """A request to expire commits.

    Without a `policy`, a ref keeps its commits up to the first that is older than `older_than`.
    With one, it keeps the commits that the policy keeps, and all commits of `younger` or later.
    Refs of the kinds in `delete_refs` are deleted if their own commit is older than `older_than`.
    """

    older_than: datetime
    younger: datetime
    policy: Policy | None = None
    delete_refs: Collection[RefKind] = ()

    @classmethod
    def of(
        cls,
        *,
        now: datetime,
        sessions: timedelta,
        older_than: datetime | None = None,
        rule: Mapping[str, str | int] | None = None,
        policy: Policy | None = None,
        delete_refs: Collection[RefKind] = (),
        unsafe: bool = False,
        has_rules: bool = False,
    ) -> ExpiryRequest:
        """Returns a request from the options of a command: a date, a rule's counting parts, or a
        policy. With both a date and a rule, a commit stays if one of them keeps it.

        `sessions` is the longest time that a session may last: no younger commit expires unless
        `unsafe`. `has_rules`: the repository has rules of its own, so that nothing need select
        commits. Raises InvalidInput `unsafe_grace`, `invalid_argument` or `invalid_policy`.
        """
        youngest = now - sessions
        if older_than is None and delete_refs:
            raise InvalidInput(
                "invalid_argument", "refs are deleted by their age: give --older-than, too"
            )
        if older_than is None and rule is None and policy is None and not has_rules:
            raise InvalidInput(
                "invalid_argument",
                "nothing selects the commits to expire: give --older-than, a --keep option, or "
                "--policy",
            )
        if policy is not None and (rule is not None or older_than is not None):
            raise InvalidInput("invalid_argument", "give --policy or rules, not both")
        if policy is not None and policy.mode != "age":
            raise InvalidInput(
                "invalid_policy",
                f'mode "{policy.mode}" keeps every commit that a ref reaches, so that nothing '
                "would expire: leave the mode out",
            )
        if older_than is not None and older_than > youngest and not unsafe:
            raise InvalidInput(
                "unsafe_grace",
                f"{older_than:%Y-%m-%d %H:%M:%S} UTC is less than {format_duration(sessions)} ago: "
                "a session that began before may still be open, and nothing refers to its files "
                "yet. Give an older date, or add --unsafe on a quiet repository",
            )
        if rule is not None:
            within = {} if older_than is None else {"keep_within": _period(now - older_than)}
            policy = Policy.parse({"default": {**within, **rule}})
        return cls(
            older_than=older_than or EPOCH,
            younger=datetime.max.replace(tzinfo=UTC) if unsafe else youngest,
            policy=policy,
            delete_refs=delete_refs,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Expiry:
    """The plan of an expiry. `new_parents` maps the commits to edit to their new first parents.
    `released` are all commits that a ref reached before, and none reaches afterwards.
    `deleted_refs` are the refs to delete. `warnings` are sentences for the operator."""

    new_parents: Mapping[str, str]
    released: frozenset[str]
    deleted_refs: tuple[Ref, ...]
    warnings: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.new_parents and not self.released and not self.deleted_refs


def plan_expiry(
    commits: Mapping[str, Commit], refs: Collection[Ref], request: ExpiryRequest, *, now: datetime
) -> Expiry:
    """Plans the expiry for a request.

    The default branch is never deleted, nor is a ref at a root commit: it has no history to free.
    Raises Refused `commit_not_found` if a ref points at a commit that is not given. Raises NotFound
    `commit_not_found` if the policy holds such a commit: its id may be mistyped.
    """
    warnings: tuple[str, ...] = ()
    deleted = tuple(ref for ref in refs if _goes(ref, commits, request))
    kept_refs = [ref for ref in refs if ref not in deleted]
    before = reachable(commits.values(), [ref.commit_id for ref in refs])
    history = [commits[commit_id] for commit_id in before]
    if request.policy is None:
        rewrite = plan_rewrite(history, kept_refs, request.older_than)
    else:
        unknown = sorted(set(request.policy.holds) - commits.keys())
        if unknown:
            raise NotFound(
                "commit_not_found",
                f"the policy holds commit {unknown[0]}, which does not exist: check the id",
            )
        selection = select_commits(history, kept_refs, request.policy, now)
        chosen, warnings = selection.active, selection.warnings
        young = {c.commit_id for c in history if c.created_at >= request.younger}
        rewrite = plan_rewrite_keep(history, kept_refs, young.union(chosen))
    return Expiry(
        new_parents={commit_id: parents[0] for commit_id, parents in rewrite.new_parents.items()},
        released=rewrite.released,
        deleted_refs=deleted,
        warnings=warnings,
    )


def _period(span: timedelta) -> str:
    """Returns a period as a policy writes it, no shorter than `span`."""
    return f"{max(-(-span // timedelta(seconds=1)), 1)}s"


def _goes(ref: Ref, commits: Mapping[str, Commit], request: ExpiryRequest) -> bool:
    commit = commits.get(ref.commit_id)
    return (
        ref.kind in request.delete_refs
        and (ref.kind, ref.name) != ("branch", DEFAULT_BRANCH)
        and commit is not None
        and bool(commit.parent_ids)
        and commit.created_at < request.older_than
    )
