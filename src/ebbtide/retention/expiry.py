"""Expiring: which refs go, how the history of the others is cut, and what nothing reaches then.

Pure: only plans; the edits are the format's. Not for: how history is cut (`rewrite`).
Source: Icechunk design document 007, basic expiration; the counting rules are this program's own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ebbtide.durations import format_duration
from ebbtide.errors import InvalidInput, NotFound
from ebbtide.model import EPOCH, Commit, Ref, RefKind
from ebbtide.retention.decision import reachable
from ebbtide.retention.policy import Policy
from ebbtide.retention.rewrite import plan_rewrite, plan_rewrite_keep
from ebbtide.retention.selection import select_commits

DEFAULT_BRANCH = "main"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiryRequest:
    """What somebody wants expired.

    Without a `policy`, a ref keeps its commits up to the first that is older than `older_than`.
    With one, it keeps what the policy says, and all that is of `younger` or later. Refs of the
    kinds in `delete_refs` go when their own commit is older than `older_than`.
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
    ) -> ExpiryRequest:
        """The request that somebody writes: a date, or a rule's counting parts, or both, of which
        either keeps what it keeps; or a policy.

        `sessions` is how long a session may last: nothing younger goes unless `unsafe`. Raises
        InvalidInput (`unsafe_grace`, `invalid_argument`, `invalid_policy`).
        """
        youngest = now - sessions
        if older_than is None and delete_refs:
            raise InvalidInput(
                "invalid_argument", "refs are deleted by their age: say --older-than what"
            )
        if older_than is None and rule is None and policy is None:
            raise InvalidInput(
                "invalid_argument",
                "nothing says what is to go: give --older-than, a --keep option, or --policy",
            )
        if policy is not None and (rule is not None or older_than is not None):
            raise InvalidInput("invalid_argument", "give --policy or rules, not both")
        if policy is not None and policy.mode != "age":
            raise InvalidInput(
                "invalid_policy",
                f'mode "{policy.mode}" keeps all that refs reach, so that nothing would expire: '
                "leave it out",
            )
        if older_than is not None and older_than > youngest and not unsafe:
            raise InvalidInput(
                "unsafe_grace",
                f"{older_than:%Y-%m-%d %H:%M:%S} UTC is less than {format_duration(sessions)} ago: "
                "a session that began before may still be open, and what it wrote is not yet "
                "referred to. Take an older date, or add --unsafe on a quiet repository",
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
    """`new_parents` has the commits to edit, each with its new first parent; `released` all that
    no ref reaches after that and one reached before; `deleted_refs` the refs that go. `warnings`
    are sentences for the operator."""

    new_parents: Mapping[str, str]
    released: frozenset[str]
    deleted_refs: tuple[Ref, ...]
    warnings: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.new_parents and not self.deleted_refs


def plan_expiry(
    commits: Mapping[str, Commit], refs: Collection[Ref], request: ExpiryRequest, *, now: datetime
) -> Expiry:
    """What to do for a request.

    The default branch stays, and so does a ref at a root: there is no history to free. Raises
    Refused (`commit_not_found`) where a ref points at a commit that is not given, and NotFound
    (`commit_not_found`) where a hold does: it was meant to keep something.
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
                "commit_not_found", f"the policy holds {unknown[0]}, which is not there: mistyped?"
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
    """A period as a policy writes it, no shorter than `span`."""
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
