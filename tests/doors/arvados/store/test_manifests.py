"""Manifests: what is accepted, what is refused, and hashes, against a slow reading."""

from __future__ import annotations

import hashlib
import string
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.doors.arvados.store.manifests import (
    BLOCK_BYTES_MAX,
    EMPTY_BLOCK,
    parse_manifest,
    with_locators,
)
from tests.support.collections import raises
from tests.support.randomized import examples, randomized

FOO = "acbd18db4cc2f85cedef654fccc4a4d8+3"
BAR = "37b51d194a7513e45b56f6524f2d51f2+3"


@pytest.mark.parametrize(
    ("text", "files", "size_bytes"),
    [
        ("", 0, 0),
        (f". {FOO} 0:3:foo\n", 1, 3),
        (f". {FOO} {BAR} 2:2:across\n./dir {FOO} 0:3:x\n", 2, 5),
        (f". {FOO} 0:1:twice 2:1:twice\n", 1, 2),
        (f". {FOO} 0:3:dir/foo\n./dir {FOO} 0:3:foo\n", 1, 6),
        (f"./a\\040b {FOO} 0:3:c\\072d\\134\n", 1, 3),
        (f"./\\303\\274 {FOO} 0:3:\u00fc\u2028\n", 1, 3),
        (f". {EMPTY_BLOCK} 0:0:empty\n", 1, 0),
        (f"./empty {EMPTY_BLOCK} 0:0:\\056\n", 0, 0),
        (f". {FOO}+Eabc+A{'0' * 40}@5e000000 0:3:foo\n", 1, 3),
    ],
)
def test_good_ones(text: str, files: int, size_bytes: int) -> None:
    found = parse_manifest(text)
    assert (found.file_count, found.file_size_total) == (files, size_bytes)
    assert parse_manifest(found.text) == found if "+E" not in text else found.text != text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f". {FOO} 0:3:foo", "is cut off"),
        ("\n", "line 1 of the manifest begins with ''"),
        (".\n", "has no locator"),
        (f". {FOO}\n", "has no files"),
        (". 0:3:foo\n", "has no locator of a block after the name of the stream, but '0:3:foo'"),
        (f". {FOO.upper()} 0:3:foo\n", "has no locator"),
        (f". {FOO} 0:4:foo\n", "ends behind the 3 bytes"),
        (f". {FOO} 4:0:foo\n", "ends behind the 3 bytes"),
        (f". {FOO} 0:3:foo {BAR}\n", "where position:size:name is expected"),
        (f". {FOO} -1:3:x\n", "where position:size:name is expected"),
        (f"x {FOO} 0:3:foo\n", "the name of a stream is . or begins with ./"),
        (f"./ {FOO} 0:3:foo\n", "no part of it may be empty"),
        (f". {FOO} 0:3:\\056\\056\n", "no part of it may be empty"),
        (f". {FOO} 0:3:a\\000b\n", "no part of it may be empty"),
        (f". {FOO} 0:3:a\\8\n", "begins no escape"),
        (f". {FOO} 0:3:a\tb\n", "control character"),
        (f". {FOO[:32]}+{BLOCK_BYTES_MAX + 1} 0:3:foo\n", "has a block of more than"),
        (f". {FOO} 0:3:foo\n. {FOO} 0:9:foo\n", "line 2 of the manifest"),
        (f". {FOO} 0:3:\ud800\n", "no valid UTF-8"),
    ],
)
def test_bad_ones(text: str, message: str) -> None:
    with raises("invalid_manifest") as caught:
        parse_manifest(text)
    assert message in caught.value.message


def test_a_known_hash() -> None:
    # From the documentation of Arvados's manifest format.
    text = (
        ". 204e43b8a1185621ca55a94839582e6f+67108864 b9677abbac956bd3e86b1deb28dfac03+67108864 "
        "fc15aff2a762b13f521baf042140acec+67108864 323d2a3ce20370c4ca1d3462a344f8fd+25885655 "
        "0:227212247:var-GS000016015-ASM.tsv.bz2\n"
    )
    digest = hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
    assert parse_manifest(text).portable_data_hash == f"{digest}+{len(text)}"
    assert parse_manifest("").portable_data_hash == EMPTY_BLOCK


NAMES = st.text(
    st.sampled_from(string.ascii_letters + ".:-+ \\\n\t\u00fc\u2028\u3042\U0001f40d"), min_size=1
).filter(lambda name: name not in (".", ".."))
DIGESTS = st.integers(0, 2**128 - 1).map(lambda number: f"{number:032x}")
HINTS = st.lists(
    st.text(string.ascii_letters + string.digits + "@_-", max_size=9).map(lambda text: "K" + text),
    max_size=2,
)


def escaped(name: str) -> str:
    """As Arvados's clients write a name: an escape for each byte of a blank or a backslash."""
    return "".join(
        "".join(f"\\{octet:03o}" for octet in character.encode())
        if character in " \\\n\t"
        else character
        for character in name
    )


Drawn: TypeAlias = tuple[str, str, dict[str, list[int]], set[tuple[str, str]]]


@st.composite
def manifests(draw: st.DrawFn) -> Drawn:
    """A manifest, the one without hints, its pieces by path, and the locators."""
    whole, plain = "", ""
    pieces: dict[str, list[int]] = {}
    used: set[tuple[str, str]] = set()
    for parts in draw(st.lists(st.lists(NAMES, max_size=3), max_size=4)):
        stream = "/".join([".", *map(escaped, parts)])
        blocks = draw(st.lists(st.tuples(DIGESTS, st.integers(0, 5), HINTS), min_size=1))
        total = sum(size for _, size, _ in blocks)
        whole, plain = whole + stream, plain + stream
        for digest, size, hints in blocks:
            locator = "+".join([digest, str(size), *hints])
            used.add((f"{digest}+{size}", locator))
            whole, plain = f"{whole} {locator}", f"{plain} {digest}+{size}"
        for name in draw(st.lists(NAMES, min_size=1, max_size=4)):
            position = draw(st.integers(0, total))
            size = draw(st.integers(0, total - position))
            pieces.setdefault("/".join([".", *parts, name]), []).append(size)
            segment = f" {position}:{size}:{escaped(name)}"
            whole, plain = whole + segment, plain + segment
        whole, plain = whole + "\n", plain + "\n"
    return whole, plain, pieces, used


@randomized("manifests")
@examples("manifests")
@given(manifests())
def test_random_ones(drawn: Drawn) -> None:
    whole, plain, pieces, used = drawn
    found = parse_manifest(whole)
    assert found.text == plain
    assert found.file_count == len(pieces)
    assert found.file_size_total == sum(map(sum, pieces.values()))
    assert {(b, each) for b, named in found.locators.items() for each in named} == used
    digest = hashlib.md5(plain.encode(), usedforsecurity=False).hexdigest()
    assert found.portable_data_hash == f"{digest}+{len(plain.encode())}"
    signed = with_locators(plain, lambda block: f"{block}+Asigned")
    assert parse_manifest(signed).text == plain
    assert {each for named in parse_manifest(signed).locators.values() for each in named} == {
        f"{block}+Asigned" for block, _ in used
    }


@randomized("manifests")
@examples("manifests")
@given(manifests(), st.integers(0, 10**6), st.sampled_from(" \n\\:+/.A0\t"))
def test_random_damage(drawn: Drawn, at: int, character: str) -> None:
    """Whatever is damaged is either refused by name, or read in full."""
    whole = drawn[0] or ". "
    place = at % len(whole)
    damaged = whole[:place] + character + whole[place + 1 :]
    try:
        found = parse_manifest(damaged)
    except Exception as error:  # noqa: BLE001 - its kind is what is tested
        assert getattr(error, "kind", None) == "invalid_manifest", error
    else:
        assert parse_manifest(found.text).portable_data_hash == found.portable_data_hash
