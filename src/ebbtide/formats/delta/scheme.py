"""Names of Delta tables: `delta:ROOT`, `delta:ROOT/**`, and several of them with commas between."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from ebbtide.formats.schemes import Scheme, require_not_quiet

if TYPE_CHECKING:
    from ebbtide.clock import Clock
    from ebbtide.formats.delta.repository import DeltaRepository
    from ebbtide.settings import Settings

PREFIX: Final = "delta:"


class DeltaScheme(Scheme):
    """Opens tables by the places of their folders. Nothing closes a version, so that a file can be
    needed again before a sweep notices it."""

    asks_for_quarantine = True
    has_policy = True
    rules_of_its_own = "the tables' own periods (delta.deletedFileRetentionDuration)"

    def open(
        self, name: str, settings: Settings, *, run_dir: str | None = None, quiet: bool = False
    ) -> tuple[DeltaRepository, timedelta]:
        """Returns the tables, and `EBBTIDE_DELTA_GRACE`."""
        del run_dir
        require_not_quiet(quiet=quiet)
        return open_delta(name, settings), settings.delta_grace


def open_delta(name: str, settings: Settings, *, clock: Clock | None = None) -> DeltaRepository:
    """Returns the tables of a name. Raises as `Scheme.open`."""
    del settings
    from ebbtide.formats.delta.finding import find_tables
    from ebbtide.formats.delta.repository import DeltaRepository

    return DeltaRepository(find_tables(name.removeprefix(PREFIX)), name=name, clock=clock)
