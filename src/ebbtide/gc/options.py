"""What a caller may choose for a run."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, Literal, get_args

from ebbtide.errors import InvalidInput

if TYPE_CHECKING:
    from ebbtide.settings import Settings

Mode = Literal["auto", "clean", "incremental"]
MODES: Final[tuple[Mode, ...]] = get_args(Mode)


Sizes = Literal["auto", "all", "candidates"]
SIZES: Final[tuple[Sizes, ...]] = get_args(Sizes)
SIZED_FILES_MAX: Final = 1_000_000
"""A directory of more files is not asked for all their sizes, unless somebody wants them: that
takes several times as long as all the rest."""


def parse_sizes(text: str) -> Sizes:
    """One of SIZES. Raises InvalidInput `invalid_argument`."""
    for sizes in SIZES:
        if text == sizes:
            return sizes
    raise InvalidInput(
        "invalid_argument", f"there are no sizes of {text!r}: write {', '.join(SIZES)}"
    )


def parse_mode(text: str) -> Mode:
    """One of MODES. Raises InvalidInput `invalid_argument`."""
    for mode in MODES:
        if text == mode:
            return mode
    raise InvalidInput("invalid_argument", f"there is no mode {text!r}: write {', '.join(MODES)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """`grace`: nothing younger is a candidate. `run_dir`: where the run's files go, if not into the
    repository's own storage. `unsafe` allows a grace below `grace_min`, `allow_share` a plan above
    `share_max` (the share of listed files or bytes that may be candidates). Records of runs are
    kept for `run_retention`. In mode `auto` a clean run is made at least every `clean_every`.

    `inventory` is a place from which an inventory is read instead of listing the storage; it is of
    `inventory_date`, unless it says so itself. With `quarantine` a sweep moves aside what it would
    delete, and keeps it for so long. What an undo brings back no run takes for `undo_hold`.
    `sizes` says of which files a directory is asked for size and date: of all, or of those alone
    that neither a commit nor anything else keeps; or the one up to SIZED_FILES_MAX files in the
    repository, and else the other. `patience` is how long a task may go on whose run
    has lost the repository."""

    grace: timedelta
    grace_min: timedelta
    grace_reason: str  # for that minimum
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

    def check_inventory(self) -> None:
        """Raises InvalidInput `invalid_argument` where an inventory goes with nothing else."""
        if self.inventory is None and self.inventory_date is not None:
            raise InvalidInput("invalid_argument", "a date of an inventory needs an inventory")
        if self.inventory is not None and self.mode == "incremental":
            raise InvalidInput(
                "invalid_argument",
                "an inventory is of everything, and an incremental run looks at little: leave out "
                "one of the two",
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
    ) -> RunOptions:
        """The options that the settings give, with a run's own.

        `sessions` is how long a session may last in a repository that knows nothing of its
        sessions: the grace, and the least that is safe.
        """
        if sessions is None:
            default, grace_min = settings.grace, max(settings.lease_ttl, settings.clock_skew_max)
            reason = "the longest lease and the allowed clock skew"
        else:
            default = grace_min = sessions
            reason = "how long a session may last"
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
        )
