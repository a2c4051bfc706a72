"""Which files of a storage namespace are the server's, by their names: against the definition of
each name, which decodes it and writes it again."""

from __future__ import annotations

import base64
import re
import string
import uuid
from typing import Final

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.formats.lakefs.layout import LakefsLayout
from tests.support.near_names import joined, near
from tests.support.randomized import examples, randomized

DIGITS: Final = "0123456789abcdefghijklmnopqrstuv"


def xid(data: bytes) -> str:
    """An id of 12 bytes, as lakeFS's library of ids writes it: base32hex in lower case."""
    return base64.b32hexencode(data).decode().rstrip("=").lower()


def signature(data: bytes) -> str:
    """32 bytes in base64url without padding."""
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def is_xid(text: str) -> bool:
    if len(text) != 20 or not set(text) <= set(DIGITS):
        return False
    return xid(base64.b32hexdecode(text.upper() + "====")) == text


def is_signature(text: str) -> bool:
    if len(text) != 43 or re.fullmatch("[A-Za-z0-9_-]+", text) is None:
        return False
    return signature(base64.urlsafe_b64decode(text + "=")) == text


def is_staging_token(text: str) -> bool:
    """REPOSITORY-BRANCH:UUID or REPOSITORY-BRANCH-UUID."""
    name, mark, last = text[:-37], text[-37:-36], text[-36:]
    try:
        if mark not in (":", "-") or str(uuid.UUID(last)) != last:
            return False
    except ValueError:
        return False
    return any(
        re.fullmatch("[a-z0-9][a-z0-9-]{2,62}", name[:at])
        and re.fullmatch("[A-Za-z0-9_][A-Za-z0-9_-]*", name[at + 1 :])
        for at, character in enumerate(name)
        if character == "-"
    )


def is_object(address: str) -> bool:
    top, *names = address.split("/")
    if top != "data" or len(names) not in (2, 4):
        return False
    if len(names) == 4:
        first, second, *names = names
        if not (re.fullmatch("![0-9A-Za-z]{2}", first) and re.fullmatch("[0-9A-Za-z]", second)):
            return False
    elif is_staging_token(names[0]):
        return re.fullmatch("[A-Za-z0-9_-]{21}", names[1]) is not None
    object_id, comma, signed = names[1].partition(",")
    return is_xid(names[0]) and is_xid(object_id) and (not comma or is_signature(signed))


def kind_of(address: str) -> str:
    if is_object(address):
        return "object"
    before, mark, number = address.rpartition("#")
    if mark and re.fullmatch("[0-9]+", number) and is_object(before):
        return "temporary"
    if address == "dummy" or re.match("(?:_lakefs|_ebbtide)/(?s:.)", address):
        return "system"
    return "foreign"


XIDS = st.binary(min_size=12, max_size=12).map(xid)
SIGNATURES = st.binary(min_size=32, max_size=32).map(signature)
UUIDS = st.uuids().map(str)
TOKENS = joined(
    st.sampled_from(["lake-main", "my-lake-x_Y-1", "a0b-_"]), st.sampled_from(":-"), UUIDS
)
NANOIDS = st.text("0189azAZ_-", min_size=21, max_size=21)
SHARDS = st.just("") | joined("!", st.sampled_from(["ab/c/", "0Z/9/"]))
NAMES = st.one_of(
    joined("data/", SHARDS, XIDS, "/", XIDS),
    joined("data/", XIDS, "/", XIDS, ",", SIGNATURES),
    joined("data/", XIDS, "/", XIDS, "#", st.integers(0).map(str)),
    joined("data/", TOKENS, "/", NANOIDS),
    joined("data/inner/data/", XIDS, "/", XIDS),
    joined("_lakefs/", st.binary(min_size=32, max_size=32).map(bytes.hex)),
    st.sampled_from(["dummy", "data/raw/customers.csv", "data/README.txt", "_ebbtide/OWNER"]),
)


@randomized("properties of values")
@examples("properties of values")
@given(st.lists(near(NAMES), min_size=1, max_size=20))
def test_the_kind_of_a_name(addresses: list[str]) -> None:
    found = LakefsLayout(()).classify(pa.array(addresses, pa.string())).to_pylist()
    assert dict(zip(addresses, found, strict=True)) == {each: kind_of(each) for each in addresses}


@pytest.mark.parametrize(
    "address",
    [
        "data/gqv3epl4fd2o8m3men70/ce8co454fd2o8m3menag",
        "data/gqv3epl4fd2o8m3men70/ce8co454fd2o8m3menag,YHNd_1AhUyf-YgDDu-TNPCTZGvGI1Q8nqZMN3sZSJ1s",
        "data/!ab/c/bpel26ce4m36oefv1600/ce8co454fd2o8m3menag",
        "data/gc-migrate-lakefs-0-40-1:b40b9540-91f0-4add-96ba-205f17e03c57/77I_VsbUg1vU05hWRnTlw",
    ],
)
def test_names_that_servers_of_several_versions_made(address: str) -> None:
    assert kind_of(address) == "object"
    assert LakefsLayout(()).classify(pa.array([address])).to_pylist() == ["object"]


def test_a_name_with_one_character_replaced() -> None:
    """Each place of an address, by each digit and letter."""
    name = "data/gqv3epl4fd2o8m3men70/ce8co454fd2o8m3menag"
    found = [
        f"{name[:place]}{character}{name[place + 1 :]}"
        for place in range(len("data/"), len(name))
        for character in string.digits + string.ascii_lowercase
    ]
    kinds = [kind_of(each) for each in found]
    assert {*kinds} == {"object", "foreign"}
    assert LakefsLayout(()).classify(pa.array(found)).to_pylist() == kinds
