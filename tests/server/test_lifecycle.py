"""The life of each kind of thing through HTTP. Its states at each instant, names in the trash and
lists are the store's, and are tested there; here, routes pass all of it on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest

from ebbtide.ids import new_id
from ebbtide.store.embedded import Store
from tests.support.app import serving
from tests.support.clock import ManualClock
from tests.support.collected import Document, done

HOUR = timedelta(hours=1)
MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True)
class Kind:
    """One kind of thing, as the routes have it. Things are named by their ids."""

    http: httpx.Client
    places: str
    asked: Callable[[], Document]
    """The body of a request that makes one, but for its name and `expires_at`."""
    change: tuple[str, str, Document]
    """Changes one of the name `thing`: the method, the route below `places`, and the body."""
    name: str = "name"
    id: str = "ref_id"
    restoring: str = "restore"
    unchangeable: int = 404
    """The status of a change to one that is in the trash."""
    unchanged: int = 400
    """The status of a change that changes nothing."""
    where: Document = field(default_factory=dict)
    """What a list must be told to have things of the kind in it."""

    def create(self, expires_at: datetime | None = None) -> str:
        asked = self.asked() | {self.name: "thing"}
        asked |= {} if expires_at is None else {"expires_at": expires_at.isoformat()}
        before = self.listed(include_expired=True)
        assert self.http.post(self.places, json=asked).status_code == 201
        (made,) = self.listed(include_expired=True) - before
        return made

    def get(self, thing: str, **params: Any) -> httpx.Response:
        return self.http.get(f"{self.places}/{thing}", params=params)

    def listed(self, **params: Any) -> set[str]:
        found = done(self.http.get(self.places, params=self.where | params))
        return {str(each[self.id]) for each in found["results"]}

    def expire(self, thing: str, expires_at: object) -> httpx.Response:
        text = expires_at.isoformat() if isinstance(expires_at, datetime) else expires_at
        return self.http.patch(f"{self.places}/{thing}", json={"expires_at": text})

    def restore(self, thing: str, **asked: Any) -> httpx.Response:
        return self.http.post(f"{self.places}/{thing}/{self.restoring}", json=asked)

    def delete(self, thing: str) -> int:
        return self.http.delete(f"{self.places}/{thing}").status_code


@pytest.fixture
def kinds(store: Store) -> Iterator[dict[str, Kind]]:
    lake = store.create_repository("lake", storage_url=f"memory:{new_id()}")
    project = lake.projects.create("project").project_id
    branches, tags = "/repositories/lake/branches", "/repositories/lake/tags"
    commit = ("POST", "thing/commits", {"message": "m", "allow_empty": True})
    branch = ("POST", "thing/branches", {"name": "b", "source": "main"})
    described: Document = {
        "change": ("PATCH", "", {"description": "x"}),
        "unchangeable": 409,
        "unchanged": 200,
        "id": "id",
    }
    with serving(store) as http:
        yield {
            "branch": Kind(http, branches, lambda: {"source": "main"}, commit),
            "tag": Kind(http, tags, lambda: {"ref": "main"}, ("DELETE", "thing", {}), name="id"),
            "repository": Kind(
                http,
                "/repositories",
                lambda: {"storage_namespace": f"local://{new_id()}"},
                branch,
                id="repository_id",
                restoring="undelete",
            ),
            "project": Kind(
                http,
                "/projects",
                lambda: {"repository": "lake"},
                where={"repository": "lake"},
                **described,
            ),
            "collection": Kind(
                http,
                "/collections",
                lambda: {"project_id": project},
                where={"project_id": project},
                **described,
            ),
        }


def check_state(kind: Kind, thing: str, state: str) -> None:
    """What routes show of a thing in a state; `gone` is that of one whose trash time is over."""
    is_live, is_there = state in ("persistent", "expiring"), state != "gone"
    for is_shown, params in (
        (is_live, {}),
        (is_live, {"include_expired": False}),
        (is_there, {"include_expired": True}),
    ):
        got = kind.get(thing, **params)
        assert got.status_code == (200 if is_shown else 404), params
        if is_shown:
            assert got.json()["state"] == state
            assert ("expires_at" in got.json()) is (state != "persistent")
        else:
            assert got.json()["kind"].endswith("_not_found")
        assert (thing in kind.listed(**params)) is is_shown, params
    for each in ("persistent", "expiring", "trashed"):
        shown = kind.listed(include_expired=True, state=each)
        assert (thing in shown) is (each == state), each


def test_a_life(store: Store, clock: ManualClock, kinds: dict[str, Kind]) -> None:
    """From its making to the end of its trash time, with each change between."""
    trash_time = store.settings.trash_time
    for name, kind in kinds.items():
        thing = kind.create(clock.now + HOUR)
        clock.advance(HOUR - MICROSECOND)
        check_state(kind, thing, "expiring")
        clock.advance(MICROSECOND)
        check_state(kind, thing, "trashed")
        method, place, body = kind.change
        changed = kind.http.request(method, f"{kind.places}/{place or thing}", json=body)
        assert changed.status_code == kind.unchangeable, (name, changed.text)
        assert kind.expire(thing, clock.now + HOUR).json()["state"] == "expiring", name
        assert kind.expire(thing, None).json()["state"] == "persistent", name
        check_state(kind, thing, "persistent")
        dates = {"include_expired": True, "expires_after": clock.now.isoformat()}
        assert kind.expire(thing, clock.now + HOUR).status_code == 200, name
        assert kind.listed(**dates) == {thing}, name
        assert kind.listed(**dates, expires_before=(clock.now + HOUR).isoformat()) == set(), name
        # A past time becomes now.
        assert kind.expire(thing, clock.now - HOUR).json()["state"] == "trashed", name
        found = kind.get(thing, include_expired=True).json()["expires_at"]
        assert datetime.fromisoformat(found) == clock.now, name
        clock.advance(trash_time - MICROSECOND)
        assert kind.restore(thing).json()["state"] == "persistent", name
        assert kind.delete(thing) == 204, name
        assert kind.delete(thing) == 404, name
        check_state(kind, kind.create(clock.now - HOUR), "trashed")
        clock.advance(trash_time)
        check_state(kind, thing, "gone")
        assert kind.restore(thing).status_code == kind.expire(thing, None).status_code == 404, name


def test_dates_that_are_none(clock: ManualClock, kinds: dict[str, Kind]) -> None:
    ends = ("9999-12-31T23:59:59-05:00", "0001-01-01T00:00:00+12:00")
    for name, kind in kinds.items():
        thing = kind.create()
        for wrong in ("2031-01-01T00:00:00", "soon", 1, True, *ends):
            assert kind.expire(thing, wrong).status_code == 400, (name, wrong)
        unchanged = kind.http.patch(f"{kind.places}/{thing}", json={})
        assert unchanged.status_code == kind.unchanged, name
        assert kind.expire(thing, "9999-12-31T23:59:59.999999Z").json()["state"] == "expiring"
        assert kind.delete(thing) == 204, "branches and tags share names"
    main = kinds["branch"]
    assert main.expire("main", clock.now).status_code == 403
    assert main.expire("main", None).status_code == 200


def test_names_in_the_trash(kinds: dict[str, Kind]) -> None:
    """A name is free at once; several in the trash are told apart by their ids."""
    for kind in (kinds[name] for name in ("branch", "tag", "repository")):
        first = kind.create()
        assert kind.delete(first) == 204
        second = kind.create()
        taken = kind.restore("thing")
        assert (taken.status_code, taken.json()["kind"].partition("_")[2]) == (409, "exists")
        assert kind.expire(first, None).status_code == 409
        assert kind.restore(first, ensure_unique_name=True).json()["id"] == "thing-2"
        assert kind.delete("thing") == 204
        third = kind.create()
        assert kind.delete(third) == 204
        for ambiguous in (kind.restore("thing"), kind.get("thing", include_expired=True)):
            assert (ambiguous.status_code, ambiguous.json()["kind"]) == (400, "ref_ambiguous")
            assert set(ambiguous.json()["ids"]) == {third, second}
        assert kind.delete(first) == 204
