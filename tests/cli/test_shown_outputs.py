"""What pages show of commands is what these print: their commands are run, in the order of the page,
on stores like theirs."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ebbtide.ids import new_id
from ebbtide.notify.samples import FAMILIES
from tests.cli.test_docs import DOCUMENTS, ROOT, environment
from tests.support.transcripts import BLOCK, follow

DOCS = ROOT / "docs"
FAST = {
    "EBBTIDE_GRACE": "1s",
    "EBBTIDE_LEASE_TTL": "1s",
    "EBBTIDE_CLOCK_SKEW_MAX": "1s",
    "EBBTIDE_SPARK_MASTER": "none",
}
"""For stores whose files are seconds old."""


def missing(beginning: str, page: str, tmp_path: Path, **settings: str) -> list[str]:
    """The lines of a page that its commands did not print, after a beginning that it does not
    show."""
    directory = tmp_path / "page"
    directory.mkdir()
    variables = environment(**(FAST | settings), EBBTIDE_STORE=str(directory / "store"))
    return follow(f"```sh\n{beginning}```\n{page}", directory, variables)


def days_ago(days: int) -> str:
    return f"--date {datetime.now(UTC) - timedelta(days=days):%Y-%m-%dT%H:%M:%SZ}"


def commits() -> str:
    """The commands that fill the repository of two pages, in the directory $WORK."""
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
    page = (DOCS / "howto" / "embedded.md").read_text().split("\n**lakeFS's client.**")[0]
    for command, before in (
        ("ebbtide gc run lake", "ebbtide hold remove lake f0dd0a"),
        ("ebbtide branch list", "ebbtide branch delete lake user-ada --yes"),
    ):
        assert page.count(f"\n{command}") == 1
        page = page.replace(f"\n{command}", f"\n{before}\n{command}")
    assert missing(NEW + commits(), page, tmp_path) == []


ROOT_ONLY = ("chown", "crontab", "install", "kubectl", "systemctl", "useradd")
"""Programs of the path to production that only root, or a cluster, has. In the test each is a script
that records its arguments and what it reads; `install` also does its work."""


def aws_variables() -> Iterator[tuple[str, str]]:
    """The endpoint and keys of the bucket of tests."""
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
    page = (DOCS / "operations.md").read_text()
    given = "".join(f"{name}={value}\n" for name, value in aws_variables())
    page, found = re.subn(r"AWS_REGION=.*\nAWS_ACCESS.*\nAWS_SECRET.*\n", given, page)
    assert found == 1
    for old, new in (
        ("scripts/setup\n", ""),
        ('export PATH="$PWD/.venv/bin:$PATH"\n', ""),
        ("cd /opt/ebbtide\n", f"cd {ROOT}\nmkdir -p {home}/etc/systemd/system\n"),
        ("s3://lakes/ebbtide", f"{s3_url}/{new_id()}"),
        ("ebbtide repo create lake\n", f"ebbtide repo create lake\n```\n```sh\n{commits()}```\n```sh\n"),
        ("/opt/ebbtide/.venv/bin/ebbtide", "ebbtide"),
        ("/etc/", f"{home}/etc/"),
        ("/var/lib/", f"{home}/var/lib/"),
    ):
        assert old in page, old
        page = page.replace(old, new)
    work = tmp_path / "work"
    work.mkdir()
    variables = environment(**FAST, WORK=str(work))
    variables["PATH"] = f"{record.parent}:{variables['PATH']}"
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


def test_the_rules_for_alerts_are_those_of_the_reference() -> None:
    """In one place with another, and with metrics that there are."""
    (rules,) = re.findall(r"```yaml\n(.*?)```", (DOCS / "operations.md").read_text(), re.DOTALL)
    assert rules in (DOCS / "metrics.md").read_text()
    used = set(re.findall(r"\bebbtide_run_\w+", rules))
    assert len(used) == 3
    assert used <= set(FAMILIES)
