"""Roots of other repositories among the files of one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.errors import Refused
from ebbtide.formats.icechunk.ids import id_text, new_id_text
from ebbtide.formats.roots import check_unowned, is_ended, roots_among
from ebbtide.storage import open_storage
from ebbtide.store.content.layout import OWNER_ADDRESS
from tests.support.near_names import joined, near
from tests.support.randomized import examples, randomized

SIGNS = {
    OWNER_ADDRESS: "a repository of an Ebbtide store",
    "_lakefs/dummy": "the storage namespace of a lakeFS repository",
}
IDS = st.binary(min_size=12, max_size=12).map(id_text)
HASHES = st.binary(min_size=32, max_size=32).map(bytes.hex)
PLACES = st.sampled_from(["", "inner/", "data/inner/", "a/_lakefs/x/", "snapshots/", "a\n/"])
NAMES = joined(
    PLACES,
    st.one_of(
        st.sampled_from([*SIGNS]), joined("snapshots/", IDS), joined("_lakefs/", HASHES), IDS
    ),
)


def places_of(address: str) -> set[str]:
    """Every prefix below which the address shows a root."""
    places = {""} | {address[: at + 1] for at, each in enumerate(address) if each == "/"}
    return {each for each in places if is_sign(address.removeprefix(each))}


def is_sign(name: str) -> bool:
    folder, _, rest = name.partition("/")
    if folder == "snapshots":
        return (
            len(rest) == 20
            and rest[:19].strip("0123456789ABCDEFGHJKMNPQRSTVWXYZ") == ""
            and (rest[19] in "0G")
        )
    if folder == "_lakefs":
        return rest == "dummy" or (len(rest) == 64 and rest.strip("0123456789abcdef") == "")
    return name == OWNER_ADDRESS


@randomized("properties of values")
@examples("properties of values")
@given(st.lists(near(NAMES), max_size=10))
def test_the_root_that_a_file_shows(addresses: list[str]) -> None:
    found = [(root.address, root.place) for root in roots_among(pa.array(addresses, pa.string()))]
    wanted = [(each, places_of(each)) for each in addresses]
    assert found == [(each, min(places, key=len)) for each, places in wanted if places]


@pytest.mark.parametrize("sign", [*SIGNS, f"snapshots/{new_id_text()}"], ids=[*SIGNS, "snapshot"])
def test_a_root_is_told_by_its_kind(sign: str) -> None:
    (root,) = roots_among(pa.array([f"below/{sign}"]))
    assert (root.place, root.what) == ("below/", SIGNS.get(sign, "an Icechunk repository"))


def test_tables_of_other_programs_are_no_roots() -> None:
    """lakeFS exports such tables into its own namespace; no run deletes files of such names."""
    names = ["t/_delta_log/00000000000000000000.json", "t/metadata/v1.metadata.json", "t/repo"]
    assert [*roots_among(pa.array(names))] == []


OWNERS: dict[str, tuple[Callable[[], bytes], bool]] = {
    "open": (lambda: json.dumps({"format": 1}).encode(), False),
    "closed": (lambda: json.dumps({"format": 1, "closed": True}).encode(), True),
    "damaged": (lambda: b"{", False),
    "of another form": (lambda: b"[]", False),
}


@pytest.mark.parametrize("name", OWNERS)
def test_an_owner_counts_until_its_repository_has_ended(tmp_path: Path, name: str) -> None:
    storage = open_storage(str(tmp_path))
    check_unowned(storage)
    content, ended = OWNERS[name]
    storage.put(OWNER_ADDRESS, content())
    (root,) = roots_among(pa.array([OWNER_ADDRESS]))
    assert is_ended(storage, root) == ended
    if ended:
        check_unowned(storage)
        return
    with pytest.raises(Refused, match=r"is the root of this repository.*Nothing was deleted"):
        check_unowned(storage)
