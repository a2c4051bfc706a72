"""A normal call of every page and form, in `tests.support.small_world`; a test fails where one has
none.

What stands in braces is a name of that world. What is sent are the fields of a form, as JSON;
`file` is one that is uploaded.
"""

from __future__ import annotations

from typing import Final

from tests.server.calls import Asked, get, send


def _form(url: str, *done: str, adds: str = "", **fields: str) -> Asked:
    return send("POST", url, fields, *done, adds=adds)


_R: Final = "/repositories/lake"
_RUNS: Final = f"{_R}/runs"
_SWEPT: Final = "/repositories/swept/runs/{run}"
_PLANNED: Final = "/repositories/planned/runs/{plan}"
_FIELDS: Final = {"mode": "age", "default-keep_within": "9d"}
_POLICY: Final = '{"default": "9d"}'

ASKED: Final = (
    get("/login"),
    _form("/login", access_key_id="<admin>", secret="<secret>", next="/ui/trash"),
    get("/static/{digest}/app.css"),
    _form("/logout"),
    _form("/theme", theme="dark", next="/ui/trash"),
    get(""),
    _form("", "repository_exists", "root_not_empty", name="fresh"),
    get("/trash"),
    _form("/trash/{binned}/restore", "trashed", "repository_exists"),
    get(_R),
    get(f"{_R}/files"),
    get(f"{_R}/files?ref=dirty"),
    _form(f"{_R}/files/upload", branch="dirty", prefix="", file="new"),
    _form(f"{_R}/files/delete", "object_not_found", branch="dirty", prefix="", path="a"),
    _form(f"{_R}/files/commit", "nothing_to_commit", branch="dirty", prefix="", message="m"),
    get(f"{_R}/object?path=a"),
    get(f"{_R}/object/content?ref=main&path=a"),
    get(f"{_R}/commits"),
    get(f"{_R}/commits/main"),
    get(f"{_R}/compare"),
    get(f"{_R}/compare?left=main&right=dev"),
    _form(f"{_R}/compare/merge", "nothing_to_merge", left="main", right="dev"),
    get(f"{_R}/commits?at=main"),
    get(f"{_R}/explain"),
    get(f"{_R}/explain?what=main&path=a"),
    get(f"{_R}/refs"),
    get(f"{_R}/refs?kind=tag"),
    _form(f"{_R}/refs", "branch_exists", kind="branch", name="new", source="main"),
    _form(f"{_R}/refs", "tag_exists", kind="tag", name="new", source="main"),
    _form(f"{_R}/refs/delete", "branch_not_found", "trashed", kind="branch", name="dev"),
    _form(f"{_R}/refs/delete", "tag_not_found", "trashed", kind="tag", name="v1"),
    get(f"{_R}/collections"),
    _form(f"{_R}/collections", "project_exists", kind="project", name="new"),
    _form(
        f"{_R}/collections/delete",
        "project_not_found",
        "trashed",
        kind="project",
        item_id="<project>",
    ),
    get(f"{_R}/policy"),
    _form(f"{_R}/policy", policy=_POLICY),
    _form(f"{_R}/policy", action="try", policy=_POLICY),
    _form(f"{_R}/policy/curve"),
    _form(f"{_R}/policy/unset", "policy_not_found"),
    _form(f"{_R}/policy/preview", policy=_POLICY),
    _form(f"{_R}/policy", **_FIELDS, edited="form", action="set"),
    _form(f"{_R}/policy", **_FIELDS, edited="form", action="try"),
    get(f"{_R}/usage"),
    _form(f"{_R}/usage"),
    get(f"{_R}/holds"),
    _form(f"{_R}/holds", commit="main", reason="audit"),
    _form(f"{_R}/holds/remove", "hold_not_found", commit="main~1"),
    get(f"{_R}/protection"),
    _form(f"{_R}/protection", pattern="release/*"),
    _form(f"{_R}/protection/remove", "protection_not_found", pattern="kept-*"),
    get(_RUNS),
    get(f"{_RUNS}/trend"),
    get(f"{_RUNS}/schedule"),
    _form(f"{_RUNS}/schedule", cron="0 3 * * *", quarantine="7d"),
    _form("/repositories/planned/runs/schedule/switch", enabled="no"),
    _form("/repositories/planned/runs/schedule/delete", "schedule_not_found"),
    _form(_RUNS, adds="gc_runs", action="plan", mode="clean", allow_share="yes"),
    _form(_RUNS, adds="gc_runs", action="run", mode="clean", allow_share="yes"),
    get(_SWEPT),
    _form(f"{_PLANNED}/sweep", "plan_used", confirmation="planned", allow_share="yes"),
    _form(f"{_SWEPT}/undo", "not_quarantined", "plan_used"),
    _form(f"{_SWEPT}/purge", "not_quarantined", confirmation="swept"),
    get(f"{_SWEPT}/progress"),
    get(f"{_PLANNED}/candidates"),
    get(f"{_PLANNED}/candidates?addresses=yes"),
    get(f"{_PLANNED}/charts"),
    get("/totals"),
    get("/runs"),
    get(f"{_R}/trash"),
    _form(f"{_R}/trash/branch/branch-bin/restore", "trashed", "branch_exists"),
    _form(f"{_R}/trash/tag/tag-bin/restore", "trashed", "tag_exists"),
    _form(f"{_R}/trash/project/{{binned_project}}/restore", "trashed", "project_exists"),
    _form(f"{_R}/trash/collection/{{binned_collection}}/restore", "trashed", "collection_exists"),
    get(f"{_R}/purges"),
    _form(
        f"{_R}/purges", adds="purges", action="plan", reason="only planned", paths="dirty:staged"
    ),
    _form(
        f"{_R}/purges",
        "object_not_found",
        "purged",
        adds="purges",
        action="purge",
        reason="now",
        paths="dirty:staged",
        confirmation="lake",
    ),
    get(f"{_R}/purges/{{done}}"),
    get(f"{_R}/purges/{{done}}/progress"),
    _form(f"{_R}/purges/{{purge}}/resume", "purge_ended", confirmation="lake"),
)
"""But for a look, which only whoever began it can see, while the server goes on; and for a login by
an issuer, which needs one: `tests/server/oidc`."""

UNASKED: Final = {
    ("GET", "/ui/repositories/{repository}/policy/looks/{look_id}"),
    ("GET", "/ui/login/oidc"),
    ("GET", "/ui/login/oidc/callback"),
}
