"""The JVM that PySpark's script starts, and the archive of its classes. Most tests use stand-ins
for the script and for Java, which behave as Spark's launcher and gateway do."""

from __future__ import annotations

import errno
import os
import signal
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ebbtide.errors import Failed
from ebbtide.gc.engines.spark import jvm as jvms
from ebbtide.gc.engines.spark.jvm import (
    FOLDERS_MAX,
    SHORT_OPTION,
    Jvm,
    find_class_archive,
    find_java,
)
from ebbtide.gc.engines.spark.session import launch

SECONDS_MAX = 30
JAVA = r"""#!/bin/sh
# As a gateway: says its port, waits for the end of its input, and writes an archive when it is told
# to. It ends at once with an archive that is damaged.
home=$(dirname "$(dirname "$0")")
echo "$@" >>"$home/calls"
made=
for word in "$@"; do
    case $word in
    -XX:ArchiveClassesAtExit=*) made=${word#*=} ;;
    -XX:SharedArchiveFile=*) grep -q classes "${word#*=}" || exit 134 ;;
    esac
done
told=$_PYSPARK_DRIVER_CONN_INFO_PATH
printf '\000\000\004\322\000\000\000\006secret' >"$told.part"
mv "$told.part" "$told"
cat >/dev/null
[ -z "$made" ] || echo classes >"$made"
"""
SUBMIT = """#!/bin/sh
eval "exec \\"$JAVA_HOME/bin/java\\" $SPARK_SUBMIT_OPTS \\"\\$@\\""
"""


@dataclass
class FakeSpark:
    """A Spark and a Java that start at once. `calls` has a line for each start."""

    home: Path
    java_home: Path
    cache: Path

    def start(self, *, short: bool = False, **settings: str) -> Jvm:
        """A JVM with these settings and `spark.driver.memory`."""
        given = {"spark.driver.memory": "1g", **settings}
        return Jvm(given, java_home=str(self.java_home), short=short)

    def run(self, *, short: bool = False) -> list[str]:
        """What was started, by a JVM that answers and ends in order."""
        calls = self.java_home / "calls"
        calls.unlink(missing_ok=True)
        jvm = self.start(short=short)
        assert jvm.wait() == (1234, "secret")
        jvm.settle()
        self.end(jvm)
        return calls.read_text().splitlines()

    def end(self, jvm: Jvm) -> None:
        jvm.close()
        assert jvm.process.wait(SECONDS_MAX) == 0

    def folder(self) -> Path:
        (found,) = (self.cache / "ebbtide" / "jvm").iterdir()
        return found

    def write(self, name: str) -> None:
        file = self.home / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("other")


@pytest.fixture
def spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSpark:
    made = FakeSpark(tmp_path / "a spark", tmp_path / "java", tmp_path / "its cache")
    for file, text in (
        (made.home / "bin" / "spark-submit", SUBMIT),
        (made.home / "jars" / "spark-core_2.13-4.0.0.jar", ""),
        (made.java_home / "bin" / "java", JAVA),
    ):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o755)
    for name in ("SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPARK_HOME", str(made.home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(made.cache))
    return made


def test_the_second_start_uses_what_the_first_left(spark: FakeSpark) -> None:
    """A complete archive. Options of Java come before the user's, and change no setting."""
    (first,) = spark.run()
    assert first.startswith(f"-XX:ArchiveClassesAtExit={spark.folder()}/making-")
    assert first.endswith(" --conf spark.driver.memory=1g pyspark-shell")
    (second,) = spark.run(short=True)
    used = f"-XX:SharedArchiveFile={spark.folder()}/classes-8.jsa -Xshare:auto"
    assert second.startswith(f"{SHORT_OPTION} {used}") and SHORT_OPTION not in first


def test_an_archive_in_a_read_only_image(spark: FakeSpark, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    spark.run()
    monkeypatch.setattr(os, "utime", refused)
    assert "SharedArchiveFile" in spark.run()[0]


def test_no_place_for_an_archive(spark: FakeSpark) -> None:
    """A folder that others can write, since classes are executed; or no folder."""
    spark.run()
    spark.folder().chmod(0o777)
    assert "-XX:" not in spark.run()[0]
    spark.cache.rename(spark.cache.with_name("another"))
    spark.cache.write_text("a file")
    assert "-XX:" not in spark.run()[0]


def test_an_archive_that_is_of_no_use(spark: FakeSpark) -> None:
    """If its size is not that of its name, no JVM gets it. A JVM that dies of it is started again
    without, and it is gone. If the JVM refuses it, the next one makes another."""
    spark.run()
    (spark.folder() / "classes-8.jsa").write_text("cl")
    assert "SharedArchiveFile" not in spark.run()[0]
    assert (spark.folder() / "classes-8.jsa").read_text() == "classes\n"
    (spark.folder() / "classes-8.jsa").write_text("Classes\n")
    died, again = spark.run()
    assert "SharedArchiveFile" in died and "-XX:" not in again
    assert "ArchiveClassesAtExit" in spark.run()[0]
    jvm = spark.start()
    jvm.wait()
    log = Path(jvm._directory.name) / "archive.log"
    log.write_text("[0.194s][info][cds] UseSharedSpaces: Checksum verification failed.\n")
    jvm.settle()
    spark.end(jvm)
    assert "ArchiveClassesAtExit" in spark.run()[0]


def test_what_only_scripts_know(spark: FakeSpark, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's own arguments come last. With them, or with files of settings such as
    `spark-env.sh`, there is no archive. Options of the user come after those of this program."""
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--name 'two words' pyspark-shell")
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=4")
    (started,) = spark.run(short=True)
    assert started.startswith(f"{SHORT_OPTION} -XX:TieredStopAtLevel=4 --conf")
    assert started.endswith("--name two words pyspark-shell")
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS")
    spark.write("conf/spark-env.sh")
    assert spark.run()[0].startswith("-XX:TieredStopAtLevel=4 --conf")
    assert not spark.cache.exists()


def test_few_entries_stay(spark: FakeSpark) -> None:
    """The least recently used go, and what a killed JVM left half written."""
    for number in range(FOLDERS_MAX + 2):
        old = spark.cache / "ebbtide" / "jvm" / f"old-{number}"
        old.mkdir(parents=True)
        os.utime(old, (number, number))
    first = spark.start()
    first.wait()
    folder = max(old.parent.iterdir(), key=lambda each: each.stat().st_mtime)
    half = folder / "making-1-1"
    half.touch()
    os.utime(half, (1, 1))
    spark.run()
    assert {each.name for each in old.parent.iterdir()} == {folder.name, "old-3", "old-4"}
    assert not half.exists()
    spark.end(first)


def test_one_archive_is_made_at_a_time(spark: FakeSpark) -> None:
    """A JVM that starts while another is to write one starts without."""
    first = spark.start()
    first.wait()
    (started,) = spark.run()
    assert "-XX:" not in started
    spark.end(first)
    assert "SharedArchiveFile" in spark.run()[0]


def test_the_key(spark: FakeSpark, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that the classes depend on; and no other setting. Whatever adds a folder to the class
    path makes Java archive nothing: Spark's own folder of settings is one if it has files."""

    def key(**settings: str) -> str | None:
        found = find_class_archive(spark.home, str(spark.java_home), settings)
        return None if found is None else found.folder.name

    keys = [key()]
    assert key(**{"spark.app.name": "another"}) == keys[0]
    assert key(**{"spark.driver.memory": "2g"}) != keys[0]
    for change in (
        partial(monkeypatch.setenv, "JAVA_TOOL_OPTIONS", "-Da=b"),
        partial(monkeypatch.setenv, "SPARK_DRIVER_MEMORY", "3g"),
        partial(monkeypatch.setenv, "SPARK_CONF_DIR", "/another"),
        partial(spark.write, "jars/another.jar"),
        partial(spark.write, "../java/release"),
        partial(os.utime, spark.home / "jars" / "spark-core_2.13-4.0.0.jar", (1, 1)),
    ):
        change()
        assert key() not in (None, *keys)
        keys.append(key())
    spark.home = spark.home.rename(spark.home.with_name("moved"))
    assert key() not in (None, *keys)
    assert key(**{"spark.driver.extraClassPath": "/more"}) is None
    for variable, value in (("SPARK_DIST_CLASSPATH", "/more"), ("SPARK_CONF_DIR", str(spark.home))):
        with monkeypatch.context() as patched:
            patched.setenv(variable, value)
            assert key() is None


def test_signals_to_the_group(spark: FakeSpark) -> None:
    """Ctrl-C and SIGTERM mean this program, which then ends its JVM, and leaves no files."""
    jvm = spark.start()
    jvm.wait()
    directory = Path(jvm._directory.name)
    for number in (signal.SIGINT, signal.SIGTERM):
        jvm.process.send_signal(number)
    spark.end(jvm)
    assert not directory.exists()


def answering(spark: FakeSpark, command: str, **settings: Any) -> Failed:
    """Why a JVM does not start whose Java does this and ends."""
    java = spark.java_home / "bin" / "java"
    java.write_text(JAVA.replace("\ntold=", f"\n{command} && exit 1\ntold="))
    with pytest.raises(Failed) as caught:
        spark.start(**settings).wait()
    assert caught.value.kind == "spark_error"
    return caught.value


def test_the_reason(spark: FakeSpark) -> None:
    """One line of the JVM's output: of a stack trace, the last cause."""
    told = answering(spark, "echo 'Error: no room'").message
    assert told.endswith("ended while it started: Error: no room")
    trace = (
        'Exception in thread "main" java.lang.ExceptionInInitializerError\n'
        "\tat org.apache.spark.deploy.SparkSubmit.main(SparkSubmit.scala)\n"
        "Caused by: java.net.UnknownHostException: here: here: Name or service not known\n"
        "\tat java.base/java.net.InetAddress.getLocalHost(InetAddress.java:1936)\n"
        "Caused by: java.net.UnknownHostException: here: Name or service not known\n"
        "\t... 17 more"
    )
    (spark.java_home / "trace").write_text(trace)
    assert answering(spark, 'cat "$home/trace"').message.endswith(
        ': Exception in thread "main" java.lang.ExceptionInInitializerError; '
        "the cause: java.net.UnknownHostException: here: Name or service not known"
    )


def test_a_machine_whose_name_has_no_address(
    spark: FakeSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark does not look it up if all tasks run here. A user's own address stays."""
    tell = 'echo "Error: ${SPARK_LOCAL_IP-none}"'
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    for master, expected in (("local[2]", "127.0.0.1"), ("spark://cluster:7077", "none")):
        told = answering(spark, tell, **{"spark.master": master}).message
        assert told.endswith(f"Error: {expected}")
    monkeypatch.setenv("SPARK_LOCAL_IP", "192.0.2.1")
    told = answering(spark, tell, **{"spark.master": "local[2]"}).message
    assert told.endswith("Error: 192.0.2.1")


@pytest.mark.spark
def test_too_much_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A JVM that refuses its options: the error says why, without the JVM's other lines."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    started = time.monotonic()
    with pytest.raises(Failed, match=r"ended while it started: .*heap") as caught:
        Jvm({"spark.driver.memory": "99999999g"}, java_home=find_java()).wait()
    assert "\n" not in str(caught.value)
    assert time.monotonic() - started < SECONDS_MAX


def test_a_user_id_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is started, and the message has the id and two ways out."""

    def nobody(number: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {number}")

    monkeypatch.setattr(jvms, "pwd", SimpleNamespace(getpwuid=nobody))
    monkeypatch.setattr("os.getuid", lambda: 123456)
    monkeypatch.setattr("ebbtide.gc.engines.spark.session._is_active", lambda: False)
    monkeypatch.setattr("ebbtide.gc.engines.spark.session.Jvm", None)
    with pytest.raises(Failed) as caught:
        launch(master="local[1]")
    assert caught.value.kind == "spark_error"
    for words in ("123456", "/etc/passwd", "--engine duckdb"):
        assert words in caught.value.message
