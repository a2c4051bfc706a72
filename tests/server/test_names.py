"""Names of refs with slashes and dots: refused by lakeFS's interface, taken by every route."""

from __future__ import annotations

import re
from typing import Final

import httpx
import lakefs

from ebbtide.ids import new_id
from tests.server.calls import ASKED, Asked
from tests.support.collected import done, refused
from tests.support.server import Server

NASTY: Final = "_a/b.lock-/-c.d"
NOT_FOUND: Final = {"route_not_found", "branch_not_found", "ref_not_found", "tag_not_found"}
_NAMED: Final = re.compile(
    r"(?<=/)(branches|tags|refs|merge|diff)/(?!dump|restore)([^/?{]+)(?=[/?]|$)"
)


def named(url: str, name: str) -> str:
    """A URL of a call with this name in the place of each ref."""
    return _NAMED.sub(lambda found: f"{found[1]}/{name}", url)


def test_every_route_takes_names_with_slashes(plain: Server, http: httpx.Client) -> None:
    """Those that delete come last, then those that restore."""

    def turn(asked: Asked) -> int:
        deletes = asked.method == "DELETE" and "/objects" not in asked.url
        return 2 if asked.url.endswith("/restore") else int(deletes)

    calls = [each for each in ASKED if named(each.url, "x") != each.url and "{" not in each.url]
    for spelling in ("%2F", "%252f"):
        lake = plain.repository(f"r-{new_id()}")
        plain.branch(lake.id, NASTY)
        plain.branch(lake.id, "dev")
        seen, name = set(), NASTY.replace("/", spelling)
        for asked in sorted(calls, key=turn):
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
        # A name of a branch that is a path, too; and a tag.
        plain.branch(lake.id, "feature/x")
        plain.command("tag", "create", lake.id, "v/1", "main").check_returncode()
        place, name = f"/repositories/{lake.id}", f"feature{spelling}x"
        url = f"{place}/branches/{name}/objects"
        done(http.post(url, params={"path": name}, content=b"1"), 201)
        found = http.get(f"{place}/refs/feature%2Fx/objects", params={"path": name})
        assert found.content == b"1"
        for deleted in (f"tags/v{spelling}1", f"branches/{name}"):
            done(http.get(f"{place}/{deleted}"))
            done(http.delete(f"{place}/{deleted}"), 204)
            assert http.get(f"{place}/{deleted}").status_code == 404


def test_lakefs_interface_makes_no_names_with_slashes(
    http: httpx.Client, lake: lakefs.Repository
) -> None:
    """As in lakeFS, whose clients could not name them: REPOSITORY/REF/PATH."""
    place, name = f"/repositories/{lake.id}", "feature/x"
    new = {"name": "new", "storage_namespace": "local://n"}
    for url, body in (
        (f"{place}/branches", {"name": name, "source": "main"}),
        (f"{place}/tags", {"id": name, "ref": "main"}),
        ("/repositories", new | {"default_branch": name}),
    ):
        assert "%2F" in refused(http.post(url, json=body), 400, "invalid_name")["message"]
