"""What explaining answers with: values, and the same as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any, Final, Literal

from ebbtide.formats.base import LetGo, PurgedAddress

AddressState = Literal["kept", "unneeded", "purged", "gone", "missing", "foreign", "system"]
"""What an address is: `kept` by something; `unneeded`, so that the next run takes it once it is old
enough; `purged`, closed for good whatever refers to it, its file there or not; `gone`, deleted by a
run; `missing`, kept by something and not there; `foreign` and `system` are never collected."""

CommitState = Literal["kept", "expired", "closed", "unneeded", "forgotten"]
"""What a commit is: `kept` with its data; `expired`, so that the next run lets its data go, and
`closed`, a run did, while its record stays; `unneeded`, its record goes with the next run;
`forgotten`, it went."""


ADDRESS_STATES: Final[Mapping[AddressState, str]] = {
    "kept": "kept",
    "unneeded": "nothing keeps it",
    "purged": "closed for good by a purge",
    "gone": "gone",
    "missing": "needed, and not on the storage",
    "foreign": "not the repository's own: never collected",
    "system": "a file of the repository itself: never collected",
}
"""What an address is, in words."""
COMMIT_STATES: Final[Mapping[CommitState, str]] = {
    "kept": "kept",
    "expired": "expired: the next run lets its data go; its record stays",
    "closed": "let go: its data may be gone; its record stays",
    "unneeded": "expired, and nothing has it in its history: the next run lets its record go too",
    "forgotten": "let go, and its record too",
}
"""What a commit is, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeper:
    """Something that keeps an address, in the words of the selection.

    `by` is `protected` for what keeps it without a commit, with `where`, `since` and `until`;
    `data` for a commit whose data stays and has it; `record` for one whose record stays, of which
    it is a part. A commit comes with the `refs` that point at it, its lease and its hold.
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
    """A commit that has an address and does not keep it, or had it."""

    commit_id: str
    created_at: datetime
    refs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Went:
    """That a run deleted an address, moved it aside (`quarantined`) or found it `missing`; what it
    went by, and which commits it let go that held it, as far as that is still known. Until
    `aside_until` an undo of the run brings it back.
    """

    run_id: str
    run_path: str
    outcome: str
    at: datetime | None
    aside_until: datetime | None
    planned_at: datetime | None
    cutoff: datetime | None
    policy: Mapping[str, Any] | None  # as Policy.to_mapping gives it
    commits: tuple[PastHolder, ...]
    commit_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedAddress:
    """Why an address is there, or not.

    `keepers` has the nearest first, of `keeper_count`: what protects it without a commit; then
    commits that a ref points at, then others, the newest first. `past_holders` have it and do not
    keep it. `collectable_at` is the first instant at which a run may take it if nothing changes,
    the grace included; None with `kept_by`, what keeps it then, for never. Of commits whose data is
    not kept, `unread_nodes` were not looked at.
    """

    address: str
    kind: str
    state: AddressState
    target: str | None = None
    size_bytes: int | None = None
    last_modified: datetime | None = None
    keepers: tuple[Keeper, ...] = ()
    keeper_count: int = 0
    past_holders: tuple[PastHolder, ...] = ()
    past_holder_count: int = 0
    unread_nodes: int = 0
    collectable_at: datetime | None = None
    kept_by: str | None = None
    went: Went | None = None
    purged: PurgedAddress | None = None

    def to_json(self) -> dict[str, Any]:
        """JSON."""
        return {"what": "address", **_json_of(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReachingRef:
    """A ref that has a commit in its history, `distance` commits below its own."""

    kind: str
    name: str
    distance: int
    expires_at: datetime | None
    keeps_data: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedCommit:
    """Why the data and the record of a commit are there, or not.

    `reason` is the selection's, of one that is kept. `refs` reach it, of `ref_count`, the nearest
    first. `data_until` and `record_until` are the instants from which on a run may let them go if
    nothing changes; None, of what is still there, for never, and `data_kept_by` is what keeps the
    data then.
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
    let_go: LetGo | None = None

    def to_json(self) -> dict[str, Any]:
        """JSON."""
        return {"what": "commit", **_json_of(self)}


def _json_of(value: Any) -> Any:  # a dataclass of this module, or what is in one
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, tuple):
        return [_json_of(each) for each in value]
    if hasattr(value, "__dataclass_fields__"):
        return {each.name: _json_of(getattr(value, each.name)) for each in fields(value)}
    return value
