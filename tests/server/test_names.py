"""Names of refs with slashes and dots: what lakeFS's interface refuses, and every route with a name
that other interfaces allow."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import httpx
import lakefs

from ebbtide.ids import new_id
from tests.server.calls import ASKED, Asked
from tests.support.server import Server

NASTY: Final = "_a/b.lock-/-c.d"
NOT_FOUND: Final = {"route_not_found", "branch_not_found", "ref_not_found", "tag_not_found"}
_NAMED: Final = re.compile(
    r"(?<=/)(branches|tags|refs|merge|diff)/(?!dump|restore)([^/?{]+)(?=[/?]|$)"
)


def named(url: str, name: str) -> str:
    """A URL of a call with this name in the place of each ref."""
    return _NAMED.sub(lambda found: f"{found[1]}/{name}", url)


def calls() -> Iterator[Asked]:
    """The calls with a ref in their path. Those that delete come last, then those that restore."""
    chosen = [each for each in ASKED if named(each.url, "x") != each.url and "{" not in each.url]
    return iter(sorted(chosen, key=_place))


def _place(asked: Asked) -> int:
    deletes = asked.method == "DELETE" and "/objects" not in asked.url
    return 2 if asked.url.endswith("/restore") else int(deletes)


def test_every_route_takes_names_with_slashes(plain: Server, http: httpx.Client) -> None:
    for spelling in ("%2F", "%252f"):
        lake = plain.repository(f"r-{new_id()}")
        plain.branch(lake.id, NASTY)
        plain.branch(lake.id, "dev")
        seen, name = set(), NASTY.replace("/", spelling)
        for asked in calls():
            if "/tags/" in asked.url:
                continue
            url = named(asked.url, name).replace("/repositories/lake", f"/repositories/{lake.id}")
            is_json = (asked.content or b"").startswith(b"{")
            kind_of_body = {"Content-Type": "application/json"} if is_json else {}
            answer = http.request(asked.method, url, content=asked.content, headers=kind_of_body)
            assert not any(f'"{each}"' in answer.text for each in NOT_FOUND), (asked, answer.text)
            assert answer.status_code != 405 and answer.status_code < 500
            seen.add(_NAMED.sub(r"\1", asked.url))
        assert len(seen) > 20


def test_lakefs_interface_makes_no_names_with_slashes(
    http: httpx.Client, lake: lakefs.Repository
) -> None:
    """As in lakeFS, whose clients could not name them: REPOSITORY/REF/PATH."""
    place = f"/repositories/{lake.id}"
    new = {"name": "new", "storage_namespace": "local://n"}
    for name in ("feature/x", "a/b/c"):
        for url, body in (
            (f"{place}/branches", {"name": name, "source": "main"}),
            (f"{place}/tags", {"id": name, "ref": "main"}),
            ("/repositories", new | {"default_branch": name}),
        ):
            answer = http.post(url, json=body)
            found = (answer.status_code, answer.json()["kind"])
            assert found == (400, "invalid_name"), answer.text
            assert "%2F" in answer.json()["message"]


def test_objects_of_a_branch_with_a_slash(
    plain: Server, http: httpx.Client, lake: lakefs.Repository
) -> None:
    """Upload, read, commit, merge, rename and delete, with both spellings."""
    plain.branch(lake.id, "feature/x")
    assert plain.command("tag", "create", lake.id, "v/1", "main").returncode == 0
    place = f"/repositories/{lake.id}"
    for name in ("feature%2Fx", "feature%252Fx"):
        parameters = {"path": name}
        url = f"{place}/branches/{name}/objects"
        assert http.post(url, params=parameters, content=b"1").status_code == 201
        found = http.get(f"{place}/refs/feature%2Fx/objects", params=parameters)
        assert found.content == b"1"
        made = http.post(f"{place}/branches/{name}/commits", json={"message": "m"})
        assert made.status_code == 201, made.text
        assert http.post(f"{place}/refs/{name}/merge/main", json={}).status_code == 200
        assert http.get(f"{place}/tags/{name.replace('feature', 'v').replace('x', '1')}").is_success
    assert http.delete(f"{place}/tags/v%252F1").status_code == 204
    assert http.delete(f"{place}/branches/feature%2Fx").status_code == 204
    assert http.get(f"{place}/branches/feature%2Fx").status_code == 404
