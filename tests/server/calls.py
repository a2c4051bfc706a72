"""A normal call of every route, in `tests.support.small_world`; a test fails where a route has
none.

What stands in braces is a name of that world.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

Body = dict[str, Any]
"""JSON."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request. `done` are the kinds of error by which it may be answered once it was carried
    out; `adds` are the tables in which it adds something each time. One that `reads` changes
    nothing. `in_repository` is the one that it works on."""

    method: str
    url: str
    content: bytes | None = None
    done: frozenset[str] = frozenset()
    adds: frozenset[str] = frozenset()
    reads: bool = False
    in_repository: str | None = "lake"

    def place(self, names: Mapping[str, str]) -> str:
        """The URL below the API."""
        return self.url.format_map(names)

    def body(self, names: Mapping[str, str]) -> bytes | None:
        """What is sent."""
        text = self.content
        for name, value in names.items():
            text = text and text.replace(f"<{name}>".encode(), value.encode())
        return text

    def __str__(self) -> str:
        return f"{self.method} {self.url}"


def _get(url: str, *, in_repository: str | None = "lake", method: str = "GET") -> Asked:
    return Asked(method, url, reads=True, in_repository=in_repository)


def _head(url: str) -> Asked:
    return _get(url, method="HEAD")


def _send(
    method: str,
    url: str,
    body: Body | bytes | None = None,
    *done: str,
    adds: str = "",
    in_repository: str | None = "lake",
) -> Asked:
    content = json.dumps(body).encode() if isinstance(body, dict) else body
    return Asked(
        method,
        url,
        content,
        frozenset(done),
        frozenset(adds.split()),
        in_repository=in_repository,
    )


_R: Final = "/repositories/lake"
_B: Final = f"{_R}/branches"
_D: Final = f"{_B}/dirty"
_P: Final = "/projects/{inner_project}"
_C: Final = "/collections/{collection}"
_LATER: Final = "2099-01-01T00:00:00Z"
_DATE: Final = {"expires_at": _LATER}
_SWEPT: Final = "/repositories/swept/gc/runs/{run}"
_DAYS: Final = "/repositories/days/settings/gc_rules"
_PLANNED: Final = "/repositories/planned/gc/runs"
_SHORT: Final = {"grace": "1s", "unsafe": True, "allow_share": True}

_SERVER: Final = (
    _get("/healthcheck", in_repository=None),
    _get("/setup_lakefs", in_repository=None),
    _get("/config", in_repository=None),
    _get("/config/version", in_repository=None),
    _get("/config/storage", in_repository=None),
    _get("/config/garbage-collection", in_repository=None),
    _get("/user", in_repository=None),
    _get("/metrics", in_repository=None),
    _get("/openapi.json", in_repository=None),
    _send("POST", "/signing-keys/rotate", {}, adds="signing_keys", in_repository=None),
    _get("/repositories?include_expired=true", in_repository=None),
    _send(
        "POST",
        "/repositories",
        {"name": "fresh", "storage_namespace": "local://fresh"},
        "repository_exists",
        "root_not_empty",
        in_repository=None,
    ),
    _get(_R),
    _send("DELETE", _R, None, "repository_not_found", "trashed"),
    _send("PATCH", _R, _DATE),
    _send(
        "POST",
        "/repositories/binned/restore",
        {},
        "trashed",
        "repository_exists",
        in_repository=None,
    ),
    _get(f"{_R}/metadata"),
)

_REFS: Final = (
    _get(f"{_B}?include_expired=true"),
    _send("POST", _B, {"name": "new", "source": "main"}, "branch_exists"),
    _get(f"{_B}/dev"),
    _send("PUT", _D, {"type": "reset"}),
    _send("PUT", _D, {"type": "object", "path": "staged"}),
    _send("DELETE", f"{_B}/dev", None, "branch_not_found", "trashed"),
    _send("PATCH", f"{_B}/dev", _DATE),
    _send("POST", f"{_B}/branch-bin/restore", {}, "trashed", "branch_exists"),
    _send("POST", f"{_D}/commits", {"message": "m"}, "nothing_to_commit"),
    _send("POST", f"{_B}/main/revert", {"ref": "<head>"}, "nothing_to_commit"),
    _send("POST", f"{_B}/main/cherry-pick", {"ref": "dev"}, "nothing_to_merge"),
    _get(f"{_D}/diff"),
    _get(f"{_R}/tags?include_expired=true"),
    _send("POST", f"{_R}/tags", {"id": "new", "ref": "main"}, "tag_exists"),
    _get(f"{_R}/tags/v1"),
    _send("DELETE", f"{_R}/tags/v1", None, "tag_not_found", "trashed"),
    _send("PATCH", f"{_R}/tags/v1", _DATE),
    _send("POST", f"{_R}/tags/tag-bin/restore", {}, "trashed", "tag_exists"),
    _get(f"{_R}/commits/main"),
    _get(f"{_R}/refs/main/commits"),
    _get(f"{_R}/refs/main/diff/dev"),
    _get(f"{_R}/refs/dev/merge/main"),
    _send("POST", f"{_R}/refs/dev/merge/main", {}, "nothing_to_merge"),
)

_OBJECTS: Final = (
    _send("POST", f"{_D}/objects?path=new", b"new"),
    _send(
        "PUT",
        f"{_D}/objects?path=away",
        {"physical_address": "s3://elsewhere/key", "checksum": "", "size_bytes": 3},
    ),
    _send("DELETE", f"{_D}/objects?path=a", None, "object_not_found"),
    _send("POST", f"{_D}/objects/delete", {"paths": ["a", "b"]}),
    _send("POST", f"{_D}/objects/copy?dest_path=copy", {"src_path": "a"}),
    _send("POST", f"{_D}/objects/move?dest_path=moved", {"src_path": "a"}, "object_not_found"),
    _send("GET", f"{_D}/staging/backing?path=new", adds="upload_tokens"),
    _send(
        "PUT",
        f"{_D}/staging/backing?path=linked",
        {"staging": {"physical_address": "<linked>"}, "checksum": "", "size_bytes": 40},
        "token_used",
    ),
    _get(f"{_R}/refs/main/objects?path=a"),
    _head(f"{_R}/refs/main/objects?path=a"),
    _get(f"{_R}/refs/main/objects/stat?path=a"),
    _get(f"{_R}/refs/dirty/objects/ls"),
    _send("POST", f"{_R}/locators?ref=main&path=a"),
    _send("POST", f"{_R}/uploads", b"new", adds="upload_tokens"),
    _get("/locators/{locator}"),
    _head("/locators/{locator}"),
)

_PLACES: Final = (
    _get("/projects?repository=lake&include_expired=true"),
    _send("POST", "/projects", {"repository": "lake", "name": "new"}, "project_exists"),
    _get(_P),
    _send("PATCH", _P, {"description": "new"}),
    _send("DELETE", _P, None, "project_not_found", "trashed"),
    _send("POST", "/projects/{binned_project}/restore", {}, "trashed", "project_exists"),
    _get("/collections?project_id={project}&include_expired=true"),
    _send(
        "POST",
        "/collections",
        {"project_id": "<project>", "name": "new", "from_ref": {"ref": "main"}},
        "collection_exists",
    ),
    _get(_C),
    _send("PATCH", _C, {"description": "new"}),
    _send("PATCH", _C, {"from_ref": {"ref": "main"}, "replaces": True}),
    _send("DELETE", _C, None, "collection_not_found", "trashed"),
    _send("POST", "/collections/{binned_collection}/restore", {}, "trashed", "collection_exists"),
    _get(f"{_C}/versions"),
    _send("DELETE", f"{_C}/versions/1", None, "version_not_found"),
    _get(f"{_C}/files?locators=true"),
    _send("PUT", f"{_C}/files?path=new", b"new"),
    _send("DELETE", f"{_C}/files?path=source", None, "object_not_found"),
    _get(f"{_C}/files/content?path=source"),
    _head(f"{_C}/files/content?path=source"),
    _get(f"{_C}/diff?other={{other_collection}}"),
)

_COLLECTING: Final = (
    _get(_DAYS, in_repository="days"),
    _send("PUT", _DAYS, {"default_retention_days": 9, "branches": []}, in_repository="days"),
    _send("DELETE", _DAYS, None, in_repository="days"),
    _get(f"{_R}/settings/retention"),
    _send("PUT", f"{_R}/settings/retention", {"policy": {"default": "9d"}}),
    _send("DELETE", f"{_R}/settings/retention", None, "policy_not_found"),
    _send("POST", f"{_R}/gc/prepare_commits"),
    _send("POST", f"{_R}/gc/prepare_commits/async"),
    _get(f"{_R}/gc/prepare_commits/status?id={{task}}"),
    _send("POST", f"{_R}/gc/prepare_uncommited", {}),
    _send("POST", f"{_R}/gc/runs", _SHORT, adds="gc_runs"),
    _send("POST", f"{_R}/gc/runs", {**_SHORT, "dry_run": True}, adds="gc_runs"),
    _send("POST", _PLANNED, {**_SHORT, "sweep": "<plan>"}, "plan_used", in_repository="planned"),
    _send("POST", f"{_SWEPT}/undo", {}, "not_quarantined", "plan_used", in_repository="swept"),
    _send("POST", f"{_SWEPT}/purge", None, "not_quarantined", in_repository="swept"),
    _get("/repositories/swept/gc/runs", in_repository="swept"),
    _get(_SWEPT, in_repository="swept"),
    _get(f"{_R}/explain?ref=main&path=a"),
    _get(f"{_R}/explain?commit={{first}}"),
    _send(
        "POST",
        f"{_R}/purges",
        {
            "reason": "now",
            "paths": [{"ref": "dirty", "path": "staged"}],
            "confirmation": "lake",
        },
        "object_not_found",
        "purged",
        adds="purges",
    ),
    _send(
        "POST",
        "/repositories/swept/purges",
        {"reason": "whole", "repository": True, "confirmation": "swept"},
        "repository_not_found",
        adds="purges",
        in_repository="swept",
    ),
    _get(f"{_R}/purges"),
    _get(f"{_R}/purges/{{done}}"),
    _send("POST", f"{_R}/purges/{{purge}}/resume", {"confirmation": "lake"}, "purge_ended"),
    _get(f"{_R}/purges/{{done}}/verify"),
)

ASKED: Final = (*_SERVER, *_REFS, *_OBJECTS, *_PLACES, *_COLLECTING)
