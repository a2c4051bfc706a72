"""Arvados's ids: `CLUSTER-KIND-NAME`, of five, five and fifteen characters.

The name of a project's or link's id is the first 76 bits of the store's id, in base 36. So ids of
both forms sort alike, and neither needs a column. Source: Arvados's documentation, "Common resource
fields".
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable
from typing import Final

COLLECTION: Final = "4zz18"
GROUP: Final = "j7d0g"
KEEP_SERVICE: Final = "bi6l4"
LINK: Final = "o0j2j"
USER: Final = "tpzed"
KINDS: Final = {
    COLLECTION: "arvados#collection",
    GROUP: "arvados#group",
    KEEP_SERVICE: "arvados#keepService",
    LINK: "arvados#link",
    USER: "arvados#user",
}
"""The names of kinds in records, by the middle part of an id."""

UUID_LENGTH: Final = 27

_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_NAME_LENGTH: Final = 15
_HEX_LENGTH: Final = 19
"""Digits of the store's ids that fit into fifteen digits of base 36."""
_IDS: Final = 16**_HEX_LENGTH
_LAST: Final = "g"
"""Sorts after all ids of the store."""
_UUID: Final = re.compile(r"[0-9a-z]{5}-([0-9a-z]{5})-[0-9a-z]{15}")


def cluster_of(repository_id: str) -> str:
    """Returns the first part of all ids of a repository. It never changes."""
    return _digits_of(f"cluster {repository_id}", 5)


def new_uuid(cluster: str, kind: str) -> str:
    """Returns a random id of a kind, such as `COLLECTION`."""
    name = "".join(secrets.choice(_DIGITS) for _ in range(_NAME_LENGTH))
    return f"{cluster}-{kind}-{name}"


def derived_uuid(cluster: str, kind: str, item_id: str) -> str:
    """Returns the id that always belongs to `item_id`, such as an access key's id."""
    return f"{cluster}-{kind}-{_digits_of(f'{kind} {item_id}', _NAME_LENGTH)}"


def user_uuid(cluster: str, access_key_id: str) -> str:
    """Returns the id of the user of an access key."""
    return derived_uuid(cluster, USER, access_key_id)


def home_prefix(cluster: str) -> str:
    """Returns the beginning of the ids of users. A home project has such an id as its name."""
    return f"{cluster}-{USER}-"


def root_uuid(cluster: str) -> str:
    """Returns the id of the user who owns what no user owns."""
    return f"{cluster}-{USER}-{'0' * _NAME_LENGTH}"


def uuid_of(cluster: str, kind: str, item_id: str) -> str:
    """Returns the id of an item of the store, such as a project."""
    return _uuid_at(cluster, kind, int(item_id[:_HEX_LENGTH], 16))


def first_id(cluster: str, kind: str, is_before: Callable[[str], bool]) -> str:
    """Returns the lower bound of the store's ids whose Arvados's ids are not `is_before`.

    `is_before` holds for the ids that sort before some place. An item is at or after this place if
    its id is at or after the bound.
    """
    low, high = 0, _IDS
    while low < high:
        middle = (low + high) // 2
        if is_before(_uuid_at(cluster, kind, middle)):
            low = middle + 1
        else:
            high = middle
    return f"{low:0{_HEX_LENGTH}x}" if low < _IDS else _LAST


def kind_of(uuid: str) -> str | None:
    """Returns the middle part of an id, or None if `uuid` is no id."""
    found = _UUID.fullmatch(uuid)
    return None if found is None else found.group(1)


def _uuid_at(cluster: str, kind: str, number: int) -> str:
    return f"{cluster}-{kind}-{_base36(number, _NAME_LENGTH)}"


def _digits_of(text: str, length: int) -> str:
    return _base36(int.from_bytes(hashlib.sha256(text.encode()).digest()), length)


def _base36(number: int, length: int) -> str:
    """Returns the last `length` digits of a number in base 36."""
    digits = []
    for _ in range(length):
        number, digit = divmod(number, len(_DIGITS))
        digits.append(_DIGITS[digit])
    return "".join(reversed(digits))
