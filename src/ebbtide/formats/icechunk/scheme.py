"""Names of Icechunk repositories: `icechunk:PATH` and `icechunk:URL`."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from ebbtide.formats.schemes import ExpiringScheme
from ebbtide.imports import require_extra

if TYPE_CHECKING:
    from ebbtide.formats.icechunk.repository import IcechunkRepository
    from ebbtide.retention.expiry import Expiry
    from ebbtide.settings import Settings

PREFIX: Final = "icechunk:"


class IcechunkScheme(ExpiringScheme):
    """Opens Icechunk repositories by path or URL."""

    def open(
        self, name: str, settings: Settings, *, run_dir: str | None = None, quiet: bool = False
    ) -> tuple[IcechunkRepository, timedelta]:
        """Returns the repository, and `EBBTIDE_ICECHUNK_GRACE`."""
        return _open(name, settings, run_dir=run_dir, quiet=quiet), self.sessions(settings)

    def open_expiring(self, name: str, settings: Settings) -> IcechunkRepository:
        """Returns the repository."""
        return _open(name, settings)

    def open_expired(
        self, name: str, settings: Settings, *, run_dir: str, expiry: Expiry | None
    ) -> IcechunkRepository:
        """Returns the repository as it would be after an expiry."""
        return _open(name, settings, run_dir=run_dir, quiet=True, expiry=expiry)

    def sessions(self, settings: Settings) -> timedelta:
        """Returns `EBBTIDE_ICECHUNK_GRACE`."""
        return settings.icechunk_grace


def _open(
    name: str,
    settings: Settings,
    *,
    run_dir: str | None = None,
    quiet: bool = False,
    expiry: Expiry | None = None,
) -> IcechunkRepository:
    require_extra("an Icechunk repository", "icechunk", "flatbuffers", "zstandard")

    from ebbtide.formats.icechunk.repository import IcechunkRepository
    from ebbtide.storage import open_storage

    return IcechunkRepository(
        open_storage(name.removeprefix(PREFIX)),
        name=name,
        settings=settings,
        run_dir=None if run_dir is None else open_storage(run_dir),
        quiet=quiet,
        expiry=expiry,
    )
