"""Small files that Ebbtide keeps beside a repository without a database, under `_ebbtide/`.

The policy, for formats that have no place of their own for it. And holds, which say until when each
commit stays, whatever the policy says: an undo holds the commits that it restores. Not for: holds
that users set (`holds`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Final

from pydantic import AwareDatetime, TypeAdapter, ValidationError

from ebbtide.errors import Conflict, Failed, NotFound, Refused
from ebbtide.retention import Policy
from ebbtide.storage import Storage
from ebbtide.strict_json import read_document

POLICY_ADDRESS: Final = "_ebbtide/policy.json"
HOLDS_ADDRESS: Final = "_ebbtide/gc/reopened.json"
_DATES: Final = TypeAdapter(dict[str, AwareDatetime])
WRITES_MAX: Final = 20
"""The most attempts to write a file, while other writers are faster."""


def rewrite(storage: Storage, address: str, change: Callable[[bytes | None], bytes]) -> None:
    """Replaces a file by what `change` makes of its content; None stands for no file. No change of
    another writer is lost.

    `change` can be called several times. Raises what `change` raises; Conflict `object_changed` or
    `object_exists` if other writers were faster each time; Failed `storage_unconditional`.
    """
    for attempt in range(1, WRITES_MAX + 1):
        data: bytes | None = None
        version: str | None = None
        with suppress(NotFound):
            data, version = storage.get_versioned(address)
        try:
            put_if(storage, address, change(data), version)
            return
        except Conflict:
            if attempt == WRITES_MAX:
                raise


def put_if(storage: Storage, address: str, data: bytes, version: str | None) -> None:
    """Writes a file that still has this version, or does not exist if the version is None. Raises
    Conflict otherwise."""
    if version is None:
        storage.put(address, data, create_only=True)
    else:
        storage.replace(address, data, version=version)


@contextmanager
def as_written(storage: Storage, address: str, otherwise: str) -> Iterator[None]:
    """Raises ValueError, also one of pydantic's, as Refused `plan_corrupt`: a file that this
    program wrote is damaged. `otherwise` says what to do without a backup of the file."""
    try:
        yield
    except (ValueError, RecursionError) as error:
        told = str(error)
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            told = f"{'.'.join(map(str, first['loc'])) or 'JSON'}: {first['msg']}"
        raise Refused(
            "plan_corrupt",
            f"{storage.url}/{address} is not as it was written ({told}): restore it from a backup, "
            f"or {otherwise}",
        ) from error


def read_dates(data: bytes) -> dict[str, datetime]:
    """Returns what `dates_text` wrote. Raises ValueError."""
    return _DATES.validate_json(data, strict=True)


def dates_text(dates: Mapping[str, datetime]) -> bytes:
    """Returns dates by name as JSON."""
    content = {name: date.isoformat() for name, date in sorted(dates.items())}
    return json.dumps(content, indent=1).encode()


def read_holds(storage: Storage, now: datetime) -> dict[str, datetime]:
    """Returns until when each commit is held, without holds that have ended.

    Raises Refused `plan_corrupt` if the file is not as it was written: then the holds are unknown.
    """
    data: bytes | None = None
    with suppress(NotFound):
        data = storage.get(HOLDS_ADDRESS)
    return _holds(storage, data, now)


def _holds(storage: Storage, data: bytes | None, now: datetime) -> dict[str, datetime]:
    otherwise = "delete it if no commit that an undo restored is needed"
    with as_written(storage, HOLDS_ADDRESS, otherwise):
        found = {} if data is None else read_dates(data)
    return {name: until for name, until in found.items() if until > now}


def write_holds(
    storage: Storage, commit_ids: Collection[str], *, until: datetime, now: datetime
) -> None:
    """Holds commits until `until`, besides the holds of others. Raises Refused `plan_corrupt`, and
    as `rewrite` does."""

    def change(data: bytes | None) -> bytes:
        return dates_text(_holds(storage, data, now) | dict.fromkeys(commit_ids, until))

    rewrite(storage, HOLDS_ADDRESS, change)


def read_policy(storage: Storage) -> Policy | None:
    """Returns the policy beside the repository; None if there is none. Raises InvalidInput
    `invalid_policy`; Failed."""
    try:
        return _policy(storage, storage.get(POLICY_ADDRESS))
    except NotFound:
        return None


def _policy(storage: Storage, text: bytes) -> Policy:
    where = f"{storage.url}/{POLICY_ADDRESS}"
    return Policy.parse(read_document(text, kind="invalid_policy", what=where))


def write_policy(storage: Storage, policy: Policy | None) -> None:
    """Writes the policy beside the repository; None removes it. Raises Failed."""
    if policy is not None:
        storage.put(POLICY_ADDRESS, _policy_text(policy))
        return
    (answer,) = storage.delete([POLICY_ADDRESS])
    if answer.outcome == "failed":
        raise Failed(
            "storage_error", f"{storage.url}/{POLICY_ADDRESS} was not deleted: {answer.error}"
        )


def change_policy(storage: Storage, change: Callable[[Policy], Policy]) -> Policy:
    """Writes the policy that `change` makes of the present one, or of one without rules. Returns
    what is written. Raises as `rewrite` does, and InvalidInput `invalid_policy`."""
    changed = Policy()

    def written(text: bytes | None) -> bytes:
        nonlocal changed
        changed = change(Policy() if text is None else _policy(storage, text))
        return _policy_text(changed)

    rewrite(storage, POLICY_ADDRESS, written)
    return changed


def _policy_text(policy: Policy) -> bytes:
    return json.dumps(policy.to_mapping(), indent=1).encode()
