"""What a caller may choose for a run."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from ebbtide.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """`grace`: nothing younger is a candidate. `run_dir`: where the run's files go, if not into the
    repository's own storage. `unsafe` allows a grace below the safe minimum, `allow_share` a plan
    above `share_max` (the share of listed files or bytes that may be candidates). Records of runs
    are kept for `run_retention`."""

    grace: timedelta
    lease_ttl: timedelta
    skew_max: timedelta
    share_max: float
    run_retention: timedelta
    unsafe: bool = False
    allow_share: bool = False
    run_dir: str | None = None

    @classmethod
    def of(
        cls,
        settings: Settings,
        *,
        grace: timedelta | None = None,
        unsafe: bool = False,
        allow_share: bool = False,
        run_dir: str | None = None,
    ) -> RunOptions:
        """The options that the settings give, with a run's own."""
        return cls(
            grace=settings.grace if grace is None else grace,
            lease_ttl=settings.lease_ttl,
            skew_max=settings.clock_skew_max,
            share_max=settings.share_max,
            run_retention=settings.run_retention,
            unsafe=unsafe,
            allow_share=allow_share,
            run_dir=run_dir,
        )
