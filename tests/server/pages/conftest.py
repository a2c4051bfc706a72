"""The pages in this process, over a store whose clock the test sets."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from anyio.from_thread import start_blocking_portal

from ebbtide.server.app import create_app
from ebbtide.server.jobs import Jobs
from ebbtide.settings import Settings
from ebbtide.store.access.access_keys import KeyPair, Role
from ebbtide.store.embedded import Store
from tests.support.app import InProcess
from tests.support.lake import NAME, collect, fill_lake

ORIGIN = {"Origin": "http://test"}
RUN = re.compile(r"/runs/([0-9a-f]{32})")


@dataclass
class Browser:
    """What a browser does, without showing anything: it keeps cookies and sends origins."""

    http: httpx.Client
    jobs: Jobs

    def get(self, place: str, **options: Any) -> httpx.Response:
        return self.http.get(f"/ui{place}", **options)

    def token(self) -> str:
        """What the forms of the session carry."""
        found = re.search(r'name="form_token" value="(\w+)"', self.get("").text)
        assert found is not None
        return found[1]

    def post(self, place: str, **fields: str) -> httpx.Response:
        data = {"form_token": self.token(), **fields}
        return self.http.post(f"/ui{place}", data=data, headers=ORIGIN)

    def log_in(self, pair: KeyPair, **fields: str) -> httpx.Response:
        data = {"access_key_id": pair.key.access_key_id, "secret": pair.secret, **fields}
        return self.http.post("/ui/login", data=data, headers=ORIGIN)


Browsers = Callable[..., Browser]


@contextmanager
def browsing(store: Store) -> Iterator[Browsers]:
    """Gives a browser, logged in with a new key of a role unless that is None."""
    app = create_app(store)
    opened: list[httpx.Client] = []
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(app.router.lifespan_context(app)),
    ):

        def browser_of(role: Role | None = Role.ADMIN) -> Browser:
            client = httpx.Client(transport=InProcess(app, portal), base_url="http://test")
            opened.append(client)
            browser = Browser(client, app.state.jobs)
            if role is not None:
                pair = store.keys.create(role, name=f"<{role}>")
                assert browser.log_in(pair).status_code == 303
            return browser

        yield browser_of
        for client in opened:
            client.close()


@pytest.fixture
def browsers(store: Store) -> Iterator[Browsers]:
    with browsing(store) as found:
        yield found


@pytest.fixture
def writer(browsers: Browsers) -> Browser:
    return browsers(Role.WRITER)


@pytest.fixture(scope="module")
def shared_browsers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browsers]:
    """Browsers on an empty store that all tests of a module share, and leave as it is."""
    settings = Settings(reclaim=False, schedules=False)
    directory = tmp_path_factory.mktemp("shared") / "store"
    with Store.init(directory, settings=settings) as store, browsing(store) as found:
        yield found


@dataclass
class Lake:
    """A store with the lake, in files, and its runs."""

    store: Store
    browsers: Browsers
    planned: str
    swept: str


@pytest.fixture(scope="session")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """The lake, swept once and planned once more. Tests leave it as they find it."""
    directory: Path = tmp_path_factory.mktemp("pages")
    settings = Settings(
        reclaim=False, spark_master="none", lease_ttl=timedelta(0), grace=timedelta(0)
    )
    with Store.init(directory / "store", settings=settings) as store:
        swept, planned = collect(store, fill_lake(store, days=60))
        with browsing(store) as browsers:
            yield Lake(store, browsers, planned, swept)


@pytest.fixture
def admin(lake: Lake) -> Browser:
    """Somebody who looks at the lake, and may do all."""
    return lake.browsers()


PLACE = f"/repositories/{NAME}"
