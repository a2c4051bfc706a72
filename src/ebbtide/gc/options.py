"""The options of a run, as it works with them. A person asks for them by `RunRequest`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, Unpack

from ebbtide.durations import parse_period
from ebbtide.errors import InvalidInput
from ebbtide.formats.capabilities import require_undoable
from ebbtide.formats.schemes import ASKED
from ebbtide.run_request import Mode, Period, RunRequest, Sizes, parsed

if TYPE_CHECKING:
    from ebbtide.formats.base import RepositoryFormat
    from ebbtide.settings import Settings

NO_QUARANTINE: Final = "none"
ASKED_PERIOD: Final = timedelta(days=7)
"""The length of a quarantine if the user gave none (ASKED)."""
SIZED_FILES_MAX: Final = 1_000_000
"""The maximum number of files of which a run reads all sizes if `sizes` is `auto`. With more files
in a directory, this would take several times as long as the rest of the run."""


def parse_quarantine(asked: Period | None, found: RepositoryFormat) -> timedelta | None:
    """Returns the quarantine of a sweep; None for None and for NO_QUARANTINE.

    ASKED means ASKED_PERIOD, or no quarantine if runs of the repository cannot be undone. For
    any other period of such a repository, such as a gone one, raises InvalidInput.
    """
    if asked in (None, NO_QUARANTINE):
        return None
    try:
        require_undoable(found)
    except InvalidInput:
        if asked == ASKED:
            return None
        raise
    if isinstance(asked, timedelta):
        return asked
    return ASKED_PERIOD if asked == ASKED else parse_period(asked)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of a run: what a `RunRequest` asks, which says what it does, and settings.

    - `grace_min`: the shortest grace without `unsafe`, because of `grace_reason`.
    - `share_max`: the share of the listed files or bytes that may be candidates. With
      `allow_share`, a plan above it can be swept.
    - `run_retention`: how long the records of runs are kept.
    - `clean_every`: in mode `auto`, a run is clean if the last clean run is at least this long ago.
    - `quarantine`: None deletes at once.
    - `undo_hold`: how long an undo protects the files that it restored and the commits that it
      opened.
    - `sizes`: `auto` is `all` for up to SIZED_FILES_MAX files in the repository.
    - `patience`: how long a task may continue after its run lost the repository. An undo waits for
      this time for batches that have not ended.
    - `heartbeat`, `lease_ttl`: the times of the run's lease, as in the settings.
    """

    grace: timedelta
    grace_min: timedelta
    grace_reason: str
    skew_max: timedelta
    share_max: float
    run_retention: timedelta
    unsafe: bool = False
    allow_share: bool = False
    run_dir: str | None = None
    mode: Mode = "auto"
    clean_every: timedelta = timedelta(days=7)
    inventory: str | None = None
    inventory_date: datetime | None = None
    quarantine: timedelta | None = None
    undo_hold: timedelta = timedelta(days=7)
    patience: timedelta = timedelta(seconds=30)
    heartbeat: timedelta = timedelta(seconds=5)
    lease_ttl: timedelta = timedelta(seconds=30)
    sizes: Sizes = "auto"
    delete_versions: bool = False
    accept_lost_commits: bool = False

    def check_inventory(self) -> None:
        """Raises InvalidInput `invalid_argument` for a date without an inventory, and for an
        inventory in mode `incremental`."""
        if self.inventory is None and self.inventory_date is not None:
            raise InvalidInput(
                "invalid_argument",
                "the date of an inventory needs an inventory: give both, or neither",
            )
        if self.inventory is not None and self.mode == "incremental":
            raise InvalidInput(
                "invalid_argument",
                "an inventory lists the whole storage, and an incremental run lists only a part: "
                "leave out one of the two",
            )

    @classmethod
    def of(
        cls,
        settings: Settings,
        *,
        sessions: timedelta | None = None,
        patience: timedelta | None = None,
        **asked: Unpack[RunRequest],
    ) -> RunOptions:
        """Returns the options from the settings, with what was asked for this run.

        `sessions` is how long a session may last, for a repository that has no record of its
        sessions. It is then the default of the grace and also its minimum. Raises as `parsed`.
        """
        if sessions is None:
            grace, grace_min = settings.grace, max(settings.lease_ttl, settings.clock_skew_max)
            reason = "the longest lease and the allowed clock skew"
        else:
            grace = grace_min = sessions
            reason = "how long clients may use what no ref names"
        unasked = {
            "grace": grace,
            "sizes": settings.sizes,
            "delete_versions": settings.delete_versions,
        }
        return cls(
            grace_min=grace_min,
            grace_reason=reason,
            skew_max=settings.clock_skew_max,
            heartbeat=settings.run_heartbeat,
            lease_ttl=settings.run_lease_ttl,
            share_max=settings.share_max,
            run_retention=settings.run_retention,
            clean_every=settings.clean_every,
            patience=settings.run_lease_ttl if patience is None else patience,
            **unasked | parsed(asked),
        )
