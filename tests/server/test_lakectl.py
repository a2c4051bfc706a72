"""What lakeFS's command line `lakectl` sends and expects, where lakeFS's Python clients differ.

The requests are written here as its commands send them: no test starts the program.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Final

import httpx
import lakefs

EMPTY: Final = {"after": "", "limit": "false", "first_parent": "false", "stop_at": ""}
"""What `lakectl log` sends when no option asks for anything."""


def commits(http: httpx.Client, lake: lakefs.Repository, **query: str) -> list[str]:
    """The messages of the log of `main`."""
    answer = http.get(f"/repositories/{lake.id}/refs/main/commits", params=EMPTY | query)
    assert answer.status_code == 200, answer.text
    return [each["message"] for each in answer.json()["results"]]


def test_a_log_without_an_end(http: httpx.Client, lake: lakefs.Repository) -> None:
    main = lake.branch("main")
    first = main.commit("first", allow_empty=True).get_commit().id
    main.commit("second", allow_empty=True)
    assert commits(http, lake)[:2] == ["second", "first"]
    assert len(commits(http, lake)) == 3
    assert commits(http, lake, stop_at=first) == ["second", "first"]


def test_metadata_are_changed_without_a_content(
    http: httpx.Client, lake: lakefs.Repository
) -> None:
    lake.branch("main").object("a").upload("a")
    place = f"/repositories/{lake.id}/branches/main/objects/stat/user_metadata"
    answer = http.put(place, params={"path": "a"}, json={"set": {"Key": "v"}})
    assert (answer.status_code, answer.content) == (204, b"")
    assert lake.branch("main").object("a").stat().metadata == {"Key": "v"}


def test_no_command_warns_of_another_edition(http: httpx.Client) -> None:
    told = http.get("/config").json()["version_config"]
    assert "version_context" not in told
    assert told["ebbtide_version"] == version("ebbtide")
    assert told == http.get("/config/version").json()


def test_what_is_absent_is_named(http: httpx.Client) -> None:
    """All that its command shows of a refusal is the message."""
    for method, path in (
        ("GET", "/auth/users"),
        ("GET", "/repositories/lake/actions/runs"),
        ("GET", "/repositories/lake/actions/runs/a%2Fb"),
        ("PATCH", "/repositories"),
    ):
        answer = http.request(method, path)
        assert answer.status_code in (404, 405)
        assert f"has no {method} /api/v1{path}: " in answer.json()["message"]
