"""A server in a process of its own: the users' program, forked where its modules are loaded."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import lakefs
from lakefs.client import Client

from ebbtide.settings import Settings
from ebbtide.storage import Storage, open_storage
from ebbtide.store.access.access_keys import Role
from ebbtide.store.embedded import Store
from ebbtide.store.repositories.repository_rows import PROMISED
from tests.support.databases import new_database
from tests.support.forking import Running, forks

PROGRAM = "tests.support.forked"
API = "/api/v1"
WAIT_SECONDS = 60.0


@dataclass(frozen=True)
class Key:
    access_key_id: str
    secret: str

    @property
    def pair(self) -> tuple[str, str]:
        return self.access_key_id, self.secret


@dataclass
class Server:
    """A store and a server on it. `environment` is that of every command, too."""

    directory: Path
    environment: dict[str, str]
    keys: dict[str, Key] = field(default_factory=dict)
    url: str = ""
    process: Running | None = None

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        with tempfile.TemporaryDirectory() as directory:
            out, err = Path(directory, "out"), Path(directory, "err")
            code = self._begin(*arguments, out=out, err=err).wait(WAIT_SECONDS)
            said = out.read_text(), err.read_text()
        return subprocess.CompletedProcess(arguments, code, *said)

    @property
    def settings(self) -> Settings:
        names = ("database_url", "storage_url", *PROMISED)
        told = {name: self.environment.get(f"EBBTIDE_{name.upper()}") for name in names}
        return Settings(**{name: value for name, value in told.items() if value is not None})

    def start(self, *options: str, init: bool = True) -> Server:
        """Makes the store in this process, with a key for each role. Serves it in another one, with
        these options, on a free port of the loopback."""
        if init:
            with Store.init(self.directory, settings=self.settings) as store:
                for role in Role:
                    made = store.keys.create(role, name=role)
                    self.keys[role] = Key(made.key.access_key_id, made.secret)
        said, log = self.directory / "server.out", self.directory / "server.log"
        said.write_text("")
        self.process = process = self._begin("serve", "--port", "0", *options, out=said, err=log)
        eventually(lambda: process.poll() is not None or said.read_text().endswith("\n"))
        assert "http" in said.read_text(), self.log
        self.url = said.read_text().splitlines()[0].split()[-1]
        return self

    def _begin(self, *arguments: str, out: Path, err: Path) -> Running:
        return forks().start(PROGRAM, *arguments, environment=self.environment, out=out, err=err)

    @property
    def log(self) -> str:
        return (self.directory / "server.log").read_text()

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(how)
        return self.process.wait(WAIT_SECONDS)

    def branch(self, repository: str, name: str) -> None:
        """Makes a branch of `main` by the command line, which takes names that lakeFS refuses."""
        self.command("branch", "create", repository, name).check_returncode()

    def client(self, role: str = "admin") -> Client:
        key = self.keys[role]
        return Client(host=self.url, username=key.access_key_id, password=key.secret)

    def http(self, role: str | None = "admin") -> httpx.Client:
        auth = None if role is None else self.keys[role].pair
        # Certificates take long to load, and nobody asks for them here.
        return httpx.Client(base_url=self.url + API, auth=auth, timeout=WAIT_SECONDS, verify=False)

    def repository(self, name: str) -> lakefs.Repository:
        made = lakefs.Repository(name, client=self.client())
        return made.create(storage_namespace=f"local://{name}")


def eventually(check: Callable[[], bool]) -> None:
    """Waits until a check of what another process does holds, for a bounded time."""
    ends = time.monotonic() + WAIT_SECONDS
    while not check():
        assert time.monotonic() < ends, "it never came to be"
        time.sleep(0.02)


def place_of(url: str) -> tuple[Storage, str]:
    """Where an object lies, on whatever storage: the directory above it, and its name there."""
    parent, _, name = url.rstrip("/").rpartition("/")
    return open_storage(parent), name


def new_server(directory: Path, **settings: str) -> Server:
    """A server whose store is in `directory`, with nobody's settings but these."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EBBTIDE_")}
    return Server(
        directory,
        kept
        | {
            "EBBTIDE_STORE": str(directory),
            "EBBTIDE_SPARK_MASTER": "none",
            "EBBTIDE_LEASE_TTL": "0s",
        }
        | settings,
    )


@contextmanager
def short_leases(directory: Path, *, postgres: str | None, **settings: str) -> Iterator[Server]:
    """A server of its own, whose leases last no time on SQLite, and a second on PostgreSQL."""
    settings["EBBTIDE_LEASE_TTL"] = "0s" if postgres is None else "1s"
    if postgres is not None:
        settings["EBBTIDE_DATABASE_URL"] = new_database(postgres)
    server = new_server(directory, **settings).start()
    try:
        yield server
    finally:
        server.stop()
