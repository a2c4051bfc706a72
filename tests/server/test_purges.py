"""Purges over HTTP: asked for by admins, confirmed, gone on with after the answer."""

from __future__ import annotations

from typing import Any

import httpx
import lakefs

from ebbtide.ids import new_id
from tests.support.server import Server, eventually


def place(lake: lakefs.Repository, path: str = "") -> str:
    return f"/repositories/{lake.id}/purges{path}"


def order(lake: lakefs.Repository, *paths: str, **more: Any) -> dict[str, Any]:
    named = [{"ref": "main", "path": path} for path in paths]
    return {"reason": "asked for", "paths": named, "confirmation": lake.id} | more


def ended(http: httpx.Client, lake: lakefs.Repository, started: httpx.Response) -> dict[str, Any]:
    """What became of a purge, once it has come to an end."""
    assert started.status_code == 202, started.text
    found: dict[str, Any] = {}

    def look() -> bool:
        found.update(http.get(place(lake, f"/{started.json()['purge_id']}")).json())
        return found["state"] not in ("planning", "deleting") and (
            found["state"] != "planned" or started.request.content.find(b"dry_run") > 0
        )

    eventually(look)
    return found


def fill(repo: lakefs.Repository, *paths: str) -> None:
    for path in paths:
        repo.branch("main").object(path).upload(data=path.encode())
    repo.branch("main").commit("some files")


def test_a_file_goes_and_can_be_shown_to_be_gone(server: Server) -> None:
    repo = server.repository(f"r-{new_id()}")
    fill(repo, "a", "b")
    with server.http() as http:
        planned = ended(http, repo, http.post(place(repo), json=order(repo, "a", dry_run=True)))
        assert (planned["state"], planned["object_count"]) == ("planned", 1)
        done = ended(http, repo, http.post(place(repo), json=order(repo, "a")))
        assert (done["state"], done["outcomes"]) == ("done", {"deleted": 1})
        assert done["request"]["who"]["access_key_id"]
        gone = http.get(f"/repositories/{repo.id}/refs/main/objects", params={"path": "a"})
        assert (gone.status_code, gone.json()["kind"]) == (410, "purged")
        for path, status in (("a", 410), ("b", 200)):
            head = http.head(f"/repositories/{repo.id}/refs/main/objects", params={"path": path})
            assert head.status_code == status
        stays = http.get(f"/repositories/{repo.id}/refs/main/objects", params={"path": "b"})
        assert stays.content == b"b"
        verified = http.get(place(repo, f"/{done['purge_id']}/verify")).json()
        assert verified["verified"] is True

        first = http.get(place(repo), params={"amount": 1}).json()
        assert first["pagination"]["has_more"] is True
        assert first["results"][0]["purge_id"] == done["purge_id"]
        after = first["pagination"]["next_offset"]
        second = http.get(place(repo), params={"amount": 1, "after": after}).json()
        assert [each["purge_id"] for each in second["results"]] == [planned["purge_id"]]

        resumed = http.post(
            place(repo, f"/{planned['purge_id']}/resume"), json={"confirmation": repo.id}
        )
        again = ended(http, repo, resumed)
        # S3 acknowledges the delete of what is not there.
        assert (again["state"], sum(again["outcomes"].values())) == ("done", 1)


def test_what_is_in_the_way_is_told(http: httpx.Client, lake: lakefs.Repository) -> None:
    fill(lake, "a")
    fill(lake, "b")
    refused = ended(http, lake, http.post(place(lake), json=order(lake, "a")))
    assert refused["state"] == "refused"
    assert refused["error"]["kind"] == "purge_in_use"
    assert [each["kind"] for each in refused["references"]] == ["commit"]
    ended_before = http.post(
        place(lake, f"/{refused['purge_id']}/resume"), json={"confirmation": lake.id}
    )
    assert (ended_before.status_code, ended_before.json()["kind"]) == (409, "purge_ended")


def test_orders_that_are_refused_at_once(http: httpx.Client, lake: lakefs.Repository) -> None:
    fill(lake, "a")
    for changes, status, kind in (
        ({"confirmation": ""}, 400, "invalid_argument"),
        ({"confirmation": "another"}, 400, "invalid_argument"),
        ({"reason": " "}, 400, "invalid_argument"),
        ({"reason": None}, 400, "invalid_argument"),
        ({"paths": []}, 400, "invalid_argument"),
        ({"paths": [{"ref": "main", "path": "nothing"}]}, 404, "object_not_found"),
        ({"paths": [{"ref": "a:b", "path": "a"}]}, 400, "invalid_argument"),
        ({"commits": ["nowhere"]}, 404, "ref_not_found"),
        ({"repository": True}, 400, "invalid_argument"),
    ):
        answer = http.post(place(lake), json=order(lake, "a") | changes)
        assert (answer.status_code, answer.json()["kind"]) == (status, kind), changes
    assert http.get(place(lake)).json()["results"] == []


def test_a_whole_repository_and_its_record(server: Server) -> None:
    repo = server.repository(f"r-{new_id()}")
    fill(repo, "a")
    with server.http() as http:
        started = http.post(place(repo), json=order(repo, repository=True))
        done = ended(http, repo, started)
        assert done["state"] == "done"
        assert http.get(f"/repositories/{repo.id}").status_code == 404
        assert http.get(place(repo, f"/{done['purge_id']}/verify")).json()["verified"] is True
        other = http.get(f"/repositories/elsewhere/purges/{done['purge_id']}")
        assert (other.status_code, other.json()["kind"]) == (404, "purge_not_found")
