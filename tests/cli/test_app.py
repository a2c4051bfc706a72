"""The program as a whole: how errors are shown, exit codes, `--store`, and how fast it starts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ebbtide.program import app
from ebbtide.program.reference import commands, render
from ebbtide.store.repositories.catalog import Catalog
from tests.cli.conftest import Ebbtide, output_without
from tests.support.commands import captured

ROOT = Path(__file__).parents[2]


def program(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The program as a process of its own, with no terminal anywhere."""
    return captured(
        [sys.executable, "-c", "from ebbtide.program import main; main()", *arguments],
        env={"PATH": "/usr/bin:/bin", **environment},
        stdin=subprocess.DEVNULL,
        timeout=120,
    )


def test_help_imports_nothing_slow() -> None:
    """Spark, Arrow, SQLAlchemy and pydantic are imported by the commands that need them."""
    assert output_without("pyspark pyarrow sqlalchemy pydantic rich", "--help")


def test_help_by_one_letter(ebbtide: Ebbtide) -> None:
    for words in ((), ("gc", "plan")):
        assert ebbtide(*words, "-h").out == ebbtide(*words, "--help").out


@pytest.mark.usefixtures("ebbtide")
def test_a_traceback_on_request(capfd: pytest.CaptureFixture[str]) -> None:
    """Wherever the option stands; behind `--` it is a name like any other."""
    words = ["repo", "show", "lake"]
    for place in range(4):
        assert app.run([*words[:place], "--traceback", *words[place:]]) == 1
        assert "Traceback (most recent call last)" in capfd.readouterr().err
    assert app.run(["repo", "show", "--", "--traceback"]) == 1
    assert "Traceback" not in capfd.readouterr().err


def test_a_purge_of_a_short_history_loads_no_spark(lake: Ebbtide) -> None:
    """Its trees are read by the process itself; a wrong setting is refused all the same."""
    asked = ["purge", "run", "lake", "--reason", "x", "--path", "main:a", "--dry-run"]
    lake("fs put lake main", __file__, "a")
    output_without("pyspark py4j", *asked, "--master", "local[1]")
    lake.refuses("invalid_argument", *asked, "--conf", "nonsense", code=2)


def test_a_process_ends_with_the_exit_code(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    made = program("init", store, "--json")
    assert (made.returncode, made.stderr) == (0, "")
    assert json.loads(made.stdout)["store"] == store
    failed = program("repo", "show", "nothing", EBBTIDE_STORE=store)
    assert (failed.returncode, failed.stdout) == (2, "")
    assert failed.stderr.startswith("error: there is no repository 'nothing'")


def test_the_reference_may_be_read_in_part() -> None:
    script = f"set -o pipefail; {sys.executable} -m ebbtide.program.reference | head -1"
    shell = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert shell.stdout == "# The command line\n"


def test_without_a_command_there_is_help(ebbtide: Ebbtide) -> None:
    """The program alone shows what there is; a group alone is a mistake that names the way on."""
    assert "Commands:" in ebbtide().out
    assert ebbtide("--version").out.startswith("ebbtide ")
    assert "'ebbtide gc --help' says more" in ebbtide("gc", code=2).err


def test_a_wrong_command_line_is_exit_code_2(ebbtide: Ebbtide) -> None:
    """A line on stderr, how it is meant, and with `--json` the document too."""
    for words in (
        "gc plam",
        "repo list --no-such-option",
        "merge lake main main --strategy best",
    ):
        plain = ebbtide(*words.split(), code=2)
        assert plain.out == ""
        assert plain.err.startswith("error: ")
        assert "--help' says more" in plain.err
        ebbtide.refuses("invalid_argument", *words.split(), code=2)


def test_no_store_named(ebbtide: Ebbtide, monkeypatch: pytest.MonkeyPatch) -> None:
    ebbtide.refuses("store_not_found", "repo list")
    monkeypatch.delenv("EBBTIDE_STORE")
    found = ebbtide.refuses("invalid_argument", "repo list", code=2)
    assert "--store DIR" in found.err


def test_the_store_may_be_named_before_or_behind_the_command(
    lake: Ebbtide, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And both win over the environment."""
    monkeypatch.setenv("EBBTIDE_STORE", "/nowhere")
    store = tmp_path / "store"
    for arguments in (("--store", store, "repo", "list"), ("repo", "list", "--store", store)):
        assert "lake" in lake(*arguments).out


def test_a_bad_setting_is_exit_code_2(lake: Ebbtide, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EBBTIDE_GRACE", "20")
    found = lake.refuses("invalid_setting", "repo list", code=2)
    assert "EBBTIDE_GRACE" in found.err


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [(KeyError("left out"), 1, "--traceback"), (KeyboardInterrupt(), 130, "interrupted\n")],
)
def test_a_defect_and_ctrl_c_show_no_traceback(
    lake: Ebbtide, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, told: str
) -> None:
    def broken(_catalog: Catalog, *, include_expired: bool) -> None:
        del include_expired
        raise error

    monkeypatch.setattr(Catalog, "list", broken)
    assert told in lake("repo list", code=code).err


def test_arguments_that_are_no_text(lake: Ebbtide) -> None:
    """Bytes that are no UTF-8 come as lone surrogates."""
    for arguments in (("repo", "show", "\udcff"), ("fs", "ls", "lake", "main", "\udcff")):
        lake.refuses("invalid_argument", *arguments, code=2)


def test_no_stdin_at_all(lake: Ebbtide, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a daemon starts its children: nobody is there to be asked."""
    monkeypatch.setattr("sys.stdin", None)
    assert "--yes" in lake("repo adopt lake", code=2).err


def test_every_command_has_help_and_json() -> None:
    for path, command in commands():
        assert command.help, path
        for parameter in command.params:
            assert parameter.help, f"{path} {parameter.name}"
        if not hasattr(command, "commands"):
            assert "--json" in [name for p in command.params for name in p.opts], path


def test_the_reference_is_of_this_program() -> None:
    """Every command and option is in docs/cli.md; it is made by the module, not by hand."""
    assert (ROOT / "docs" / "cli.md").read_text() == render()
