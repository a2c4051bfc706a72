"""COMMITs that are lost: the connection to the database ends before one reached the server, or
before its answer came back.

On PostgreSQL a proxy ends the connection; on SQLite an error takes its place.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, Literal

import psycopg
import sqlalchemy as sa
from sqlalchemy.engine import make_url

from ebbtide.errors import EbbtideError, Failed
from ebbtide.store.database.dialects import open_engine
from ebbtide.store.database.engine import Metadata, Transaction
from ebbtide.store.embedded import Store
from tests.support.locks import SECONDS_MAX, waits_for_a_lock

Moment = Literal["before", "after", "late"]
"""Before the server has it; after it took effect; or after the client has gone on: it is carried
out once somebody waits for what it holds, or has done without."""

MOMENTS: Final[tuple[Moment, ...]] = ("before", "after", "late")

_COMMIT: Final = b"Q\0\0\0\x0bCOMMIT\0"
"""A whole message of the protocol: "Message Formats", Query, in PostgreSQL's documentation."""
_READ_ONLY: Final = b"READ ONLY"
_ENDS: Final = (b"Q\0\0\0\x0dROLLBACK\0", _COMMIT)
_READY: Final = b"Z\0\0\0\x05"
"""Behind it is one byte: the server waits for the next message."""
_BYTES: Final = 1 << 16


@dataclass
class Cut:
    """Loses the `nth` COMMIT of a transaction that may write, counted from 0; None loses none."""

    nth: int | None = None
    moment: Moment = "before"
    count: int = 0

    def is_due(self) -> bool:
        """Counts one more COMMIT. Whether it is the one."""
        self.count += 1
        return self.count - 1 == self.nth


class CutMetadata(Metadata):
    def __init__(self, inner: Metadata, cut: Cut) -> None:
        super().__init__(inner.engine, inner.clock)
        self._writing = inner._writing
        self._cut = cut

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        with super().transaction() as tx:
            yield tx
            is_due = self._cut.is_due()
            if is_due and self._cut.moment == "before":
                raise _lost()
        if is_due:
            raise _lost()


def _lost() -> Failed:
    return Failed("database_error", "the connection was made to end")


class CuttingProxy:
    def __init__(self, database_url: str) -> None:
        url = make_url(database_url)
        self._server = (str(url.host), int(url.port or 5432))
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        self.url = url.set(host="127.0.0.1", port=port).render_as_string(hide_password=False)
        self.cut = Cut()
        self.held: _Connection | None = None
        """Whose COMMIT is late."""
        self._open: list[_Connection] = []
        threading.Thread(target=self._accept, name="cutting proxy", daemon=True).start()

    def close(self) -> None:
        self._listener.close()
        for connection in self._open:
            connection.end()

    def carry_out(self) -> None:
        """Let the server have the late COMMIT, and wait until it has answered."""
        held, self.held = self.held, None
        if held is not None:
            held.server.sendall(_COMMIT)
            assert held.answered.wait(SECONDS_MAX), "no answer to COMMIT"

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                connection = _Connection(self, client, socket.create_connection(self._server))
                self._open.append(connection)
                connection.start()


class _Connection:
    """Two threads that pass on what client and server say, until a COMMIT is lost."""

    def __init__(self, proxy: CuttingProxy, client: socket.socket, server: socket.socket) -> None:
        self.server = server
        self.answered = threading.Event()
        self._proxy = proxy
        self._client = client
        self._only_reads = False
        self._is_lost = False

    def start(self) -> None:
        for work in (self._ask, self._answer):
            threading.Thread(target=work, daemon=True).start()

    def end(self) -> None:
        for each in (self._client, self.server):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _ask(self) -> None:
        with suppress(OSError):
            while data := self._client.recv(_BYTES):
                self._only_reads = self._only_reads or _READ_ONLY in data
                if data == _COMMIT and not self._only_reads and self._proxy.cut.is_due():
                    self._lose()
                    return
                if data in _ENDS:
                    self._only_reads = False
                self.server.sendall(data)
        self.end()

    def _lose(self) -> None:
        moment = self._proxy.cut.moment
        if moment == "before":
            self.end()
            return
        self._is_lost = True
        if moment == "late":
            self._proxy.held = self
            self._client.shutdown(socket.SHUT_RDWR)
        else:
            self.server.sendall(_COMMIT)

    def _answer(self) -> None:
        last = b""
        with suppress(OSError):
            while data := self.server.recv(_BYTES):
                if not self._is_lost:
                    self._client.sendall(data)
                    continue
                last = (last + data)[-len(_READY) - 1 :]
                if last[:-1] == _READY:
                    break
        self.end()
        self.answered.set()


class Loser:
    """A store whose COMMITs can be lost, beside one that has all of its own.

    `lose` loses one of an operation's.
    """

    moments: tuple[Moment, ...] = MOMENTS[:2]

    def __init__(self, store: Store, cut: Cut) -> None:
        self.store = store
        self.cut = cut

    @classmethod
    @contextmanager
    def of(cls, store: Store) -> Iterator[Loser]:
        """For a store on whichever database it is."""
        url = store.settings.database_url
        if url is None or store.metadata.engine.dialect.name == "sqlite":
            cut = Cut()
            yield Loser(_other(store, CutMetadata(store.metadata, cut)), cut)
            return
        proxy = CuttingProxy(url)
        metadata = Metadata(open_engine(proxy.url), store.metadata.clock)
        sa.event.listen(metadata.engine, "connect", _never_prepare)
        try:
            yield ProxiedLoser(_other(store, metadata), proxy, watching=store.metadata)
        finally:
            metadata.close()
            proxy.close()

    def lose(self, nth: int, moment: Moment, work: Callable[[], object]) -> bool:
        """Loses the `nth` COMMIT of the work, which may fail of it. Whether it had so many."""
        self.cut.nth, self.cut.moment, self.cut.count = nth, moment, 0
        try:
            self._do(work)
        except EbbtideError:
            if self.cut.count <= nth:
                raise
        finally:
            self.cut.nth = None
        return self.cut.count > nth

    def _do(self, work: Callable[[], object]) -> None:
        work()


class ProxiedLoser(Loser):
    moments = MOMENTS

    def __init__(self, store: Store, proxy: CuttingProxy, *, watching: Metadata) -> None:
        super().__init__(store, proxy.cut)
        self._proxy = proxy
        self._watching = watching

    def _do(self, work: Callable[[], object]) -> None:
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(work)
            while self._proxy.held is None and not running.done():
                wait([running], timeout=0.001)
            if self._proxy.held is not None:
                # Whatever is done about the error waits for the transaction, or does without.
                waits_for_a_lock(self._watching, running)
                self._proxy.carry_out()
            running.result()


def _never_prepare(connection: psycopg.Connection, _record: object) -> None:
    """Each statement is sent in words: the proxy looks for some."""
    connection.prepare_threshold = None


def _other(store: Store, metadata: Metadata) -> Store:
    return Store(
        directory=store.directory,
        settings=store.settings,
        metadata=metadata,
        store_id=store.store_id,
    )
