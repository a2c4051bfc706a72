"""The table of states through HTTP, at the exact instants at which they change."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar

import httpx
import pytest

from ebbtide.ids import new_id
from ebbtide.store.embedded import Store
from tests.support.app import serving
from tests.support.clock import ManualClock

LAKE = "/repositories/lake"
HOUR = timedelta(hours=1)
MICROSECOND = timedelta(microseconds=1)
DOCUMENT = dict[str, Any]  # JSON


@pytest.fixture
def http(store: Store) -> Iterator[httpx.Client]:
    """The server of a store with a clock that the test sets, and a repository in it."""
    store.create_repository("lake", storage_url=f"memory:{new_id()}")
    with serving(store) as client:
        yield client


@dataclass(frozen=True)
class Kind(ABC):
    """One kind of thing with a lifecycle, as the routes have it. Things are named by their ids."""

    client: httpx.Client
    places: ClassVar[str]
    restoring: ClassVar[str] = "restore"
    """The last part of the route that restores it."""
    unchangeable: ClassVar[int] = 404
    """The status of a change to one that is in the trash."""
    unchanged: ClassVar[int] = 400
    """The status of a change that changes nothing."""

    @abstractmethod
    def create(self, name: str, expires_at: str | None) -> str:
        """Make one; its id."""

    def id_of(self, document: DOCUMENT) -> str:
        """The id in an answer."""
        return str(document["ref_id"])

    def get(self, thing: str, **params: Any) -> httpx.Response:
        """Get it."""
        return self.client.get(f"{self.places}/{thing}", params=params)

    def where(self) -> DOCUMENT:
        """What a list must be told to have things of the kind in it."""
        return {}

    def page(self, **params: Any) -> DOCUMENT:
        """A part of a list."""
        answer = self.client.get(self.places, params=self.where() | params)
        assert answer.status_code == 200, answer.text
        found: DOCUMENT = answer.json()
        return found

    def listed(self, **params: Any) -> set[str]:
        """The ids in a list."""
        return {self.id_of(each) for each in self.page(**params)["results"]}

    @abstractmethod
    def change(self, thing: str) -> int:
        """Change something of it that is not `expires_at`; the status."""

    def expire(self, thing: str, expires_at: str | None) -> httpx.Response:
        """Change when it expires."""
        return self.client.patch(f"{self.places}/{thing}", json={"expires_at": expires_at})

    def restore(self, thing: str, **asked: Any) -> httpx.Response:
        """Bring it back."""
        return self.client.post(f"{self.places}/{thing}/{self.restoring}", json=asked)

    def delete(self, thing: str) -> int:
        """Put it in the trash; the status."""
        return self.client.delete(f"{self.places}/{thing}").status_code


class BranchKind(Kind):
    """Branches."""

    places = LAKE + "/branches"

    def create(self, name: str, expires_at: str | None) -> str:
        """See `Kind.create`."""
        before = self.listed(include_expired=True)
        asked = {"name": name, "source": "main", "expires_at": expires_at}
        assert self.client.post(self.places, json=asked).status_code == 201
        (made,) = self.listed(include_expired=True) - before
        return made

    def change(self, thing: str) -> int:
        """Something is staged on it."""
        name = self.get(thing, include_expired=True).json().get("id", "x")
        put = self.client.post(f"{self.places}/{name}/objects?path=a", content=b"a")
        return put.status_code


class TagKind(Kind):
    """Tags."""

    places = LAKE + "/tags"

    def create(self, name: str, expires_at: str | None) -> str:
        """See `Kind.create`."""
        made = self.client.post(
            self.places, json={"id": name, "ref": "main", "expires_at": expires_at}
        )
        assert made.status_code == 201, made.text
        return self.id_of(made.json())

    def change(self, thing: str) -> int:
        """A tag never changes, but for being deleted: then it comes back."""
        status = self.delete(thing)
        if status == 204:
            self.restore(thing)
        return 200 if status == 204 else status


class RepositoryKind(Kind):
    """Repositories."""

    places = "/repositories"
    restoring = "undelete"

    def create(self, name: str, expires_at: str | None) -> str:
        """See `Kind.create`."""
        place = f"local://{name}-{new_id()}"
        asked = {"name": name, "storage_namespace": place, "expires_at": expires_at}
        made = self.client.post(self.places, json=asked)
        assert made.status_code == 201, made.text
        return self.id_of(made.json())

    def id_of(self, document: DOCUMENT) -> str:
        """See `Kind.id_of`."""
        return str(document["repository_id"])

    def change(self, thing: str) -> int:
        """A branch is made."""
        name = self.get(thing, include_expired=True).json().get("id", "xxx")
        asked = {"name": f"b-{new_id()}", "source": "main"}
        return self.client.post(f"{self.places}/{name}/branches", json=asked).status_code


class ProjectKind(Kind):
    """Projects."""

    places = "/projects"
    unchangeable = 409
    unchanged = 200

    def where(self) -> DOCUMENT:
        """See `Kind.where`."""
        return {"repository": "lake"}

    def create(self, name: str, expires_at: str | None) -> str:
        """See `Kind.create`."""
        asked = self.where() | {"name": name, "expires_at": expires_at}
        made = self.client.post(self.places, json=asked)
        assert made.status_code == 201, made.text
        return self.id_of(made.json())

    def id_of(self, document: DOCUMENT) -> str:
        """See `Kind.id_of`."""
        return str(document["id"])

    def change(self, thing: str) -> int:
        """It is described."""
        return self.client.patch(f"{self.places}/{thing}", json={"description": "x"}).status_code


class CollectionKind(ProjectKind):
    """Collections, in one project."""

    places = "/collections"

    def where(self) -> DOCUMENT:
        """See `Kind.where`."""
        projects = ProjectKind(self.client)
        (project_id,) = projects.listed() or {projects.create("project", None)}
        return {"project_id": project_id}


NAMED: dict[str, type[Kind]] = {
    "branch": BranchKind,
    "tag": TagKind,
    "repository": RepositoryKind,
}
"""The kinds that routes name by name or id."""

KINDS = NAMED | {"project": ProjectKind, "collection": CollectionKind}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, http: httpx.Client) -> Kind:
    """Each kind of thing."""
    return KINDS[request.param](http)


@pytest.fixture(params=NAMED)
def named(request: pytest.FixtureRequest, http: httpx.Client) -> Kind:
    """Each kind of thing that has a name in routes."""
    return NAMED[request.param](http)


@dataclass(frozen=True)
class Row:
    """A row of the table, and when it holds: so long after `expires_at`, and after the end of the
    trash time, too, if `after_trash`. None: there is no `expires_at`."""

    state: str
    since: timedelta | None
    after_trash: bool
    get: bool
    get_expired: bool
    listed: bool
    listed_expired: bool
    changes: str


TABLE = [
    Row("persistent", None, False, True, True, True, True, "all"),
    Row("expiring", -MICROSECOND, False, True, True, True, True, "all"),
    Row("trashed", timedelta(), False, False, True, False, True, "expires_at"),
    Row("trashed", -MICROSECOND, True, False, True, False, True, "expires_at"),
    Row("gone", timedelta(), True, False, False, False, False, "none"),
]


def text(instant: datetime) -> str:
    return instant.isoformat().replace("+00:00", "Z")


@pytest.mark.drawn("states of a life")
@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.state}-{row.since}")
def test_the_table_of_states(store: Store, clock: ManualClock, kind: Kind, row: Row) -> None:
    expires_at = None if row.since is None else clock.now + HOUR
    thing = kind.create("thing", None if expires_at is None else text(expires_at))
    if expires_at is not None and row.since is not None:
        trash_time = store.settings.trash_time if row.after_trash else timedelta()
        clock.now = expires_at + trash_time + row.since

    for expected, params in (
        (row.get, {}),
        (row.get, {"include_expired": False}),
        (row.get_expired, {"include_expired": True}),
    ):
        got = kind.get(thing, **params)
        assert got.status_code == (200 if expected else 404), params
        if expected:
            assert got.json()["state"] == row.state
            assert got.json().get("expires_at") == (expires_at and text(expires_at))
        else:
            assert got.json()["kind"].endswith("_not_found")
    assert (thing in kind.listed()) is row.listed
    assert (thing in kind.listed(include_expired=True)) is row.listed_expired
    for state in ("persistent", "expiring", "trashed"):
        shown = kind.listed(include_expired=True, state=state)
        assert (thing in shown) is (row.listed_expired and state == row.state)

    changed = kind.change(thing)
    assert (changed < 300) is (row.changes == "all"), changed
    refused = kind.unchangeable if row.changes == "expires_at" else 404
    assert changed < 300 or changed == refused
    back = kind.expire(thing, text(clock.now + HOUR))
    assert back.status_code == (404 if row.changes == "none" else 200), back.text
    if row.changes != "none":
        assert back.json()["state"] == "expiring"
        assert kind.expire(thing, None).json()["state"] == "persistent"
        assert "expires_at" not in kind.get(thing).json()
    else:
        assert kind.restore(thing).status_code == 404


def test_a_past_time_becomes_now(store: Store, clock: ManualClock, kind: Kind) -> None:
    for number, made_with in enumerate((text(clock.now - HOUR), None)):
        thing = kind.create(f"thing-{number}", made_with)
        if made_with is None:
            assert kind.expire(thing, text(clock.now - HOUR)).status_code == 200
        found = kind.get(thing, include_expired=True).json()
        assert (found["state"], found["expires_at"]) == ("trashed", text(clock.now))
        clock.advance(store.settings.trash_time - MICROSECOND)
        assert kind.restore(thing).json()["state"] == "persistent"


def test_dates_that_are_none(kind: Kind) -> None:
    thing = kind.create("thing", None)
    ends = ("9999-12-31T23:59:59-05:00", "0001-01-01T00:00:00+12:00")
    for wrong in ("2031-01-01T00:00:00", "soon", 1, True, *ends):
        assert (
            kind.client.patch(f"{kind.places}/{thing}", json={"expires_at": wrong}).status_code
            == 400
        ), wrong
    assert kind.client.patch(f"{kind.places}/{thing}", json={}).status_code == kind.unchanged
    assert kind.expire(thing, "9999-12-31T23:59:59.999999Z").json()["state"] == "expiring"
    assert kind.get(thing).json()["state"] == "expiring"


def test_names_in_the_trash(clock: ManualClock, named: Kind) -> None:
    """A name is free at once; several in the trash are told apart by their ids."""
    kind = named
    first = kind.create("thing", None)
    assert kind.delete(first) == 204
    assert kind.delete(first) == 404
    clock.advance(HOUR)
    second = kind.create("thing", None)
    taken = kind.restore("thing")
    assert (taken.status_code, taken.json()["kind"].partition("_")[2]) == (409, "exists")
    assert kind.expire(first, None).status_code == 409
    unique = kind.restore(first, ensure_unique_name=True).json()
    assert unique["id"] == "thing-2"
    assert kind.delete(first) == 204
    clock.advance(HOUR)
    assert kind.delete(second) == 204
    assert kind.restore("thing").json()["id"] == "thing"
    assert kind.delete("thing") == 204
    clock.advance(HOUR)
    third = kind.create("thing", None)
    assert kind.delete(third) == 204
    for ambiguous in (kind.restore("thing"), kind.get("thing", include_expired=True)):
        assert (ambiguous.status_code, ambiguous.json()["kind"]) == (400, "ref_ambiguous")
        assert ambiguous.json()["ids"] == [third, second]
    assert kind.listed(include_expired=True) >= {first, second, third}
    assert not kind.listed() & {first, second, third}


def test_lists_by_date_and_in_pages(clock: ManualClock, kind: Kind) -> None:
    start = clock.now
    things: list[str] = []
    for number in range(4):
        clock.now = start + number * HOUR
        things.append(kind.create("thing", text(start + (number + 1) * HOUR)))
    clock.now = start + 4 * HOUR
    assert not kind.listed() & set(things)
    after = {"include_expired": True, "expires_after": text(start + 2 * HOUR)}
    assert kind.listed(**after) == set(things[1:])
    before = after | {"expires_before": text(start + 3 * HOUR)}
    assert kind.listed(**before) == {things[1]}
    found: list[str] = []
    params: dict[str, Any] = {"include_expired": True, "amount": 1, "prefix": "thing"}
    while True:
        answer = kind.page(**params)
        found += [kind.id_of(each) for each in answer["results"]]
        if not answer["pagination"]["has_more"]:
            break
        params["after"] = answer["pagination"]["next_offset"]
    assert found == sorted(things)


def test_the_default_branch_stays(http: httpx.Client, clock: ManualClock) -> None:
    main = BranchKind(http)
    for status in (main.delete("main"), main.expire("main", text(clock.now)).status_code):
        assert status == 403
    assert main.expire("main", None).status_code == 200
