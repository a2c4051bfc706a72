"""Gates: checks that can refuse a run before anything is deleted.

A refusal is the error Refused (exit code 3). Its message names the finding and the remedy.
`check_grace` is not a gate but a check of options. All are pure functions except `check_presence`,
which looks for the files of kept commits on the storage.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import pyarrow as pa

from ebbtide.arrow import texts
from ebbtide.durations import format_duration
from ebbtide.errors import InvalidInput, Refused
from ebbtide.formats.base import Identity
from ebbtide.gc.counts import Count
from ebbtide.gc.engines.base import Batches
from ebbtide.gc.parts import ADDRESS_SCHEMA
from ebbtide.gc.relations.keys import KeyArray
from ebbtide.gc.relations.live import Mark
from ebbtide.retention.decision import Roots
from ebbtide.text import count_text


def check_grace(grace: timedelta, *, grace_min: timedelta, reason: str, unsafe: bool) -> None:
    """Raises InvalidInput `unsafe_grace` if the grace is negative, or if it is below `grace_min`
    and not `unsafe`. The message gives the `reason` for the minimum."""
    if grace < timedelta(0):
        raise InvalidInput("unsafe_grace", "the grace must not be negative")
    if grace < grace_min and not unsafe:
        raise InvalidInput(
            "unsafe_grace",
            f"a grace of {format_duration(grace)} is shorter than {format_duration(grace_min)} "
            f"({reason}): files that are being read or were just written could be deleted. Use a "
            "longer grace, or add --unsafe on a quiet repository",
        )


def check_not_empty(roots: Roots, *, listed_count: int) -> None:
    """Raises Refused `zero_commits` or `zero_refs` if the storage has files, and the metadata has
    no commits or no refs."""
    if not listed_count:
        return
    if not roots.commits:
        raise Refused(
            "zero_commits",
            "the database has no commits, but the storage holds "
            f"{count_text(listed_count, 'file')}: it is the wrong database or an emptied one; "
            "nothing is collected",
        )
    if not roots.refs:
        raise Refused(
            "zero_refs",
            "the repository has no branches or tags, but the storage holds "
            f"{count_text(listed_count, 'file')}: create or restore a branch first; nothing is "
            "collected",
        )


def check_share(candidates: Count, listed: Count, *, share_max: float) -> Refused | None:
    """Returns Refused `over_share`, for the plan to record, if too large a share of the files or
    bytes are candidates. Ignores bytes if the size of some listed files is unknown."""
    shares = (
        ("files", candidates.objects, listed.objects),
        ("bytes", candidates.bytes_total, listed.bytes_total),
    )
    for what, part, whole in shares[: 2 if listed.sized else 1]:
        if whole and part / whole > share_max:
            return Refused(
                "over_share",
                f"{part:,} of {whole:,} {what} ({part / whole:.0%}) would be deleted, more than "
                f"the allowed {share_max:.0%}: look at the plan, and if it is right, sweep it with "
                "--allow-share",
            )
    return None


def check_identity(planned: Identity, actual: Identity) -> None:
    """Raises Refused `plan_foreign` if a plan was made for another repository or store."""
    same = (planned.format_name, planned.store_id) == (actual.format_name, actual.store_id)
    if not same or planned.repository_id not in (actual.repository_id, actual.former_id):
        raise Refused(
            "plan_foreign",
            f"the plan was made for repository {planned.repository_name} "
            f"({planned.store_id}/{planned.repository_id}), this is {actual.repository_name} "
            f"({actual.store_id}/{actual.repository_id}): sweep a plan of this repository",
        )


SHOWN_MAX: Final = 20


def check_presence(mark: Mark, missing: KeyArray) -> None:
    """Raises Refused `missing_object` if a required file is not on the storage.

    `missing` are the keys of the required addresses that were not listed. Each of these files is
    looked up, because it may have been written after the listing.

    This is for formats whose nodes have no checksums. If a damaged node names a wrong address, the
    right address seems not to be live. The gate finds the damage, because no file exists at the
    wrong address.
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
