"""Options and fixtures that all tests share: chances, servers, databases, and a store with a clock
that the test sets.
"""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Generator, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from zlib import crc32

import pytest
from _pytest.terminal import TerminalReporter

from ebbtide.ids import new_id
from ebbtide.settings import Settings
from ebbtide.store.embedded import Store
from ebbtide.store.repository import Repository
from tests.support import randomized
from tests.support.azurite import CONTAINER, find_azurite, start_azurite
from tests.support.ceph import BUCKET, find_ceph, start_ceph
from tests.support.clock import ManualClock
from tests.support.databases import PostgresDatabases, SqliteDatabases, new_database
from tests.support.fast import Fast
from tests.support.postgres import find_postgres, start_postgres
from tests.support.requirements import require_or_skip
from tests.support.services import Services, shared
from tests.support.statements import compiled_once

pytest_plugins = ("tests.support.servers",)
START = datetime(2030, 1, 1, tzinfo=UTC)
KINDS: Final = ("sqlite", "postgres")
DISK_VARIABLE: Final = "EBBTIDE_TEST_DISK"
ONE_PROCESS: Final = ("spark", "browser")
"""Markers of tests that share what only one process of a run has."""
SERVERS_SHARED: Final = {"servers": 2, "shared_server": 1, "arvados": 1}
"""Fixtures that start servers for all tests of a process: in how many processes they are."""
CRASHED: Final = pytest.mark.flaky(reruns=2, only_rerun=["TargetClosedError"])
"""A browser that ends by itself says nothing about the page that it showed."""
SERVICES: Final = pytest.StashKey[Services]()

# Programs that tests start find it here: a JVM for each of them would take minutes. Tests of Spark
# name a master.
os.environ["EBBTIDE_SPARK_MASTER"] = "none"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of this project's tests; `scripts/test` passes them on."""
    group = parser.getgroup("ebbtide")
    group.addoption(
        "--long", type=float, metavar="MINUTES", help="randomized tests alone, for so long"
    )
    group.addoption(
        "--drawn", action="store_true", help="of sets of alike tests, those that chance draws"
    )
    group.addoption(
        "--fast", type=float, metavar="SECONDS", help="tests near what was changed, for so long"
    )
    group.addoption("--case", type=int, metavar="SEED", help="one case of a randomized test alone")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Behind the plugins, which draw the seed of the run."""
    randomized.configure(config)
    seconds = config.getoption("fast")
    if seconds is not None:
        config.pluginmanager.register(Fast(seconds, randomized.RUN.base_seed), "ebbtide-fast")
    if not hasattr(config, "workerinput"):
        config.stash[SERVICES] = Services()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Ends what was started for all."""
    if SERVICES in config.stash:
        config.stash[SERVICES].end()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests marked `twins` run on both kinds of database."""
    wanted = "database_kind" in metafunc.fixturenames
    if wanted and metafunc.definition.get_closest_marker("twins"):
        metafunc.parametrize("database_kind", KINDS, indirect=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tells pytest-xdist, before it asks, which tests must share a process."""
    for item in items if config.pluginmanager.hasplugin("xdist") else ():
        for name in ONE_PROCESS:
            if item.get_closest_marker(name):
                item.add_marker(pytest.mark.xdist_group(name))
        if not item.get_closest_marker("xdist_group"):
            wanted = set(getattr(item, "fixturenames", ()))
            for name in [each for each in SERVERS_SHARED if each in wanted][:1]:
                share = crc32(str(item.path).encode()) % SERVERS_SHARED[name]
                item.add_marker(pytest.mark.xdist_group(f"{name} {share}"))
    for item in items:
        if item.get_closest_marker("browser"):
            item.add_marker(CRASHED)
    chances = {item: randomized.volume_of(item) for item in items}
    left_out = set[pytest.Item]()
    if config.getoption("long") is not None:
        left_out = {item for item in items if chances[item] is None}
        left_out -= randomized.dealt(item for item in items if drawn_from(item))
    elif config.getoption("drawn") or config.getoption("fast") is not None:
        left_out = randomized.not_drawn({item: drawn_from(item) for item in items})
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]
    # Whatever begins last should be short: groups, which one process has to do, begin first. The
    # longest of the others are among the randomized ones. A long run divides what others leave of
    # its time.
    is_long = config.getoption("long") is not None
    items.sort(
        key=lambda item: (
            not any(map(item.get_closest_marker, ONE_PROCESS)),
            not item.get_closest_marker("xdist_group"),
            (chances[item] is None) != is_long,
        )
    )
    if is_long:
        sets = {item: part for item in items if (part := set_alone(item))}
        items[:] = [*randomized.in_turn(sets), *(item for item in items if item not in sets)]


def drawn_from(item: pytest.Item) -> str | None:
    """The set that a test belongs to, of which a commit tries some."""
    marker = item.get_closest_marker("drawn")
    return None if marker is None else str(marker.args[0])


def set_alone(item: pytest.Item) -> str | None:
    """The set of a test, unless it is randomized as well: those have a time of their own."""
    return None if randomized.volume_of(item) else drawn_from(item)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """A long run ends when it should."""
    if set_alone(item) and randomized.is_too_late():
        pytest.skip("no time is left for more of its set")


def pytest_collection_finish(session: pytest.Session) -> None:
    """All tests are known now: divides the time of a long run among them."""
    randomized.share_out(filter(None, map(randomized.volume_of, session.items)))
    # Python would go through all that was loaded and collected again and again, for nothing.
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Sends along what a randomized test went through, to the process that tells of it."""
    report = yield
    outcome = randomized.RUN.outcomes.pop(randomized.name_of(item.nodeid), None)
    if outcome is not None:
        report.user_properties.append((randomized.OUTCOME, asdict(outcome)))
    return report


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Says how to repeat what failed, and what a long run went through."""
    randomized.summarize(terminalreporter)


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A new directory: where the system has its temporary files, in memory if `scripts/test` found
    room there; for tests marked `disk`, on a disk.
    """
    disk = os.environ.get(DISK_VARIABLE)
    if disk is None or request.node.get_closest_marker("disk") is None:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="ebbtide-test-", dir=disk) as directory:
        yield Path(directory)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Steps run in the thread of their test: what it patches or lets fail comes in one order."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ebbtide.gc.engines.duckdb.processor_count", lambda: 1)
        yield


@pytest.fixture(scope="session", autouse=True)
def statements() -> Iterator[None]:
    """Compiled once for all tests of a process."""
    with compiled_once():
        yield


@pytest.fixture(scope="session")
def postgres() -> str:
    """The URL of an empty database, on one server for the whole test run."""
    if find_postgres() is None:
        require_or_skip("postgres", "no initdb in /usr/lib/postgresql/*/bin or on PATH")
    url: str = shared("postgres", start_postgres, lambda server: server.url)
    return url


@pytest.fixture(scope="session")
def s3_url() -> Iterator[str]:
    """The URL of a bucket: the one that EBBTIDE_TEST_S3_URL names, with endpoint and credentials in
    AWS_ variables, or one of a server for the whole test run."""
    given = os.environ.get("EBBTIDE_TEST_S3_URL")
    if given is not None:
        yield given
        return
    if not find_ceph():
        require_or_skip("s3", "EBBTIDE_TEST_S3_URL names no bucket, and there is no Ceph")
    environment = shared("ceph", start_ceph, lambda server: server.environment())
    with pytest.MonkeyPatch.context() as patched:
        for name, value in environment.items():
            patched.setenv(name, value)
        yield f"s3://{BUCKET}"


@pytest.fixture(scope="session")
def azure_url() -> Iterator[str]:
    """The URL of a container on a server for the whole test run."""
    if find_azurite() is None:
        require_or_skip("azure", "no azurite-blob on PATH or in .azurite: npm's package azurite")
    environment = shared("azurite", start_azurite, lambda server: server.environment())
    with pytest.MonkeyPatch.context() as patched:
        for name, value in environment.items():
            patched.setenv(name, value)
        yield f"az://{CONTAINER}"


@pytest.fixture(scope="session")
def sqlite_databases(tmp_path_factory: pytest.TempPathFactory) -> SqliteDatabases:
    return SqliteDatabases(tmp_path_factory.mktemp("sqlite"))


@pytest.fixture(scope="session")
def postgres_databases(postgres: str) -> PostgresDatabases:
    return PostgresDatabases(postgres)


@pytest.fixture
def database_kind(request: pytest.FixtureRequest) -> str:
    """One kind of database: both in turn for tests marked `twins`, one by chance for all others,
    more often the one that answers sooner.

    Without PostgreSQL, and in a fast run, chance has no choice.
    """
    if hasattr(request, "param"):
        return str(request.param)
    if find_postgres() is None or request.config.getoption("fast") is not None:
        return KINDS[0]
    return randomized.choose(request.node.nodeid, (KINDS[0], KINDS[0], *KINDS))


@pytest.fixture
def empty_database_url(request: pytest.FixtureRequest, database_kind: str, tmp_path: Path) -> str:
    if database_kind == "sqlite":
        return f"sqlite:///{tmp_path / 'metadata.db'}"
    return new_database(request.getfixturevalue("postgres"))


@pytest.fixture
def database_url(
    request: pytest.FixtureRequest, database_kind: str, tmp_path: Path
) -> Iterator[str]:
    """A database with the tables in it, which are empty."""
    databases = request.getfixturevalue(f"{database_kind}_databases")
    with databases.database(tmp_path) as url:
        yield url


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
def store(database_url: str, clock: ManualClock, tmp_path: Path) -> Iterator[Store]:
    """A new store, with small ranges, in `tmp_path / "store"`."""
    settings = Settings(database_url=database_url, range_entries_target=4)
    with Store.init(tmp_path / "store", settings=settings, clock=clock) as store:
        yield store


@pytest.fixture
def repository(store: Store) -> Repository:
    return store.create_repository("lake", storage_url=f"memory:{new_id()}")


@pytest.fixture
def project_id(repository: Repository) -> str:
    return repository.projects.create("project").project_id
