"""Signatures of blocks: what they name, and those that are no good."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from ebbtide.doors.arvados.store.blocks import BlockObject, BlockSigner, verify_block
from ebbtide.errors import EbbtideError
from ebbtide.store.access.signed_tokens import SigningKey
from tests.support.collections import raises

ENDS_AT = datetime(2027, 1, 1, tzinfo=UTC)
KEY = SigningKey.generate()
FOO = BlockObject("acbd18db4cc2f85cedef654fccc4a4d8+3", "ab" * 32, "data/slice/object")
KEYS = {KEY.key_id: KEY.secret}


def signed(holder: str = "EBBTA", repository_id: str = "r1", ends_at: datetime = ENDS_AT) -> str:
    return BlockSigner(KEY, repository_id, holder, ends_at).sign(FOO)


def hints(locator: str) -> list[str]:
    return locator.split("+")[2:]


def test_order_of_hints_and_unknown_ones() -> None:
    named, signature = hints(signed())
    for others in ((signature, named), (signature, "Kabc", named), ("Zx", named, signature)):
        assert verify_block(KEYS, "r1", "EBBTA", "+".join([FOO.block, *others]))


def test_each_changed_character() -> None:
    locator = signed()
    for place, character in enumerate(locator):
        changed = "1" if character != "1" else "2"
        with pytest.raises(EbbtideError) as caught:
            verify_block(KEYS, "r1", "EBBTA", locator[:place] + changed + locator[place + 1 :])
        assert caught.value.kind in ("token_invalid", "token_truncated"), place


def test_it_names_the_object_and_its_end() -> None:
    locator = signed(ends_at=ENDS_AT + timedelta(milliseconds=999))
    found = verify_block(KEYS, "r1", "EBBTA", locator)
    assert (found.address, found.checksum, found.size_bytes) == (FOO.address, FOO.checksum, 3)
    assert found.expires_at == ENDS_AT, "a full second, and never later than promised"
    late = signed(ends_at=datetime(2200, 1, 1, tzinfo=UTC))
    assert late.endswith("@ffffffff"), "clients cannot read a later end"
    assert verify_block(KEYS, "r1", "EBBTA", late).expires_at.year == 2106


def test_others_and_parts_of_it() -> None:
    named, signature = hints(signed())
    for kind, repository_id, holder, locator in (
        ("token_invalid", "r2", "EBBTA", signed()),
        ("token_invalid", "r1", "EBBTB", signed()),
        ("token_invalid", "r1\nE", "BBTA", signed()),
        ("token_invalid", "r1", "EBBTA", FOO.block),
        ("token_invalid", "r1", "EBBTA", "foo"),
        ("token_truncated", "r1", "EBBTA", f"{FOO.block}+{named}"),
        ("token_truncated", "r1", "EBBTA", f"{FOO.block}+{signature}"),
        ("token_invalid", "r1", "EBBTA", f"{FOO.block}+{named}+{signature}+{signature}"),
        ("token_invalid", "r1", "EBBTA", f"{FOO.block}+E+{signature}"),
        ("token_invalid", "r1", "EBBTA", f"{FOO.block}+E@@@+{signature}"),
    ):
        with raises(kind):
            verify_block(KEYS, repository_id, holder, locator)
    for kind, keys in (("token_key_retired", {KEY.key_id: None}), ("token_invalid", {})):
        with raises(kind):
            verify_block(keys, "r1", "EBBTA", signed())


def test_a_cut_signature() -> None:
    for length in range(1, len(hints(signed())[1])):
        with raises("token_truncated"):
            verify_block(KEYS, "r1", "EBBTA", signed()[:-length])
