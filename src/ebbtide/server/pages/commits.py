"""The commit graph of a repository: a window of its history, and the window's place in the whole
history; and single commits, with their changes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final

from starlette.responses import Response

from ebbtide.errors import EbbtideError, InvalidInput, NotFound
from ebbtide.formats.embedded import EmbeddedRepository
from ebbtide.gc import EXPIRES_NEXT
from ebbtide.model import EPOCH, ONE_MICROSECOND, Commit
from ebbtide.quarantined import Fate
from ebbtide.retention.decision import Decision, Roots, decide
from ebbtide.retention.lifecycle import LifecycleState, state_at
from ebbtide.server.pages.diffs import small_diffs
from ebbtide.server.pages.graph import Row, newest_first, rows
from ebbtide.server.pages.refs import choices_of
from ebbtide.server.pages.routes import Pages
from ebbtide.server.pages.visit import PAGE_ROWS, Visit, restorable_by
from ebbtide.store.access.access_keys import Role
from ebbtide.store.content.differences import Change
from ebbtide.store.database.commit_rows import CommitRecord, find_commits
from ebbtide.store.page import Page
from ebbtide.store.repository import Repository
from ebbtide.text import shown

pages = Pages()

WINDOW: Final = 60
"""Commits on one page."""
BUCKETS: Final = 60
"""Columns of the time axis."""
REFS_SHOWN: Final = 6


@dataclass(frozen=True, slots=True)
class ShownRef:
    """A branch or tag on a commit."""

    name: str
    kind: str
    state: LifecycleState
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class ShownCommit:
    """A row of the graph. `fate` is `kept`, `expired` (the next run deletes the commit's data),
    `quarantined` (an undo of a run restores it) or `gone` (a run deleted the data, or the commit
    was given up as damaged). `state` is the fate in words."""

    row: Row
    fate: str
    state: str
    reason: str
    message: str
    committer: str
    refs: Sequence[ShownRef]
    more_refs: int


@dataclass(frozen=True, slots=True)
class TimeColumn:
    """A column of the time axis. All columns have the same length in time. Heights are in percent
    of the highest column."""

    begins_at: datetime
    kept: int
    lost: int
    kept_height: float
    lost_height: float
    newest_id: str | None
    is_shown: bool


@pages.add("GET", "/repositories/{repository:segment}/commits", Role.READER)
def show_commits(visit: Visit) -> Response:
    """Shows a window of the graph that begins at a commit (`from`), at a ref (`at`) or at a day
    (`date`)."""
    repository = visit.repository()
    form = EmbeddedRepository(repository.context, store_id=visit.store.store_id)
    with form.reading() as reading:
        roots = reading.roots()
    decision = decide(roots)
    history = newest_first([commit for commit in roots.commits if not commit.is_content])
    start = _start(visit, repository, history)
    window = _window(visit, repository, roots, decision, history, start)
    name = repository.info.name
    return visit.page(
        "commits.html",
        window=window,
        start=start,
        total=len(history),
        newer_id=history[max(0, start - WINDOW)].commit_id if start else None,
        older_id=history[start + WINDOW].commit_id if start + WINDOW < len(history) else None,
        buckets=_buckets(history, decision, start),
        oldest=_oldest(history),
        newest=history[0].created_at if history else None,
        width=_width(window),
        name=name,
        at=visit.query("at"),
        choices=choices_of(repository),
        date=visit.query("date"),
        warnings=decision.warnings,
        now=roots.now,
    )


def _start(visit: Visit, repository: Repository, history: Sequence[Commit]) -> int:
    """Returns the position at which the window begins. Raises NotFound, InvalidInput
    `invalid_date`, and the errors of `resolve`."""
    wanted = visit.query("from")
    if visit.query("at"):
        wanted = repository.commits.resolve(visit.query("at"))
    if wanted:
        for number, commit in enumerate(history):
            if commit.commit_id == wanted:
                return number
        raise NotFound("commit_not_found", f"the history has no commit {shown(wanted)}")
    if visit.query("date"):
        # Computed in seconds: a datetime cannot express the end of 9999-12-31.
        ends_at = _day(visit.query("date")).timestamp() + 86_400
        found = bisect_left(history, -ends_at, key=lambda c: -c.created_at.timestamp())
        return min(found, max(0, len(history) - 1))
    return 0


def _day(text: str) -> datetime:
    try:
        day = date.fromisoformat(text)
        return datetime(day.year, day.month, day.day, tzinfo=UTC)
    except ValueError:
        raise InvalidInput(
            "invalid_date", f"{shown(text)} is not a date: write 2026-03-01"
        ) from None


def _window(
    visit: Visit,
    repository: Repository,
    roots: Roots,
    decision: Decision,
    history: Sequence[Commit],
    start: int,
) -> list[ShownCommit]:
    heads = {ref.name: ref.commit_id for ref in roots.refs if ref.kind == "branch"}
    drawn = rows(
        history,
        start=start,
        stop=start + WINDOW,
        first_lane=heads.get(repository.info.default_branch),
    )
    refs = refs_by_commit(roots, visit.served.settings.trash_time)
    with repository.context.metadata.snapshot() as tx:
        ids = [row.commit.commit_id for row in drawn]
        records = find_commits(tx, repository.info.repository_id, ids)
    fates = repository.fates({each.closed_by for each in records.values() if each.closed_by})
    return [
        _shown(
            row,
            decision,
            records.get(row.commit.commit_id),
            fates,
            refs.get(row.commit.commit_id, ()),
        )
        for row in drawn
    ]


def _shown(
    row: Row,
    decision: Decision,
    record: CommitRecord | None,
    fates: Mapping[str, Fate],
    refs: Sequence[ShownRef],
) -> ShownCommit:
    fate, state, reason = fate_of(row.commit, decision, record, fates)
    return ShownCommit(
        row=row,
        fate=fate,
        state=state,
        reason=reason,
        message="" if record is None else record.message,
        committer="" if record is None else record.committer,
        refs=refs[:REFS_SHOWN],
        more_refs=max(0, len(refs) - REFS_SHOWN),
    )


def fate_of(
    commit: Commit | None,
    decision: Decision,
    record: CommitRecord | None,
    fates: Mapping[str, Fate],
) -> tuple[str, str, str]:
    """Returns fate and state of a commit, as in ShownCommit, and the reason. `commit` is None if a
    run has deleted the commit's record, too. `fates` has what became of the data that runs took."""
    reason = None if commit is None else decision.active.get(commit.commit_id)
    if reason is not None:
        return "kept", "kept", reason
    if commit is not None and not commit.tombstoned:
        return "expired", EXPIRES_NEXT, "no rule keeps it: the next run deletes its data"
    if record is not None and record.given_up_at is not None:
        return "gone", "gone", f"given up as damaged: {record.given_up_reason}"
    fate = None if record is None or record.closed_by is None else fates[record.closed_by]
    if fate is None:
        return "gone", "gone", "a run closed it"
    kind = "quarantined" if fate.state == "quarantined" else "gone"
    return kind, fate.commit_state, f"run {fate.run_id} {fate.words}"


def refs_by_commit(roots: Roots, trash_time: timedelta) -> Mapping[str, list[ShownRef]]:
    """Returns the branches and tags of each commit, branches first."""
    found: dict[str, list[ShownRef]] = {}
    for ref in sorted(roots.refs, key=lambda ref: (ref.kind, ref.name)):
        if ref.kind in ("branch", "tag"):
            state = state_at(ref.expires_at, trash_time=trash_time, now=roots.now)
            shown = ShownRef(ref.name, ref.kind, state, ref.expires_at)
            found.setdefault(ref.commit_id, []).append(shown)
    return found


def _oldest(history: Sequence[Commit]) -> datetime | None:
    """Returns the date of the oldest commit. Initial commits are left out: they are dated 1970."""
    dated = [commit.created_at for commit in history if commit.created_at > EPOCH]
    return dated[-1] if dated else None


def _buckets(history: Sequence[Commit], decision: Decision, start: int) -> list[TimeColumn]:
    """Returns the time axis of the whole history, the oldest column first."""
    oldest = _oldest(history)
    if oldest is None or history[0].created_at == oldest:
        return []
    # Programs can make many commits within microseconds.
    length = max((history[0].created_at - oldest) / BUCKETS, ONE_MICROSECOND)
    kept, lost = [0] * BUCKETS, [0] * BUCKETS
    newest: list[str | None] = [None] * BUCKETS
    shown: set[int] = set()
    for number, commit in enumerate(history):
        if commit.created_at < oldest:
            continue
        place = min(BUCKETS - 1, int((commit.created_at - oldest) / length))
        counts = kept if commit.commit_id in decision.active else lost
        counts[place] += 1
        newest[place] = newest[place] or commit.commit_id
        if start <= number < start + WINDOW:
            shown.add(place)
    highest = max(k + n for k, n in zip(kept, lost, strict=True))
    return [
        TimeColumn(
            begins_at=oldest + place * length,
            kept=kept[place],
            lost=lost[place],
            kept_height=round(100 * kept[place] / highest, 2),
            lost_height=round(100 * lost[place] / highest, 2),
            newest_id=newest[place],
            is_shown=place in shown,
        )
        for place in range(BUCKETS)
    ]


def _width(window: Sequence[ShownCommit]) -> int:
    """Returns the number of lanes that the lines of the window need."""
    lanes = [
        lane
        for shown in window
        for lane in (shown.row.lane, *shown.row.above, *shown.row.past, *shown.row.below)
    ]
    return max(lanes, default=0) + 1


@pages.add("GET", "/repositories/{repository:segment}/commits/{commit_id:segment}", Role.READER)
def show_commit(visit: Visit) -> Response:
    """Shows a commit, and its changes against its first parent or another one (`parent`, counted
    from 1)."""
    repository = visit.repository()
    record = repository.commits.get(visit.segment("commit_id"))
    parent_id = _parent_id(visit, record)
    form = EmbeddedRepository(repository.context, store_id=visit.store.store_id)
    with form.reading() as reading:
        roots = reading.roots()
    known = {commit.commit_id: commit for commit in roots.commits}
    closed_by = record.closed_by
    fates = repository.fates([] if closed_by is None else [closed_by])
    fate, state, reason = fate_of(known.get(record.commit_id), decide(roots), record, fates)
    refs = refs_by_commit(roots, visit.served.settings.trash_time)
    page, problem = _changes(visit, repository, record, parent_id)
    return visit.page(
        "commit.html",
        name=repository.info.name,
        record=record,
        parent_id=parent_id,
        fate=fate,
        state=state,
        reason=reason,
        restorable=restorable_by(fates[closed_by])
        if closed_by is not None and fate == "quarantined"
        else None,
        refs=refs.get(record.commit_id, ()),
        changes=page,
        problem=problem,
        diffs=[]
        if page is None or parent_id is None
        else small_diffs(repository, parent_id, record.commit_id, page.entries),
        choices=choices_of(repository),
        now=roots.now,
    )


def _parent_id(visit: Visit, record: CommitRecord) -> str | None:
    """Returns the parent to compare with; None for a commit that has none. Raises InvalidInput
    `invalid_argument` for a parent that does not exist."""
    if not record.parent_ids:
        return None
    number = visit.number("parent", 1, most=len(record.parent_ids))
    if number == 0:
        raise InvalidInput("invalid_argument", "parents are counted from 1")
    return record.parent_ids[number - 1]


def _changes(
    visit: Visit, repository: Repository, record: CommitRecord, parent_id: str | None
) -> tuple[Page[Change] | None, EbbtideError | None]:
    """Returns a page of the changes. If one of the commits was forgotten, there is an error in
    place of the changes."""
    if parent_id is None:
        return None, None
    try:
        page = repository.commits.page_of_diff(
            parent_id, record.commit_id, after=visit.query("after"), amount=PAGE_ROWS
        )
    except EbbtideError as error:
        if error.kind != "commit_expired":
            raise
        return None, error
    return page, None
