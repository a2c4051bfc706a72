"""What Arvados does, and this store too. Facts whose test is not here have it beside others of
their kind. docs/arvados.md has what is different."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import httpx
import sqlalchemy as sa

from ebbtide.doors.arvados.server.discovery import RESOURCES
from ebbtide.doors.arvados.store.manifests import parse_manifest
from ebbtide.doors.arvados.store.repository import ArvadosRepository
from ebbtide.doors.arvados.store.trashable import Timers
from ebbtide.ids import new_id
from ebbtide.store.database.schema import collections, projects
from ebbtide.store.embedded import Store
from ebbtide.store.gc.run_metadata import drop_ended
from ebbtide.store.repository import Repository
from tests.doors.arvados.server.conftest import ArvadosServer
from tests.doors.arvados.server.test_clients import Clients
from tests.doors.arvados.server.test_keep import API, create, put, refused
from tests.support.arvados import HOLDER, manifest_of, md5, put_block, save, signed
from tests.support.clock import ManualClock
from tests.support.collections import raises

DOCUMENT = Path(__file__).parents[4] / "docs" / "arvados.md"
SAME: Final = {
    "test_dates_of_the_trash": (
        "A `trash_at` in the past becomes the present. `is_trashed` alone sets and clears "
        "the timers. Without `delete_at`, it is `trash_at` and the trash lifetime. Only "
        "one of the timers, or `delete_at` before `trash_at`, is invalid. `trash` keeps an "
        "item for the trash lifetime. `untrash` of an item that is not trashed is 422. A "
        "change of a trashed item needs `include_trash`."
    ),
    "test_visibility_and_signatures_end_at_trash_at": (
        "An item is hidden from the instant `trash_at` on. A signature ends after the "
        "signing TTL, or at `trash_at` if that is earlier."
    ),
    "test_the_trash": (
        "A trashed collection has no signatures. A name can be used again after a delete; "
        "`untrash` then conflicts. `ensure_unique_name` changes a name that is taken."
    ),
    "test_trashing_a_project_hides_its_contents_and_changes_none": (
        "Trashing a project hides its contents, whose fields do not change."
    ),
    "test_contents_end_with_their_project": (
        "After a project's `delete_at`, a sweep deletes its contents too."
    ),
    "test_versions": (
        "With `preserve_version`, a change of name, description, properties or manifest "
        "keeps the version before. Trashing makes no version. Old versions keep their "
        "blocks."
    ),
    "test_a_block": (
        "A signature has 40 hexadecimal digits, and the expiry 8. The answer to a written "
        "block confirms replicas and storage classes in headers. `GET` and `HEAD` of a "
        "signed locator read a block."
    ),
    "test_arv_put_raw_and_the_hash": (
        "`arv-put --raw` and `--portable-data-hash`; `arv-get` by hash."
    ),
    "test_users": ("The mount writes only if `can_write` of the user is true."),
    "test_what_clients_ask_first": (
        "The discovery document has the fields and parameters that clients use. `config` "
        "has storage classes and `CollectionVersioning`. `keep_services/accessible` names "
        "host, port and type."
    ),
    "test_errors_have_one_shape": ('Errors are `{"errors": […]}`.'),
    "test_contents_page_by_page": ("Contents are read page by page with `uuid` `>=` and `!=`."),
    "test_good_ones": ("The grammar of manifests; `\\040`; repeated paths; the empty manifest."),
    "test_a_known_hash": (
        "The portable data hash is the MD5 and length of the manifest without hints."
    ),
    "test_what_is_not_stored": ("A block has at most 64 MiB."),
    "test_names_with_a_slash_are_refused": (
        "A slash in a name, and the names `.` and `..`, are refused by default."
    ),
    "test_copies_moves_and_deletes": (
        "`replace_files` copies, moves and deletes; all sources are as before the request."
    ),
    "test_segments_are_replaced": (
        "`replace_segments` leaves out all pieces of a block if one of them is not there."
    ),
    "test_unknown_fields_are_refused": ("Unknown fields are 422."),
    "test_fields_that_no_record_has_cannot_be_selected": ("An unknown name in `select` is 422."),
    "test_the_hash_must_be_that_of_the_manifest": (
        "A `portable_data_hash` that is not the manifest's is 422."
    ),
}
"""Facts of Arvados at the revision that the document names, which hold here too, by their tests."""
TRASH = timedelta(days=7)
LEASE = timedelta(hours=1)
LATE = "2099-01-01T00:00:00.000000000Z"


def test_every_fact_has_its_test() -> None:
    """The document has those that differ, and why."""
    section = DOCUMENT.read_text().partition("## What is different from Arvados")[2]
    rows = re.findall(r"^\| (.+?) \| (.+) \|$", section.partition("\n## ")[0], re.MULTILINE)
    written = {
        name
        for file in Path(__file__).parents[1].glob("*/test_*.py")
        for name in re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE)
    }
    assert SAME.keys() <= written
    assert len(rows) > 15
    assert all(len(why) > 10 for _, why in rows[1:])


def test_trashing_a_project_hides_its_contents_and_changes_none(http: httpx.Client) -> None:
    group = http.post("/arvados/v1/groups", json={"name": new_id()[:8]}).json()
    url = f"/arvados/v1/groups/{group['uuid']}"
    inner = create(http, "", owner_uuid=group["uuid"])
    http.post(f"{url}/trash").raise_for_status()
    refused(http.get(f"{API}/{inner['uuid']}"), 404, "collection_not_found")
    found = http.get(f"{API}/{inner['uuid']}", params={"include_trash": "true"}).json()
    assert (found["is_trashed"], found["trash_at"], found["delete_at"]) == (False, None, None)
    http.post(f"{url}/untrash").raise_for_status()
    assert http.get(f"{API}/{inner['uuid']}").json()["name"] == inner["name"]


def test_contents_end_with_their_project(repository: Repository, clock: ManualClock) -> None:
    owner = ArvadosRepository(repository).owners.root
    group = ArvadosRepository(repository).groups.create(owner, "outer", timers=Timers())
    inner = ArvadosRepository(repository).groups.create(group.uuid, "inner", timers=Timers())
    save(repository, ArvadosRepository(repository).owners.group_id(inner.uuid), "made", "")
    ArvadosRepository(repository).groups.trash(group.uuid)
    repository_id = repository.info.repository_id
    for elapsed, left in ((TRASH - LEASE, (2, 1)), (LEASE, (0, 0))):
        clock.advance(elapsed)
        with repository.context.metadata.transaction() as tx:
            tx.lock_repository(repository_id, "exclusive")
            drop_ended(tx, repository_id, lease_ttl=LEASE, trash_time=TRASH)
            found = tuple(
                len(tx.execute(sa.select(each)).all()) for each in (projects, collections)
            )
        assert found == left


def test_arv_put_raw_and_the_hash(arvados: ArvadosServer, tmp_path: Path) -> None:
    clients = Clients(arvados, tmp_path)
    (tmp_path / "f").write_bytes(data := new_id().encode())
    raw = clients.put("--raw", str(tmp_path / "f"))
    assert raw.startswith(f"{md5(data)}+{len(data)}")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "g").write_bytes(data)
    pdh = clients.put("--portable-data-hash", str(tmp_path / "d"))
    assert clients.get(pdh) == {"d/g": data}


def test_contents_page_by_page(http: httpx.Client) -> None:
    """As `arv-mount` reads them: from the last id on, without the last item."""
    group = http.post("/arvados/v1/groups", json={"name": new_id()[:8]}).json()
    expected = {create(http, "", owner_uuid=group["uuid"])["uuid"] for _ in range(3)}
    seen: list[str] = []
    for _ in range(4):
        more = [["uuid", ">=", seen[-1]], ["uuid", "!=", seen[-1]]] if seen else []
        filters = [["uuid", "is_a", "arvados#collection"], *more]
        asked = {"filters": json.dumps(filters), "order": "uuid", "limit": "1"}
        items = http.get(f"/arvados/v1/groups/{group['uuid']}/contents", params=asked).json()
        seen += [item["uuid"] for item in items["items"]]
    assert seen == sorted(expected)


def test_names_with_a_slash_are_refused(http: httpx.Client) -> None:
    found = http.get("/arvados/v1/config").json()
    assert found["Collections"]["ForwardSlashNameSubstitution"] == ""
    for path, record in ((API, "collection"), ("/arvados/v1/groups", "group")):
        for name in ("a/b", "/", ".", ".."):
            refused(http.post(path, json={record: {"name": name}}), 422, "invalid_name")


def test_dates_of_the_trash(http: httpx.Client) -> None:
    url = f"{API}/{create(http, '')['uuid']}"

    def changed(answer: httpx.Response) -> tuple[datetime, datetime]:
        found = answer.raise_for_status().json()
        trash_at, delete_at = found["trash_at"], found["delete_at"]
        return datetime.fromisoformat(trash_at), datetime.fromisoformat(delete_at)

    assert http.post(f"{url}/untrash").status_code == 422
    trash_at, delete_at = changed(http.put(url, json={"trash_at": LATE}))
    assert delete_at - trash_at == TRASH
    for dates in (
        {"trash_at": LATE, "delete_at": None},
        {"trash_at": None, "delete_at": LATE},
        {"trash_at": LATE, "delete_at": "2098-01-01T00:00:00Z"},
    ):
        refused(http.put(url, json=dates), 422, "invalid_date")
    before = datetime.now(UTC) - timedelta(minutes=5)
    for method, path, body in (
        ("PUT", url, {"trash_at": "2001-01-01T00:00:00Z"}),
        ("PUT", url, {"is_trashed": True}),
        ("POST", f"{url}/trash", None),
    ):
        trash_at, delete_at = changed(http.request(method, path, json=body))
        assert (trash_at > before, delete_at - trash_at) == (True, TRASH)
        refused(http.put(url, json={"trash_at": None}), 404, "collection_not_found")
        again = {"include_trash": True, "collection": {"is_trashed": False}}
        found = http.put(url, json=again).json()
        assert (found["trash_at"], found["delete_at"]) == (None, None)


def test_visibility_and_signatures_end_at_trash_at(
    repository: Repository, clock: ManualClock
) -> None:
    """A signature ends after the lease, or then."""
    project_id = repository.projects.create("project").project_id
    found = save(repository, project_id, "made", manifest_of(put_block(repository, b"data")))

    def expiry() -> datetime:
        (locator,) = parse_manifest(signed(repository, found)).locators.popitem()[1]
        return datetime.fromtimestamp(int(locator[-8:], 16), UTC)

    update, get = (
        ArvadosRepository(repository).collections.update,
        ArvadosRepository(repository).collections.get,
    )
    assert expiry() == (clock.now + LEASE).replace(microsecond=0)
    update(found.listed.uuid, holder=HOLDER, timers=Timers(trash_at=clock.now + LEASE / 3))
    assert expiry() == (clock.now + LEASE / 3).replace(microsecond=0)
    clock.advance(LEASE / 3 - timedelta(microseconds=1))
    assert get(found.listed.uuid).listed.is_trashed is False
    clock.advance(timedelta(microseconds=1))
    with raises("collection_not_found"):
        get(found.listed.uuid)


def test_versions(http: httpx.Client, arvados: ArvadosServer) -> None:
    """`preserve_version` keeps one, whose blocks stay. Trashing makes none."""
    server, data = arvados.server, new_id().encode()
    with Store.open(server.directory, settings=server.settings) as store:
        kept = store.repository("lake").collections
        for change in ({"name": new_id()[:8]}, {"properties": {"a": 1}}, {"manifest_text": ""}):
            made = create(http, manifest_of(put(http, data)), preserve_version=True)
            for name in ("trash", "untrash"):
                found = http.post(f"{API}/{made['uuid']}/{name}").json()
                assert (found["version"], found["preserve_version"]) == (1, True)
            changed = http.put(f"{API}/{made['uuid']}", json=change).json()
            assert (changed["version"], changed["preserve_version"]) == (2, False)
            versions = kept.versions(kept.find(made["uuid"]).collection_id, before=None, amount=9)
            assert [each.version for each in versions] == [1], change
    shown = server.command("collection", "show", "lake", made["uuid"], "--json")
    version = f"{json.loads(shown.stdout)['path']}@1"
    done = server.command("explain", "lake", version, f"{md5(data)}+32", "--json")
    assert json.loads(done.stdout)["kept_by"] == f"collection {version}"


def test_what_clients_ask_first(arvados: ArvadosServer) -> None:
    """What they read of the discovery document, the configuration, and where blocks are."""
    with arvados.http(None) as http:
        found = http.get("/discovery/v1/apis/arvados/v1/rest").json()
    assert (found["blobSignatureTtl"], found["defaultCollectionReplication"]) == (3600, 1)
    assert (len(found["uuidPrefix"]), found["maxRequestSize"] > 2**20) == (5, True)
    assert found["rootUrl"] == f"{arvados.server.url}/"
    assert found["baseUrl"] == f"{found['rootUrl']}arvados/v1/"
    assert {each.record for each in RESOURCES} <= set(found["schemas"])
    methods = found["resources"]["collections"]["methods"]
    assert "ensure_unique_name" in methods["untrash"]["parameters"]
    assert "include_trash" in methods["update"]["parameters"]
    with arvados.http() as http:
        config = http.get("/arvados/v1/config").json()
        (service,) = http.get("/arvados/v1/keep_services/accessible").json()["items"]
    assert config["StorageClasses"]["default"]["Default"] is True
    assert config["Collections"]["CollectionVersioning"] is True
    names = {"uuid", "service_host", "service_port", "service_ssl_flag", "service_type"}
    assert names | {"read_only"} <= set(service)
