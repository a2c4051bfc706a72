"""The gate of presence: what kept commits refer to is on the storage.

For formats whose nodes carry no checksums. A node that was damaged so that it names another
address would make the one that it should name look dead; but the address that it does name is
nowhere, and that is what shows the damage.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from ebbtide.arrow import texts
from ebbtide.errors import Refused
from ebbtide.gc.frames import Batches
from ebbtide.gc.parts import ADDRESS_SCHEMA
from ebbtide.gc.relations.keys import KeyArray
from ebbtide.gc.relations.mark import Mark

SHOWN_MAX: Final = 20


def check_presence(mark: Mark, missing: KeyArray) -> None:
    """Refused `missing_object` when an address that must be there (with one of the keys that are
    `missing` from the listing) is not there now either: it may have been written after it."""
    if not len(missing):
        return
    storage = mark.place.storage

    def lost(batches: Batches) -> Batches:
        for batch in batches:
            addresses = [
                each for each in texts(batch.column("address")) if storage.head(each) is None
            ]
            yield pa.record_batch([pa.array(addresses, pa.string())], schema=ADDRESS_SCHEMA)

    found = sorted(
        set(texts(mark.addresses(missing).map(lost, ADDRESS_SCHEMA).collect().column(0)))
    )
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise Refused(
            "missing_object",
            f"a kept commit refers to {found[0]}, which is not at {storage.url}: either it was "
            f"lost, or the file that refers to it is damaged{more}",
            errors=found[:SHOWN_MAX],
        )
