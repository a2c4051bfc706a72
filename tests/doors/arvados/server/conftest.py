"""One server for Arvados's clients, over TLS, for all tests of this directory."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from ebbtide.store.access.access_keys import Role
from ebbtide.store.embedded import Store
from tests.support.certificates import Issuer
from tests.support.server import Key, Server, new_server


@dataclass(frozen=True, slots=True)
class ArvadosServer:
    """A server that shows its repository `lake` to clients of Arvados."""

    server: Server
    trusted: str

    def token(self, role: Role = Role.ADMIN) -> str:
        key = self.server.keys[role]
        return f"v2/{key.access_key_id}/{key.secret}"

    def http(self, role: Role | None = Role.ADMIN) -> httpx.Client:
        headers = {} if role is None else {"Authorization": f"Bearer {self.token(role)}"}
        trusting = ssl.create_default_context(cafile=self.trusted)
        return httpx.Client(base_url=self.server.url, headers=headers, verify=trusting, timeout=60)


@pytest.fixture(scope="session")
def arvados(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ArvadosServer]:
    directory = tmp_path_factory.mktemp("arvados")
    issuer = Issuer(directory)
    issuer.issue().write(directory / "server.pem", directory / "server.key")
    server = new_server(
        directory / "store",
        EBBTIDE_ARVADOS_REPOSITORY="lake",
        EBBTIDE_LEASE_TTL="1h",
        EBBTIDE_TRASH_TIME="7d",
        EBBTIDE_TLS_CERTIFICATE=str(directory / "server.pem"),
        EBBTIDE_TLS_KEY=str(directory / "server.key"),
    )
    with Store.init(server.directory, settings=server.settings) as store:
        store.create_repository("lake")
        for role in Role:
            made = store.keys.create(role, name=role)
            server.keys[role] = Key(made.key.access_key_id, made.secret)
    server.start(init=False)
    yield ArvadosServer(server, str(issuer.trusted))
    server.stop()
    assert "Traceback" not in server.log, server.log


@pytest.fixture
def http(arvados: ArvadosServer) -> Iterator[httpx.Client]:
    with arvados.http() as client:
        yield client
