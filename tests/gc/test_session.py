"""The Spark session of a run: where its settings come from, how it starts and how it ends."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from ebbtide.errors import Failed, InvalidInput
from ebbtide.gc.engines.spark import conf, session
from ebbtide.gc.engines.spark import jvm as java
from ebbtide.gc.engines.spark.conf import (
    LOG_CONFIG,
    check,
    is_local,
    local_cores,
    logging_of,
    read_defaults_file,
    read_pairs,
    read_text,
    resolve,
)
from ebbtide.gc.engines.spark.jvm import find_java
from ebbtide.gc.engines.spark.session import Launched, _reason, launch
from ebbtide.interrupts import Interrupted
from ebbtide.resources import processor_count
from tests.support.commands import captured

ROOT = Path(__file__).parents[2]
SECONDS_MAX = 300
CHILD = '''
import json, os, signal, sys
import psutil
from ebbtide.gc.engines.spark.session import end, launch

launched = launch(master="local[1]", driver_memory="512m", conf=json.loads(sys.argv[1]), short=True)
assert "pyspark" not in sys.modules
session = launched.session()
assert launched.session() is session

def total():
    rows = session.range(100).mapInArrow(lambda batches: batches, "id long")
    return rows.groupBy().sum("id").first()[0]

def daemons():
    """How many processes Spark forks its Python workers from."""
    below = psutil.Process(pid).children(recursive=True)
    # Spark's script leaves a zombie, which has no command line.
    named = {each: each.as_dict(["cmdline"])["cmdline"] or () for each in below}
    found = {each.pid: each.ppid() for each, line in named.items() if "ebbtide.gc.daemon" in line}
    return sum(parent not in found for parent in found.values())

try:
    os.killpg(0, signal.SIGINT)  # as a terminal's Ctrl-C
    signal.pause()
except KeyboardInterrupt:
    pass
context = session.sparkContext
zone = session.conf.get("spark.sql.session.timeZone")
settings = dict(context.getConf().getAll()) | {"zone": zone}
pid = context._gateway.proc.pid
answer = {"total": total(), "pid": pid, "settings": settings, "id": context.applicationId}
answer["daemons"] = daemons()
end(session)
type(session).stop = None  # its JVM may have ended: nobody asks it again
end(session)
print(json.dumps(answer))
'''


@dataclass(frozen=True, slots=True)
class Child:
    """A process that had a session. `process` is its JVM, or the shell that waits for it."""

    answer: dict[str, Any]
    process: psutil.Process | None
    cache: Path
    log: str
    """What it wrote to stderr."""

    def wait(self) -> None:
        if self.process is not None:
            self.process.wait(SECONDS_MAX)


def run(cache: Path, **conf: str) -> Child:
    """Start a session in a process of its own, compute with it, and end it."""
    environment = os.environ | {
        "XDG_CACHE_HOME": str(cache),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    done = captured(
        [sys.executable, "-c", CHILD, json.dumps(conf)],
        env=environment,
        cwd=ROOT,
        timeout=SECONDS_MAX,
        start_new_session=True,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    try:
        return Child(answer, psutil.Process(answer["pid"]), cache, done.stderr)
    except psutil.NoSuchProcess:
        return Child(answer, None, cache, done.stderr)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Child:
    child = run(tmp_path_factory.mktemp("cache"), **{"spark.ui.retainedJobs": "8"})
    child.wait()
    assert len(list(child.cache.rglob("classes-*.jsa"))) == 1
    return child


@pytest.mark.spark
@pytest.mark.drawn("whole programs")
def test_a_session_of_its_own(first: Child) -> None:
    """It outlives Ctrl-C until it is ended, which may be said twice, has the settings of all
    sources, and leaves an archive and no process."""
    settings = first.answer["settings"]
    assert first.answer["total"] == 4950
    assert first.answer["daemons"] == 1, "steps use the process that was started beside the session"
    assert settings["spark.ui.retainedJobs"] == "8"
    assert (settings["spark.driver.memory"], settings["zone"]) == ("512m", "UTC")
    assert not list(first.cache.rglob("making-*"))
    for process in psutil.process_iter(["cmdline"]):
        assert str(first.cache) not in " ".join(process.info["cmdline"] or ())


@pytest.mark.spark
@pytest.mark.drawn("whole programs")
def test_a_damaged_archive_and_an_event_log(first: Child, tmp_path: Path) -> None:
    """The session starts without the archive, which is removed. At its end the log is complete."""
    (archive,) = first.cache.rglob("classes-*.jsa")
    archive.chmod(0o600)
    with archive.open("r+b") as file:
        file.seek(archive.stat().st_size // 2)
        file.write(b"damaged" * 1000)
    child = run(
        first.cache,
        **{
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": tmp_path.as_uri(),
            "spark.eventLog.rolling.enabled": "false",
            "spark.eventLog.compress": "false",
        },
    )
    (log,) = tmp_path.iterdir()
    assert child.answer["total"] == 4950
    assert not archive.exists()
    assert child.answer["id"] in log.name and not log.name.endswith(".inprogress")
    assert "SparkListenerApplicationEnd" in log.read_text()
    child.wait()


def test_the_order_of_settings() -> None:
    """The caller's, those of the file, then this program's; but its own interpreter."""
    name = "spark.sql.shuffle.partitions"
    assert resolve({}, {})[name].isdecimal()
    assert name not in resolve({}, {name: "3"})
    assert resolve({name: "5"}, {name: "3"})[name] == "5"
    python = {"spark.pyspark.python": "/usr/bin/python3"}
    assert resolve({}, python)["spark.pyspark.python"] == sys.executable
    assert resolve(python, {})["spark.pyspark.python"] == "/usr/bin/python3"
    memory = "spark.driver.memory"
    assert resolve({}, {}, driver_memory="2g")[memory] == "2g"
    assert memory not in resolve({}, {memory: "3g"}, driver_memory="2g")
    assert resolve({}, {}, archive="s3://a/b.tar.gz")["spark.archives"].startswith("s3://a/b")


def test_a_log_level_needs_a_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options, level = "spark.driver.extraJavaOptions", {"spark.log.level": "INFO"}
    monkeypatch.delenv("LOG4J_CONFIGURATION_FILE", raising=False)
    assert LOG_CONFIG.exists()
    ours = f"-Debbtide.spark.log.level=INFO -Dlog4j2.configurationFile={LOG_CONFIG.as_uri()}"
    assert logging_of({}, tmp_path) == {}
    assert logging_of(level, tmp_path) == {options: ours}
    assert logging_of(level | {options: "-Da=b"}, tmp_path) == {options: f"{ours} -Da=b"}
    assert logging_of(level | {options: "-Dlog4j2.configurationFile=x"}, tmp_path) == {}
    (tmp_path / "log4j2.xml").touch()
    assert logging_of(level, tmp_path) == {}
    (tmp_path / "log4j2.xml").unlink()
    monkeypatch.setenv("LOG4J_CONFIGURATION_FILE", "x")
    assert logging_of(level, tmp_path) == {}


def test_the_master() -> None:
    """Settings for this machine alone are not given to a cluster, whoever names it."""
    assert resolve({}, {})["spark.master"] in ("local[*]", f"local[{processor_count()}]")
    assert resolve({}, {})["spark.driver.bindAddress"] == "127.0.0.1"
    for found in (
        resolve({"spark.master": "yarn"}, {"spark.master": "local"}),
        resolve({}, {"spark.master": "yarn"}),
    ):
        assert found["spark.driver.bindAddress"] == "0.0.0.0"
        assert "spark.sql.shuffle.partitions" not in found
    # As many tasks at once as the master says. A simulated cluster has executors, too.
    for master, cores in (("local", 1), ("local[3]", 3), ("local[3,2]", 3)):
        assert is_local(master)
        assert local_cores(master) == cores
    assert local_cores("local[*]") == processor_count()
    assert not any(map(is_local, ("yarn", "spark://one:7077", "local-cluster[1,1,1024]")))


@pytest.mark.parametrize("named", [{}, {"spark.master": "local[*]"}])
def test_the_limits_of_a_container(named: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """They count even if the master is named, which commands always do."""
    monkeypatch.setattr(conf, "processor_count", lambda: 2)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert resolve(named, {})["spark.master"] == "local[2]"
    assert resolve({"spark.master": "local[8]"}, {})["spark.master"] == "local[8]"


def test_a_text_of_settings() -> None:
    """Pairs on lines, or behind commas; commas in a value stay."""
    assert read_text("") == {}
    text = "spark.a=1,2 , spark.b = x=y\n\n  spark.c=,;\r\nspark.a.b=last,spark.b=z,"
    assert read_text(text) == {
        "spark.a": "1,2",
        "spark.b": "z,",
        "spark.c": ",;",
        "spark.a.b": "last",
    }
    for pair in ("spark.a", "a=b", "spark.=b", "=b", "spark.a b=c", "x"):
        reads: list[Callable[[], object]] = [
            partial(read_pairs, [pair]),
            partial(read_text, f"spark.good=1\n{pair}"),
        ]
        for read in reads:
            with pytest.raises(InvalidInput) as caught:
                read()
            assert caught.value.kind == "invalid_argument"
            assert repr(pair) in str(caught.value)
    assert check({"spark.a": "b=c"}) == {"spark.a": "b=c"}
    with pytest.raises(InvalidInput, match="is no setting"):
        check({"other.a": "b"})


def test_the_file(tmp_path: Path) -> None:
    assert read_defaults_file(tmp_path) == {}
    (tmp_path / "spark-defaults.conf").write_text(
        "# spark.no 1\n  ! spark.no 2\n\nspark.a  1 2 \nspark.b=x=y\nspark.c : z\n"
        "spark.d a,\\\n   b\nspark.e\nspark.f\\:g h\\\\\nspark.i j\r\n"
    )
    assert read_defaults_file(tmp_path) == {
        "spark.a": "1 2",
        "spark.b": "x=y",
        "spark.c": "z",
        "spark.d": "a,b",
        "spark.e": "",
        "spark.f:g": "h\\",
        "spark.i": "j",
    }


def test_no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_candidates", list)
    with pytest.raises(Failed, match="--engine duckdb") as caught:
        find_java()
    assert caught.value.kind == "java_not_found"
    assert "\n" not in str(caught.value) and "openjdk" in str(caught.value)
    # `spark-submit` has started the JVM.
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert launch(master="local[1]")._jvm is None


def thrown(text: str, cause: Any = None) -> Any:
    return SimpleNamespace(toString=lambda: text, getCause=lambda: cause)


class JavaError(Exception):
    def __init__(self, error: Any) -> None:
        super().__init__("An error occurred while calling None\n\tat a.B")
        self.java_exception = error


def test_why_spark_did_not_start() -> None:
    """The error, and the first cause if the error does not have it already. Java forbids an error
    to be its own cause, but not two that name each other."""
    first = thrown("first")
    first.getCause = lambda: thrown("second", first)
    refused = thrown("io.example.ClientException: Forbidden: cannot get pods\nmore")
    for error, told in (
        (
            thrown("SparkException: External scheduler", thrown("InvocationTarget", refused)),
            "SparkException: External scheduler:"
            " io.example.ClientException: Forbidden: cannot get pods",
        ),
        (thrown("A: B: no room\nmore", thrown("B: no room")), "A: B: no room"),
        (first, "first"),
    ):
        assert _reason(JavaError(error), None) == told  # type: ignore[arg-type]


@pytest.mark.parametrize("error", [RuntimeError("no answer"), Failed("spark_error", "no answer")])
def test_an_interrupt_after_which_the_start_fails(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SparkContext ends itself after an interrupt, which can fail. The JVM ends too."""

    def connect(_jvm: object) -> None:
        try:
            raise Interrupted(signal.SIGINT)
        except Interrupted:
            raise error from None

    closed: list[bool] = []
    jvm: Any = SimpleNamespace(close=lambda: closed.append(True))
    monkeypatch.setattr(session, "_connect", connect)
    # Another test of this process may have one.
    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: None)
    with pytest.raises(Interrupted):
        Launched(jvm, {}).session()
    assert closed == [True]
