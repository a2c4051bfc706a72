"""Names of repositories of the lakeFS server that the settings name: `lakefs:NAME`."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from ebbtide.errors import InvalidInput
from ebbtide.formats.schemes import Scheme, require_not_quiet
from ebbtide.imports import require_extra

if TYPE_CHECKING:
    from ebbtide.formats.lakefs.repository import LakefsRepository
    from ebbtide.settings import Settings

PREFIX: Final = "lakefs:"


class LakefsScheme(Scheme):
    """Opens repositories of a lakeFS server. lakeFS closes no commit, so that a file can be needed
    again before a sweep notices it."""

    asks_for_quarantine = True
    has_policy = True
    rules_of_its_own = "lakeFS's own rules"

    def open(
        self, name: str, settings: Settings, *, run_dir: str | None = None, quiet: bool = False
    ) -> tuple[LakefsRepository, timedelta]:
        """Returns the repository and its grace. Raises InvalidInput `invalid_setting` if the
        settings name no server or no keys."""
        del run_dir
        require_not_quiet(quiet=quiet)
        extra = ("lakefs", "google_crc32c", "google.protobuf", "lakefs_sdk")
        require_extra("a lakeFS repository", *extra)

        from ebbtide.formats.lakefs.repository import GRACE, open_lakefs
        from ebbtide.formats.lakefs.server import Account, LakefsServer

        account = Account(
            _set(settings.lakefs_endpoint, "lakefs_endpoint"),
            _set(settings.lakefs_access_key_id, "lakefs_access_key_id"),
            _set(settings.lakefs_secret_access_key, "lakefs_secret_access_key"),
        )
        server = LakefsServer(account, name.removeprefix(PREFIX))
        return open_lakefs(server, settings.lakefs_local_path), GRACE


def _set(value: str | None, name: str) -> str:
    if value is None:
        raise InvalidInput(
            "invalid_setting",
            f"EBBTIDE_{name.upper()} is not set: lakeFS repositories need the address of the "
            "server and the keys of a user",
            setting=name,
        )
    return value
