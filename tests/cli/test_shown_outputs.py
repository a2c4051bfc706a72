"""The outputs that pages show. The commands of a page are run in its order, on a store like
its own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ebbtide.cli.progress import STEP_TEXT, Step, sweep_told
from ebbtide.errors import ExitCode
from ebbtide.formats.embedded import EmbeddedRepository
from ebbtide.gc.collector import Collector
from ebbtide.gc.options import RunOptions
from ebbtide.gc.steps import ProgressReading
from ebbtide.ids import new_id
from ebbtide.settings import Settings
from ebbtide.store.embedded import Store
from tests.cli.test_docs import DOCUMENTS, ROOT, environment
from tests.support.engines import INLINE
from tests.support.forging import Forgery
from tests.support.forking import forks
from tests.support.transcripts import BLOCK, follow, unprinted

DOCS = ROOT / "docs"
FAST = {
    "EBBTIDE_GRACE": "1s",
    "EBBTIDE_LEASE_TTL": "1s",
    "EBBTIDE_CLOCK_SKEW_MAX": "1s",
    "EBBTIDE_SPARK_MASTER": "none",
}
"""For stores whose files are seconds old."""
ON_S3 = FAST | {"EBBTIDE_GRACE": "3s", "EBBTIDE_CLOCK_SKEW_MAX": "3s"}
"""S3 tells dates in whole seconds, and a busy machine takes some more to ask for them."""


def missing(beginning: str, page: str, tmp_path: Path, **settings: str) -> list[str]:
    """The lines of a page that its commands did not print, after a beginning that it leaves out."""
    directory = tmp_path / "page"
    directory.mkdir()
    variables = forked(environment(**(FAST | settings), EBBTIDE_STORE=str(directory / "store")))
    return follow(f"```sh\n{beginning}```\n{page}", directory, variables)


def forked(variables: dict[str, str]) -> dict[str, str]:
    """The variables with a program that starts at once: a page starts it a hundred times."""
    commands = forks().command("ebbtide", "tests.support.loaded_program")
    return variables | {"PATH": f"{commands}:{variables['PATH']}"}


def days_ago(days: int) -> str:
    return f"--date {datetime.now(UTC) - timedelta(days=days):%Y-%m-%dT%H:%M:%SZ}"


def commits() -> str:
    return f"""
cd "$WORK"
head -c 300000 /dev/urandom > 1.png
ebbtide fs put lake main 1.png plots/1.png
ebbtide commit lake main -m "First plots" {days_ago(80)}
head -c 310000 /dev/urandom > 1.png
head -c 40000 /dev/urandom > people.csv
ebbtide fs put lake main 1.png plots/1.png
ebbtide fs put lake main people.csv people.csv
ebbtide commit lake main -m "Plots again" {days_ago(40)}
head -c 320000 /dev/urandom > 2.png
ebbtide fs put lake main 2.png plots/2.png
ebbtide commit lake main -m "A second plot" {days_ago(20)}
ebbtide tag create lake v1 main
ebbtide branch create lake user-ada --source main
for day in "Try a:12" "Try a again:9" "Better:3"; do
    head -c 2000000 /dev/urandom > a.bin
    ebbtide fs put lake user-ada a.bin tries/a.bin
    date=$(date -u -d "-${{day#*:}} days" +%Y-%m-%dT%H:%M:%SZ)
    ebbtide commit lake user-ada -m "${{day%:*}}" --date $date
done
head -c 330000 /dev/urandom > 1.png
ebbtide fs put lake main 1.png plots/1.png
ebbtide commit lake main -m "New colours" {days_ago(2)}
sleep 1  # the lease of the heads before
cd - > /dev/null
"""


NEW = """
export WORK=$PWD
ebbtide init "$EBBTIDE_STORE"
ebbtide repo create lake
"""


@pytest.mark.drawn("shown outputs")
def test_how_to_use_the_own_store(tmp_path: Path) -> None:
    """Up to what needs a server."""
    page = (DOCS / "embedded.md").read_text().split("\n**Over HTTP**")[0]
    for command, before in (
        ("ebbtide gc run lake", "ebbtide hold remove lake f0dd0a"),
        ("ebbtide branch list", "ebbtide branch delete lake user-ada --yes"),
    ):
        assert page.count(f"\n{command}") == 1
        page = page.replace(f"\n{command}", f"\n{before}\n{command}")
    assert missing(NEW + commits(), page, tmp_path) == []


ROOT_ONLY = ("chown", "crontab", "install", "kubectl", "systemctl", "useradd")
"""Programs of the path to production that need root or a cluster. In the test each is a script that
records its arguments and what it reads; `install` also does its work."""


def aws_variables() -> Iterator[tuple[str, str]]:
    return ((name, value) for name, value in os.environ.items() if name.startswith("AWS_"))


def stand_ins(directory: Path) -> Path:
    """Makes the scripts. Returns the file with their records."""
    directory.mkdir()
    record = directory / "record"
    for name in ROOT_ONLY:
        script = directory / name
        work = 'exec /usr/bin/install "$@"' if name == "install" else ""
        reading = f"cat >> '{directory}/{name}.stdin'\n" if name == "crontab" else ""
        script.write_text(f'#!/bin/sh\necho "{name} $*" >> "{record}"\n{reading}{work}\n')
        script.chmod(0o755)
    return record


@pytest.mark.drawn("shown outputs")
def test_the_path_to_production(tmp_path: Path, s3_url: str) -> None:
    """On a bucket. Files of the system lie below the test's directory; the units are the project's,
    the schedule of cron is run as it stands."""
    home = tmp_path / "system"
    record = stand_ins(tmp_path / "bin")
    page = (DOCS / "operations.md").read_text().split("\n## Reference\n")[0]
    given = "".join(f"{name}={value}\n" for name, value in aws_variables())
    page, found = re.subn(r"AWS_REGION=.*\nAWS_ACCESS.*\nAWS_SECRET.*\n", given, page)
    assert found == 1
    for old, new in (
        ("scripts/setup\n", ""),
        ('export PATH="$PWD/.venv/bin:$PATH"\n', ""),
        ("cd /opt/ebbtide\n", f"cd {ROOT}\nmkdir -p /etc/systemd/system\n"),
        ("s3://lakes/ebbtide", f"{s3_url}/{new_id()}"),
        (
            "ebbtide repo create lake\n",
            f"ebbtide repo create lake\n```\n```sh\n{commits()}sleep 3\n```\n```sh\n",
        ),
        ("/opt/ebbtide/.venv/bin/ebbtide", "ebbtide"),
        ("/etc/", f"{home}/etc/"),
        ("/var/lib/", f"{home}/var/lib/"),
    ):
        assert old in page, old
        page = page.replace(old, new)
    work = tmp_path / "work"
    work.mkdir()
    variables = environment(**ON_S3, WORK=str(work))
    variables["PATH"] = f"{record.parent}:{forked(variables)['PATH']}"
    for name, _ in aws_variables():
        variables.pop(name, None)
    assert follow(page, ROOT, variables) == []

    called = record.read_text()
    assert "useradd --system --home-dir" in called
    assert "systemctl enable --now ebbtide-collect@lake.timer" in called
    assert (ROOT / "deploy" / "kubernetes" / "kustomization.yaml").exists()
    assert "kubectl apply --kustomize deploy/kubernetes" in called
    units = home / "etc" / "systemd" / "system"
    assert {each.name for each in units.iterdir()} >= {
        each.name for each in (ROOT / "deploy" / "systemd").glob("*.[st]*")
    }
    figures = home / "var" / "lib" / "node_exporter" / "ebbtide.prom"
    before = figures.read_text()
    table = (record.parent / "crontab.stdin").read_text().splitlines()
    (line,) = [each for each in table if each and not each.startswith("MAILTO=")]
    *_, command = line.split(maxsplit=5)
    done = subprocess.run(["sh", "-c", command], env=variables, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), done
    assert 'outcome="swept",repository="lake"} 1.0' in figures.read_text()
    assert figures.read_text() != before


EXPLAINED = """
echo 12345 > 1.png
echo a,b > a.csv
ebbtide fs put lake main 1.png plots/1.png
ebbtide commit lake main -m one --date 2025-01-10T12:00:00Z
ebbtide fs put lake main a.csv raw/a.csv
ebbtide commit lake main -m two --date 2026-01-20T12:00:00Z
ebbtide tag create lake v1 main --expires-in 3d
ebbtide fs rm lake main raw/a.csv
ebbtide commit lake main -m three --date 2026-02-12T12:00:00Z
ebbtide retention set lake --default keep_last:1
sleep 1
"""
"""Then no lease of the tag's is left."""


@pytest.mark.drawn("shown outputs")
def test_the_page_on_explain(tmp_path: Path) -> None:
    """Its last command comes after the end of the tag, and a run."""
    page = (DOCS / "explain.md").read_text().split("\n## Verify a run\n")[0]
    deleted = (
        "```sh\nebbtide tag delete lake v1 --yes\nsleep 1\n"
        "ebbtide gc run lake --yes --quarantine none --allow-share\n```\n"
    )
    before, heading, after = page.partition("## After it was deleted\n")
    assert heading
    settings = {"EBBTIDE_TRASH_TIME": "1s"}
    page = f"{before}{deleted}{after}"
    assert missing(NEW + EXPLAINED, page, tmp_path, **settings) == []


@pytest.mark.drawn("shown outputs")
def test_the_page_on_policies(tmp_path: Path) -> None:
    """The part that shows an output: its policies, on a store with fewer commits."""
    page = (DOCS / "retention.md").read_text().split("\n## Trying a policy out\n")[1]
    page = page.split("\n## ")[0]
    policy = '{"default": "7d", "branches": {"main": {"keep_within": "7d", "keep_weekly": 1}}}'
    beginning = f"{NEW}{commits()}\necho '{policy}' > shorter.json\n"
    present = "ebbtide retention set lake --default 30d --branch main=30d\n"
    assert missing(beginning + present, page, tmp_path) == []


@pytest.mark.drawn("shown outputs")
def test_the_page_on_verifying(tmp_path: Path) -> None:
    """A plan that is right, and one to which somebody added a file that is needed."""
    page = (DOCS / "explain.md").read_text().partition("\n## Verify a run\n")[2]
    before, heading, after = page.split("\n## ")[0].partition("\nThe command says that")
    assert heading
    beginning = f"{NEW}{commits()}ebbtide retention set lake --default 7d\n"
    assert missing(beginning, before, tmp_path) == []
    directory = tmp_path / "page"
    variables = environment(**FAST, EBBTIDE_STORE=str(directory / "store"))
    run("ebbtide", "gc", "plan", "lake", variables=variables)
    with Store.open(directory / "store", settings=Settings()) as store:
        lake = store.repository("lake")
        form = EmbeddedRepository(lake.context, store_id=store.store_id)
        newest = Collector(form, engine=INLINE, options=RunOptions.of(Settings())).runs()[0]
        forgery = Forgery(form, newest)
        root = directory / "store" / "storage" / "lake"
        forgery.put_in(root, lake.objects.stat("main", "plots/1.png").address, "object")
        forgery.seal()
    done = run("ebbtide", "gc", "verify", "lake", "latest", variables=variables)
    assert done.returncode == ExitCode.REFUSED
    assert unprinted(after, done.stdout + done.stderr) == []


def run(*command: str, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300)


WEATHER = """
from pathlib import Path

import zarr
from tests.support.icechunk import create_repository

repository = create_repository(Path.cwd() / "weather", spec_version=2)
array = None
for number in range(7):
    session = repository.writable_session("main")
    if array is None:
        array = zarr.create_array(
            session.store, name="t", shape=(20_000,), chunks=(10_000,), dtype="float64",
            compressors=None,
        )
        array[10_000:] = 1.0
    else:
        array = zarr.open_array(session.store, path="t")
        array[:10_000] = float(number + 2)
    session.commit(f"day {number}")
    if number == 0:
        (first,) = Path("weather/chunks").iterdir()
        Path("chunk").write_text(first.name)
    if number == 2:
        repository.create_tag("v1", snapshot_id=repository.lookup_branch("main"))
"""


def weather() -> str:
    return f"PYTHONPATH={ROOT}:$PYTHONPATH {sys.executable} - <<'END'\n{WEATHER}END\n"


ICECHUNK = {"EBBTIDE_ICECHUNK_GRACE": "1s", "EBBTIDE_SHARE_MAX": "1"}
needs_icechunk = pytest.mark.skipif(
    sys.version_info < (3, 12), reason="Icechunk 2 needs Python 3.12"
)


@needs_icechunk
@pytest.mark.drawn("shown outputs")
def test_how_to_use_icechunk(tmp_path: Path) -> None:
    """The sections with outputs. The sweep has a quarantine, so that its undo can be shown."""
    page = (DOCS / "icechunk.md").read_text()
    sections = {each.split("\n")[0]: each for each in page.split("\n## ")}
    undo = sections["Restore a snapshot"].split("**After a collection")[1]
    # The repository is new, and the grace a second.
    expired = "```sh\nebbtide expire icechunk:weather --keep-last 2 --yes\nsleep 1\n```\n"
    swept = sections["Free the space"].replace("--quarantine none", "--quarantine 1d")
    swept = swept.replace("commits are deleted too", "commits are quarantined too")
    walk = "\n".join(
        [
            sections["Look at it without writing anything"].replace(
                "ebbtide expire", "sleep 1\nebbtide expire"
            ),
            expired,
            swept,
            sections["Find out why a chunk is kept"].replace(
                "chunks/0R5QVRXYVB1JGB6143P0\n```\n\n```\n", "chunks/$(cat chunk)\n```\n\n```\n"
            ),
            sections["Verify a run"],
            undo.replace("fff99f20abd87b2dbaaf8e633ffaa60e", "fff99f2144240e2023789f4273e55ff4"),
        ]
    )
    # The output that names the run is not shown in full.
    walk = walk.replace("weather fff99f2144240e2023789f4273e55ff4", "weather latest")
    assert missing(weather(), walk, tmp_path, **ICECHUNK) == []


TABLES = [
    pytest.param(
        (DOCS / "iceberg.md").read_text().partition("\n## Keep more"),
        {"--older-than 30d": "--older-than 1s"},
        id="iceberg",
    ),
    pytest.param(
        (DOCS / "delta.md").read_text().partition("\n## Run it every night"),
        {},
        id="delta",
    ),
]
"""Pages on tables, divided before a section that needs others, and changes of their commands. The
tables of Iceberg are seconds old, and so is what expires."""


@pytest.mark.drawn("shown outputs")
@pytest.mark.parametrize(("page", "changes"), TABLES)
def test_how_to_use_tables(
    page: tuple[str, str, str], changes: dict[str, str], tmp_path: Path
) -> None:
    """PyIceberg reads its settings when it is loaded, so that each command is a process of its
    own."""
    text, heading, _ = page
    assert heading
    for old, new in (changes | {"ebbtide gc run": "sleep 1\nebbtide gc run"}).items():
        text = text.replace(old, new)
    variables = environment(**FAST, EBBTIDE_ICEBERG_GRACE="1s", EBBTIDE_SHARE_MAX="1")
    assert follow(text, tmp_path, variables) == []


def step_line(name: str, text: str, done: int, seconds: float, total: int | None = None) -> str:
    reading = ProgressReading("files", done, total, False, seconds)
    return Step(name, text, 0.0, reading, ended=total is None).line


@pytest.mark.drawn("shown outputs")
def test_the_page_on_the_terminal(tmp_path: Path) -> None:
    """Lines of progress and of an interrupt are made by the functions that print them. The end of a
    run is printed by a command."""
    progress, interrupt, end = (
        block
        for language, block in BLOCK.findall((DOCS / "terminal.md").read_text())
        if not language
    )
    shown = [re.sub(r"^. | +\d:\d\d:\d\d$", "", line) for line in progress.splitlines()]
    listed, half = 60_037, 30_000
    assert shown == [
        Step("check", STEP_TEXT["check"], 0.0).line,
        step_line("list", STEP_TEXT["list"], listed, listed / 13_418),
        step_line("subtract", STEP_TEXT["subtract"], listed, 0.5),
        step_line(
            "delete object", "quarantining files of kind object", half, half / 17_327, 60_000
        ),
    ]
    step = SimpleNamespace(reading=ProgressReading("files", 30_000, 60_000, False, 2.0))
    reached: Any = SimpleNamespace(reached=lambda _name: step, quarantines=True)
    assert interrupt.splitlines()[0] == sweep_told(reached)
    page = f"```sh\nebbtide gc show lake latest\n```\n```\n{end}```\n"
    policy = "ebbtide retention set lake --default 7d --branch main=30d\n"
    swept = "ebbtide gc run lake --yes --quarantine 1d\n"
    found = missing(NEW + commits() + policy + swept, page, tmp_path)
    assert found == []


TESTS = ("test_app.py", "test_docs.py", "test_shown_outputs.py")
TEXTS = {"docs/files.md", "docs/explain.md", "docs/python.md"}
"""Pages with blocks of the language `text`, which are no outputs of commands, besides those on the
design. tests/api/test_reference.py has the ones of Python."""


def test_every_page_with_an_output_has_a_test() -> None:
    """One reads the page. Outputs are blocks without a language."""
    tests = "".join((ROOT / "tests" / "cli" / name).read_text() for name in TESTS)
    texts = set()
    for document in DOCUMENTS:
        languages = {language for language, _ in BLOCK.findall(document.read_text())}
        place = document.relative_to(ROOT)
        if "" in languages:
            read = " / ".join(f'"{part}"' for part in place.parts if part != "docs")
            assert re.search(rf'(ROOT|DOCS|"docs") / {read}\)', tests), place
        if "text" in languages and "design" not in document.parts:
            texts.add(place.as_posix())
    assert texts == TEXTS
