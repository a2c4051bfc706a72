"""The keys that sign tokens: replacing them, and retiring those that nothing needs.

Not for: signing (`signing`), or access keys (`keys`).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from ebbtide.settings import Settings
from ebbtide.store.metadata.engine import Metadata
from ebbtide.store.metadata.tokens import (
    date_signing_keys,
    insert_signing_key,
    read_signing_keys,
    retire_signing_keys,
)
from ebbtide.store.promises import promised
from ebbtide.store.signing import SigningKey

_EVER: Final = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Rotation:
    """The result of a rotation.

    `key_id` is the key that signs now. The keys in `verifying_ids` still verify. A rotation after
    `retirable_at` retires them.
    """

    key_id: str
    retired_ids: tuple[str, ...]
    verifying_ids: tuple[str, ...]
    retirable_at: datetime | None


class SigningKeys:
    """The signing keys of a store."""

    def __init__(self, metadata: Metadata, settings: Settings) -> None:
        self._metadata = metadata
        self._settings = settings

    def rotate(self, *, at_once: bool = False) -> Rotation:
        """Makes a new key, which signs from now on, and retires older keys.

        An older key is retired once everything that it signed has ended. With `at_once`, for a key
        that leaked, all older keys are retired now: everything that they signed is refused.
        """
        new = SigningKey.generate()
        with self._metadata.transaction() as tx:
            insert_signing_key(tx, new)
        with self._metadata.transaction() as tx:
            # From here on no process signs with an older key, however long the first block took.
            date_signing_keys(tx)
            now, longest = tx.now(), _longest(promised(tx, self._settings))
            superseded_before = _EVER if at_once else now - longest
            retired = retire_signing_keys(tx, superseded_before=superseded_before)
            verifying = [key.key_id for key in read_signing_keys(tx) if key.key_id != new.key_id]
        return Rotation(
            key_id=new.key_id,
            retired_ids=tuple(retired),
            verifying_ids=tuple(verifying),
            retirable_at=now + longest if verifying else None,
        )


def _longest(promised: Settings) -> timedelta:
    """Returns the longest time for which a token can be used after it was signed.

    Tokens are locators, addresses for uploads, and continuations of readings (`preparing`).
    """
    return max(promised.lease_ttl, promised.upload_ttl, promised.prepare_ttl)
