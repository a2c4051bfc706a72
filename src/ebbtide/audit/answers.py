"""The answers of explaining, as values and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any, Final, Literal

from ebbtide.errors import QUARANTINE_FIELDS
from ebbtide.formats.base import ExpiredCommit, PurgedAddress
from ebbtide.gc import EXPIRES_NEXT
from ebbtide.quarantined import Fate

AddressState = Literal["kept", "unneeded", "purged", "gone", "missing", "foreign", "system"]
CommitState = Literal["kept", "expired", "closed", "unneeded", "forgotten"]

ADDRESS_STATES: Final[Mapping[AddressState, str]] = {
    "kept": "kept",
    "unneeded": "nothing keeps it",
    "purged": "closed for good by a purge",
    "gone": "gone",
    "missing": "needed, and not on the storage",
    "foreign": "not the repository's own: never collected",
    "system": "a file of the repository itself: never collected",
}
"""The states of an address, in words. A protection or a commit keeps an address that is `kept` or
`missing`. A run deletes an `unneeded` one when it is older than the grace. A `purged` one is closed
even if a commit refers to it, and its file may still exist. A run deleted an address that is
`gone`, quarantined it or found it missing."""
COMMIT_STATES: Final[Mapping[CommitState, tuple[str, str]]] = {
    "kept": ("kept", ""),
    "expired": (EXPIRES_NEXT, "; its record stays"),
    "closed": ("gone", "; its record stays"),
    "unneeded": (
        EXPIRES_NEXT,
        ", and so does its record: no ref or kept commit has it in its history",
    ),
    "forgotten": ("gone", ", and so is its record"),
}
"""The states of a commit, in words, and what they mean. In a lakeFS repository, a run may have
deleted or quarantined the data of an `expired` commit already. A run closed a `closed` commit, or
an operator gave it up. A run deleted or quarantined the record of a `forgotten` commit, or an
expiry removed it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeper:
    """A protection or a commit that keeps an address. `reason` has the words of the selection.

    `by` is `protected` for a protection without a commit, which has `where`, `since` and `until`.
    It is `data` for a commit whose data stays and contains the address. It is `record` if the
    address is a file of a commit's record, and the record stays. A commit has the `refs` that point
    at it, its lease and its hold.
    """

    by: Literal["protected", "data", "record"]
    reason: str
    where: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    commit_id: str | None = None
    created_at: datetime | None = None
    refs: tuple[str, ...] = ()
    leased_until: datetime | None = None
    hold: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PastHolder:
    """A commit that refers or referred to an address, and does not keep it."""

    commit_id: str
    created_at: datetime
    refs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Went:
    """The run that deleted an address, quarantined it, or found it `missing`.

    `planned_at`, `cutoff` and `policy` are those of the run's plan. `commits` are commits that the
    run expired and that are known to have referred to the address: the newest of `commit_count`.
    Until `aside_until` an undo of the run can restore the address. `fate` says what became of the
    files in the run's quarantine; it is None if the run did not quarantine the address.
    """

    run_id: str
    run_path: str
    outcome: str
    at: datetime | None
    aside_until: datetime | None
    fate: Fate | None
    planned_at: datetime | None
    cutoff: datetime | None
    policy: Mapping[str, Any] | None  # as Policy.to_mapping gives it
    commits: tuple[PastHolder, ...]
    commit_count: int

    @property
    def words(self) -> str:
        """What the run did, as a clause whose subject is the run."""
        if self.fate is None:
            return "deleted it" if self.outcome == "deleted" else "found it already gone"
        return {
            "quarantined": "quarantined it",
            "undone": "quarantined it, and was undone",
            "unknown": "quarantined it, and the record of the quarantine cannot be read",
        }.get(self.fate.state, "quarantined it, and the quarantine has ended: it is deleted")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedAddress:
    """The reasons why an address exists, or not.

    `keepers` has the first of `keeper_count` keepers. Protections without a commit come first, then
    commits that a ref points at, then other commits, each newest first. `past_holders` are commits
    that refer to the address and do not keep it.

    `collectable_at` is the first instant at which a run may delete the file if nothing changes; it
    includes the grace. If a keeper has no end, `collectable_at` is None, and `kept_by` names this
    keeper. `unread_nodes` is the number of nodes that were not searched; they belong to commits
    whose data is not kept. `name` is the file's name in a commit, if the
    format has names. `history` has sentences, if the format knows more of the address.
    """

    address: str
    kind: str
    state: AddressState
    name: str | None = None
    target: str | None = None
    size_bytes: int | None = None
    last_modified: datetime | None = None
    keepers: tuple[Keeper, ...] = ()
    keeper_count: int = 0
    past_holders: tuple[PastHolder, ...] = ()
    past_holder_count: int = 0
    unread_nodes: int = 0
    history: tuple[str, ...] = ()
    collectable_at: datetime | None = None
    kept_by: str | None = None
    went: Went | None = None
    purged: PurgedAddress | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the answer as JSON."""
        return {"what": "address", **_json_of(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReachingRef:
    """A ref that has a commit in its history. `distance` is the number of steps from the ref's own
    commit."""

    kind: str
    name: str
    distance: int
    expires_at: datetime | None
    keeps_data: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedCommit:
    """The reasons why the data and the record of a commit exist, or not.

    `reason` is the selection's reason for a kept commit. `refs` has the nearest of `ref_count` refs
    that have the commit in their history. `data_until` and `record_until` are the instants from
    which on a run may delete data and record, if nothing changes. `data_until` is None for data
    that is not kept, and for data that is kept without an end. In the second case,
    `data_kept_by` says what keeps it. `record_until` is None in the same cases, without a reason.
    `fate` says what became of the data that the run in `expired` took. `history` has sentences, if
    the format knows more of the commit.
    """

    commit_id: str
    state: CommitState
    created_at: datetime | None = None
    tree_id: str | None = None
    reason: str | None = None
    refs: tuple[ReachingRef, ...] = ()
    ref_count: int = 0
    leased_until: datetime | None = None
    hold: str | None = None
    data_until: datetime | None = None
    data_kept_by: str | None = None
    record_until: datetime | None = None
    expired: ExpiredCommit | None = None
    fate: Fate | None = None
    history: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """The state in words. Data that a run took is quarantined or gone."""
        state, rest = COMMIT_STATES[self.state]
        if self.fate is not None and self.state != "kept":
            state = self.fate.commit_state
        return state + rest

    def to_json(self) -> dict[str, Any]:
        """Returns the answer as JSON."""
        return {"what": "commit", **_json_of(self)}


def _json_of(value: Any) -> Any:  # a dataclass of this module, or the value of a field
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, Fate):
        return {"state": value.state, **dict.fromkeys(QUARANTINE_FIELDS), **value.fields()}
    if isinstance(value, tuple):
        return [_json_of(each) for each in value]
    if hasattr(value, "__dataclass_fields__"):
        return {each.name: _json_of(getattr(value, each.name)) for each in fields(value)}
    return value
