"""The gate of presence: checks that the files of kept commits are on the storage.

It is for formats whose nodes have no checksums. A damaged node may name a wrong address. The right
address then seems not to be live. But no file exists at the wrong address, and this shows the
damage.
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
    """Raises Refused `missing_object` if a required file is not on the storage.

    `missing` are the keys of the required addresses that were not listed. Each of these files is
    looked up, because it may have been written after the listing.
    """
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
