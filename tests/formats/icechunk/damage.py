"""Ways to damage a file, and what becomes of a manifest whose bits change one by one."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from ebbtide.formats.icechunk.files import DamagedError, UnknownFieldError, UnknownVersionError
from ebbtide.formats.icechunk.snapshots import manifest_chunks
from tests.support.icechunk_files import slow_manifest

REFUSALS = (DamagedError, UnknownFieldError, UnknownVersionError)
CHANGES = 250
"""How many changes of one file a test tries in one case."""


def flips(
    data: bytes, seed: int, *, places: Iterable[int] | None = None
) -> Iterator[tuple[int, bytes]]:
    """The data with some bits changed, one at a time, and which one that is. `places` are the
    bytes to choose from; all, if none are given."""
    chosen = range(len(data)) if places is None else places
    bits = [8 * place + bit for place in chosen for bit in range(8)]
    for bit in random.Random(seed).sample(bits, min(CHANGES, len(bits))):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        yield bit, bytes(changed)


def rewrites(data: bytes, seed: int) -> Iterator[bytes]:
    """The data with some bytes changed, cut out, or put in."""
    choices = random.Random(seed)
    for _ in range(CHANGES):
        changed = bytearray(data)
        for _ in range(choices.randint(1, 3)):
            place = choices.randrange(len(changed))
            piece = choices.randbytes(choices.choice((0, 1, 1, 1, 2, 8)))
            changed[place : place + choices.choice((0, 1, 1, 1, 2, 8))] = piece
        yield bytes(changed)


def refused(read: Callable[[], object], counts: Counter[str]) -> bool:
    """Whether it is, counting it either way."""
    try:
        read()
    except REFUSALS as error:
        counts[type(error).__name__] += 1
        return True
    counts["read"] += 1
    return False


def survey(
    payload: bytes, seed: int, *, places: Iterable[int] | None = None
) -> tuple[Counter[str], list[str]]:
    """What some changed bits do to a manifest, and which of them hide a chunk."""
    manifest_id, count, addresses = slow_manifest(payload)
    expected, counts, hidden = set(addresses), Counter[str](), []
    for bit, changed in flips(payload, seed, places=places):
        try:
            found = set(manifest_chunks(changed, manifest_id, entry_count=count).to_pylist())
        except REFUSALS:
            counts["refused"] += 1
            continue
        if found == expected:
            counts["the same chunks"] += 1
        elif found - expected:
            counts["a chunk that is not there"] += 1
        else:
            hidden.append(f"{bit // 8}.{bit % 8} hides {len(expected - found)}")
    return counts, hidden
