"""Spark Connect: frames of a server that runs elsewhere (`sc://host:port`), with no JVM here.

Its Python workers need this program: it is installed for the Python that the server starts. Not
for: Spark's own masters, whose session this program starts (`session`).

Source: Spark's documentation, "Spark Connect Overview".
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Final
from urllib.parse import urlsplit

from pyspark.sql import SparkSession
from pyspark.sql.functions import spark_partition_id

from ebbtide.errors import Failed
from ebbtide.gc.meter import Meter, Reading
from ebbtide.gc.spark.engine import NOT_ASKED, SparkEngine
from ebbtide.imports import allow_pandas

PACKAGES: Final = ("pandas", "grpc", "grpc_status", "google.rpc", "zstandard")
"""What PySpark needs for it, by the names under which they are imported."""
PORT: Final = 15002
SECONDS_MAX: Final = 10
ROWS_ASKED: Final = 1_000


def connect(url: str, conf: Mapping[str, str]) -> SparkSession:
    """A session at a server, with settings that a session may have.

    Raises Failed `spark_error` where packages are missing, nothing answers, or a setting is none of
    a session's.
    """
    allow_pandas()
    _require_packages()
    _require_answer(url)
    try:
        session: SparkSession = SparkSession.builder.remote(url).getOrCreate()
        for name, value in conf.items():
            session.conf.set(name, value)
    except Exception as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise Failed("spark_error", f"no session at {url}: {reason[0]:.300}") from error
    return session


def _require_packages() -> None:
    """PySpark ends the whole program where one is missing."""
    for name in PACKAGES:
        try:
            is_there = find_spec(name) is not None
        except ModuleNotFoundError:  # what it is a part of is missing
            is_there = False
        if not is_there:
            raise Failed(
                "spark_error",
                f"Spark Connect needs Python's package {name}, which is not installed here: "
                "pip install 'ebbtide[connect]'",
            )


def _require_answer(url: str) -> None:
    """Spark's client would ask a server that is not there for ten minutes."""
    place = urlsplit(url)
    try:
        host, port = place.hostname or "", place.port or PORT
        socket.create_connection((host, port), timeout=SECONDS_MAX).close()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise Failed("spark_error", f"no server of Spark Connect at {url}: {reason}") from error


class _ConnectMeter(Meter):
    """Counts tasks by what the server says of the operation that runs."""

    def __init__(self) -> None:
        super().__init__()
        self._done = self._total = 0

    def note(self, stages: Sequence[Any] | None, *_more: Any, **_told: Any) -> None:
        """What pyspark calls with the progress of an operation."""
        self._done = sum(stage.num_completed_tasks for stage in stages or ())
        self._total = sum(stage.num_tasks for stage in stages or ())

    def reading(self) -> Reading:
        """How many tasks have ended."""
        seconds = super().reading().seconds
        return Reading("tasks", self._done, self._total or None, False, seconds)


class ConnectEngine(SparkEngine):
    """Everything on a server of Spark Connect."""

    def __init__(self, url: str, session: Callable[[], SparkSession]) -> None:
        super().__init__(session)
        self._url = url
        self.meter = self._progress = _ConnectMeter()
        self._connected: SparkSession | None = None
        self._cores: int | None = None

    def spark(self) -> SparkSession:
        """See `SparkEngine.spark`."""
        if self._connected is None:
            self._connected = self._session()
            self._connected.registerProgressHandler(self._progress.note)  # type: ignore[arg-type]  # takes more
            self._tag(self._connected)
        return self._connected

    @property
    def name(self) -> str:
        """See `Engine.name`."""
        if self._connected is None:
            return NOT_ASKED
        return f"Spark {self._connected.version} on {self._url}"

    @property
    def cores(self) -> int:
        """See `Engine.cores`: into as many partitions Spark divides what nobody divided."""
        if self._cores is None:
            numbers = self.spark().range(ROWS_ASKED)
            self._cores = numbers.select(spark_partition_id()).distinct().count()
        return self._cores

    def name_jobs(self, run_id: str, step: str) -> None:
        """See `Engine.name_jobs`: as tags of Spark's operations."""
        super().name_jobs(run_id, step)
        if self._connected is not None:
            self._tag(self._connected)

    def _tag(self, session: SparkSession) -> None:
        session.clearTags()
        for each in ("ebbtide", *filter(None, self._named)):
            session.addTag(each.replace(",", " "))

    @contextmanager
    def watching(self) -> Iterator[None]:
        """See `SparkEngine.watching`."""
        try:
            yield
        except KeyboardInterrupt:
            self.spark().interruptAll()
            raise
