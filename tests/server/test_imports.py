"""Imports through the real client, from a directory and from S3."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from threading import Event

import lakefs
import pytest
from lakefs.exceptions import (
    BadRequestException,
    ConflictException,
    ForbiddenException,
    ImportManagerException,
    NotFoundException,
)
from lakefs.import_manager import ImportManager

from ebbtide.errors import Conflict, Failed
from ebbtide.ids import new_id
from ebbtide.server.serving import AT_ONCE_MAX, ImportThreads
from ebbtide.settings import Settings
from ebbtide.storage import Storage, open_storage
from ebbtide.store.commits.publication import CommitDetails
from ebbtide.store.database.commit_rows import CommitRecord
from ebbtide.store.embedded import Store
from ebbtide.store.import_sources import ImportSource
from ebbtide.store.imports import ImportRequest, Imports, Signs
from tests.server.test_bodies import MEGABYTE, forget_peak, peak
from tests.support.collected import refused
from tests.support.loops import without_loop
from tests.support.server import Server, eventually, new_server
from tests.support.servers import Servers
from tests.support.stray import put_key

SOON = timedelta(milliseconds=20)
LARGE = 40
"""Thousands of objects."""
MEMORY_MAX = 50 * MEGABYTE


def touch_files(root: Path, *, directories: int) -> None:
    for directory in range(directories):
        (root / f"{directory}").mkdir(parents=True)
        for number in range(1000):
            (root / f"{directory}" / f"{number}").touch()


@pytest.fixture
def prefixes(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What tests write, and all of S3."""
    return f"{tmp_path_factory.getbasetemp().as_uri()}/ s3://"


@pytest.fixture
def server(servers: Servers, server_kind: str, prefixes: str) -> Server:
    return servers(server_kind, EBBTIDE_IMPORT_PREFIXES=prefixes)


@pytest.fixture
def source(server: Server, tmp_path: Path, request: pytest.FixtureRequest) -> Storage:
    """A place outside the store: a directory, or a prefix of the bucket."""
    if "EBBTIDE_STORAGE_URL" not in server.environment:
        return open_storage(str(tmp_path / "source"))
    return open_storage(f"{request.getfixturevalue('s3_url')}/sources-{new_id()}")


def test_an_import(repo: lakefs.Repository, source: Storage) -> None:
    names = ("a", "deep/b", "deep/ü #?%")
    for name in names:
        source.put(name, name.encode())
    # Directories, and keys of S3 that mark some, are no objects.
    if source.url.startswith("file:"):
        Path(source.url.removeprefix("file://"), "empty").mkdir()
    else:
        for key in ("", "deep/", "empty/"):
            put_key(source.url, key, b"")
    branch = repo.branch("main")
    branch.object("in/old").upload("old")
    branch.object("own").upload("own")
    branch.commit("own")
    manager = branch.import_data(commit_message="data", metadata={"k": "v"})
    manager.prefix(f"{source.url}/", "in/").object(f"{source.url}/a", "one")
    status = without_loop(lambda: manager.run(SOON))
    assert (status.completed, status.ingested_objects, status.error) == (True, 4, None)
    head = branch.get_commit()
    assert status.commit.id == head.id
    assert status.metarange_id == head.meta_range_id
    assert (head.message, head.metadata, head.committer) == ("data", {"k": "v"}, "admin")
    wanted = {f"in/{name}": name.encode() for name in names} | {"one": b"a", "own": b"own"}
    found = {each.path: branch.object(each.path).reader().read() for each in branch.objects()}
    assert found == wanted
    stat = branch.object("in/a").stat()
    assert (stat.physical_address, stat.size_bytes) == (f"{source.url}/a", 1)
    # The MD5 of the bytes is what S3 has as the ETag of an object that was written at once.
    is_s3 = source.url.startswith("s3:")
    assert stat.checksum == ("0cc175b9c0f1b6a831c399e269772661" if is_s3 else "")
    with pytest.raises(ConflictException):
        manager.cancel()


def test_a_key_that_no_address_can_have(servers: Servers, prefixes: str, s3_url: str) -> None:
    """Such as one that would lead out of its prefix. Nothing is imported."""
    server = servers("shared", EBBTIDE_IMPORT_PREFIXES=prefixes)
    branch = server.repository(f"r-{new_id()}").branch("main")
    head = branch.get_commit().id
    for key in ("a/../../b", "/b"):
        url = f"{s3_url}/sources-{new_id()}"
        open_storage(url).put("fine", b"fine")
        put_key(url, key)
        assert "a key that no address can have" in failed(
            branch.import_data("data").prefix(f"{url}/", "in/")
        )
    assert branch.get_commit().id == head


def failed(manager: ImportManager) -> str:
    manager.start()
    with pytest.raises(ImportManagerException) as caught:
        without_loop(lambda: manager.wait(SOON))
    return str(caught.value)


def test_imports_that_fail(server: Server, repo: lakefs.Repository, source: Storage) -> None:
    source.put("a", b"a")
    branch = repo.branch("main")
    head = branch.get_commit().id
    nothing = branch.import_data("data").prefix(f"{source.url}/nothing/", "in/")
    assert "there is no object below" in failed(nothing)
    assert not nothing.status().completed
    assert branch.get_commit().id == head
    nothing.cancel()
    for name, url, error in (
        ("main", source.url, BadRequestException),  # no directory, by its form
        ("main", "file:///etc/", ForbiddenException),
        ("missing", f"{source.url}/", NotFoundException),
    ):
        with pytest.raises(error):
            repo.branch(name).import_data("data").prefix(url, "in/").start()
    with server.http() as client:
        place = f"/repositories/{repo.id}/branches/main/import"
        refused(client.get(place, params={"id": "missing"}), 404, "task_not_found")
        for paths in ([], [{"type": "other", "path": "x", "destination": "y"}]):
            body = {"paths": paths, "commit": {"message": "none"}}
            assert client.post(place, json=body).status_code == 400


def test_a_large_import_needs_little_memory(
    servers: Servers, prefixes: str, tmp_path: Path
) -> None:
    server = servers("local", EBBTIDE_IMPORT_PREFIXES=prefixes)
    repo = server.repository(f"r-{new_id()}")
    touch_files(tmp_path, directories=LARGE)
    before = forget_peak(server)
    manager = repo.branch("main").import_data("data").prefix(f"{tmp_path.as_uri()}/", "in/")
    status = without_loop(lambda: manager.run(timedelta(milliseconds=200)))
    assert status.ingested_objects == LARGE * 1000
    assert peak(server) - before < MEMORY_MAX


class Waiting(Imports):
    """Imports that run until they are told to go on, or to stop."""

    def __init__(self) -> None:
        self.running: list[str] = []
        self.signs: list[str] = []
        self.stopped: list[str] = []
        self.go = Event()
        self.cancelled = ""

    def carry_out(self, import_id: str, request: ImportRequest, signs: Signs | None = None) -> None:
        del request
        assert signs is not None
        self.running.append(import_id)
        while not self.go.wait(0.01):
            if signs.stopping():
                self.stopped.append(import_id)
                return

    def wait(self, import_id: str) -> None:
        self.signs.append(import_id)
        if import_id == self.cancelled:
            raise Conflict("import_ended", "cancelled")
        if len(self.signs) == 1:
            raise Failed("database_error", "for a moment")


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> tuple[Waiting, ImportThreads, list[str]]:
    """Two imports more than a server carries out at a time."""
    monkeypatch.setattr("ebbtide.server.serving.SIGN_SECONDS", 0.01)
    imports, threads = Waiting(), ImportThreads()
    names = [f"{number}" for number in range(AT_ONCE_MAX + 2)]
    source = ImportSource("s3://bucket/a", "a", is_prefix=False)
    request = ImportRequest(branch="main", sources=(source,), details=CommitDetails(""))
    for name in names:
        threads.start(imports, name, request)
        eventually(lambda: len(imports.running) + len(set(imports.signs)) == int(name) + 1)  # noqa: B023
    return imports, threads, names


def test_imports_wait_for_their_turn(waiting: tuple[Waiting, ImportThreads, list[str]]) -> None:
    imports, threads, names = waiting
    assert imports.running == names[:AT_ONCE_MAX]
    assert set(imports.signs) == set(names[AT_ONCE_MAX:])
    imports.cancelled = names[-1]
    count = len(imports.signs)
    eventually(lambda: names[-1] in imports.signs[count:])
    imports.go.set()
    threads.join()
    assert imports.running == names[:-1]
    assert imports.stopped == []


def test_a_server_that_ends_tells_its_imports_as_failed(
    waiting: tuple[Waiting, ImportThreads, list[str]], tmp_path: Path, prefixes: str
) -> None:
    """Any server of the store answers. This one only opens it again."""
    imports, threads, names = waiting
    threads.stop()
    assert sorted(imports.stopped) == names
    server = new_server(tmp_path / "store", EBBTIDE_IMPORT_PREFIXES=prefixes).start()
    place = tmp_path / "place"
    touch_files(place, directories=5)
    branch = server.repository("lake").branch("main")
    import_id = branch.import_data("data").prefix(f"{place.as_uri()}/", "in/").start()
    server.stop()
    assert "Traceback" not in server.log
    with Store.open(server.directory, settings=Settings()) as store:
        lake = store.repository("lake")
        state = lake.imports.state("main", import_id)
        committed: CommitRecord | None = state.commit
        if committed is None:
            assert state.error is not None
            assert state.error[0] == "interrupted"
        else:
            assert committed == lake.commits.get("main")
