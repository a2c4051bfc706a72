"""The keys that sign tokens: replaced by a new one, and retired once nothing needs them.

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
    """What a rotation did: the key that signs now, those that were retired, and those that still
    verify, which a rotation after `retirable_at` retires."""

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
        """Sign with a new key from now on, and retire each older one once all that it signed has
        ended; or `at_once`, for a key that leaked: what it signed is refused from now on."""
        new = SigningKey.generate()
        with self._metadata.transaction() as tx:
            insert_signing_key(tx, new)
        with self._metadata.transaction() as tx:
            # From here on nobody signs with an older one, however long the other was open.
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
    """How long the last token that a key signed can be used: a locator, an address to upload to, or
    the place where a reading of what is uncommitted goes on."""
    return max(promised.lease_ttl, promised.upload_ttl, promised.prepare_ttl)
