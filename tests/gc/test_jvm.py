"""The JVM that is started without PySpark's scripts, and its cache. Most tests use a stand-in for
Java, a script that behaves as Spark's launcher and gateway do."""

from __future__ import annotations

import os
import shutil
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
from ebbtide.gc.engines.spark.cache import COMMAND_FILE, FOLDERS_MAX, find_cache
from ebbtide.gc.engines.spark.jvm import SHORT_OPTION, Jvm, find_java
from ebbtide.gc.engines.spark.session import launch

SECONDS_MAX = 30
JAVA = r"""#!/bin/sh
# As Spark's launcher: prints a command line. As a gateway: says its port, waits for the end of its
# input, and writes an archive when it is told to. It ends at once with an archive that is damaged.
home=$(dirname "$(dirname "$0")")
case "$*" in
*launcher.Main*)
    echo launcher >>"$home/calls"
    printf '\0\n'
    printf '%s\0' "$0" -cp "$SPARK_HOME/conf:$SPARK_HOME/jars/first.jar:$SPARK_HOME/jars/*" \
        -Xmx1g org.apache.spark.deploy.SparkSubmit pyspark-shell
    exit
    ;;
esac
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
echo scripts >>"$JAVA_HOME/calls"
exec "$JAVA_HOME/bin/java" "$@"
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

    def moved(self, name: str) -> FakeSpark:
        """The same files in another folder, as in another virtual environment."""
        home = self.home.with_name(name)
        shutil.copytree(self.home, home)  # with their dates
        return FakeSpark(home, self.java_home, self.cache)


@pytest.fixture
def spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSpark:
    made = FakeSpark(tmp_path / "spark", tmp_path / "java", tmp_path / "cache")
    for file, text in (
        (made.home / "bin" / "spark-submit", SUBMIT),
        (made.home / "jars" / "spark-core_2.13-4.0.0.jar", ""),
        (made.home / "jars" / "folder" / "of_another_use.jar", ""),
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
    """A command line without the launcher, and a complete archive."""
    launcher, first = spark.run()
    assert launcher == "launcher"
    assert "-XX:ArchiveClassesAtExit" in first
    assert "--conf spark.driver.memory=1g pyspark-shell" in first
    (second,) = spark.run(short=True)
    assert f"-XX:SharedArchiveFile={spark.folder()}/classes-8.jsa -Xshare:auto" in second
    assert SHORT_OPTION in second and SHORT_OPTION not in first


def test_the_same_jars_in_another_folder(spark: FakeSpark, monkeypatch: pytest.MonkeyPatch) -> None:
    """They start from the same archive, by links that outlive both; others have their own."""
    spark.run()
    links = spark.folder() / "jars"
    other = spark.moved("another spark")
    shutil.rmtree(spark.home)
    monkeypatch.setenv("SPARK_HOME", str(other.home))
    (started,) = other.run()
    assert "SharedArchiveFile" in started
    assert f"-cp {links}/first.jar:{links}/* -Xmx1g" in started
    (links / "spark-core_2.13-4.0.0.jar").unlink()
    launcher, started = other.run()
    assert launcher == "launcher" and f"-cp {links}/first.jar" in started
    assert [each.name for each in links.iterdir()] == ["spark-core_2.13-4.0.0.jar"]
    assert [each.name for each in spark.folder().glob("tmp*")] == []


def test_jars_that_cannot_be_linked(spark: FakeSpark, monkeypatch: pytest.MonkeyPatch) -> None:
    """The JVM reads them where they are."""
    monkeypatch.setattr(os, "link", _refuse)
    launcher, started = spark.run()
    assert launcher == "launcher"
    assert f"-cp {spark.home}/conf:{spark.home}/jars/first.jar" in started and "-XX:" not in started
    assert not list(spark.folder().iterdir())
    # Nor can a cache be written that is a file.
    shutil.rmtree(spark.cache)
    spark.cache.write_text("a file")
    launcher, started = spark.run()
    assert (launcher, "-XX:" in started) == ("launcher", False)


def _refuse(*_: object) -> None:
    raise PermissionError


def test_an_entry_that_is_of_no_use(spark: FakeSpark) -> None:
    """Damaged, cut off, of another key or Java, or writable for others: it is made again."""
    spark.run()
    kept = spark.folder() / COMMAND_FILE
    text = kept.read_text()
    key, java, *words = text.split("\0")
    foreign = (["0" * 32, java, *words], [key, "/usr/bin/false", *words])
    for useless in ("", text[:-9], "\xff\xfe", *("\0".join(each) for each in foreign)):
        kept.write_text(useless, encoding="latin-1")
        assert spark.run()[0] == "launcher"
        assert kept.read_text() == text
    folder = spark.folder()
    folder.chmod(0o777)
    launcher, plain = spark.run()
    assert (launcher, "-XX:" in plain, str(folder) in plain) == ("launcher", False, False)


def test_an_archive_that_is_of_no_use(spark: FakeSpark) -> None:
    """If its size is not that of its name, no JVM gets it. A JVM that dies of it is started again
    with the scripts, and the entry is gone. If the JVM refuses it, the next one makes another."""
    spark.run()
    (spark.folder() / "classes-8.jsa").write_text("cl")
    assert "SharedArchiveFile" not in spark.run()[0]
    assert (spark.folder() / "classes-8.jsa").read_text() == "classes\n"
    (spark.folder() / "classes-8.jsa").write_text("Classes\n")
    assert spark.run()[1:2] == ["scripts"]
    assert spark.run()[0] == "launcher"
    jvm = spark.start()
    jvm.wait()
    log = Path(jvm._directory.name) / "archive.log"
    log.write_text("[0.194s][info][cds] UseSharedSpaces: Checksum verification failed.\n")
    jvm.settle()
    spark.end(jvm)
    assert "ArchiveClassesAtExit" in spark.run()[0]


def test_only_scripts_know(spark: FakeSpark, monkeypatch: pytest.MonkeyPatch) -> None:
    """With arguments of the user's own, or a `spark-env.sh`, they start the JVM."""
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--name 'two words' pyspark-shell")
    scripts, started = spark.run(short=True)
    assert scripts == "scripts"
    assert f"spark.driver.extraJavaOptions={SHORT_OPTION}" in started
    assert started.endswith("--name two words pyspark-shell")
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS")
    (spark.home / "conf").mkdir()
    (spark.home / "conf" / "spark-env.sh").touch()
    assert spark.run()[0] == "scripts"
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
    """All that the command line and the classes depend on; and no other setting."""

    def key(**settings: str) -> str:
        found = find_cache(spark.home, str(spark.java_home), settings)
        assert found is not None
        return found.key

    def write(name: str) -> None:
        file = spark.home / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("other")

    keys = [key()]
    assert key(**{"spark.app.name": "another"}) == keys[0]
    assert key(**{"spark.driver.memory": "2g"}) != keys[0]
    for change in (
        partial(monkeypatch.setenv, "JAVA_TOOL_OPTIONS", "-Da=b"),
        partial(monkeypatch.setenv, "SPARK_DIST_CLASSPATH", "/more"),
        partial(write, "conf/log4j2.properties"),  # the first file there
        partial(write, "conf/spark-defaults.conf"),
        partial(write, "jars/another.jar"),
        partial(write, "../java/release"),
    ):
        change()
        assert key() not in keys
        keys.append(key())


def test_classes_beside_settings(spark: FakeSpark) -> None:
    """Java archives nothing when its class path has a folder with files."""
    folder = spark.home / "conf"
    folder.mkdir()
    assert "ArchiveClassesAtExit" in spark.run()[-1]
    (folder / "log4j2.properties").touch()
    launcher, started = spark.run()
    assert launcher == "launcher" and "ArchiveClassesAtExit" not in started
    assert f"-cp {folder}:{spark.home}/jars/first.jar" in started


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
    """One line of the JVM's own output. An exception's own line may say nothing: the last cause in
    its stack trace does."""
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
