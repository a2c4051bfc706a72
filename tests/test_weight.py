"""The size of a plain installation, which docs/install.md promises to be below 300 MB."""

from __future__ import annotations

import re
from functools import cache
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement

BYTES_MAX: Final = 300 * 2**20
BLOCK: Final = 4096
"""Files use whole blocks of a disk, as `du` counts them."""
PLAIN: Final = "ebbtide"
OWN: Final = Path(__file__).parents[1] / "src"


def name_of(text: str) -> str:
    """A distribution's name in its normal form (PEP 503)."""
    return re.sub(r"[-_.]+", "-", text).lower()


def needed_by(name: str) -> set[str]:
    """The distributions that a plain installation of a distribution brings, without extras."""
    found: set[str] = set()
    waiting = [Requirement(name)]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        asked = waiting.pop()
        key = (name_of(asked.name), frozenset(asked.extras))
        if key in seen:
            continue
        seen.add(key)
        found.add(key[0])
        for text in known(asked.name).requires or []:
            each = Requirement(text)
            places = [{"extra": extra} for extra in ("", *asked.extras)]
            if each.marker is None or any(each.marker.evaluate(place) for place in places):
                waiting.append(each)
    return found


@cache
def known(name: str) -> Distribution:
    return distribution(name)


def blocks(path: Path) -> int:
    return -(-path.stat().st_size // BLOCK) * BLOCK


def size_of(name: str) -> int:
    """The bytes of a distribution's files, without bytecode. Ebbtide itself is installed in
    editable form here, so that its sources count."""
    if name == PLAIN:
        paths = [each for each in OWN.rglob("*") if each.is_file()]
    else:
        paths = [Path(str(each.locate())) for each in known(name).files or []]
    return sum(blocks(each) for each in paths if each.suffix != ".pyc" and each.exists())


def test_a_plain_installation_is_below_300_mb() -> None:
    sizes = {name: size_of(name) for name in needed_by(PLAIN)}
    assert sizes["pyarrow"] > 100 * 2**20, "files are counted"
    assert not sizes.keys() & {"pyspark", "fastapi", "icechunk", "boto3"}, "extras are not"
    total = sum(sizes.values())
    largest = sorted(((size >> 20, name) for name, size in sizes.items()), reverse=True)[:8]
    assert total < BYTES_MAX, f"{total / 2**20:.0f} MB; the largest: {largest}"
