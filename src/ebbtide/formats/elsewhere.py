"""Repositories outside the store: Icechunk's by path or URL, and those of a lakeFS server.

A prefix of their names tells the format. Not for: repositories of the store.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from ebbtide.errors import InvalidInput
from ebbtide.imports import require_extra

if TYPE_CHECKING:
    from ebbtide.formats.icechunk.repository import IcechunkRepository
    from ebbtide.formats.lakefs.repository import LakefsRepository
    from ebbtide.retention.expiry import Expiry
    from ebbtide.settings import Settings

ASKED: Final = "asked"
"""The quarantine of a sweep that asks before it begins."""
ICECHUNK: Final = "icechunk:"
"""The prefix of the path or URL of an Icechunk repository."""
LAKEFS: Final = "lakefs:"
"""The prefix of the name of a repository of the lakeFS server that the settings name."""


def is_icechunk(repository: str) -> bool:
    """Whether a name is that of an Icechunk repository."""
    return repository.startswith(ICECHUNK)


def is_lakefs(repository: str) -> bool:
    """Whether a name is that of a repository of a lakeFS server."""
    return repository.startswith(LAKEFS)


def is_elsewhere(repository: str) -> bool:
    """Whether a name is that of a repository outside the store."""
    return is_icechunk(repository) or is_lakefs(repository)


def has_policy(repository: str) -> bool:
    """Whether repositories of this kind have a retention policy (`formats.base.WithPolicy`)."""
    return not is_icechunk(repository)


def always_quarantined(repository: str) -> str | None:
    """Returns ASKED if sweeps of a repository use a quarantine by default. lakeFS closes no commit:
    a file can be needed again before a sweep notices it."""
    return ASKED if is_lakefs(repository) else None


def open_elsewhere(
    repository: str, settings: Settings, *, run_dir: str | None = None, quiet: bool = False
) -> tuple[IcechunkRepository | LakefsRepository, timedelta]:
    """Returns a repository outside the store, and the shortest grace that is safe for it.

    Raises InvalidInput `invalid_setting` or `invalid_argument`; NotFound; Refused; Failed.
    """
    if is_icechunk(repository):
        found = open_icechunk(repository, settings, run_dir=run_dir, quiet=quiet)
        return found, settings.icechunk_grace
    require_not_quiet(quiet=quiet)
    opened = open_lakefs(repository, settings, run_dir=run_dir)
    return opened, opened.grace


def require_not_quiet(*, quiet: bool) -> None:
    """Raises InvalidInput if the option of Icechunk repositories is given for another one."""
    if quiet:
        raise InvalidInput(
            "invalid_argument",
            "--quiet-repository is only for Icechunk repositories: leave it out. Ebbtide knows the "
            "users of its own repositories, and asks lakeFS's server",
        )


def open_icechunk(
    repository: str,
    settings: Settings,
    *,
    run_dir: str | None = None,
    quiet: bool = False,
    expiry: Expiry | None = None,
) -> IcechunkRepository:
    """Returns the Icechunk repository of `icechunk:PATH` or `icechunk:URL`. Raises Failed
    `extra_missing`."""
    require_extra("an Icechunk repository", "icechunk", "flatbuffers", "zstandard")

    from ebbtide.formats.icechunk.repository import IcechunkRepository
    from ebbtide.storage import open_storage

    return IcechunkRepository(
        open_storage(repository.removeprefix(ICECHUNK)),
        name=repository,
        settings=settings,
        run_dir=None if run_dir is None else open_storage(run_dir),
        quiet=quiet,
        expiry=expiry,
    )


def open_lakefs(
    repository: str, settings: Settings, *, run_dir: str | None = None
) -> LakefsRepository:
    """Returns the repository of `lakefs:NAME`. Raises InvalidInput `invalid_setting` if the
    settings name no server or no keys, and Failed `extra_missing`."""
    require_extra("a lakeFS repository", "lakefs", "google_crc32c", "google.protobuf", "lakefs_sdk")

    from ebbtide.formats.lakefs.repository import open_lakefs as opened
    from ebbtide.formats.lakefs.server import Account, LakefsServer

    endpoint = _set(settings.lakefs_endpoint, "lakefs_endpoint")
    account = Account(
        endpoint,
        _set(settings.lakefs_access_key_id, "lakefs_access_key_id"),
        _set(settings.lakefs_secret_access_key, "lakefs_secret_access_key"),
    )
    server = LakefsServer(account, repository.removeprefix(LAKEFS))
    return opened(server, settings=settings, run_dir=run_dir)


def _set(value: str | None, name: str) -> str:
    if value is None:
        raise InvalidInput(
            "invalid_setting",
            f"EBBTIDE_{name.upper()} is not set: lakeFS repositories need the address of the "
            "server and the keys of a user",
            setting=name,
        )
    return value
