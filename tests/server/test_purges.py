"""Purges over HTTP: asked for by admins, confirmed, gone on with after the answer."""

from __future__ import annotations

from typing import Any

import httpx
import lakefs

from ebbtide.ids import new_id
from tests.support.collected import awaited, refused
from tests.support.server import Server


def place(lake: lakefs.Repository, path: str = "") -> str:
    return f"/repositories/{lake.id}/purges{path}"


def order(lake: lakefs.Repository, *paths: str, **more: Any) -> dict[str, Any]:
    named = [{"ref": "main", "path": path} for path in paths]
    return {"reason": "asked for", "paths": named, "confirmation": lake.id} | more


def ended(http: httpx.Client, lake: lakefs.Repository, started: httpx.Response) -> dict[str, Any]:
    assert started.status_code == 202, started.text
    going = {"planning", "deleting"}
    if b"dry_run" not in started.request.content:
        going.add("planned")
    at = place(lake, f"/{started.json()['purge_id']}")
    return awaited(http, at, going=going)


def fill(repo: lakefs.Repository, *paths: str) -> None:
    for path in paths:
        repo.branch("main").object(path).upload(data=path.encode())
    repo.branch("main").commit("some files")


def test_a_file_goes_and_can_be_shown_to_be_gone(server: Server) -> None:
    repo = server.repository(f"r-{new_id()}")
    fill(repo, "a", "b")
    objects = f"/repositories/{repo.id}/refs/main/objects"
    with server.http() as http:
        planned = ended(http, repo, http.post(place(repo), json=order(repo, "a", dry_run=True)))
        assert (planned["state"], planned["object_count"]) == ("planned", 1)
        purged = ended(http, repo, http.post(place(repo), json=order(repo, "a")))
        assert (purged["state"], purged["outcomes"]) == ("done", {"deleted": 1})
        assert purged["request"]["who"]["access_key_id"]
        refused(http.get(objects, params={"path": "a"}), 410, "purged")
        for path, status in (("a", 410), ("b", 200)):
            assert http.head(objects, params={"path": path}).status_code == status
        assert http.get(objects, params={"path": "b"}).content == b"b"
        assert http.get(place(repo, f"/{purged['purge_id']}/verify")).json()["verified"] is True

        first = http.get(place(repo), params={"amount": 1}).json()
        after = first["pagination"]["next_offset"]
        second = http.get(place(repo), params={"amount": 1, "after": after}).json()
        found = [each["purge_id"] for page in (first, second) for each in page["results"]]
        assert found == [purged["purge_id"], planned["purge_id"]]
        assert first["pagination"]["has_more"] is True

        confirmed = {"confirmation": repo.id}
        resumed = http.post(place(repo, f"/{planned['purge_id']}/resume"), json=confirmed)
        again = ended(http, repo, resumed)
        # S3 acknowledges the delete of what is not there.
        assert (again["state"], sum(again["outcomes"].values())) == ("done", 1)

        whole = ended(http, repo, http.post(place(repo), json=order(repo, repository=True)))
        assert whole["state"] == "done"
        assert http.get(f"/repositories/{repo.id}").status_code == 404
        assert http.get(place(repo, f"/{whole['purge_id']}/verify")).json()["verified"] is True
        other = http.get(f"/repositories/elsewhere/purges/{whole['purge_id']}")
        refused(other, 404, "purge_not_found")


def test_what_is_refused(http: httpx.Client, lake: lakefs.Repository) -> None:
    """Orders, at once; and a purge of what a commit has, which has then ended."""
    fill(lake, "a")
    fill(lake, "b")
    for changes, status, kind in (
        ({"confirmation": "another"}, 400, "invalid_argument"),
        ({"reason": " "}, 400, "invalid_argument"),
        ({"paths": [{"ref": "a:b", "path": "a"}]}, 400, "invalid_argument"),
        ({"commits": ["nowhere"]}, 404, "ref_not_found"),
        ({"repository": True}, 400, "invalid_argument"),
    ):
        refused(http.post(place(lake), json=order(lake, "a") | changes), status, kind)
    assert http.get(place(lake)).json()["results"] == []
    found = ended(http, lake, http.post(place(lake), json=order(lake, "a")))
    assert (found["state"], found["error"]["kind"]) == ("refused", "purge_in_use")
    assert [each["kind"] for each in found["references"]] == ["commit"]
    confirmed = {"confirmation": lake.id}
    resumed = http.post(place(lake, f"/{found['purge_id']}/resume"), json=confirmed)
    refused(resumed, 409, "purge_ended")
