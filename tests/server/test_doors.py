"""Doors of the server: in which order they are asked, and a server without any."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from ebbtide.server import doors
from ebbtide.server.app import create_app
from ebbtide.server.doors import Door
from ebbtide.settings import Settings
from ebbtide.store.access.access_keys import Role
from ebbtide.store.embedded import Store
from tests.support.app import asking, serving


class PathDoor(Door):
    """Takes one path."""

    @classmethod
    def opened(cls, state: Any) -> Self | None:
        return cls() if cls.is_wanted(state.settings) else None

    @staticmethod
    def is_wanted(settings: Settings) -> bool:
        return settings.reclaim

    def is_own(self, scope: Scope) -> bool:
        return bool(scope["path"] == "/theirs")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await PlainTextResponse(type(self).__name__)(scope, receive, send)


class SignedDoor(PathDoor):
    """Takes what has a header."""

    precedence = 1

    def is_own(self, scope: Scope) -> bool:
        return any(name == b"x-signed" for name, _ in scope["headers"])


class ClosedDoor(PathDoor):
    """Is not asked for."""

    @staticmethod
    def is_wanted(settings: Settings) -> bool:
        return not settings.reclaim


class Entry:
    """An entry point."""

    def __init__(self, kind: type[Door]) -> None:
        self._kind = kind

    def load(self) -> type[Door]:
        return self._kind


def test_the_first_door_whose_own_it_is(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = (ClosedDoor, PathDoor, SignedDoor)
    found = {kind.__name__: Entry(kind) for kind in kinds}
    monkeypatch.setattr(doors, "plugins_of", lambda group: found if group == doors.GROUP else {})
    key = store.keys.create(Role.ADMIN, name="test")
    with asking(create_app(store), (key.key.access_key_id, key.secret)) as http:
        assert http.get("http://test/theirs").text == "PathDoor"
        assert http.get("http://test/theirs", headers={"x-signed": "yes"}).text == "SignedDoor"
        assert http.get("repositories", headers={"x-signed": "yes"}).text == "SignedDoor"
        assert http.get("repositories").json()["results"] == []


def test_a_server_without_doors(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of other formats have no route then."""
    monkeypatch.setattr(doors, "plugins_of", lambda _group: {})
    with serving(store) as http:
        assert http.get("repositories").status_code == 200
        signed = http.get("http://test/lake", params={"X-Amz-Algorithm": "AWS4-HMAC-SHA256"})
        assert signed.json()["kind"] == "route_not_found"


ALONE = """
import sys

class Absent:
    def find_spec(self, name, path, target=None):
        if name.startswith("ebbtide.doors"):
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Absent())
import ebbtide.plugins
ebbtide.plugins.plugins_of = lambda group: {}
from datetime import timedelta
from pathlib import Path
from ebbtide.settings import Settings
from ebbtide.store.gc.run_metadata import drop_ended
from ebbtide.store.embedded import Store
from tests.support.app import serving

with Store.init(Path(sys.argv[1]), settings=Settings()) as store:
    lake = store.create_repository("lake")
    with serving(store) as http:
        place = "repositories/lake/branches/main/objects"
        http.post(place, params={"path": "a"}, content=b"data").raise_for_status()
        http.post("repositories/lake/branches/main/commits", json={"message": "x"})
        read = http.get("repositories/lake/refs/main/objects", params={"path": "a"})
    hour = timedelta(hours=1)
    with store.metadata.transaction() as tx:
        drop_ended(tx, lake.info.repository_id, lease_ttl=hour, trash_time=hour)
print(read.text, end="")
"""


def test_a_program_without_the_packages_of_doors(tmp_path: Path) -> None:
    """It serves, and a fence drops what has ended."""
    command = [sys.executable, "-c", ALONE, str(tmp_path / "store")]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (found.stdout, found.returncode) == ("data", 0), found.stderr
