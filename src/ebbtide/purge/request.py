"""The request for a purge: the requester, the reason, and the named objects. As values and as
JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ebbtide.errors import InvalidInput
from ebbtide.escaping import shown
from ebbtide.store.names import check_path, check_text

REASON_BYTES_MAX: Final = 4096
TARGETS_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class PathTarget:
    """A path at a revision. If `ref` is the plain name of a branch, entries that are staged there
    are included."""

    ref: str
    path: str

    @classmethod
    def parse(cls, text: str) -> PathTarget:
        """Parses `REF:PATH`. Names of refs contain no colon. Raises InvalidInput `invalid_argument`
        or `invalid_path`."""
        ref, colon, path = text.partition(":")
        if not (ref and colon):
            raise InvalidInput(
                "invalid_argument", f"{shown(text)} is no path at a ref: write REF:PATH"
            )
        return cls.of(ref, path)

    @classmethod
    def of(cls, ref: str, path: str) -> PathTarget:
        """Returns a checked target. Raises InvalidInput `invalid_argument` or `invalid_path`."""
        check_path(path)
        if not ref or ":" in ref:
            raise InvalidInput("invalid_argument", f"{shown(ref)} is no name of a ref")
        return cls(ref, path)

    def __str__(self) -> str:
        return f"{self.ref}:{self.path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request for a purge. `who` describes the requester, as names and values.

    `all_history` also names every commit that has one of the named objects. `repository` names the
    whole repository. With `keep_shared`, objects that other data needs are left out, and do not
    prevent the purge. `delete_versions` includes the versions that a bucket keeps of the objects.
    """

    reason: str
    who: Mapping[str, str] = field(hash=False)
    paths: tuple[PathTarget, ...] = ()
    commits: tuple[str, ...] = ()
    collections: tuple[str, ...] = ()
    repository: bool = False
    all_history: bool = False
    keep_shared: bool = False
    delete_versions: bool = False

    def check(self) -> None:
        """Checks the request. Raises InvalidInput `invalid_argument`."""
        check_text("the reason", self.reason, bytes_max=REASON_BYTES_MAX)
        if not self.reason.strip():
            raise InvalidInput("invalid_argument", "a purge needs a reason: give one")
        count = len(self.paths) + len(self.commits) + len(self.collections)
        if self.repository and (count or self.all_history or self.keep_shared):
            raise InvalidInput(
                "invalid_argument",
                "a purge of the whole repository cannot name or keep anything else",
            )
        if not self.repository and not count:
            raise InvalidInput(
                "invalid_argument",
                "nothing is named: name collections, commits, paths, or the whole repository",
            )
        if count > TARGETS_MAX:
            raise InvalidInput(
                "invalid_argument", f"a purge can name at most {TARGETS_MAX} targets: {count}"
            )

    def to_json(self) -> dict[str, Any]:
        """Returns the request as JSON, for the database and the record."""
        return {
            "reason": self.reason,
            "who": dict(self.who),
            "paths": [str(target) for target in self.paths],
            "commits": list(self.commits),
            "collections": list(self.collections),
            "repository": self.repository,
            "all_history": self.all_history,
            "keep_shared": self.keep_shared,
            "delete_versions": self.delete_versions,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Request:
        """Parses the JSON that `to_json` returned."""
        return cls(
            reason=content["reason"],
            who=content["who"],
            paths=tuple(map(PathTarget.parse, content["paths"])),
            commits=tuple(content["commits"]),
            collections=tuple(content["collections"]),
            repository=content["repository"],
            all_history=content["all_history"],
            # Purges that were begun before these options existed do not have them.
            keep_shared=content.get("keep_shared", False),
            delete_versions=content.get("delete_versions", False),
        )


def asked_by(who: Mapping[str, str]) -> str:
    """Returns the requester, for people: a user and host, or the name and id of an access key."""
    if "user" in who:
        return f"{who['user']}@{who.get('host', '')}"
    return f"{who.get('name', '')} ({who.get('access_key_id', '')})".strip()


def require_confirmed(repository_name: str, confirmation: str) -> None:
    """Raises InvalidInput `invalid_argument` unless the repository's name was typed as
    confirmation."""
    if confirmation != repository_name:
        raise InvalidInput(
            "invalid_argument",
            f"a purge cannot be undone: confirm it with the name of the repository, "
            f"{repository_name!r}. Nothing was changed",
        )
