"""A normal call of every route, in `tests.support.small_world`; a test fails where a route has
none.

What stands in braces is a name of that world.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

Body = dict[str, Any]
"""JSON."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request. `done` are the kinds of error by which it may be answered once it was carried
    out; `adds` are the tables in which it adds something each time. One that `reads` changes
    nothing."""

    method: str
    url: str
    content: bytes | None = None
    done: frozenset[str] = frozenset()
    adds: frozenset[str] = frozenset()
    reads: bool = False

    @property
    def in_repository(self) -> str:
        found = re.match(r"/repositories/(swept|planned|days)/", self.url)
        return found[1] if found else "lake"

    def place(self, names: Mapping[str, str]) -> str:
        return self.url.format_map(names)

    def body(self, names: Mapping[str, str]) -> bytes | None:
        text = self.content
        for name, value in names.items():
            text = text and text.replace(f"<{name}>".encode(), value.encode())
        return text

    def __str__(self) -> str:
        return f"{self.method} {self.url}"


def get(url: str, *, method: str = "GET") -> Asked:
    return Asked(method, url, reads=True)


def send(
    method: str, url: str, body: Body | bytes | None = None, *done: str, adds: str = ""
) -> Asked:
    """A call that changes something: see `Asked`."""
    content = json.dumps(body).encode() if isinstance(body, dict) else body
    return Asked(method, url, content, frozenset(done), frozenset(adds.split()))


_R: Final = "/repositories/lake"
_B: Final = f"{_R}/branches"
_D: Final = f"{_B}/dirty"
_UPLOAD: Final = f"{_D}/staging/pmpu/{{upload}}"
_UPLOAD_URL: Final[Body] = {"physical_address": "<upload_url>"}
_P: Final = "/projects/{inner_project}"
_C: Final = "/collections/{collection}"
_LATER: Final = "2099-01-01T00:00:00Z"
_DATE: Final = {"expires_at": _LATER}
_SWEPT: Final = "/repositories/swept/gc/runs/{run}"
_DAYS: Final = "/repositories/days/settings/gc_rules"
_PLANNED: Final = "/repositories/planned/gc/runs"
_PLANNED_SCHEDULE: Final = "/repositories/planned/schedule"
_DUMP: Final = {
    "branches_meta_range_id": "<dumped_branches>",
    "tags_meta_range_id": "<dumped_tags>",
    "commits_meta_range_id": "<dumped_commits>",
}
_SHORT: Final = {"grace": "1s", "unsafe": True, "allow_share": True}

_SERVER: Final = (
    get("/healthcheck"),
    get("/setup_lakefs"),
    send(
        "POST",
        "/auth/login",
        {"access_key_id": "<admin>", "secret_access_key": "<secret>"},
        adds="sessions",
    ),
    get("/config"),
    get("/config/version"),
    get("/config/storage"),
    get("/config/garbage-collection"),
    get("/user"),
    Asked(
        "POST",
        "/statistics",
        b'{"events": [{"class": "ui", "name": "open", "count": 1}]}',
        reads=True,
    ),
    get("/metrics"),
    get("/openapi.json"),
    send("POST", "/signing-keys/rotate", {}, adds="signing_keys"),
    get("/repositories?include_expired=true"),
    send(
        "POST",
        "/repositories",
        {"name": "fresh", "storage_namespace": "local://fresh"},
        "repository_exists",
        "root_not_empty",
    ),
    get(_R),
    send("DELETE", _R, None, "repository_not_found", "trashed"),
    send("PATCH", _R, _DATE),
    send("POST", "/repositories/binned/undelete", {}, "trashed", "repository_exists"),
    get(f"{_R}/metadata"),
    send("POST", f"{_R}/metadata", {"metadata": {"Owner": "team"}}),
    send("DELETE", f"{_R}/metadata", {"keys": ["Owner"]}),
)

_REFS: Final = (
    get(f"{_B}?include_expired=true"),
    send("POST", _B, {"name": "new", "source": "main"}, "branch_exists"),
    get(f"{_B}/dev"),
    send("PUT", _D, {"type": "reset"}),
    send("PUT", _D, {"type": "object", "path": "staged"}),
    send("PUT", f"{_D}/hard_reset?ref=main&force=true"),
    send("DELETE", f"{_B}/dev", None, "branch_not_found", "trashed"),
    send("PATCH", f"{_B}/dev", _DATE),
    send("POST", f"{_B}/branch-bin/restore", {}, "trashed", "branch_exists"),
    send("POST", f"{_D}/commits", {"message": "m"}, "nothing_to_commit"),
    send("POST", f"{_B}/main/revert", {"ref": "<head>"}, "nothing_to_commit"),
    send("POST", f"{_B}/main/cherry-pick", {"ref": "dev"}, "nothing_to_commit"),
    get(f"{_D}/diff"),
    get(f"{_R}/tags?include_expired=true"),
    send("POST", f"{_R}/tags", {"id": "new", "ref": "main"}, "tag_exists"),
    get(f"{_R}/tags/v1"),
    send("DELETE", f"{_R}/tags/v1", None, "tag_not_found", "trashed"),
    send("PATCH", f"{_R}/tags/v1", _DATE),
    send("POST", f"{_R}/tags/tag-bin/restore", {}, "trashed", "tag_exists"),
    get(f"{_R}/commits/main"),
    get(f"{_R}/refs/main/commits"),
    get(f"{_R}/refs/main/diff/dev"),
    get(f"{_R}/refs/dev/merge/main"),
    send("POST", f"{_R}/refs/dev/merge/main", {}, "nothing_to_merge"),
)

_OBJECTS: Final = (
    send("POST", f"{_D}/objects?path=new", b"new"),
    send(
        "PUT",
        f"{_D}/objects?path=away",
        {"physical_address": "s3://elsewhere/key", "checksum": "", "size_bytes": 3},
    ),
    send("PUT", f"{_D}/objects/stat/user_metadata?path=a", {"set": {"Key": "value"}}),
    send("DELETE", f"{_D}/objects?path=a", None, "object_not_found"),
    send("POST", f"{_D}/objects/delete", {"paths": ["a", "b"]}),
    send("POST", f"{_D}/objects/copy?dest_path=copy", {"src_path": "a"}),
    send("POST", f"{_D}/objects/move?dest_path=moved", {"src_path": "a"}, "object_not_found"),
    send("GET", f"{_D}/staging/backing?path=new", adds="upload_tokens"),
    send(
        "PUT",
        f"{_D}/staging/backing?path=linked",
        {"staging": {"physical_address": "<linked>"}, "checksum": "", "size_bytes": 40},
        "token_used",
        adds="data",  # as of `fs link`
    ),
    send(
        "POST",
        f"{_D}/staging/pmpu?path=new&parts=2",
        adds="upload_tokens multipart_uploads multipart_parts",
    ),
    send(
        "PUT",
        f"{_UPLOAD}?path=in-parts",
        _UPLOAD_URL | {"parts": [{"part_number": 1, "etag": "<part_etag>"}]},
        "upload_not_found",
        adds="data",  # a file that could not be deleted is left to the reclaimer
    ),
    send("DELETE", f"{_UPLOAD}?path=in-parts", _UPLOAD_URL, "upload_not_found", adds="data"),
    send("PUT", f"{_UPLOAD}/parts/2?path=in-parts", _UPLOAD_URL),
    send(
        "PUT",
        f"{_UPLOAD}/parts/1/copy?path=in-parts",
        _UPLOAD_URL | {"copy_source": {"repository": "lake", "ref": "main", "path": "a"}},
        adds="data upload_tokens",
    ),
    send(
        "POST",
        f"{_B}/main/import",
        {
            "paths": [
                {"type": "common_prefix", "path": "file://<work>/tree/", "destination": "in/"},
                {"type": "object", "path": "file://<work>/source", "destination": "one"},
            ],
            "commit": {"message": "imported"},
        },
        adds="imports commits",
    ),
    get(f"{_B}/dev/import?id={{import}}"),
    send("DELETE", f"{_B}/dev/import?id={{import}}"),
    get(f"{_R}/refs/main/objects?path=a"),
    get(f"{_R}/refs/main/objects?path=a", method="HEAD"),
    get(f"{_R}/refs/main/objects/stat?path=a"),
    get(f"{_R}/refs/dirty/objects/ls"),
    send("POST", f"{_R}/locators?ref=main&path=a"),
    send("POST", f"{_R}/uploads", b"new", adds="upload_tokens"),
    get("/locators/{locator}"),
    get("/locators/{locator}", method="HEAD"),
)

_PLACES: Final = (
    get("/projects?repository=lake&include_expired=true"),
    send("POST", "/projects", {"repository": "lake", "name": "new"}, "project_exists"),
    get(_P),
    send("PATCH", _P, {"description": "new"}),
    send("DELETE", _P, None, "project_not_found", "trashed"),
    send("POST", "/projects/{binned_project}/restore", {}, "trashed", "project_exists"),
    get("/collections?project_id={project}&include_expired=true"),
    send(
        "POST",
        "/collections",
        {"project_id": "<project>", "name": "new", "from_ref": {"ref": "main"}},
        "collection_exists",
    ),
    get(_C),
    send("PATCH", _C, {"description": "new"}),
    send("PATCH", _C, {"from_ref": {"ref": "main"}, "replaces": True}),
    send("DELETE", _C, None, "collection_not_found", "trashed"),
    send("POST", "/collections/{binned_collection}/restore", {}, "trashed", "collection_exists"),
    get(f"{_C}/versions"),
    send("DELETE", f"{_C}/versions/1", None, "version_not_found"),
    get(f"{_C}/files?locators=true"),
    send("PUT", f"{_C}/files?path=new", b"new"),
    send("DELETE", f"{_C}/files?path=source", None, "object_not_found"),
    get(f"{_C}/files/content?path=source"),
    get(f"{_C}/files/content?path=source", method="HEAD"),
    get(f"{_C}/diff?other={{other_collection}}"),
)

_COLLECTING: Final = (
    get(_DAYS),
    send("PUT", _DAYS, {"default_retention_days": 9, "branches": []}),
    send("DELETE", _DAYS, None),
    get(f"{_R}/settings/retention"),
    send("PUT", f"{_R}/settings/retention", {"policy": {"default": "9d"}}),
    send("DELETE", f"{_R}/settings/retention", None, "policy_not_found"),
    get(f"{_R}/settings/branch_protection"),
    send("PUT", f"{_R}/settings/branch_protection", b'[{"pattern": "release/*"}]'),
    send("POST", f"{_R}/gc/prepare_commits"),
    send("POST", f"{_R}/gc/prepare_commits/async"),
    get(f"{_R}/gc/prepare_commits/status?id={{task}}"),
    send("POST", f"{_R}/gc/prepare_uncommited", {}),
    send("POST", f"{_R}/refs/main/symlink", adds="tags"),
    send("POST", f"{_R}/dump"),
    get(f"{_R}/dump?task_id={{dump_task}}"),
    send("POST", f"{_R}/restore", _DUMP),
    get(f"{_R}/restore?task_id={{dump_task}}"),
    send("PUT", f"{_R}/refs/dump"),
    send("PUT", f"{_R}/refs/restore", _DUMP),
    send("POST", f"{_R}/gc/runs", _SHORT, adds="gc_runs"),
    send("POST", f"{_R}/gc/runs", {**_SHORT, "dry_run": True}, adds="gc_runs"),
    send("POST", _PLANNED, {**_SHORT, "sweep": "<plan>"}, "plan_used"),
    send("POST", f"{_SWEPT}/undo", {}, "not_quarantined", "plan_used"),
    send("POST", f"{_SWEPT}/purge", None, "not_quarantined"),
    get("/schedules"),
    get(_PLANNED_SCHEDULE),
    send("PUT", f"{_R}/schedule", {"cron": "0 3 29 2 *", "jitter": "1h"}),
    send("PATCH", _PLANNED_SCHEDULE, {"enabled": False}),
    send("DELETE", _PLANNED_SCHEDULE, None, "schedule_not_found"),
    get("/repositories/swept/gc/runs"),
    get(_SWEPT),
    get(f"{_R}/explain?ref=main&path=a"),
    get(f"{_R}/explain?commit={{first}}"),
    send(
        "POST",
        f"{_R}/purges",
        {"reason": "now", "paths": [{"ref": "dirty", "path": "staged"}], "confirmation": "lake"},
        "object_not_found",
        "purged",
        adds="purges",
    ),
    send(
        "POST",
        "/repositories/swept/purges",
        {"reason": "whole", "repository": True, "confirmation": "swept"},
        "repository_not_found",
        adds="purges",
    ),
    get(f"{_R}/purges"),
    get(f"{_R}/purges/{{done}}"),
    send("POST", f"{_R}/purges/{{purge}}/resume", {"confirmation": "lake"}, "purge_ended"),
    get(f"{_R}/purges/{{done}}/verify"),
)

ASKED: Final = (*_SERVER, *_REFS, *_OBJECTS, *_PLACES, *_COLLECTING)
