"""Imports: the commit that they make, what they refuse, how they end, and what runs leave."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
import sqlalchemy as sa

from ebbtide.errors import Conflict, Failed, NotFound
from ebbtide.ids import new_id
from ebbtide.storage import clients, open_storage
from ebbtide.storage.external import directory_identity
from ebbtide.store.commits.publication import CommitDetails
from ebbtide.store.content.entries import Entry
from ebbtide.store.content.layout import RANGES_PREFIX, TREES_PREFIX
from ebbtide.store.database.commit_rows import CommitRecord
from ebbtide.store.database.schema import imports as imports_table
from ebbtide.store.embedded import Store
from ebbtide.store.import_sources import SILENCE_MAX, ImportSource, SortedEntries
from ebbtide.store.imports import DEFAULT_MESSAGE, ImportRequest, Signs
from ebbtide.store.names import PATH_BYTES_MAX
from ebbtide.store.repository import Repository
from tests.support.clock import ManualClock
from tests.support.collections import raises
from tests.support.lakes import contents, meanwhile, pending_addresses, save
from tests.support.world import World


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory with three files, outside every repository."""
    place = tmp_path / "outside"
    fill(place, "a", "deep/b", "deep/er/c")
    return place


def fill(place: Path, *names: str) -> None:
    for name in names:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(name)


def url_of(place: Path) -> str:
    return place.as_uri() + ("/" if place.is_dir() else "")


def below(place: Path, destination: str) -> ImportSource:
    return ImportSource(f"{place.as_uri()}/", destination, is_prefix=True)


def single(file: Path, destination: str) -> ImportSource:
    return ImportSource(file.as_uri(), destination, is_prefix=False)


def request(*sources: ImportSource, branch: str = "main", **more: Any) -> ImportRequest:
    details = CommitDetails("imported", "somebody", None, {"from": "outside"})
    return ImportRequest(branch=branch, sources=sources, details=details, **more)


def run(repository: Repository, *sources: ImportSource, **more: Any) -> CommitRecord:
    asked = request(*sources, **more)
    return repository.imports.run(repository.imports.begin(asked), asked)


def error_of(repository: Repository, import_id: str) -> str | None:
    error = repository.imports.state("main", import_id).error
    return None if error is None else error[0]


def test_one_commit_refers_to_the_files_where_they_are(
    repository: Repository, outside: Path
) -> None:
    save(repository, "own")
    os.utime(outside / "a", (1_600_000_000, 1_600_000_000))
    asked = request(below(outside, "in"), single(outside / "a", "one"))
    before = repository.commits.get("main").commit_id
    import_id = repository.imports.begin(asked)
    running = repository.imports.state("main", import_id)
    assert (running.commit, running.error, running.object_count) == (None, None, 0)
    made = repository.imports.run(import_id, asked)
    assert made.parent_ids == (before,)
    assert (made.message, made.committer, made.metadata) == (
        "imported",
        "somebody",
        {"from": "outside"},
    )
    state = repository.imports.state("main", import_id)
    assert (state.commit, state.error, state.object_count) == (made, None, 4)
    assert contents(repository, "main") == {
        "own": b"own",
        "in/a": b"a",
        "in/deep/b": b"deep/b",
        "in/deep/er/c": b"deep/er/c",
        "one": b"a",
    }
    assert repository.objects.stat("main", "in/a") == Entry(
        path="in/a",
        address=(outside / "a").as_uri(),
        size_bytes=1,
        checksum="",
        mtime=datetime.fromtimestamp(1_600_000_000, UTC),
    )
    assert pending_addresses(repository) == []


def test_what_was_below_the_destination_is_replaced(repository: Repository, outside: Path) -> None:
    for path in ("in", "in-no", "in/a", "in/zz/old", "inn", "other"):
        repository.objects.put("main", path, b"own")
    repository.commits.commit("main", "own")
    made = run(repository, below(outside, "in/"))
    kept = dict.fromkeys(("in", "in-no", "inn", "other"), b"own")
    new = {f"in/{name}": name.encode() for name in ("a", "deep/b", "deep/er/c")}
    assert contents(repository, "main") == kept | new
    # A single object replaces only its own path. Without a message, the commit gets one.
    plain = (single(outside / "a", "in"),)
    asked = ImportRequest(branch="main", sources=plain, details=CommitDetails(""))
    assert repository.imports.run(repository.imports.begin(asked), asked).message == DEFAULT_MESSAGE
    assert contents(repository, "main") == kept | new | {"in": b"a"}
    # The same once more is a commit without changes.
    again = run(repository, single(outside / "a", "in"))
    assert again.tree_id == repository.commits.get("main~1").tree_id != made.tree_id
    # All of the branch, with names that a URL escapes.
    names = {"x y", "50%", "a#b", "a?b", "ü", "+", "d e/f#"}
    fill(outside / "odd", *names)
    run(repository, below(outside / "odd", ""))
    assert contents(repository, "main") == {name: name.encode() for name in names}


def test_random_imports_against_a_dictionary(repository: Repository, tmp_path: Path) -> None:
    """The tree after an import is the one that its definition gives."""
    chances = Random(7)
    places = [tmp_path / f"place{number}" for number in range(3)]
    for place in places:
        fill(place, *{f"{chances.choice('abc')}/{chances.randrange(12)}" for _ in range(12)})
    expected: dict[str, bytes] = {}
    for _ in range(8):
        path = f"{chances.choice('pq')}/{chances.choice('abc')}/{chances.randrange(12)}"
        expected[path] = path.encode()
        save(repository, path)
        chosen: list[tuple[Path, str]] = []
        for _ in range(chances.randint(1, 3)):
            inside = chances.choice(("", *("a/", "b/", "c/")))
            place = chances.choice(places) / inside
            chosen.append((place, chances.choice(("p/", "q/", "p/a/", "q/b/", "r/"))))
        chosen = [(place, to) for place, to in chosen if place.is_dir()]
        if not chosen:
            continue
        for _, destination in chosen:
            expected = {k: v for k, v in expected.items() if not k.startswith(destination)}
        for place, destination in chosen:
            for file in place.rglob("*"):
                if file.is_file():
                    name = str(file.relative_to(place))
                    expected[destination + name] = file.read_bytes()
        # Of overlapping destinations, the later source counts.
        one = next(file for file in places[0].rglob("*") if file.is_file())
        target = chances.choice((*expected, "p/one"))
        expected[target] = one.read_bytes()
        sources = [below(place, destination) for place, destination in chosen]
        run(repository, *sources, single(one, target))
        assert contents(repository, "main@") == expected


def test_entries_are_sorted_and_the_last_of_each_path_counts(tmp_path: Path) -> None:
    chances = Random(5)
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    expected: dict[str, Entry] = {}
    entries = SortedEntries(tmp_path, run_entries=7)
    for number in range(200):
        path = f"{chances.randrange(60)}"
        expected[path] = Entry(path, f"s3://b/{number}", number, "", moment)
        entries.add([expected[path]])
    assert len(list(tmp_path.iterdir())) > 10
    assert list(entries) == list(entries) == [expected[path] for path in sorted(expected)]


def test_a_source_that_cannot_be(repository: Repository) -> None:
    """How URLs are read is tested in `tests/storage/test_urls.py`."""
    for kind, url, destination, is_prefix in (
        ("invalid_address", "s3://bucket/a", "in", True),
        ("invalid_address", "s3://bucket/a/../b/", "in", True),
        ("invalid_address", "s3://bucket/a/../b", "in", False),
        ("invalid_address", "memory:x/", "in", True),
        ("invalid_address", "s3://bucket", "in", False),
        ("invalid_path", "s3://bucket/a/", "/", True),
        ("invalid_path", "s3://bucket/a", "", False),
        ("invalid_path", "s3://bucket/a", "b" * (PATH_BYTES_MAX + 1), False),
    ):
        with raises(kind):
            source = ImportSource(url, destination, is_prefix=is_prefix)
            repository.imports.begin(request(source))


def test_places_that_may_not_be_imported(repository: Repository, outside: Path) -> None:
    allowed = (url_of(outside), "s3://bucket/data/", "s3://bucket/more", "s3://bucket/one")

    def begin(url: str, *, is_prefix: bool) -> None:
        source = ImportSource(url, "in", is_prefix)
        repository.imports.begin(request(source, allowed_prefixes=allowed))

    for place in (outside, outside / "deep", outside / "a"):
        begin(url_of(place), is_prefix=place.is_dir())
    begin("s3://bucket/data/", is_prefix=True)
    begin("s3://bucket/more/", is_prefix=True)
    begin("s3://bucket/one", is_prefix=False)
    (outside.parent / "outside-too").mkdir()
    (outside / "link").symlink_to(outside.parent)
    for url in (
        url_of(outside.parent / "outside-too"),
        f"{outside.as_uri()}/link/",
        f"{outside.as_uri()}/../",
        "s3://bucket/",
        "s3://bucket/moreover/",
        "s3://other/data/",
        "s3://bucket/data2",
        "s3://bucket/one2",
        f"{outside.as_uri()}/link/x",
    ):
        with raises("import_forbidden"):
            begin(url, is_prefix=url.endswith("/"))


def test_places_that_belong_to_a_repository(store: Store, tmp_path: Path) -> None:
    root = tmp_path / "around" / "root"
    store.create_repository("on-disk", storage_url=str(root))
    store.create_repository("on-s3", storage_url=f"memory:{tmp_path.name}")
    importing = store.create_repository("importing", storage_url=f"memory:{tmp_path.name}.x")
    (tmp_path / "link").symlink_to(root)
    fill(root, "data/x")
    for place in (root, root / "data", root.parent, tmp_path, tmp_path / "link"):
        with raises("invalid_address"):
            importing.imports.begin(request(below(place, "in")))
    for file in (root / "data/x", tmp_path / "link/data/x"):
        with raises("invalid_address"):
            importing.imports.begin(request(single(file, "in")))
    beside = root.parent / "root2"
    fill(beside, "x")
    run(importing, below(beside, "in"))


@pytest.mark.parametrize(
    "names",
    [
        ("_ebbtide/gc/runs/r/report.json", "data/x"),
        ("_lakefs/1f", "data/x"),
        ("refs/branch.main/ref.json", "data/x"),
        ("repo", "snapshots/1", "data/x"),
    ],
)
def test_places_in_a_root_that_its_files_show(
    repository: Repository, tmp_path: Path, names: tuple[str, ...]
) -> None:
    """Whoever collects it. Neither by another spelling, nor from above, nor by staging."""
    above = tmp_path / "above"
    root = above / "a root"
    fill(root, *names)
    fill(above, "beside/x")
    (tmp_path / "link").symlink_to(root / "data")
    url = f"{root.as_uri()}/data"
    spellings = (url, f"{above.as_uri()}//a%20root/./data/../data", str(root / "data"))
    for place in (*spellings, str(tmp_path / "link"), root.as_uri()):
        with raises("invalid_address"):
            repository.imports.begin(request(ImportSource(f"{place}/", "in", is_prefix=True)))
    with raises("invalid_address"):
        run(repository, below(above, "in"))
    for place in (url, f"{url}/../data", (tmp_path / "link").as_uri()):
        with raises("invalid_address"):
            repository.imports.begin(request(ImportSource(f"{place}/x", "in", is_prefix=False)))
        with raises("invalid_address"):
            repository.addresses.stage("main", "in", f"{place}/x", size_bytes=6)
    # Names that show no root.
    fill(above / "beside", "snapshots/1", "my_lakefs/x", "refs/x")
    run(repository, below(above / "beside", "in"), single(above / "beside" / "x", "one"))


def test_places_in_a_root_that_the_settings_name(tmp_path: Path) -> None:
    """Even if it has no files yet."""
    listed = f"lakefs:lake icechunk:{tmp_path}/one/../ice icechunk:s3a://bucket/ice/"
    world = World(tmp_path, settings={"server_repositories": listed})
    fill(tmp_path / "ice", "chunks/x")
    with world.store:
        for url in ((tmp_path / "ice/chunks/x").as_uri(), "s3://bucket/ice/chunks/x"):
            with raises("invalid_address"):
                world.lake.addresses.stage("main", "in", url, size_bytes=1)
            with raises("invalid_address"):
                world.lake.imports.begin(request(ImportSource(url, "in", is_prefix=False)))
        for url in (f"{tmp_path.as_uri()}/", "s3n://bucket/"):
            with raises("invalid_address"):
                world.lake.imports.begin(request(ImportSource(url, "in", is_prefix=True)))


def test_a_bucket_that_cannot_be_asked(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object can be staged without credentials for its bucket. An import needs an answer."""

    real = clients.connect

    def connect(url: str, *more: Any, **named: Any) -> Any:
        if url == "s3://bucket":
            raise OSError("refused")
        return real(url, *more, **named)

    monkeypatch.setattr("ebbtide.storage.clients.connect", connect)
    repository.branches.create("dev", "main")
    repository.addresses.stage("dev", "in", "s3://bucket/a/x", size_bytes=1)
    asked = request(ImportSource("s3://bucket/a/x", "in", is_prefix=False))
    import_id = repository.imports.begin(asked)
    with raises("storage_error"):
        repository.imports.run(import_id, asked)


def test_places_in_a_root_of_a_bucket(repository: Repository, s3_url: str) -> None:
    bucket, name = s3_url.partition("://")[2], new_id()
    for key in ("ice/repo", "ice/snapshots/1", "ice/chunks/x", "beside/x"):
        open_storage(s3_url).put(f"{name}/{key}", key.encode())
    for scheme, place in (("s3", "ice"), ("s3a", "ice/chunks"), ("s3n", "ice/snapshots")):
        source = ImportSource(f"{scheme}://{bucket}/{name}/{place}/", "in", is_prefix=True)
        with raises("invalid_address"):
            repository.imports.begin(request(source))
    with raises("invalid_address"):
        url = f"s3://{bucket}/{name}/ice/chunks/x"
        repository.addresses.stage("main", "in", url, size_bytes=1)
    with raises("invalid_address"):
        run(repository, ImportSource(f"s3://{bucket}/{name}/", "in", is_prefix=True))
    run(repository, ImportSource(f"s3://{bucket}/{name}/beside/", "in", is_prefix=True))
    assert contents(repository, "main") == {"in/x": b"beside/x"}


def test_a_second_mount_of_a_root(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No test may mount: the directory only claims to be the same."""
    root, place = tmp_path / "root", tmp_path / "place"
    repository = store.create_repository("on-disk", storage_url=str(root))
    fill(place, "fine/x", "mount/data/x")

    def claimed(url: str) -> tuple[int, int] | None:
        is_mount = url == (place / "mount" / "data").as_uri()
        return directory_identity(root.as_uri() if is_mount else url)

    monkeypatch.setattr("ebbtide.store.import_sources.directory_identity", claimed)
    asked = request(below(place, "in"))
    import_id = repository.imports.begin(asked)
    with raises("invalid_address"):
        repository.imports.run(import_id, asked)
    assert error_of(repository, import_id) == "invalid_address"
    monkeypatch.undo()
    run(repository, below(place / "fine", "in"))


def test_what_cannot_be_imported(repository: Repository, outside: Path) -> None:
    (outside / "empty").mkdir()
    fill(outside / "odd", "x\ny")
    before = repository.commits.get("main")
    for kind, source in (
        ("object_not_found", below(outside / "empty", "in")),
        ("object_not_found", below(outside / "missing", "in")),
        ("object_not_found", below(outside / "a", "in")),
        ("object_not_found", single(outside / "missing", "in")),
        ("object_not_found", single(outside / "deep", "in")),
        # Together with the destination the path is too long.
        ("invalid_path", below(outside / "odd", "i" * (PATH_BYTES_MAX - 1))),
    ):
        with raises(kind):
            run(repository, source)
    (outside / "deep" / "link").symlink_to(outside / "a")
    with raises("invalid_address"):
        run(repository, below(outside, "in"))
    with raises("object_not_found"):
        run(repository, single(outside / "deep" / "link" / "x", "in"))
    with raises("branch_not_found"):
        run(repository, below(outside, "in"), branch="missing")
    with raises("invalid_argument"):
        run(repository)
    repository.objects.put("main", "own", b"staged")
    with raises("branch_dirty"):
        run(repository, below(outside, "in"))
    assert repository.commits.get("main") == before


def test_an_import_that_was_overtaken_is_published_on_the_other_commit(
    repository: Repository, outside: Path
) -> None:
    """What is staged meanwhile stays staged."""

    def change() -> None:
        save(repository, "in/other")
        repository.objects.put("main", "in/a", b"staged")

    made = run(meanwhile(repository, change, TREES_PREFIX), below(outside, "in"))
    assert contents(repository, "main@").keys() == {"in/a", "in/deep/b", "in/deep/er/c"}
    assert contents(repository, "main")["in/a"] == b"staged"
    assert repository.commits.get("main~1").message == "in/other"
    assert repository.commits.get("main") == made


def signs_at(number: int, action: Callable[[], object]) -> Signs:
    """The action happens at the sign of life with that number."""
    left = [number]

    def stopping() -> bool:
        left[0] -= 1
        if left[0] == -1:
            action()
        return False

    return Signs(stopping=stopping)


def test_a_cancelled_import_commits_nothing(repository: Repository, outside: Path) -> None:
    """Wherever it is cancelled: it is told as cancelled, leaves no file, and the branch stays."""
    before = repository.commits.get("main")
    steps = 0
    for number in range(100):
        asked = request(below(outside, "in"), single(outside / "a", "b"), branch="main")
        import_id = repository.imports.begin(asked)
        cancel = signs_at(number, partial(repository.imports.cancel, "main", import_id))
        try:
            repository.imports.run(import_id, asked, cancel)
        except Conflict as error:
            assert error.kind == "import_ended"
        else:
            break
        assert error_of(repository, import_id) == "import_ended"
        assert repository.commits.get("main") == before
        assert pending_addresses(repository) == []
        repository.imports.cancel("main", import_id)
        steps += 1
    assert steps >= 4
    # The last one was not cancelled, and cannot be any more.
    assert repository.commits.get("main~1") == before
    with raises("import_ended"):
        repository.imports.cancel("main", import_id)
    assert repository.imports.state("main", import_id).commit == repository.commits.get("main")


def test_an_import_whose_process_died(
    repository: Repository, outside: Path, clock: ManualClock
) -> None:
    """It is told as failed after some time. If its process lives after all, it commits nothing."""
    before = repository.commits.get("main")
    asked = request(below(outside, "in"))
    import_id = repository.imports.begin(asked)
    clock.advance(SILENCE_MAX - timedelta(seconds=1))
    repository.imports.wait(import_id)
    clock.advance(SILENCE_MAX - timedelta(seconds=1))
    assert error_of(repository, import_id) is None
    clock.advance(timedelta(seconds=1))
    assert error_of(repository, import_id) == "worker_died"
    for call in (
        lambda: repository.imports.run(import_id, asked),
        lambda: repository.imports.wait(import_id),
    ):
        with raises("import_ended"):
            call()
    publishing = repository.imports.begin(asked)
    late = meanwhile(repository, lambda: clock.advance(SILENCE_MAX), RANGES_PREFIX)
    with raises("import_ended"):
        late.imports.run(publishing, asked)
    assert error_of(repository, publishing) == "worker_died"
    assert repository.commits.get("main") == before


def test_what_stops_an_import_is_told(repository: Repository, outside: Path) -> None:
    asked = request(below(outside, "in"))
    for error, kind in (
        (Failed("storage_error", "broken"), "storage_error"),
        (ValueError("broken"), "internal"),
        (KeyboardInterrupt(), "interrupted"),
    ):

        def fail(error: BaseException = error) -> None:
            raise error

        import_id = repository.imports.begin(asked)
        with pytest.raises(type(error)):
            repository.imports.run(import_id, asked, signs_at(1, fail))
        assert error_of(repository, import_id) == kind
        repository.imports.cancel("main", import_id)
        assert error_of(repository, import_id) == kind
    import_id = repository.imports.begin(asked)
    repository.imports.carry_out(import_id, asked, Signs(stopping=lambda: True))
    assert error_of(repository, import_id) == "interrupted"


def test_a_repository_that_is_made_meanwhile(
    repository: Repository, store: Store, tmp_path: Path
) -> None:
    """Its root holds an imported object by then: the transaction that publishes notices."""
    place = tmp_path / "place"
    fill(place, "root/a", "beside")

    def create() -> None:
        (place / "root/a").unlink()
        store.create_repository("inner", storage_url=str(place / "root"))
        fill(place, "root/a")

    before = repository.commits.get("main")
    asked = request(below(place, "in"))
    import_id = repository.imports.begin(asked)
    with raises("invalid_address"):
        meanwhile(repository, create, TREES_PREFIX).imports.run(import_id, asked)
    assert repository.commits.get("main") == before
    assert error_of(repository, import_id) == "invalid_address"
    assert pending_addresses(repository) == []


def test_imports_are_told_apart(repository: Repository, outside: Path, clock: ManualClock) -> None:
    repository.branches.create("dev", "main")
    import_id = repository.imports.begin(request(below(outside, "in")))
    for branch, each in (("dev", import_id), ("main", "0" * 32), ("main", "")):
        with pytest.raises(NotFound, check=lambda error: error.kind == "task_not_found"):
            repository.imports.state(branch, each)
        with pytest.raises(NotFound, check=lambda error: error.kind == "task_not_found"):
            repository.imports.cancel(branch, each)
    # Old records go when the next import begins.
    clock.advance(repository.context.settings.run_retention + timedelta(seconds=1))
    repository.imports.begin(request(below(outside, "in")))
    with repository.context.metadata.snapshot() as tx:
        assert tx.execute(sa.select(sa.func.count()).select_from(imports_table)).scalar_one() == 1


@pytest.mark.parametrize("place", [RANGES_PREFIX, TREES_PREFIX])
def test_a_run_while_an_import_writes_its_tree(world: World, tmp_path: Path, place: str) -> None:
    outside = tmp_path / "place"
    fill(outside, "a", "b")
    world.save("main", days_ago=30, put=["own"])

    def collect() -> None:
        world.clock.advance(timedelta(minutes=5))
        report = world.collector(grace=timedelta(0), unsafe=True, mode="clean").run()
        assert report.error is None

    run(meanwhile(world.lake, collect, place), below(outside, "in"))
    world.collector(grace=timedelta(0), unsafe=True, mode="clean").run()
    assert contents(world.lake, "main") == {"own": b"own", "in/a": b"a", "in/b": b"b"}
