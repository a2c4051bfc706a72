"""A server in a process of its own, as users start it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import lakefs
from lakefs.client import Client

from ebbtide.storage import Storage, open_storage

PROGRAM = [sys.executable, "-c", "from ebbtide.cli import main; main()"]
API = "/api/v1"
WAIT_SECONDS = 60.0


@dataclass(frozen=True)
class Key:
    """An access key with its secret."""

    access_key_id: str
    secret: str

    @property
    def pair(self) -> tuple[str, str]:
        """As HTTP clients take it."""
        return self.access_key_id, self.secret


@dataclass
class Server:
    """A store and a server on it. `environment` is that of every command, too."""

    directory: Path
    environment: dict[str, str]
    keys: dict[str, Key] = field(default_factory=dict)
    url: str = ""
    process: subprocess.Popen[str] | None = None

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run one command of the program on the store."""
        return subprocess.run(
            [*PROGRAM, *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=WAIT_SECONDS,
        )

    def start(self, *, init: bool = True) -> Server:
        """Make the store, a key for each role, and serve it on a free port of the loopback."""
        if init:
            made = self.command("init", str(self.directory), "--json")
            assert made.returncode == 0, made
            self.keys["admin"] = _key(made.stdout)
            for role in ("writer", "reader"):
                made = self.command("key", "create", "--role", role, "--name", role, "--json")
                self.keys[role] = _key(made.stdout)
        log = (self.directory / "server.log").open("a")
        self.process = subprocess.Popen(
            [*PROGRAM, "serve", "--port", "0"],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        log.close()
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert "http" in line, self.log
        self.url = line.split()[-1]
        return self

    @property
    def log(self) -> str:
        """What the server wrote to stderr."""
        return (self.directory / "server.log").read_text()

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """End the server; its exit code."""
        assert self.process is not None
        assert self.process.stdout is not None
        if self.process.poll() is None:
            self.process.send_signal(how)
        code = self.process.wait(WAIT_SECONDS)
        self.process.stdout.close()
        return code

    def client(self, role: str = "admin") -> Client:
        """The high-level client, with the key of a role."""
        key = self.keys[role]
        return Client(host=self.url, username=key.access_key_id, password=key.secret)

    def http(self, role: str | None = "admin") -> httpx.Client:
        """Plain HTTP, for what no client would send."""
        auth = None if role is None else self.keys[role].pair
        # Certificates take long to load, and nobody asks for them here.
        return httpx.Client(base_url=self.url + API, auth=auth, timeout=WAIT_SECONDS, verify=False)

    def repository(self, name: str) -> lakefs.Repository:
        """A new repository."""
        made = lakefs.Repository(name, client=self.client())
        return made.create(storage_namespace=f"local://{name}")


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
        | {"EBBTIDE_STORE": str(directory), "EBBTIDE_WORKERS": "1", "EBBTIDE_LEASE_TTL": "0s"}
        | settings,
    )


def _key(text: str) -> Key:
    document = json.loads(text)
    return Key(document["access_key_id"], document["secret_access_key"])
