"""The engine on Spark Connect: frames on a remote server (`sc://host:port`), without a JVM here.

The server's Python workers need this program, installed for the Python that the server starts. Not
for: Spark's masters, for which this program starts a session (`session`).

Source: Spark's documentation, "Spark Connect Overview".
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final
from urllib.parse import urlsplit

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import spark_partition_id

from ebbtide import interrupts
from ebbtide.errors import Failed
from ebbtide.gc.engines.spark.engine import NOT_ASKED, SparkEngine, SparkRelation
from ebbtide.gc.steps import Meter, ProgressReading
from ebbtide.imports import allow_pandas, require_extra

PACKAGES: Final = ("pandas", "grpc", "grpc_status", "google.rpc", "zstandard")
"""The packages that PySpark needs for Spark Connect, by their import names."""
PORT: Final = 15002
SECONDS_MAX: Final = 10
ROWS_ASKED: Final = 1_000


def connect(url: str, conf: Mapping[str, str]) -> SparkSession:
    """Returns a session on a server, with settings that a session can change.

    Raises Failed `extra_missing`, and `spark_error` if no server answers, or if a session cannot
    change a setting.
    """
    allow_pandas()
    # PySpark itself would end the program.
    require_extra("Spark Connect", "connect", *PACKAGES)
    _require_answer(url)
    try:
        with interrupts.kept():
            session: SparkSession = SparkSession.builder.remote(url).getOrCreate()
            for name, value in conf.items():
                session.conf.set(name, value)
    except Exception as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise Failed("spark_error", f"no session at {url}: {reason[0]:.300}") from error
    return session


def _require_answer(url: str) -> None:
    """Raises Failed `spark_error` if no server listens. Spark's client itself would try for ten
    minutes."""
    place = urlsplit(url)
    try:
        host, port = place.hostname or "", place.port or PORT
        socket.create_connection((host, port), timeout=SECONDS_MAX).close()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise Failed("spark_error", f"no server of Spark Connect at {url}: {reason}") from error


class _ConnectMeter(Meter):
    """Counts the tasks of the current operation, as the server reports them."""

    def __init__(self) -> None:
        super().__init__()
        self._done = self._total = 0

    def note(self, stages: Sequence[Any] | None, *_more: Any, **_told: Any) -> None:
        """Takes the progress of an operation. PySpark calls this."""
        self._done = sum(stage.num_completed_tasks for stage in stages or ())
        self._total = sum(stage.num_tasks for stage in stages or ())

    def reading(self) -> ProgressReading:
        """Returns the number of finished tasks."""
        seconds = super().reading().seconds
        return ProgressReading("tasks", self._done, self._total or None, False, seconds)


class ConnectEngine(SparkEngine):
    """Runs all steps on a server of Spark Connect."""

    def __init__(self, url: str, session: Callable[[], SparkSession]) -> None:
        super().__init__(session)
        self._url = url
        self.meter = self._progress = _ConnectMeter()
        self._connected: SparkSession | None = None
        self._cores: int | None = None
        self._persisted: list[DataFrame] = []

    def spark(self) -> SparkSession:
        """Returns the session, connected on first use. Raises Failed `spark_error`."""
        if self._connected is None:
            self._connected = self._session()
            # `note` takes all arguments that PySpark gives to a handler, and more.
            self._connected.registerProgressHandler(self._progress.note)  # type: ignore[arg-type]
            self._tag(self._connected)
        return self._connected

    @property
    def name(self) -> str:
        """The name in reports: Spark's version and the server's URL."""
        if self._connected is None:
            return NOT_ASKED
        return f"Spark {self._connected.version} on {self._url}"

    @property
    def cores(self) -> int:
        """The number of tasks that run at the same time: the server's default number of
        partitions."""
        if self._cores is None:
            numbers = self.spark().range(ROWS_ASKED)
            self._cores = numbers.select(spark_partition_id()).distinct().count()
        return self._cores

    def keep(self, relation: SparkRelation) -> SparkRelation:
        """Makes Spark keep the rows of a relation until `forget`."""
        self._persisted.append(relation.frame.persist())
        return SparkRelation(self._persisted[-1], relation.schema, self)

    def forget(self) -> None:
        """Drops the rows of all relations that are kept."""
        while self._persisted:
            with suppress(Exception):  # a server that ended keeps nothing
                self._persisted.pop().unpersist()

    def select(self, text: str, relations: Mapping[str, SparkRelation]) -> DataFrame:
        """Returns the rows of a SELECT. The server has no views of them: it analyses the text when
        the rows are computed."""
        frames: dict[str, Any] = {name: each.frame for name, each in relations.items()}
        return self.spark().sql(text, **frames)

    def name_jobs(self, run_id: str, step: str) -> None:
        """Sets the run and the step as tags of Spark's operations."""
        super().name_jobs(run_id, step)
        if self._connected is not None:
            self._tag(self._connected)

    def _tag(self, session: SparkSession) -> None:
        session.clearTags()
        for each in ("ebbtide", *filter(None, self._named)):
            session.addTag(each.replace(",", " "))

    @contextmanager
    def watching(self) -> Iterator[None]:
        """A context for a call that waits for an operation: an interrupt ends all operations."""
        try:
            yield
        except KeyboardInterrupt:
            self.spark().interruptAll()
            raise
