"""`project`."""

from __future__ import annotations

import re

from tests.cli.conftest import Ebbtide


def test_a_life(lake: Ebbtide) -> None:
    made = lake.json("project create lake genomes --property who=me")
    assert (made["path"], made["state"]) == ("genomes", "persistent")
    assert made["properties"] == {"who": "me"}
    lake("project create lake genomes/2026 --expires-in 3d")
    inner = lake.json("project show lake genomes/2026")
    assert (inner["parent_id"], inner["state"]) == (made["project_id"], "expiring")
    assert "genomes/2026" in lake("project show lake", inner["project_id"]).out
    more = ("--description", "text", "--property", "n=1", "--unset-property", "who")
    changed = lake.json("project update lake genomes --name g", *more)
    assert (changed["name"], changed["description"]) == ("g", "text")
    assert changed["properties"] == {"n": "1"}
    lake.refuses("invalid_argument", "project update lake g --unset-property no", code=2)
    moved = lake.json("project move lake g/2026")
    assert (moved["path"], moved["parent_id"]) == ("2026", None)
    lake("project move lake 2026 g")
    assert "stays" not in lake("project update lake g/2026 --never").out
    assert lake.json("project show lake g/2026")["state"] == "persistent"


def test_the_trash(lake: Ebbtide) -> None:
    """Tables tell states apart, and have ids where names are not enough."""
    lake("project create lake a")
    lake("project create lake a/in")
    lake("project create lake ending --expires-at 2999-01-01T00:00:00Z")
    deleted = lake("project delete lake a")
    (trashed,) = lake.json("project list lake --state trashed")["projects"]
    assert f"ebbtide project restore lake {trashed['project_id']}" in deleted.out
    plain = lake("project list lake").out
    assert trashed["project_id"] not in plain
    assert "expiring" in plain
    shown = lake("project list lake --include-expired").out
    assert re.search(rf"^{trashed['project_id']} +a .*trashed", shown, re.MULTILINE)
    hidden = lake.refuses("project_not_found", "project show lake a/in")
    assert "restore" in hidden.document["error"]["message"]
    assert "trashed" in lake("project show lake a/in --include-expired").out
    lake("project create lake a")
    lake.refuses("project_exists", "project restore lake", trashed["project_id"])
    for more in ((), ("--ensure-unique-name",)):
        live = lake.refuses("project_exists", "project restore lake a", *more)
        message = live.document["error"]["message"]
        assert trashed["project_id"] in message
        assert "--ensure-unique-name" in message
    back = lake("project restore lake", trashed["project_id"], "--ensure-unique-name")
    assert "project a (2) is restored" in back.out
    assert lake.json("project list lake --state expiring")["projects"][0]["name"] == ("ending")
    found = lake("project list lake --expires-before 2999-01-01T00:00:00Z")
    assert "no projects" in found.out


def test_a_date_in_the_past(lake: Ebbtide) -> None:
    lake("project create lake p")
    past = lake("project update lake p --expires-at 2001-01-01T00:00:00Z")
    assert "in the trash" in past.out
    lake.refuses("project_not_found", "project show lake p")
    assert lake.json("project update lake p --expires-in 1d")["state"] == "expiring"
