"""The policy of a lakeFS repository: Ebbtide's policy beside the repository, or else lakeFS's own
rules.

lakeFS's rules count whole days, and have no rule for tags: lakeFS's own job deletes the data of
commits that only tags name. Here tags keep their commits, unless a policy says otherwise. Source:
lakeFS issue 1932.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from ebbtide.documents import read_document
from ebbtide.errors import Conflict, Failed, InvalidInput, NotFound, Refused
from ebbtide.formats.lakefs.server import AnsweredRules, LakefsServer
from ebbtide.retention import Policy
from ebbtide.storage import Storage

POLICY_ADDRESS: Final = "_ebbtide/policy.json"
WRITES_MAX: Final = 20
"""How often a change is tried if others write the policy in between."""


def read_policy(server: LakefsServer, storage: Storage) -> Policy:
    """Returns the policy.

    Raises Refused `policy_not_found` if there are no rules: without rules, no deletion is safe.
    Raises InvalidInput `invalid_policy`; Failed.
    """
    written = written_policy(storage)
    if written is not None:
        return written
    rules = server.rules()
    if rules is None:
        raise Refused(
            "policy_not_found",
            f"no rules say what may go from {server.name}: set lakeFS's rules ('lakectl gc "
            f"set-config'), or a policy: ebbtide retention set lakefs:{server.name} --default 30d",
        )
    return of_days(rules)


def written_policy(storage: Storage) -> Policy | None:
    """Returns the policy beside the repository; None if there is none. Raises InvalidInput
    `invalid_policy`; Failed."""
    try:
        return _parsed(storage, storage.get(POLICY_ADDRESS))
    except NotFound:
        return None


def _parsed(storage: Storage, text: bytes) -> Policy:
    where = f"{storage.url}/{POLICY_ADDRESS}"
    return Policy.parse(read_document(text, kind="invalid_policy", what=where))


def write_policy(storage: Storage, policy: Policy) -> None:
    """Writes the policy beside the repository. Raises Failed."""
    storage.put(POLICY_ADDRESS, _written(policy))


def change_policy(storage: Storage, change: Callable[[Policy], Policy]) -> Policy:
    """Writes the policy that `change` makes of the present one, or of one without rules. If another
    process writes the policy meanwhile, begins again with that one. Returns what is written.

    Raises what `change` raises; InvalidInput `invalid_policy`; Conflict `object_changed` or
    `object_exists` if others were faster each time; Failed `storage_unconditional` if the storage
    has no conditional writes.
    """
    for attempt in range(1, WRITES_MAX + 1):
        version = None
        present = Policy()
        with suppress(NotFound):
            text, version = storage.get_versioned(POLICY_ADDRESS)
            present = _parsed(storage, text)
        changed = change(present)
        try:
            if version is None:
                storage.put(POLICY_ADDRESS, _written(changed), create_only=True)
            else:
                storage.replace(POLICY_ADDRESS, _written(changed), version=version)
            break
        except Conflict:
            if attempt == WRITES_MAX:
                raise
    return changed


def _written(policy: Policy) -> bytes:
    return json.dumps(policy.to_mapping(), indent=1).encode()


def remove_policy(storage: Storage) -> None:
    """Deletes the policy beside the repository, so that lakeFS's rules apply. Does nothing if there
    is none. Raises Failed."""
    (answer,) = storage.delete([POLICY_ADDRESS])
    if answer.outcome == "failed":
        raise Failed(
            "storage_error", f"{storage.url}/{POLICY_ADDRESS} was not deleted: {answer.error}"
        )


def of_days(rules: AnsweredRules) -> Policy:
    """Returns lakeFS's rules as a policy. Raises InvalidInput `invalid_policy` for negative days,
    which lakeFS accepts: with negative days, even new commits would expire."""
    named = {"default": rules.default_days, **rules.branches}
    negative = sorted(name for name, days in named.items() if days < 0)
    if negative:
        raise InvalidInput(
            "invalid_policy", f"lakeFS's rule of {negative[0]!r} has negative days: set it again"
        )
    branches = {name: _rule(days) for name, days in rules.branches.items()}
    return Policy.parse({"default": _rule(rules.default_days), "branches": branches})


def _rule(days: int) -> Any:
    # With 0 days, only the head of the branch stays. A head always stays.
    return f"{days}d" if days else {"keep_last": 1}
