"""Arvados's ids: `CLUSTER-KIND-NAME`, of five, five and fifteen characters.

Source: Arvados's documentation, "Common resource fields".
"""

from __future__ import annotations

import hashlib
import re
import secrets
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

_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_NAME_LENGTH: Final = 15
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


def root_uuid(cluster: str) -> str:
    """Returns the id of the user who owns what no user owns."""
    return f"{cluster}-{USER}-{'0' * _NAME_LENGTH}"


def kind_of(uuid: str) -> str | None:
    """Returns the middle part of an id, or None if `uuid` is no id."""
    found = _UUID.fullmatch(uuid)
    return None if found is None else found.group(1)


def _digits_of(text: str, length: int) -> str:
    number = int.from_bytes(hashlib.sha256(text.encode()).digest())
    digits = []
    for _ in range(length):
        number, digit = divmod(number, len(_DIGITS))
        digits.append(_DIGITS[digit])
    return "".join(digits)
