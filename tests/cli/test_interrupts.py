"""Ctrl-C and SIGTERM, sent to real processes at every step; then what they say to do is done."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shlex
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import termios
import time
from contextlib import closing
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from tests.cli.conftest import AT_ONCE, FIRST_DAY, SHORT, Ebbtide
from tests.cli.test_app import ROOT
from tests.gc.test_kill import in_session, wait_for_end
from tests.support.commands import captured
from tests.support.templates import copy_store, old_lake

FILES = 24
WAIT_SECONDS = 300
INTERRUPTED, TERMINATED = 130, 143


pytestmark = pytest.mark.drawn("interruptions")


@pytest.fixture(scope="module")
def store_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with FILES to delete, and one to keep. Tests have copies."""
    directory = tmp_path_factory.mktemp("interrupted") / "store"
    with old_lake(directory, lease_ttl=timedelta(0)) as lake:
        for number in range(FILES):
            lake.objects.put("main", f"d/{number}", f"old {number}".encode())
        lake.commits.commit("main", "old", date=FIRST_DAY)
        for number in range(FILES):
            lake.objects.delete("main", f"d/{number}")
        lake.objects.put("main", "kept", b"kept")
        lake.commits.commit("main", "new", date=FIRST_DAY + timedelta(days=1))
        lake.retention.set({"default": {"keep_last": 1}})
    return directory


@pytest.fixture
def store(
    lake: Ebbtide, store_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    del lake  # whose store this one replaces
    monkeypatch.setenv("EBBTIDE_SHARE_MAX", "1")
    shutil.rmtree(tmp_path / "store")
    copy_store(store_template, tmp_path / "store")
    return tmp_path / "store"


def environment(store: Path) -> dict[str, str]:
    return os.environ | {
        "EBBTIDE_STORE": str(store),
        "EBBTIDE_SPARK_MASTER": "none",
        # A first JVM would write an archive of its classes for a while.
        "XDG_CACHE_HOME": os.devnull,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }


def interrupted(
    store: Path, *command: str, when: str, how: str = "SIGINT", times: str = "once"
) -> subprocess.CompletedProcess[str]:
    """Interrupts a command. Nothing is left; it holds the repository only if ended at once."""
    process = begun(store, *command, when=when, how=how, times=times)
    return ended(process, store, is_held=times == "until it ends")


def begun(
    store: Path, *command: str, when: str = "never", how: str = "SIGINT", times: str = "once"
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.cli.interrupted", when, how, times, "0.02", *command],
        cwd=ROOT,
        env=environment(store),
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(
    process: subprocess.Popen[str], store: Path, *, is_held: bool = False
) -> subprocess.CompletedProcess[str]:
    out, errors = process.communicate(timeout=WAIT_SECONDS)
    assert not wait_for_end(process.pid)
    assert "Traceback" not in errors, errors
    with closing(sqlite3.connect(store / "metadata.db")) as connection:
        holders = connection.execute("SELECT run_id FROM gc_leases WHERE run_id IS NOT NULL")
        assert bool(holders.fetchall()) == is_held
    return subprocess.CompletedProcess(process.args, process.returncode, out, errors)


def command_named(told: str, way: str = "Continue with") -> str:
    named = re.search(rf"^{way}: (ebbtide .*)$", told, re.MULTILINE)
    assert named is not None, told
    return named[1]


def go_on(lake: Ebbtide, told: str, way: str = "Continue with") -> str:
    return lake(*shlex.split(command_named(told, way))[1:]).out


def check_outcome(lake: Ebbtide, *, aside: bool = False, exactly: bool = True) -> str:
    """The newest run is swept as if nobody had interrupted it, and by the record. Its id."""
    run = lake.json("gc runs lake")["runs"][0]
    went = "quarantined_count" if aside else "deleted_count"
    assert (run["state"], run["candidate_count"]) == ("swept", FILES)
    assert run[went] + run["missing_count"] == FILES
    assert not exactly or run["missing_count"] == 0
    assert lake.json("gc verify lake", run["run_id"])["verified"]
    assert lake("fs cat lake main kept").out == "kept"
    assert lake("fs cat lake main~1 d/1", code=1).err
    return str(run["run_id"])


@pytest.mark.parametrize("step", ["list", "read", "subtract"])
def test_a_plan(lake: Ebbtide, store: Path, step: str) -> None:
    """There is none then, and nothing went; the next is not held up."""
    command = ("gc", "run", "lake", *AT_ONCE, "--store", str(store))
    found = interrupted(store, *command, when=f"start {step}", how="SIGTERM")
    assert (found.returncode, found.stdout) == (TERMINATED, "")
    assert "the plan was not finished, and nothing was deleted" in found.stderr
    assert lake("fs cat lake main~1 d/1").out == "old 1"
    assert f"{FILES} files" in go_on(lake, found.stderr, "Start it again with")
    check_outcome(lake)


# A fast machine is done with the whole plan within some two seconds.
@pytest.mark.parametrize("seconds", [0, 0.4, 0.8, 1.2])
def test_while_spark_starts(lake: Ebbtide, store: Path, seconds: float) -> None:
    """No JVM stays, and neither PySpark nor Py4J prints a trace, whatever call is interrupted."""
    process = begun(store, "gc", "plan", "lake", *SHORT, "--master", "local[1]")
    until = time.monotonic() + WAIT_SECONDS
    while not any(each.info["name"] == "java" for each in in_session(process.pid)):
        assert time.monotonic() < until
        time.sleep(0.1)
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    found = ended(process, store)
    assert (found.returncode, found.stdout) == (INTERRUPTED, "")
    # Between two steps nothing is named.
    whiles = ("Interrupted while ", "Interrupted before it began", "Interrupted: the plan was not")
    assert found.stderr.startswith(whiles)
    assert len(found.stderr.splitlines()) <= 2
    assert lake.json("gc runs lake")["runs"] == []


@pytest.mark.parametrize("moment", ["start fence", "end fence", "start recheck"])
def test_a_sweep_before_it_deletes(lake: Ebbtide, store: Path, moment: str) -> None:
    """What the fence closed is open again: as if nobody had begun."""
    run_id = lake.json("gc plan lake", *SHORT)["run_id"]
    command = ("gc", "sweep", "lake", *AT_ONCE)
    found = interrupted(store, *command, when=moment)
    assert found.returncode == INTERRUPTED
    assert "before any file was deleted" in found.stderr
    assert lake("fs cat lake main~1 d/1").out == "old 1"
    (run,) = lake.json("gc runs lake")["runs"]
    assert run["state"] == "planned"
    go_on(lake, found.stderr)
    assert check_outcome(lake) == run_id


@pytest.mark.parametrize(
    ("command", "when", "options", "how"),
    [
        ("sweep", "done 3", ("--quarantine", "none"), "SIGINT"),
        ("run", "done 3", ("--quarantine", "none"), "SIGTERM"),
        ("run", "done 3", ("--quarantine", "1d"), "SIGINT"),
        ("sweep", "end forget", ("--quarantine", "none"), "SIGTERM"),
        ("run", "end delete object", ("--quarantine", "none"), "SIGINT"),
    ],
)
def test_a_sweep_that_deletes(
    lake: Ebbtide, store: Path, command: str, when: str, options: tuple[str, ...], how: str
) -> None:
    """All that went is on record, and the command that is named does the rest."""
    if command == "sweep":
        lake("gc plan lake", *SHORT)
    found = interrupted(store, "gc", command, "lake", *SHORT, "--yes", *options, when=when, how=how)
    assert found.returncode == {"SIGINT": INTERRUPTED, "SIGTERM": TERMINATED}[how]
    assert "Nothing is lost: the plan stays" in found.stderr
    told = re.search(rf"(\d+) of {FILES} files (deleted|quarantined)\.", found.stderr)
    records = list((store / "storage").rglob("deleted/**/*.parquet"))
    assert len(records) == (int(told[1]) if told else 0), found.stderr
    if when == "done 3":
        assert told is not None
        assert 3 <= int(told[1]) < FILES
    go_on(lake, found.stderr)
    aside = "none" not in options
    run_id = check_outcome(lake, aside=aside)
    if aside:
        assert lake.json("gc undo lake", run_id)["state"] == "undone"
        assert lake("fs cat lake main~1 d/1").out == "old 1"


def test_a_second_time_ends_it_at_once(lake: Ebbtide, store: Path) -> None:
    """Though what is in hands takes longer; what was deleted and not recorded is found missing."""
    command = ("gc", "run", "lake", *AT_ONCE)
    found = interrupted(store, *command, when="stuck", times="until it ends")
    assert found.returncode == INTERRUPTED
    assert "Interrupted" not in found.stderr
    lake("gc sweep lake", *AT_ONCE)
    check_outcome(lake, exactly=False)


@pytest.mark.parametrize("moment", ["start bring back", "start reopen"])
def test_an_undo(lake: Ebbtide, store: Path, moment: str) -> None:
    run = lake.json("gc run lake", *SHORT, "--yes", "--quarantine", "1d")
    found = interrupted(store, "gc", "undo", "lake", run["run_id"], when=moment)
    assert found.returncode == INTERRUPTED
    assert "Interrupted in the undo: " in found.stderr
    assert lake("fs cat lake main~1 d/1", code=1).err
    go_on(lake, found.stderr, "Start it again with")
    for number in range(FILES):
        assert lake("fs cat lake main~1", f"d/{number}").out == f"old {number}"


@pytest.mark.parametrize(
    ("when", "said"),
    [
        ("start close", "nothing was deleted"),
        ("start delete", "the named data is closed"),
        ("start record", "the named data is closed"),
    ],
)
def test_a_purge(lake: Ebbtide, store: Path, when: str, said: str) -> None:
    lake("fs put lake main", store / "secret.key", "secret")
    command = ("purge", "run", "lake", "--reason", "x", "--path", "main:secret")
    found = interrupted(store, *command, "--yes-i-mean", "lake", when=when)
    assert found.returncode == INTERRUPTED
    assert said in found.stderr
    assert "done" in go_on(lake, found.stderr)
    assert lake("fs cat lake main secret", code=1).err


def plain(shown: str) -> str:
    """What a terminal was sent, without what moves the cursor and colours."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown).replace("\r", "")


def test_at_a_terminal(lake: Ebbtide, store: Path) -> None:
    """The steps with how far they have come, Ctrl-C typed in the middle, and a shell's prompt
    behind it all. A shell runs the command that is named, in a process of its own."""
    command = ["-m", "tests.cli.interrupted", "never", "SIGINT", "once", "0.2"]
    command += ["gc", "run", "lake", *AT_ONCE]
    driver, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=ROOT,
        env=environment(store) | {"TERM": "xterm"},
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
        preexec_fn=partial(fcntl.ioctl, 0, termios.TIOCSCTTY, 0),
    )
    os.close(terminal)
    shown, typed, until = "", False, time.monotonic() + WAIT_SECONDS
    while time.monotonic() < until:
        if select.select([driver], [], [], 0.1)[0]:
            try:
                shown += os.read(driver, 65536).decode(errors="replace")
            except OSError:
                break
        seen = re.findall(rf"kind object: (\d+) of {FILES} files", plain(shown))
        if seen and int(seen[-1]) >= 2 and not typed:
            os.write(driver, b"\x03")
            typed = True
    code = process.wait(WAIT_SECONDS)
    os.close(driver)
    assert code == INTERRUPTED, shown
    assert re.search(r"✓ listing the storage: \d+ files", plain(shown))
    assert re.search(rf"Interrupted in the sweep: \d+ of {FILES} files deleted\.", plain(shown))
    # The cursor is there again.
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")
    program = f"{shlex.quote(sys.executable)} -m ebbtide"
    again = captured(
        ["bash", "-c", command_named(plain(shown)).replace("ebbtide", program, 1)],
        cwd=ROOT,
        env=environment(store),
        stdin=subprocess.DEVNULL,
        timeout=WAIT_SECONDS,
    )
    assert again.returncode == 0, again
    check_outcome(lake)
