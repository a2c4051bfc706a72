"""Names of Icechunk repositories: `icechunk:PATH` and `icechunk:URL`."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from ebbtide.formats.schemes import Scheme
from ebbtide.imports import require_extra

if TYPE_CHECKING:
    from ebbtide.formats.icechunk.repository import IcechunkRepository
    from ebbtide.settings import Settings

PREFIX: Final = "icechunk:"


class IcechunkScheme(Scheme):
    """Opens Icechunk repositories by path or URL."""

    has_expiry = True
    holds_released = True
    grace_setting = "EBBTIDE_ICECHUNK_GRACE"

    def open(
        self, name: str, settings: Settings, *, run_dir: str | None = None, quiet: bool = False
    ) -> tuple[IcechunkRepository, timedelta]:
        """Returns the repository, and `EBBTIDE_ICECHUNK_GRACE`."""
        require_extra("an Icechunk repository", "icechunk", "flatbuffers", "zstandard")

        from ebbtide.formats.icechunk.repository import IcechunkRepository
        from ebbtide.storage import open_storage

        repository = IcechunkRepository(
            open_storage(name.removeprefix(PREFIX)),
            name=name,
            settings=settings,
            notes=None if run_dir is None else open_storage(run_dir),
            quiet=quiet,
        )
        return repository, settings.icechunk_grace
