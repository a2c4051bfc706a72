"""Which files are an Icechunk repository's, by their names: against the definition of each name."""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.formats.icechunk.ids import id_bytes, id_text
from ebbtide.formats.icechunk.layout import IcechunkLayout
from tests.support.near_names import joined, near
from tests.support.randomized import examples, randomized

FOLDERS: Final = {
    "snapshots": "snapshot",
    "manifests": "manifest",
    "chunks": "chunk",
    "transactions": "transaction_log",
}


def is_id(text: str) -> bool:
    try:
        return id_text(id_bytes(text)) == text
    except ValueError:
        return False


def collected(address: str) -> str | None:
    folder, _, name = address.partition("/")
    if folder in FOLDERS:
        return FOLDERS[folder] if is_id(name) else None
    for file in ("repo", "config.yaml"):
        parts = name.removeprefix(f"{file}.").split(".")
        if folder == "overwritten" and name.startswith(f"{file}.") and len(parts) == 2:
            return "backup" if re.fullmatch("[0-9]{14}", parts[0]) and is_id(parts[1]) else None
    return None


def kind_of(address: str) -> str:
    kind = collected(address)
    if kind is not None:
        return kind
    before, mark, number = address.rpartition("#")
    if mark and re.fullmatch("[0-9]+", number) and (collected(before) or before == "repo"):
        return "temporary"
    parts = address.split("/")
    if len(parts) == 3 and parts[0] == "refs" and parts[2] in ("ref.json", "ref.json.deleted"):
        kind, _, name = parts[1].partition(".")
        if kind in ("branch", "tag") and name:
            return "system"
    if address in ("repo", "config.yaml") or re.match("_ebbtide/(?s:.)", address):
        return "system"
    return "foreign"


IDS = st.binary(min_size=12, max_size=12).map(id_text)
NAMES = st.one_of(
    joined(st.sampled_from([f"{each}/" for each in FOLDERS]), IDS),
    joined(st.sampled_from(["chunks/inner/chunks/", "data/chunks/", "snapshots/x/"]), IDS),
    joined(st.sampled_from(["chunks/", "manifests/"]), IDS, "#", st.integers(0).map(str)),
    joined("overwritten/", st.sampled_from(["repo.", "config.yaml."]), "20300101000000.", IDS),
    joined("refs/", st.sampled_from(["branch.", "tag."]), "a", "/ref.json"),
    st.sampled_from(["repo", "config.yaml", "repo#1", "_ebbtide/gc/LEASE", "zarr.json"]),
)


@randomized("properties of values")
@examples("properties of values")
@given(st.lists(near(NAMES), min_size=1, max_size=20))
def test_the_kind_of_a_name(addresses: list[str]) -> None:
    found = IcechunkLayout().classify(pa.array(addresses, pa.string())).to_pylist()
    assert dict(zip(addresses, found, strict=True)) == {each: kind_of(each) for each in addresses}
