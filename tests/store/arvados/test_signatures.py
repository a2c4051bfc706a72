"""Signatures of blocks: what they name, and those that are no good."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from ebbtide.errors import EbbtideError
from ebbtide.store.access.signing import SigningKey
from ebbtide.store.arvados.signatures import BlockObject, BlockSigner, verify_block
from tests.support.collections import raises

ENDS_AT = datetime(2027, 1, 1, tzinfo=UTC)
KEY = SigningKey.generate()
FOO = BlockObject("acbd18db4cc2f85cedef654fccc4a4d8+3", "ab" * 32, "data/slice/object")
KEYS = {KEY.key_id: KEY.secret}


def signed(holder: str = "EBBTA", repository_id: str = "r1", ends_at: datetime = ENDS_AT) -> str:
    return BlockSigner(KEY, repository_id, holder, ends_at).sign(FOO)


def hints(locator: str) -> list[str]:
    return locator.split("+")[2:]


def test_it_names_the_object_and_its_end() -> None:
    locator = signed(ends_at=ENDS_AT + timedelta(milliseconds=999))
    found = verify_block(KEYS, "r1", "EBBTA", locator)
    assert (found.address, found.checksum, found.size_bytes) == (FOO.address, FOO.checksum, 3)
    assert found.expires_at == ENDS_AT, "a full second, and never later than promised"


def test_an_end_that_clients_cannot_read() -> None:
    locator = signed(ends_at=datetime(2200, 1, 1, tzinfo=UTC))
    assert locator.endswith("@ffffffff")
    assert verify_block(KEYS, "r1", "EBBTA", locator).expires_at.year == 2106


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


def test_others_cannot_use_it() -> None:
    for repository_id, holder in (("r2", "EBBTA"), ("r1", "EBBTB"), ("r1\nE", "BBTA")):
        with raises("token_invalid"):
            verify_block(KEYS, repository_id, holder, signed())


def test_a_cut_signature() -> None:
    for length in range(1, len(hints(signed())[1])):
        with raises("token_truncated"):
            verify_block(KEYS, "r1", "EBBTA", signed()[:-length])


def test_without_one_of_the_hints() -> None:
    named, signature = hints(signed())
    for kind, locator in (
        ("token_invalid", FOO.block),
        ("token_invalid", "foo"),
        ("token_truncated", f"{FOO.block}+{named}"),
        ("token_truncated", f"{FOO.block}+{signature}"),
        ("token_invalid", f"{FOO.block}+{named}+{signature}+{signature}"),
        ("token_invalid", f"{FOO.block}+E+{signature}"),
        ("token_invalid", f"{FOO.block}+E@@@+{signature}"),
    ):
        with raises(kind):
            verify_block(KEYS, "r1", "EBBTA", locator)


def test_keys() -> None:
    with raises("token_key_retired"):
        verify_block({KEY.key_id: None}, "r1", "EBBTA", signed())
    with raises("token_invalid"):
        verify_block({}, "r1", "EBBTA", signed())
