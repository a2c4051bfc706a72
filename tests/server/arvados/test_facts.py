"""What Arvados does, and this store too: the table "Facts of Arvados, and here" of docs/arvados.md,
one test for each row that says `same`, in its order."""

from __future__ import annotations

import hashlib
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from ebbtide.ids import new_id
from ebbtide.server.arvados.discovery import RESOURCES
from ebbtide.store.access.keys import Role
from ebbtide.store.arvados.manifests import BLOCK_BYTES_MAX, EMPTY_BLOCK, parse_manifest
from ebbtide.store.arvados.trashing import Timers
from ebbtide.store.collecting.roots import drop_ended
from ebbtide.store.database.schema import collections, projects
from ebbtide.store.embedded import Store
from ebbtide.store.repository import Repository
from tests.server.arvados.conftest import ArvadosServer
from tests.server.arvados.test_clients import Clients
from tests.server.arvados.test_keep import API, create, put, refused
from tests.support.arvados import HOLDER, manifest_of, md5, put_block, save, signed
from tests.support.clock import ManualClock
from tests.support.collections import raises

DOCUMENT = Path(__file__).parents[3] / "docs" / "arvados.md"
TRASH = timedelta(days=7)
LEASE = timedelta(hours=1)
LATE = "2099-01-01T00:00:00.000000000Z"


def instant(text: str) -> datetime:
    return datetime.fromisoformat(text)


@pytest.fixture
def made(http: httpx.Client) -> dict[str, Any]:
    """A new collection of one block."""
    return create(http, manifest_of(put(http, new_id().encode())))


def versions(arvados: ArvadosServer, uuid: str) -> list[int]:
    """The earlier versions that are kept."""
    with Store.open(arvados.server.directory, settings=arvados.server.settings) as store:
        kept = store.repository("lake").collections
        collection_id = kept.find(uuid).collection_id
        return [each.version for each in kept.versions(collection_id, before=None, amount=9)]


@pytest.fixture
def url(made: dict[str, Any]) -> str:
    return f"{API}/{made['uuid']}"


def test_every_row_has_its_test() -> None:
    """Rows that say `same` name a test of this file, in its order; others say why."""
    section = DOCUMENT.read_text().partition("## Facts of Arvados, and here")[2]
    rows = re.findall(r"^\| (.+?) \| (same|different) \| (.+) \|$", section, re.MULTILINE)
    named = [why.strip("`") for _, here, why in rows if here == "same"]
    source = Path(__file__).read_text()
    written = re.findall(r"^def (test_\w+)", source, re.MULTILINE)
    assert named == [name for name in written if name != "test_every_row_has_its_test"]
    assert len(rows) - len(named) > 20
    assert all(len(why) > 10 for _, here, why in rows if here == "different")


def test_a_trash_date_in_the_past_is_now(http: httpx.Client, url: str) -> None:
    before = datetime.now(UTC) - timedelta(minutes=5)
    changed = http.put(url, json={"trash_at": "2001-01-01T00:00:00Z"}).json()
    assert instant(changed["trash_at"]) > before


def test_is_trashed_alone_sets_and_clears_the_timers(http: httpx.Client, url: str) -> None:
    changed = http.put(url, json={"is_trashed": True}).json()
    assert None not in (changed["trash_at"], changed["delete_at"])
    again = {"include_trash": True, "collection": {"is_trashed": False}}
    changed = http.put(url, json=again).json()
    assert (changed["trash_at"], changed["delete_at"]) == (None, None)


def test_delete_at_is_one_trash_time_after_trash_at(http: httpx.Client, url: str) -> None:
    changed = http.put(url, json={"trash_at": LATE}).json()
    assert instant(changed["delete_at"]) - instant(changed["trash_at"]) == TRASH


def test_one_date_without_the_other_is_invalid(http: httpx.Client, url: str) -> None:
    for dates in (
        {"trash_at": LATE, "delete_at": None},
        {"trash_at": None, "delete_at": LATE},
        {"trash_at": LATE, "delete_at": "2098-01-01T00:00:00Z"},
    ):
        refused(http.put(url, json=dates), 422, "invalid_date")


def test_trash_keeps_for_the_trash_time(http: httpx.Client, url: str) -> None:
    changed = http.post(f"{url}/trash").json()
    assert changed["is_trashed"] is True
    assert instant(changed["delete_at"]) - instant(changed["trash_at"]) == TRASH


def test_untrash_of_what_is_not_trashed(http: httpx.Client, url: str) -> None:
    assert http.post(f"{url}/untrash").status_code == 422


def test_a_change_in_the_trash_needs_include_trash(http: httpx.Client, url: str) -> None:
    http.delete(url).raise_for_status()
    refused(http.put(url, json={"trash_at": None}), 404, "collection_not_found")
    asked = {"include_trash": True, "collection": {"trash_at": None}}
    assert http.put(url, json=asked).json()["is_trashed"] is False


def test_visibility_ends_at_trash_at(repository: Repository, clock: ManualClock) -> None:
    project_id = repository.projects.create("project").project_id
    listed = save(repository, project_id, "made", "").listed
    update, get = repository.arvados_collections.update, repository.arvados_collections.get
    update(listed.uuid, holder=HOLDER, timers=Timers(trash_at=clock.now + LEASE))
    clock.advance(LEASE - timedelta(microseconds=1))
    assert get(listed.uuid).listed.is_trashed is False
    clock.advance(timedelta(microseconds=1))
    with raises("collection_not_found"):
        get(listed.uuid)


def test_a_signature_ends_after_the_lease_or_with_the_collection(
    repository: Repository, clock: ManualClock
) -> None:
    project_id = repository.projects.create("project").project_id
    found = save(repository, project_id, "made", manifest_of(put_block(repository, b"data")))

    def expiry() -> datetime:
        (locator,) = parse_manifest(signed(repository, found)).locators.popitem()[1]
        return datetime.fromtimestamp(int(locator[-8:], 16), UTC)

    assert expiry() == (clock.now + LEASE).replace(microsecond=0)
    timers = Timers(trash_at=clock.now + LEASE / 3)
    repository.arvados_collections.update(found.listed.uuid, holder=HOLDER, timers=timers)
    assert expiry() == (clock.now + LEASE / 3).replace(microsecond=0)


def test_no_signatures_in_the_trash(http: httpx.Client, url: str) -> None:
    http.delete(url).raise_for_status()
    found = http.get(url, params={"include_trash": "true"}).json()
    assert "+A" not in json.dumps(found)
    assert found["unsigned_manifest_text"]


def test_trashing_a_project_hides_its_contents_and_changes_none(http: httpx.Client) -> None:
    group = http.post("/arvados/v1/groups", json={"name": new_id()[:8]}).json()
    inner = create(http, "", owner_uuid=group["uuid"])
    http.post(f"/arvados/v1/groups/{group['uuid']}/trash").raise_for_status()
    refused(http.get(f"{API}/{inner['uuid']}"), 404, "collection_not_found")
    found = http.get(f"{API}/{inner['uuid']}", params={"include_trash": "true"}).json()
    assert (found["is_trashed"], found["trash_at"], found["delete_at"]) == (False, None, None)
    http.post(f"/arvados/v1/groups/{group['uuid']}/untrash").raise_for_status()
    assert http.get(f"{API}/{inner['uuid']}").json()["name"] == inner["name"]


def test_contents_end_with_their_project(repository: Repository, clock: ManualClock) -> None:
    owner = repository.owners.root
    group = repository.arvados_groups.create(owner, "outer", timers=Timers())
    inner = repository.arvados_groups.create(group.uuid, "inner", timers=Timers())
    save(repository, repository.owners.group_id(inner.uuid), "made", "")
    repository.arvados_groups.trash(group.uuid)
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


def test_preserve_version_keeps_one_version(http: httpx.Client, arvados: ArvadosServer) -> None:
    for change in (
        {"name": new_id()[:8]},
        {"description": "d"},
        {"properties": {"a": 1}},
        {"manifest_text": ""},
    ):
        made = create(http, manifest_of(put(http, b"data")), preserve_version=True)
        changed = http.put(f"{API}/{made['uuid']}", json=change).json()
        assert (changed["version"], changed["preserve_version"]) == (2, False)
        assert versions(arvados, made["uuid"]) == [1]


def test_trashing_makes_no_version(http: httpx.Client, arvados: ArvadosServer) -> None:
    made = create(http, "", preserve_version=True)
    for change in ("trash", "untrash"):
        found = http.post(f"{API}/{made['uuid']}/{change}").json()
        assert (found["version"], found["preserve_version"]) == (1, True)
    assert versions(arvados, made["uuid"]) == []


def test_old_versions_keep_their_blocks(http: httpx.Client, arvados: ArvadosServer) -> None:
    data = new_id().encode()
    made = create(http, manifest_of(put(http, data)), preserve_version=True)
    http.put(f"{API}/{made['uuid']}", json={"manifest_text": ""}).raise_for_status()
    done = arvados.server.command("collection", "show", "lake", made["uuid"], "--json")
    version = f"{json.loads(done.stdout)['path']}@1"
    done = arvados.server.command("explain", "lake", version, f"{md5(data)}+32", "--json")
    assert json.loads(done.stdout)["kept_by"] == f"collection {version}"


def test_the_form_of_a_signed_locator(http: httpx.Client) -> None:
    """Size, then hints that begin with letters, then a signature of 40 hexadecimal digits, and the
    expiry in 8."""
    locator = put(http, b"x")
    form = r"[0-9a-f]{32}\+1(\+[B-Z][A-Za-z0-9@_-]+)*\+A[0-9a-f]{40}@[0-9a-f]{8}"
    assert re.fullmatch(form, locator)


def test_arv_put_raw_and_the_hash(arvados: ArvadosServer, tmp_path: Path) -> None:
    clients = Clients(arvados, tmp_path)
    (tmp_path / "f").write_bytes(data := new_id().encode())
    raw = clients.put("--raw", str(tmp_path / "f"))
    assert raw.startswith(f"{md5(data)}+{len(data)}")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "g").write_bytes(data)
    pdh = clients.put("--portable-data-hash", str(tmp_path / "d"))
    assert clients.get(pdh) == {"d/g": data}


def test_a_name_in_the_trash_is_free_and_untrash_conflicts(
    http: httpx.Client, made: dict[str, Any], url: str
) -> None:
    http.delete(url).raise_for_status()
    create(http, "", name=made["name"])
    assert http.post(f"{url}/untrash").status_code == 422


def test_users_say_whether_they_can_write(arvados: ArvadosServer) -> None:
    """`arv-mount` refuses `mkdir` and `rmdir` otherwise."""
    for role, expected in ((Role.WRITER, True), (Role.READER, False)):
        with arvados.http(role) as http:
            assert http.get("/arvados/v1/users/current").json()["can_write"] is expected


def test_the_discovery_document(arvados: ArvadosServer) -> None:
    """What clients read of it, and parameters that Arvados's own document lacks."""
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


def test_the_configuration(http: httpx.Client) -> None:
    found = http.get("/arvados/v1/config").json()
    assert found["StorageClasses"]["default"]["Default"] is True
    assert found["Collections"]["CollectionVersioning"] is True


def test_the_keep_services(http: httpx.Client) -> None:
    (service,) = http.get("/arvados/v1/keep_services/accessible").json()["items"]
    names = {"uuid", "service_host", "service_port", "service_ssl_flag", "service_type"}
    assert names | {"read_only"} <= set(service)


def test_errors_are_a_list_of_texts(http: httpx.Client) -> None:
    (text,) = http.get(f"{API}/nothing").json()["errors"]
    assert "nothing" in text


def test_ensure_unique_name(http: httpx.Client, made: dict[str, Any]) -> None:
    body = {"collection": {"name": made["name"]}}
    assert http.post(API, json=body).status_code == 422
    again = http.post(API, params={"ensure_unique_name": "true"}, json=body).json()
    assert again["name"].startswith(made["name"])
    assert again["name"] != made["name"]


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


def test_headers_of_a_written_block(http: httpx.Client) -> None:
    """`arv-put` fails without them."""
    headers = {"X-Keep-Desired-Replicas": "2", "X-Keep-Storage-Classes": "default"}
    answer = http.put(f"/{md5(b'y')}", content=b"y", headers=headers)
    assert answer.headers["X-Keep-Replicas-Stored"] == "1"
    assert answer.headers["X-Keep-Storage-Classes-Confirmed"] == "default=1"


def test_blocks_are_read_by_get_and_head(http: httpx.Client) -> None:
    locator = put(http, b"yz")
    assert http.get(f"/{locator}").content == b"yz"
    assert http.head(f"/{locator}").headers["Content-Length"] == "2"


def test_manifests(http: httpx.Client) -> None:
    """A blank is `\\040`, repeated paths are joined, and the empty text is a manifest."""
    locator = put(http, b"abcd")
    text = f". {locator} 0:1:a\\040b 2:2:a\\040b\n./d {locator} 0:4:c\n"
    made = create(http, text)
    assert (made["file_count"], made["file_size_total"]) == (2, 7)
    assert create(http, "")["portable_data_hash"] == EMPTY_BLOCK


def test_the_portable_data_hash(http: httpx.Client) -> None:
    text = manifest_of(put(http, b"abcd"))
    plain = re.sub(r"(\+[A-Z][^ ]*)+", "", text).encode()
    digest = hashlib.md5(plain, usedforsecurity=False).hexdigest()
    assert create(http, text)["portable_data_hash"] == f"{digest}+{len(plain)}"


def test_the_largest_block(repository: Repository) -> None:
    assert BLOCK_BYTES_MAX == 64 * 2**20
    with raises("too_large"):
        repository.blocks.put("0" * 32, iter(()), holder=HOLDER, size_bytes=BLOCK_BYTES_MAX + 1)


def test_names_with_a_slash_are_refused(http: httpx.Client) -> None:
    found = http.get("/arvados/v1/config").json()
    assert found["Collections"]["ForwardSlashNameSubstitution"] == ""
    for path, record in ((API, "collection"), ("/arvados/v1/groups", "group")):
        for name in ("a/b", "/", ".", ".."):
            answer = http.post(path, json={record: {"name": name}})
            refused(answer, 422, "invalid_name")


def test_replace_files(http: httpx.Client, made: dict[str, Any], url: str) -> None:
    files = {"/file": "", "/a": "current/file", "/b/c": f"{made['portable_data_hash']}/file"}
    changed = http.put(url, json={"replace_files": files}).json()
    (block,) = parse_manifest(made["manifest_text"]).locators
    size = block.partition("+")[2]
    wanted = f". {block} 0:{size}:a\n./b {block} 0:{size}:c\n"
    assert parse_manifest(changed["manifest_text"]).text == wanted


def test_replace_segments(http: httpx.Client) -> None:
    one, two, big = (put(http, new_id()[:size].encode()) for size in (1, 2, 3))
    text = f". {one} {two} 0:1:a 1:2:b\n"
    uuid = create(http, text)["uuid"]
    segments = {f"{one} 0 1": f"{big} 0 1", f"{two} 0 1": f"{big} 1 1"}
    left = http.put(f"{API}/{uuid}", json={"replace_segments": segments}).json()
    assert left["portable_data_hash"] == parse_manifest(text).portable_data_hash
    segments = {f"{one} 0 1": f"{big} 0 1", f"{two} 0 2": f"{big} 1 2"}
    changed = http.put(f"{API}/{uuid}", json={"replace_segments": segments}).json()
    wanted = parse_manifest(f". {big} 0:1:a 1:2:b\n").portable_data_hash
    assert changed["portable_data_hash"] == wanted


def test_unknown_fields(http: httpx.Client, url: str) -> None:
    refused(http.put(url, json={"collection": {"nothing": 1}}), 422, "invalid_argument")
    refused(http.post(API, json={"collection": {"nothing": 1}}), 422, "invalid_argument")


def test_unknown_names_in_select(http: httpx.Client, url: str) -> None:
    for path in (url, API):
        refused(http.get(path, params={"select": '["nothing"]'}), 422, "invalid_argument")


def test_a_wrong_portable_data_hash(http: httpx.Client, made: dict[str, Any]) -> None:
    fields = {"manifest_text": made["manifest_text"], "portable_data_hash": f"{'0' * 32}+9"}
    refused(http.post(API, json={"collection": fields}), 422, "checksum_mismatch")
