"""Tables of a REST catalog, in a real server process: reading, expiries, and what others do while
an expiry is at work."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import Mock, patch
from uuid import UUID

import pytest
import requests
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.table import Table
from pyiceberg.table.statistics import StatisticsFile
from pyiceberg.utils.config import Config

from ebbtide.audit.verify import verify
from ebbtide.errors import Failed, InvalidInput, Refused
from ebbtide.formats.iceberg import rest
from ebbtide.formats.iceberg.catalog import CatalogTables
from ebbtide.formats.iceberg.repository import IcebergRepository
from ebbtide.formats.iceberg.rest import NOTES_PREFIX, RestCommit
from ebbtide.formats.iceberg.scheme import open_iceberg
from ebbtide.formats.iceberg.tables import Warehouse as Catalogs
from ebbtide.retention.expiry import ExpiryRequest
from tests.formats.iceberg.warehouse import NAME, Warehouse, rows
from tests.support.iceberg_rest import java, rest_catalog
from tests.support.randomized import randomized

pytestmark = pytest.mark.xdist_group("iceberg-rest")  # which share a JVM
NOW = {"history.expire.max-snapshot-age-ms": "0"}


class RestLake(Warehouse):
    """The catalog `lake` of a REST server."""

    catalog: RestCatalog  # type: ignore[assignment]

    def __init__(self, path: Path, uri: str) -> None:
        super().__init__(path)
        self.catalog.close()
        self.address = uri
        self.catalog = load_catalog(NAME, type="rest", uri=uri)  # type: ignore[assignment]
        self.catalog.create_namespace("db")

    def open(self, within: str = "", **more: Any) -> IcebergRepository:
        prefix = f"PYICEBERG_CATALOG__{NAME.upper()}__"
        given = {"TYPE": "rest", "URI": self.address, "WAREHOUSE": f"file://{self.path}"}
        with patch.dict(os.environ, {prefix + key: value for key, value in given.items()}):
            config = Config()
        with patch("pyiceberg.catalog._ENV_CONFIG", config):
            return open_iceberg(f"iceberg:{NAME}.{within}".rstrip("."), self.settings, **more)

    def names(self) -> dict[str, str]:
        found = (self.catalog.load_table(each) for each in self.catalog.list_tables("db"))
        return {".".join(each.name()): each.metadata_location for each in found}

    def files(self) -> set[str]:
        """Without what Hadoop's local file system writes beside metadata files."""
        return {each for each in super().files() if not each.endswith(".crc")}

    def tags(self) -> dict[tuple[str, str], int]:
        return {
            (".".join(table.name()), name): ref.snapshot_id
            for table in self.tables()
            for name, ref in table.metadata.refs.items()
            if name != "main"
        }

    def notes(self) -> list[Path]:
        return sorted((self.path / NOTES_PREFIX).glob("*"))

    def document(self, table: Table) -> dict[str, Any]:
        location = table.refresh().metadata_location
        found: dict[str, Any] = json.loads((self.path / self.relative(location)).read_text())
        return found


@pytest.fixture(scope="module")
def jvm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with java(tmp_path_factory.mktemp("java") / "log") as started:
        yield started


@pytest.fixture
def lake(jvm: Any, tmp_path: Path) -> Iterator[RestLake]:
    with (
        rest_catalog(jvm, tmp_path / "rest.db", tmp_path / "warehouse") as uri,
        closing(RestLake(tmp_path, uri)) as made,
    ):
        yield made


def request(**more: Any) -> ExpiryRequest:
    return ExpiryRequest.of(
        now=datetime.now(UTC), sessions=timedelta(0), has_rules=True, unsafe=True, **more
    )


def made(lake: RestLake, version: str = "2", count: int = 4) -> tuple[Table, list[int]]:
    """A table whose snapshots all expire, but the last, and their ids."""
    table = lake.table("events", **NOW, **{"format-version": version})
    for number in range(count):
        table.append(rows(number))
    return table, [each.snapshot_id for each in table.metadata.snapshots]


def listed(table: Table) -> list[int]:
    return [each.snapshot_id for each in table.refresh().metadata.snapshots]


def test_expired_collected_verified_and_undone(lake: RestLake) -> None:
    table, ids = made(lake)
    table.manage_snapshots().create_tag(ids[0], "first").commit()
    contents, before = lake.contents(), lake.document(table)
    _, expiry = lake.expire(request())
    assert expiry.released == {f"{each}:db.events" for each in ids[1:3]}
    assert listed(table) == [ids[0], ids[3]]
    assert not lake.notes()
    lake.age()
    files = lake.files()
    report = lake.swept(quarantine=timedelta(days=7))
    assert {each for each in files if any(str(one) in each for one in ids[1:3])}.isdisjoint(
        lake.files()
    )
    kept = {("db.events", each) for each in (ids[0], ids[3])}
    assert lake.contents() == {key: contents[key] for key in kept}
    collector = lake.collector()
    assert not verify(collector, report.run_id).difference_count
    assert collector.undo(report.run_id).state == "undone"
    assert lake.files() == files
    assert lake.undo_expiry() == {"db.events": ids[1:3]}
    assert lake.undo_expiry() == {"db.events": []}
    assert lake.contents() == contents
    after = lake.document(table)
    assert sorted(map(repr, after["snapshots"])) == sorted(map(repr, before["snapshots"]))
    assert after["last-sequence-number"] == before["last-sequence-number"]
    assert after["last-updated-ms"] >= before["last-updated-ms"]
    assert after["refs"].keys() == {"main", "first", *(f"ebbtide-undo-{e}" for e in ids[1:3])}
    table.append(rows(9))
    lake.age()
    assert not lake.planned()


def during(monkeypatch: pytest.MonkeyPatch, *acts: Callable[[], object]) -> list[str]:
    """Does one thing before each of the next requests for changes, behind the reading on which the
    request depends. Returns the tables of all requests."""
    send, sent, left = RestCommit._send, list[str](), list(acts)

    def late(self: RestCommit, table: str, before: Any, after: Any) -> None:
        if left:
            left.pop(0)()
        sent.append(table)
        send(self, table, before, after)

    monkeypatch.setattr(RestCommit, "_send", late)
    return sent


@pytest.mark.parametrize("version", ["1", "2", "upgraded"])
def test_a_ref_that_is_set_during_an_expiry_comes_back(
    lake: RestLake, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """The server drops it with its snapshot. The expiry lists both again, before it ends."""
    table, ids = made(lake, "2" if version == "2" else "1")
    if version == "upgraded":
        with table.transaction() as transaction:
            transaction.upgrade_table_version(2)
    other = lake.catalog.load_table("db.events")

    def act() -> None:
        manage = other.manage_snapshots().create_tag(ids[0], "late")
        manage.create_branch(ids[2], "side", max_snapshot_age_ms=10**15).commit()

    statistics = lake.path / f"events/metadata/{ids[0]}-{UUID(int=1)}.stats"
    statistics.write_bytes(b"")
    with table.update_statistics() as update:
        update.set_statistics(
            StatisticsFile.model_validate(
                {
                    "snapshot-id": ids[0],
                    "statistics-path": f"file://{statistics}",
                    "file-size-in-bytes": 0,
                    "file-footer-size-in-bytes": 0,
                    "blob-metadata": [],
                }
            )
        )
    contents, sent = lake.contents(), during(monkeypatch, act)
    before = lake.document(table)
    _, expiry = lake.expire(request())
    assert len(sent) == 2
    assert not expiry.released
    after = lake.document(table)
    assert {name: ref["snapshot-id"] for name, ref in after["refs"].items()} == {
        "main": ids[3],
        "late": ids[0],
        "side": ids[2],
    }
    assert after["refs"]["side"]["max-snapshot-age-ms"] == 10**15
    if version == "upgraded":  # all have the number 0, with which a server takes no parent
        for each in before["snapshots"][:3]:
            each.pop("parent-snapshot-id", None)
    assert sorted(map(repr, after["snapshots"])) == sorted(map(repr, before["snapshots"]))
    assert after["statistics"] == before["statistics"]
    assert not lake.notes()
    table.append(rows(9))
    lake.age()
    lake.swept()
    assert statistics.exists()
    assert {key: lake.contents()[key] for key in contents} == contents


@pytest.mark.parametrize("at", [1, 3])
def test_a_new_branch_brings_back_what_it_was_made_at(
    lake: RestLake, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """With the history of that snapshot. Nothing, if it was made at one that stays."""
    table, ids = made(lake)
    other = lake.catalog.load_table("db.events")

    def act() -> None:
        other.manage_snapshots().create_branch(ids[at], "side").commit()
        other.append(rows(7), branch="side")

    during(monkeypatch, act)
    _, expiry = lake.expire(request())
    back = ids[:2] if at == 1 else []
    assert expiry.released == {f"{each}:db.events" for each in ids[:3] if each not in back}
    found = listed(table)
    assert set(found) == {*back, ids[3], table.metadata.refs["side"].snapshot_id}
    after = lake.document(table)
    numbers = {each["sequence-number"] for each in after["snapshots"]}
    assert len(numbers) == len(found)
    assert after["last-sequence-number"] >= max(numbers)


def test_a_commit_during_the_repair(lake: RestLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """No two snapshots get one sequence number: deletes depend on them."""
    table, ids = made(lake)
    other = lake.catalog.load_table("db.events")

    def tag() -> None:
        other.manage_snapshots().create_tag(ids[0], "late").commit()

    def branch() -> None:
        other.refresh().manage_snapshots().create_branch(ids[3], "side").commit()
        other.append(rows(7), branch="side")

    sent = during(monkeypatch, tag, branch)
    lake.expire(request())
    assert len(sent) == 3
    table.refresh().append(rows(8))
    numbers = [each["sequence-number"] for each in lake.document(table)["snapshots"]]
    assert len({*numbers}) == len(numbers) == 4


@pytest.mark.parametrize("ref", ["main", "known"])
def test_a_ref_that_moves_is_decided_anew(
    lake: RestLake, monkeypatch: pytest.MonkeyPatch, ref: str
) -> None:
    """The server refuses a request whose refs are not as they were."""
    table, ids = made(lake)
    table.manage_snapshots().create_tag(ids[2], "known").commit()
    other = lake.catalog.load_table("db.events")

    def move() -> None:
        if ref == "main":
            other.append(rows(8))
        else:
            other.manage_snapshots().remove_tag("known").commit()
            other.manage_snapshots().create_tag(ids[1], "known").commit()

    sent = during(monkeypatch, move)
    _, expiry = lake.expire(request())
    assert len(sent) == 2
    kept = [*ids[2:3], *listed(table)[-1:]] if ref == "main" else [ids[1], ids[3]]
    assert listed(table) == kept
    assert expiry.released == {f"{each}:db.events" for each in {*ids} - {*kept}}
    assert not lake.notes()


def answering(
    monkeypatch: pytest.MonkeyPatch, how: str, act: Callable[[], object]
) -> list[Callable[[], object]]:
    """The next change of a table ends in another way, after somebody did something. Returns what a
    server does later with a request that it has not carried out."""
    post, later = requests.Session.post, list[Callable[[], object]]()
    answers = {"500 before": 500, "500 after": 500, "403": 403}

    def answered(self: requests.Session, url: str, **more: Any) -> requests.Response:
        if later or "/tables/" not in url or "remove-snapshots" not in str(more):
            return post(self, url, **more)
        act()
        later.append(lambda: post(self, url, **more))
        if how.endswith("after"):
            later[0]()
        if how not in answers:
            raise requests.ConnectionError("lost")
        answer = requests.Response()
        answer.status_code = answers[how]
        return answer

    monkeypatch.setattr(requests.Session, "post", answered)
    return later


@pytest.mark.parametrize("how", ["lost after", "500 after"])
def test_an_answer_that_is_lost_is_looked_for(
    lake: RestLake, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    table, ids = made(lake)
    other = lake.catalog.load_table("db.events")
    answering(
        monkeypatch, how, lambda: other.manage_snapshots().create_tag(ids[1], "late").commit()
    )
    _, expiry = lake.expire(request())
    assert expiry.released == {f"{ids[0]}:db.events", f"{ids[2]}:db.events"}
    assert {*listed(table)} == {ids[1], ids[3]}
    assert table.metadata.refs["late"].snapshot_id == ids[1]
    assert not lake.notes()


@pytest.mark.parametrize("how", ["lost before", "500 before", "403"])
def test_an_expiry_that_may_still_come_holds_runs_back(
    lake: RestLake, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The server carries out the request later, after somebody has set a tag."""
    table, ids = made(lake)
    later = answering(monkeypatch, how, lambda: None)
    with pytest.raises(Failed) as failed:
        lake.expire(request())
    assert failed.value.kind == "catalog_error"
    if how == "403":
        assert not lake.notes()
        return
    lake.age()
    assert lake.collector().plan().error["kind"] == "repository_changed"  # type: ignore[index]
    with pytest.raises(Failed, match="again later"):
        lake.expire(request())
    if how.startswith("500"):
        monkeypatch.setattr(rest, "LATE_MAX", timedelta(0))
        lake.expire(request())
        assert listed(table) == ids[3:]
        return
    table.refresh().manage_snapshots().create_tag(ids[1], "late").commit()
    later[0]()
    assert listed(table) == ids[3:]
    assert lake.collector().run().error["kind"] == "repository_changed"  # type: ignore[index]
    _, expiry = lake.expire(request())
    assert not expiry.released
    assert {*listed(table)} == {ids[1], ids[3]}
    lake.age()
    lake.swept()
    assert lake.contents().keys() == {("db.events", ids[1]), ("db.events", ids[3])}


def test_a_crash_after_the_request(lake: RestLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """No run begins until the next expiry has looked at what the request did."""
    table, ids = made(lake)
    other = lake.catalog.load_table("db.events")
    during(monkeypatch, lambda: other.manage_snapshots().create_tag(ids[1], "late").commit())
    with monkeypatch.context() as dying, pytest.raises(KeyboardInterrupt):
        dying.setattr(RestCommit, "settle", Mock(side_effect=KeyboardInterrupt))
        lake.expire(request())
    assert "late" not in table.refresh().metadata.refs
    table.append(rows(8))
    lake.age()
    assert lake.collector().run().error["kind"] == "repository_changed"  # type: ignore[index]
    [note] = lake.notes()
    theirs = json.loads(note.read_text()) | {"catalog": "theirs"}
    note.with_name("theirs.json").write_text(json.dumps(theirs))
    lake.expire(request())
    assert [*listed(table)][1:] == [ids[1]]
    assert table.metadata.refs["late"].snapshot_id == ids[1]
    # An expiry of another catalog on this storage is not this one's.
    assert [each.name for each in lake.notes()] == ["theirs.json"]
    assert lake.collector().plan().error is not None


def test_version_3(lake: RestLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server writes it. It takes no old snapshot back, so that somebody must decide."""
    events, ids = made(lake)
    table = lake.table("third", **NOW, **{"format-version": "3"})
    for number, row in enumerate(lake.document(events)["snapshots"]):
        row |= {"first-row-id": number, "added-rows": 1}
        ref = {"ref-name": "main", "type": "branch", "snapshot-id": row["snapshot-id"]}
        answer = lake.catalog._session.post(
            lake.catalog.url("namespaces/db/tables/third"),
            json={
                "requirements": [],
                "updates": [
                    {"action": "add-snapshot", "snapshot": row},
                    {"action": "set-snapshot-ref", **ref},
                ],
            },
        )
        assert answer.status_code == 200, answer.text
    lake.catalog.drop_table("db.events")
    other = lake.catalog.load_table("db.third")
    lake.expire(request(rule={"keep_last": 2}))
    assert listed(table) == ids[2:]
    during(monkeypatch, lambda: other.manage_snapshots().create_tag(ids[2], "late").commit())
    base = table.metadata_location
    with pytest.raises(Refused, match="register it under another name") as refused:
        lake.expire(request())
    [note] = lake.notes()
    assert note.name in refused.value.message
    assert listed(table) == ids[3:]
    [named] = [each for each in refused.value.message.split() if each.endswith(".metadata.json")]
    assert named != base
    assert lake.collector().plan().error["kind"] == "repository_changed"  # type: ignore[index]
    lake.catalog.register_table("db.before", named)
    assert listed(lake.catalog.load_table("db.before")) == ids[2:]
    note.unlink()
    with pytest.raises(Refused, match="lists no old snapshots"):
        lake.undo_expiry()


def test_other_catalogs_are_refused(lake: RestLake) -> None:
    """Without a request to them."""
    made(lake)
    repository = lake.open()
    glue = CatalogTables(NAME, (("glue.region", "eu-west-1"), ("type", "glue")))
    with pytest.raises(InvalidInput, match="SQL and REST, and lake is a GlueCatalog"):
        rest.commit_of(Catalogs(glue, repository.storage, repository.layout))


@randomized("histories of tables in a REST catalog")
def test_random_histories(seed: int, jvm: Any, tmp_path: Path) -> None:
    """Tables are written, tagged, registered twice and renamed, and written and tagged while
    snapshots expire. No tag is lost. What tables need reads the same, and no other old file
    stays."""
    rng = Random(seed)
    with (
        rest_catalog(jvm, tmp_path / "rest.db", tmp_path / "warehouse") as uri,
        closing(RestLake(tmp_path, uri)) as lake,
    ):
        tags = dict[tuple[str, str], int]()
        for number in range(rng.randrange(8, 16)):
            step(rng, lake, tags, number)
            if rng.random() < 0.4:
                with pytest.MonkeyPatch.context() as late:
                    during(late, partial(step, rng, lake, tags, 100 + number, late=True))
                    lake.expire(request())
            assert tags == lake.tags()
        lake.age()
        needed, contents = lake.needed(), lake.contents()
        if contents:  # otherwise a run refuses
            lake.swept()
            assert lake.files() == needed
            assert lake.contents() == contents


def step(
    rng: Random,
    lake: RestLake,
    tags: dict[tuple[str, str], int],
    number: int,
    *,
    late: bool = False,
) -> None:
    """A writer does something, and notes which tags there must be."""
    tables = lake.tables()
    act = rng.choice(("append", "append", "delete", "tag", "tag", "untag", "twin", "rename", "die"))
    if not tables or (not late and rng.random() < 0.2):
        version = {"format-version": rng.choice("12")}
        lake.table(f"t{number}", **version, **(NOW if rng.random() < 0.8 else {}))
        return
    table = rng.choice(tables)
    name, ids = ".".join(table.name()), [each.snapshot_id for each in table.metadata.snapshots]
    own = [each for table, each in tags if table == name]
    if act == "append":
        table.append(rows(*rng.sample(range(20), 2)))
    elif act == "delete" and (found := table.scan().to_arrow()["id"].to_pylist()):
        table.delete(f"id == {rng.choice(found)}")
    elif act == "tag" and ids:
        tag, chosen = f"tag{number}", rng.choice(ids)
        table.manage_snapshots().create_tag(chosen, tag).commit()
        tags[name, tag] = chosen
    elif act == "untag" and own:
        tag = rng.choice(own)
        table.manage_snapshots().remove_tag(tag).commit()
        del tags[name, tag]
    elif act == "die":
        token = UUID(int=rng.getrandbits(64))
        orphan = lake.relative(f"{table.location()}/data/00000-0-{token}.parquet")
        (lake.path / orphan).parent.mkdir(parents=True, exist_ok=True)
        (lake.path / orphan).write_bytes(b"")
    elif act in ("twin", "rename") and not late:
        new = f"db.n{number}"
        if act == "twin":
            lake.catalog.register_table(new, table.metadata_location)
        else:
            lake.catalog.rename_table(name, new)
        moved = {(new, tag): tags[name, tag] for tag in own}
        for tag in own if act == "rename" else ():
            del tags[name, tag]
        tags |= moved
