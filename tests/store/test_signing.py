"""Signed tokens: what comes back, and everything else is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.errors import InvalidInput
from ebbtide.store.access.signed_tokens import SigningKey, sign, verify
from tests.support.collections import raises
from tests.support.randomized import examples, randomized

KEY = SigningKey("1" * 32, b"k" * 32)
OTHER = SigningKey("2" * 32, b"o" * 32)
KEYS = {KEY.key_id: KEY.secret, OTHER.key_id: OTHER.secret}
PAYLOAD = {"for": "upload", "path": "é/日本/😀", "expires": 2**62}
TOKEN = sign(KEY, PAYLOAD)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


def check_refused(token: str, keys: dict[str, bytes] = KEYS) -> None:
    with pytest.raises(InvalidInput) as caught:
        verify(keys, token)
    assert caught.value.kind in ("token_invalid", "token_truncated")
    assert "ask for a new one" in caught.value.message or "pass it on whole" in caught.value.message


@randomized("properties of values")
@examples("properties of values")
@given(st.dictionaries(st.text(), JSON, max_size=4), st.sampled_from([KEY, OTHER]))
def test_what_was_signed_comes_back(payload: dict[str, object], key: SigningKey) -> None:
    token = sign(key, payload)
    assert verify(KEYS, token) == payload
    assert token.isascii()
    assert not set(token) & set(" /+=&?#%"), "it can be part of a URL as it is"


def test_a_token_is_as_it_is_written_down() -> None:
    """Tokens of one version of this program are good in the next."""
    assert sign(KEY, {"a": 1}) == (
        "11111111111111111111111111111111.eyJhIjoxfQ.l0eqmwYQFJ6d1zBgqzJ22MfiaHfchMyouBnQZRlYQ0E"
    )


@randomized("properties of values")
@examples("properties of values")
@given(st.data())
def test_no_change_of_one_character_goes_through(data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(TOKEN) - 1))
    character = data.draw(st.characters() | st.sampled_from("ab._-=0"))
    changed = TOKEN[:place] + character + TOKEN[place + 1 :]
    if changed == TOKEN:
        assert verify(KEYS, changed) == PAYLOAD
    else:
        check_refused(changed)


@randomized("properties of values")
@examples("properties of values")
@given(st.integers(0, len(TOKEN) - 1), st.text(max_size=3))
def test_no_part_of_a_token_goes_through(length: int, tail: str) -> None:
    """One that is cut off is told from a forged one."""
    if TOKEN[:length] + tail != TOKEN:
        check_refused(TOKEN[:length] + tail)
    check_refused(TOKEN + (tail or "x"))
    check_refused(TOKEN[length + 1 :])
    forged = TOKEN[:-1] + ("A" if TOKEN[-1] != "A" else "Q")
    for kind, token in (("token_truncated", TOKEN[: length or 1]), ("token_invalid", forged)):
        with raises(kind):
            verify(KEYS, token)


def test_keys_and_payloads_that_are_mixed_up() -> None:
    """The mac is over the name of the key, too."""
    key_id, body, mac = TOKEN.split(".")
    _, other_body, other_mac = sign(KEY, PAYLOAD | {"path": "other"}).split(".")
    check_refused(f"{key_id}.{body}.{other_mac}")
    check_refused(f"{key_id}.{other_body}.{mac}")
    check_refused(f"{OTHER.key_id}.{body}.{mac}")
    check_refused(f"{OTHER.key_id}.{body}.{mac}", {OTHER.key_id: KEY.secret})
    for keys in ({OTHER.key_id: OTHER.secret}, {KEY.key_id: OTHER.secret}, {}):
        check_refused(TOKEN, keys)
    with raises("token_key_retired"):
        verify({KEY.key_id: None, OTHER.key_id: OTHER.secret}, TOKEN)


@randomized("properties of values")
@examples("properties of values")
@given(
    st.text(st.characters(categories=None), max_size=60)
    | st.text("0123456789abcdef.-_=", max_size=90)
)
def test_nonsense_is_refused(text: str) -> None:
    for token in (text, f"{KEY.key_id}.{text}", f"{KEY.key_id}.{text}.{text}", "A" * 100_000):
        check_refused(token)


def test_a_key_is_random_and_never_shown() -> None:
    keys = [SigningKey.generate() for _ in range(3)]
    assert len({key.secret for key in keys}) == len({key.key_id for key in keys}) == 3
    assert all(len(key.secret) == 32 for key in keys)
    assert "secret" not in repr(keys[0])
    assert repr(keys[0].secret) not in repr(keys[0])
