"""What lakeFS's command line `lakectl` sends and expects, where lakeFS's Python clients differ.

The requests are written here as its commands send them: no test starts the program.
"""

from __future__ import annotations

from importlib.metadata import version

import httpx
import lakefs


def test_a_log_without_an_end(http: httpx.Client, lake: lakefs.Repository) -> None:
    """As `lakectl log` asks for it when no option asks for anything."""
    main = lake.branch("main")
    first = main.commit("first", allow_empty=True).get_commit().id
    main.commit("second", allow_empty=True)
    query = {"after": "", "limit": "false", "first_parent": "false", "stop_at": ""}
    for stop_at, expected in (
        ("", ["second", "first", "Repository created"]),
        (first, ["second", "first"]),
    ):
        asked = query | {"stop_at": stop_at}
        answer = http.get(f"/repositories/{lake.id}/refs/main/commits", params=asked)
        assert [each["message"] for each in answer.json()["results"]] == expected


def test_no_command_warns_of_another_edition(http: httpx.Client) -> None:
    told = http.get("/config").json()["version_config"]
    assert "version_context" not in told
    assert told["ebbtide_version"] == version("ebbtide")
    assert told == http.get("/config/version").json()
