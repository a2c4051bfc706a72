"""What became of the data of commits that a run closed: it is in quarantine, restored or deleted.

The record of a run's quarantine is `_ebbtide/gc/quarantines/<run_id>.json` on the storage of the
repository. Here its state and its end are read, and nothing else of it. Not for: changing
quarantines (`gc.quarantine`).
"""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal, get_args

from ebbtide.errors import QUARANTINE_FIELDS, EbbtideError, NotFound, Refused
from ebbtide.storage import Storage
from ebbtide.text import date_text

logger = logging.getLogger(__name__)

QUARANTINES_PREFIX: Final = "_ebbtide/gc/quarantines/"
"""The prefix of the records of quarantines: one for each run that moved files to quarantine."""

UNREADABLE: Final = "unreadable"
"""The state of a run whose record cannot be read."""

State = Literal["held", "undone", "purged"]

FateState = Literal["quarantined", "undone", "deleting", "deleted", "unknown"]


def record_address(run_id: str) -> str:
    """Returns the address of the record of a run's quarantine."""
    return f"{QUARANTINES_PREFIX}{run_id}.json"


def read_record(storage: Storage, run_id: str) -> dict[str, Any] | None:
    """Returns the content of the record of a run's quarantine, or None if there is none. `state_of`
    can read it. Raises Refused `plan_corrupt`."""
    try:
        data = storage.get(record_address(run_id))
    except NotFound:
        return None
    try:
        content: dict[str, Any] = json.loads(data)
        state_of(content)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise damaged(storage, run_id, error) from error
    return content


def state_of(content: Mapping[str, Any]) -> tuple[State, datetime]:
    """Returns the state of a quarantine, and its end (UTC), from the content of its record. Raises
    KeyError, TypeError, ValueError or OverflowError for other content."""
    state: State = content["state"]
    if state not in get_args(State):
        raise ValueError(f"the state {state!r} is unknown")
    until = datetime.fromisoformat(content["until"])
    if until.tzinfo is None:
        raise ValueError("its end has no time zone")
    return state, until.astimezone(UTC)


def damaged(storage: Storage, run_id: str, error: Exception) -> Refused:
    """Returns the error for a record that cannot be read."""
    return Refused(
        "plan_corrupt",
        f"{storage.url}/{record_address(run_id)} is not as it was written ({error}): restore it "
        f"from a backup, or delete it together with the files under _ebbtide/gc/runs/{run_id}/"
        "quarantine/",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """What became of the data of the commits that a run closed. The `state` is one of:

    - `quarantined`: an undo of the run restores it until `until`. If that time `is_over`, the next
      run can delete it.
    - `undone`: the run was undone. A commit that is still closed lacks files that other runs
      deleted.
    - `deleting`: the sweep deletes, and did not end.
    - `deleted`: nothing can restore it.
    - `unknown`: the record of the run or of its quarantine cannot be read.

    `is_swept`: the sweep ended. `is_partly_back`: an undo restored a part of the files.
    """

    run_id: str
    repository: str
    state: FateState
    until: datetime | None = None
    is_over: bool = False
    is_swept: bool = True
    is_partly_back: bool = False

    @property
    def restore_command(self) -> str | None:
        """The command that restores the data, or None if nothing does."""
        if self.state != "quarantined":
            return None
        return shlex.join(["ebbtide", "gc", "undo", self.repository, self.run_id])

    def fields(self) -> dict[str, str]:
        """Returns the fields that an answer for programs has besides the text: the end of the
        quarantine, and the command that restores the data. Empty for other states."""
        if self.restore_command is None or self.until is None:
            return {}
        until = self.until.isoformat().replace("+00:00", "Z")
        return dict(zip(QUARANTINE_FIELDS, (until, self.restore_command), strict=True))

    @property
    def end(self) -> str:
        """The end of the quarantine, in words."""
        day = f"{date_text(self.until)} UTC"
        return f"since {day} the next run can delete it" if self.is_over else f"until {day}"

    @property
    def commit_state(self) -> str:
        """The state of a commit that the run closed."""
        return "gone" if self.restore_command is None else f"quarantined {self.end}"

    @property
    def text(self) -> str:
        """The fate as a clause whose subject is the run."""
        return f"collector run {self.run_id} {self.words}"

    @property
    def words(self) -> str:
        """What the run did, as a clause without its subject."""
        if self.state == "quarantined":
            return self._quarantined_words()
        if self.state == "undone":
            return "closed it, and the undo of the run did not restore all its data"
        if self.state == "deleting":
            return "closed it, and has not finished deleting its data"
        if self.state == "deleted":
            rest = ", except what an undo had restored before" if self.is_partly_back else ""
            return f"deleted its data{rest}"
        return "closed it, and its record cannot be read"

    def _quarantined_words(self) -> str:
        did = "quarantined" if self.is_swept else "has not finished quarantining"
        part = ", of which a part is restored" if self.is_partly_back else ""
        day = f"{date_text(self.until)} UTC"
        if self.is_over:
            return (
                f"{did} its data{part}; it can be deleted by the next run since {day}: until then "
                f"'{self.restore_command}' restores it"
            )
        comma = f"{part}," if part else ""
        return f"{did} its data{comma} until {day}: '{self.restore_command}' restores it"


def fate_of(
    storage: Storage, run_id: str, *, repository: str, run_state: str | None, now: datetime
) -> Fate:
    """Returns what became of the data that a run took. It never fails: an error of the storage
    makes the fate `unknown`.

    `repository` is the name that commands take. `run_state` is the recorded state of the run,
    UNREADABLE, or None if the run has no record any more.
    """
    is_swept = run_state not in ("sweeping", "incomplete")
    try:
        content = read_record(storage, run_id)
    except EbbtideError as error:
        logger.warning("the quarantine of run %s cannot be read: %s", run_id, error.message)
        return Fate(run_id=run_id, repository=repository, state="unknown", is_swept=is_swept)
    state, until = (None, None) if content is None else state_of(content)
    is_held = state == "held"
    return Fate(
        run_id=run_id,
        repository=repository,
        state=_fate_state(state, run_state, is_swept=is_swept),
        until=until if is_held else None,
        is_over=is_held and until is not None and until <= now,
        is_swept=is_swept,
        is_partly_back=content is not None and content.get("back_at") is not None,
    )


def _fate_state(state: State | None, run_state: str | None, *, is_swept: bool) -> FateState:
    if state == "held":
        return "quarantined"
    if state == "undone" or (state is None and run_state == "undone"):
        return "undone"
    if state is None and run_state == UNREADABLE:
        return "unknown"
    return "deleted" if is_swept or state == "purged" else "deleting"


def closed_text(run_id: str) -> str:
    """Returns the clause of an error about a commit that a run closed, while nobody has looked what
    became of its data. `told` puts the fate in its place."""
    return f"collector run {run_id} closed it"


def told(error: EbbtideError, fate: Fate) -> None:
    """Completes an error about a commit that a run closed: its message, and its fields."""
    error.restate(error.message.replace(closed_text(fate.run_id), fate.text), **fate.fields())
