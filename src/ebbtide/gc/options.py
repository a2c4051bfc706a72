"""The options of a run."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, Literal, get_args

from ebbtide.durations import parse_period
from ebbtide.errors import InvalidInput
from ebbtide.formats.capabilities import undoable
from ebbtide.formats.schemes import ASKED

if TYPE_CHECKING:
    from ebbtide.formats.base import RepositoryFormat
    from ebbtide.settings import Settings

Mode = Literal["auto", "clean", "incremental"]
MODES: Final[tuple[Mode, ...]] = get_args(Mode)


Sizes = Literal["auto", "all", "candidates"]
SIZES: Final[tuple[Sizes, ...]] = get_args(Sizes)
NO_QUARANTINE: Final = "none"
ASKED_PERIOD: Final = timedelta(days=7)
"""The length of a quarantine if the user gave none (ASKED)."""
SIZED_FILES_MAX: Final = 1_000_000
"""The maximum number of files of which a run reads all sizes if `sizes` is `auto`. With more files
in a directory, this would take several times as long as the rest of the run."""


def parse_sizes(text: str) -> Sizes:
    """Returns the text as one of SIZES. Raises InvalidInput `invalid_argument`."""
    for sizes in SIZES:
        if text == sizes:
            return sizes
    raise InvalidInput(
        "invalid_argument", f"{text!r} is no value for sizes: write {', '.join(SIZES)}"
    )


def parse_mode(text: str) -> Mode:
    """Returns the text as one of MODES. Raises InvalidInput `invalid_argument`."""
    for mode in MODES:
        if text == mode:
            return mode
    raise InvalidInput("invalid_argument", f"there is no mode {text!r}: write {', '.join(MODES)}")


def parse_quarantine(asked: str | timedelta | None, found: RepositoryFormat) -> timedelta | None:
    """Returns the quarantine of a sweep; None for None and for NO_QUARANTINE.

    ASKED means ASKED_PERIOD, or no quarantine if runs of the repository cannot be undone. For
    any other period of such a repository, such as a gone one, raises InvalidInput.
    """
    if asked in (None, NO_QUARANTINE):
        return None
    try:
        undoable(found)
    except InvalidInput:
        if asked == ASKED:
            return None
        raise
    if isinstance(asked, timedelta):
        return asked
    return ASKED_PERIOD if asked == ASKED else parse_period(asked)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of a run.

    - `grace`: no younger file is a candidate. `unsafe` allows a grace below `grace_min`.
    - `share_max`: the share of the listed files or bytes that may be candidates. With
      `allow_share`, a plan above it can be swept.
    - `run_retention`: how long the records of runs are kept.
    - `run_dir`: the place of the run's files, if it is not the repository's own storage.
    - `clean_every`: in mode `auto`, a run is clean if the last clean run is at least this long ago.
    - `inventory`: the path or URL of an inventory, which is read instead of listing the storage.
    - `inventory_date`: the date of the inventory, if it does not have its own.
    - `quarantine`: a sweep moves its files to quarantine for this time. None deletes at once.
    - `undo_hold`: how long an undo protects the files that it restored and the commits that it
      opened.
    - `sizes`: the files of a directory whose size and date are read. `candidates` are only files
      that neither a commit nor a protection keeps. `auto` is `all` for up to SIZED_FILES_MAX files
      in the repository, and `candidates` for more.
    - `delete_versions`: a delete includes the versions that a bucket keeps of its files. With a
      quarantine, they are deleted when it ends.
    - `accept_lost_commits`: plan although the metadata lack commits that an earlier run knew.
    - `class_looks`: the most candidates for whose storage class a plan asks.
    - `patience`: how long a task may continue after its run lost the repository. An undo waits for
      this time for batches that have not ended.
    """

    grace: timedelta
    grace_min: timedelta
    grace_reason: str  # why `grace_min` is the minimum
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
    sizes: Sizes = "auto"
    delete_versions: bool = False
    class_looks: int = 0
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
        grace: timedelta | None = None,
        unsafe: bool = False,
        allow_share: bool = False,
        run_dir: str | None = None,
        mode: Mode = "auto",
        inventory: str | None = None,
        inventory_date: datetime | None = None,
        quarantine: timedelta | None = None,
        patience: timedelta | None = None,
        sizes: Sizes | None = None,
        delete_versions: bool | None = None,
        accept_lost_commits: bool = False,
    ) -> RunOptions:
        """Returns the options from the settings, with the arguments for this run.

        `sessions` is how long a session may last, for a repository that has no record of its
        sessions. It is then the default of the grace and also its minimum.
        """
        if sessions is None:
            default, grace_min = settings.grace, max(settings.lease_ttl, settings.clock_skew_max)
            reason = "the longest lease and the allowed clock skew"
        else:
            default = grace_min = sessions
            reason = "how long clients may use what no ref names"
        return cls(
            grace=default if grace is None else grace,
            grace_min=grace_min,
            grace_reason=reason,
            skew_max=settings.clock_skew_max,
            share_max=settings.share_max,
            run_retention=settings.run_retention,
            unsafe=unsafe,
            allow_share=allow_share,
            run_dir=run_dir,
            mode=mode,
            clean_every=settings.clean_every,
            inventory=inventory,
            inventory_date=inventory_date,
            quarantine=quarantine,
            patience=settings.run_lease_ttl if patience is None else patience,
            sizes=settings.sizes if sizes is None else sizes,
            delete_versions=(
                settings.delete_versions if delete_versions is None else delete_versions
            ),
            class_looks=settings.class_looks,
            accept_lost_commits=accept_lost_commits,
        )
