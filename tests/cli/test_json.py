"""`--json` of every command: one document on stdout, and nothing else anywhere."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ebbtide.program.reference import commands
from tests.cli.conftest import Ebbtide
from tests.support.program import PROGRAM
from tests.support.server import new_server

SHORT = ("--grace", "0s", "--unsafe", "--yes")
ELSEWHERE = {
    "fs cat": "writes bytes, and is refused: below",
    "serve": "says where, and goes on: below",
    "gc archive": "packs the whole environment, which takes a minute",
    "expire": "of Icechunk: tests/cli/test_expire.py",
}
"""Commands that `test_every_command` leaves out, and why."""


def names() -> set[str]:
    return {
        path.removeprefix("ebbtide ")
        for path, command in commands()
        if not hasattr(command, "commands")
    }


class Told:
    def __init__(self, program: Ebbtide) -> None:
        self._program = program
        self.told: set[str] = set()

    def __call__(self, name: str, *arguments: str, code: int = 0) -> dict[str, object]:
        found = self._program(*name.split(), *arguments, "--json", code=code)
        document = json.loads(found.out)
        assert isinstance(document, dict), name
        assert "error" not in document or document["error"] is None, name
        assert found.err == "", name
        self.told.add(name)
        return document


def test_every_command(ebbtide: Ebbtide, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EBBTIDE_LEASE_TTL", "0s")
    monkeypatch.setenv("EBBTIDE_TRASH_TIME", "1h")
    told = Told(ebbtide)
    (tmp_path / "file").write_text("text")
    told("init", str(tmp_path / "store"))
    told("promises")
    told_of_repositories_and_objects(told, tmp_path)
    told_of_refs(told, tmp_path)
    told_of_projects_and_collections(told, tmp_path)
    told_of_retention_and_runs(told)
    told_of_purges_and_keys(told, tmp_path)
    told_of_schedules(told)
    told("retention unset", "lake")
    told("gc give-up", "lake", "main~2", "--reason", "x", "--yes")
    told("branch create", "lake", "imports")
    told("import", "lake", "imports", str(tmp_path / "file"), "imported")
    assert names() - told.told - ELSEWHERE.keys() == set()


def told_of_repositories_and_objects(told: Told, tmp_path: Path) -> None:
    file = str(tmp_path / "file")
    told("repo create", "lake")
    told("repo list")
    told("repo show", "lake")
    told("repo adopt", "lake", "--yes")
    told("repo expire", "lake", "--in", "30d")
    told("repo expire", "lake", "--never")
    told("repo create", "pond")
    told("repo delete", "pond", "--yes")
    told("repo restore", "pond")

    told("fs put", "lake", "main", file, "a")
    told("commit", "lake", "main", "-m", "one", "--date", "2020-01-01T00:00:00Z")
    told("fs ls", "lake", "main")
    told("fs stat", "lake", "main", "a")
    told("fs get", "lake", "main", "a", str(tmp_path / "got"))
    told("fs cp", "lake", "main", "a", "b")
    told("fs mv", "lake", "main", "b", "c")
    given = told("fs address", "lake", "main", "d")
    place = Path(str(given["url"]).removeprefix("file://"))
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("text")
    told("fs link", "lake", "main", "d", str(given["token"]))
    told("fs stage", "lake", "main", (tmp_path / "file").as_uri(), "e", "--size", "4")
    told("fs rm", "lake", "main", "c")
    told("reset", "lake", "main", "--yes")


def told_of_refs(told: Told, tmp_path: Path) -> None:
    told("branch create", "lake", "dev")
    told("branch list", "lake")
    told("branch expire", "lake", "dev", "--in", "3d")
    told("fs put", "lake", "dev", str(tmp_path / "file"), "x")
    told("commit", "lake", "dev", "-m", "two", "--date", "2020-01-02T00:00:00Z")
    told("diff", "lake", "main", "dev")
    told("merge", "lake", "dev", "main", "-m", "merged")
    told("revert", "lake", "main", "main", "--parent", "1")
    told("log", "lake", "main")
    told("branch delete", "lake", "dev", "--yes")
    told("branch restore", "lake", "dev")
    told("branch protect", "lake", "release/*")
    told("branch protected", "lake")
    told("branch unprotect", "lake", "release/*")
    told("tag create", "lake", "v1", "main~1")
    told("tag list", "lake")
    told("tag expire", "lake", "v1", "--in", "3d")
    told("tag delete", "lake", "v1", "--yes")
    told("tag restore", "lake", "v1")
    told("tag delete", "lake", "v1", "--yes")


def told_of_projects_and_collections(told: Told, tmp_path: Path) -> None:
    file = str(tmp_path / "file")
    told("project create", "lake", "p")
    told("project create", "lake", "q")
    told("project list", "lake")
    told("project show", "lake", "p")
    told("project update", "lake", "p", "--description", "text")
    told("project move", "lake", "q", "p")
    told("project delete", "lake", "p/q", "--yes")
    told("project restore", "lake", "p/q")
    made = told("collection create", "lake", "p/c", file)
    told("collection list", "lake", "p")
    told("collection show", "lake", "p/c")
    told("collection find-hash", "lake", str(made["content_hash"]))
    told("collection update", "lake", "p/c", "--description", "text")
    told("collection put", "lake", "p/c", "--from-ref", "main", "--keep-version")
    told("collection versions", "lake", "p/c")
    told("collection drop-version", "lake", "p/c", "1", "--yes")
    told("collection files", "lake", "p/c")
    told("collection get", "lake", "p/c", "--to", str(tmp_path / "down"))
    told("collection rm", "lake", "p/c", "a")
    told("collection locators", "lake", "p/c")
    told("collection create", "lake", "p/d", file)
    told("collection diff", "lake", "p/c", "p/d")
    told("collection delete", "lake", "p/c", "--yes")
    told("collection restore", "lake", "p/c")


def told_of_retention_and_runs(told: Told) -> None:
    told("retention set", "lake", "--default", "keep_last:1")
    told("retention default", "lake", "keep_last:1")
    told("retention branch", "lake", "dev", "keep_last:1")
    told("retention branch", "lake", "dev", "--unset")
    told("retention show", "lake", "--commits")
    told("hold add", "lake", "main")
    told("hold list", "lake")
    told("hold remove", "lake", "main")
    told("what-if", "lake", "--policy", '{"default": {"keep_last": 2}}', "--grace", "0s")
    run_id = str(told("gc plan", "lake", *SHORT)["run_id"])
    told("gc verify", "lake", run_id)
    told("gc sweep", "lake", run_id, *SHORT, "--quarantine", "1d", "--allow-share")
    told("gc undo", "lake", run_id)
    told("gc runs", "lake")
    told("gc show", "lake", run_id, "--candidates")
    ran = told("gc run", "lake", *SHORT, "--allow-share", "--quarantine", "1d")
    told("gc purge", "lake", str(ran["run_id"]), "--yes")
    told("explain", "lake", "main")
    told("reclaim", "--once")


def told_of_purges_and_keys(told: Told, tmp_path: Path) -> None:
    told("purge key")
    told("purge list", "lake")
    told("fs put", "lake", "main", str(tmp_path / "file"), "z")
    purged = told("purge run", "lake", "--reason", "x", "--path", "main:z", "--dry-run")
    told("purge show", str(purged["purge_id"]))
    told("purge resume", str(purged["purge_id"]), "--yes-i-mean", "lake")
    told("purge verify", str(purged["purge_id"]))
    told("key rotate-signing")
    key = told("key create")
    told("key list")
    told("key grant", str(key["access_key_id"]), "lake=writer")
    told("key revoke-grant", str(key["access_key_id"]), "lake")
    told("key revoke", str(key["access_key_id"]), "--yes")


def told_of_schedules(told: Told) -> None:
    told("schedule set", "lake", "30 2 * * *", "--quarantine", "none")
    told("schedule list")
    told("schedule show", "lake")
    told("schedule disable", "lake")
    told("schedule enable", "lake")
    told("schedule delete", "lake")


def test_bytes_are_no_document(lake: Ebbtide, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("text")
    lake("fs", "put", "lake", "main", file, "a")
    lake("project", "create", "lake", "p")
    lake("collection", "create", "lake", "p/c", file)
    for arguments in (
        ("fs", "cat", "lake", "main", "a"),
        ("fs", "get", "lake", "main", "a", "-"),
        ("collection", "get", "lake", "p/c", "file"),
    ):
        assert lake(*arguments, "--json", code=2).error_kind == "invalid_argument", arguments


def test_no_is_a_document_too(lake: Ebbtide, typing: Callable[[str], None]) -> None:
    """Whoever is asked and says no changes nothing, and a program hears of it."""
    planned = lake("gc", "plan", "lake", "--json").document
    for arguments in (("repo", "adopt", "lake"), ("gc", "sweep", "lake")):
        typing("n\n")
        found = lake(*arguments, "--json")
        assert found.document == {"done": False}
    (run,) = lake("gc", "runs", "lake", "--json").document["runs"]
    assert (run["run_id"], run["state"]) == (planned["run_id"], "planned")


def test_a_server_says_where_it_is_and_ends_when_it_is_told_to(tmp_path: Path) -> None:
    """One document at once; SIGTERM is how a server ends, and no failure."""
    server = new_server(tmp_path / "store")
    server.command("init", str(server.directory))
    process = subprocess.Popen(
        [*PROGRAM, "serve", "--port", "0", "--json"],
        env=server.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    told = "".join(process.stdout.readline() for _ in range(5))
    assert json.loads(told)["url"].startswith("http://127.0.0.1:")
    process.send_signal(signal.SIGTERM)
    rest, errors = process.communicate(timeout=60)
    assert (process.returncode, rest, errors) == (0, "", "")
