"""Writes the tables of figures into the documents, from the files in `benchmarks/results`.

Run it through `scripts/figures`. A document has each table between the markers
`<!-- figures: NAME -->` and `<!-- end -->`. `benchmarks/tables.toml` declares the tables.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from typer.exceptions import TyperException

from ebbtide.program.reference import commands
from ebbtide.settings import unknown_variables

ROOT: Final = Path(__file__).resolve().parents[1]
RESULTS: Final = ROOT / "benchmarks" / "results"
PAGES: Final = (
    *("README.md", "docs/performance.md", "docs/comparison.md", "docs/lakefs.md"),
    *("docs/operations.md", "benchmarks/README.md"),
)
AGE_MAX: Final = timedelta(days=90)
MARKED: Final = re.compile(r"(<!-- figures: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
NEEDED: Final = frozenset(
    {"measured_at", "commit", "dirty", "command", "ran", "machine", "versions", "figures"}
)
ENGINE: Final = re.compile(r"none|yarn|local(\[[\d*, ]+\])?|URL")
"""The values of EBBTIDE_SPARK_MASTER in results, where URLs are replaced by a word."""

Tables = Mapping[str, Mapping[str, Any]]


def declared() -> Tables:
    """Returns the tables of `benchmarks/tables.toml`, by name."""
    return tomllib.loads((ROOT / "benchmarks" / "tables.toml").read_text())


def read(name: str) -> dict[str, Any] | None:
    """Returns a result; None if there is no file. Raises ValueError if it lacks a part."""
    path = RESULTS / f"{name}.json"
    if not path.exists():
        return None
    found: dict[str, Any] = json.loads(path.read_text())
    if lacking := NEEDED - found.keys():
        raise ValueError(f"{path.name} lacks {', '.join(sorted(lacking))}")
    return found


def drawn(table: Mapping[str, Any]) -> str:
    """Returns a table in Markdown, with the origin of its figures; or the command that is to be run
    if no result is there."""
    results = {name: read(name) for name in table["results"]}
    lines = []
    columns: Mapping[str, str] = table["columns"]
    rows = [
        [cell(form, key, item, found["figures"]) for form in columns.values()]
        for found in results.values()
        if found is not None
        for key, item in items(found["figures"], table.get("each"))
    ]
    if rows:
        lines += [line(list(columns)), line(["---"] * len(columns)), *map(line, rows), ""]
    lines += [
        f"- `{name}`: no result of this version yet. The command is "
        f"`python -m {table['results'][name]} --save {name}`."
        if found is None
        else origin(name, found)
        for name, found in results.items()
    ]
    return "\n" + "\n".join(lines) + "\n\n"


def items(figures: Mapping[str, Any], each: str | None) -> Iterator[tuple[str, Any]]:
    """Yields the rows of a result with their names: the values of `each`, or all figures as one."""
    found = figures if each is None else figures[each]
    if each is None:
        yield "", found
    elif isinstance(found, list):
        yield from (("", item) for item in found)
    else:
        yield from found.items()


def cell(form: str, key: str, item: Mapping[str, Any], figures: Mapping[str, Any]) -> str:
    """Fills in a column's template, such as `{cold[seconds]:.1f}`. A figure that was not measured
    is empty."""
    try:
        return form.format(**{**figures, **item, "row": key})
    except (KeyError, TypeError):  # a figure that has no meaning here is None
        return ""


def line(cells: list[str]) -> str:
    """Returns one line of a table."""
    return f"| {' | '.join(cells)} |"


def origin(name: str, found: Mapping[str, Any]) -> str:
    """Returns the sentence that says how a result was measured. Its file also has the versions."""
    machine = found["machine"]
    return (
        f"- `{name}`: {found['measured_at'][:10]}, commit {found['commit'][:8]}"
        f"{' with changes' if found['dirty'] else ''}, "
        f"{machine['cores']} cores, {machine['memory_bytes'] / 2**30:.0f} GiB, {machine['disk']}, "
        f"load {machine['load']:.1f} at the start: `{shlex.join(found['command'])}`"
    )


def filled(text: str, tables: Tables) -> str:
    """Returns a document with all its tables written anew."""
    return MARKED.sub(lambda found: found[1] + drawn(tables[found[2]]) + found[3], text)


def unknown(command: list[str]) -> str | None:
    """Returns why a command of a benchmark cannot be given today; None if it can."""
    module = command[2].removeprefix("benchmarks.")
    if not (ROOT / "benchmarks" / f"{module}.py").exists():
        return f"there is no benchmark {module}"
    parsed = importlib.import_module(f"benchmarks.{module}").parsed
    try:
        parsed(command[3:])
    except SystemExit:
        return f"benchmarks.{module} does not take these options: {shlex.join(command[3:])}"
    return None


def unknown_run(words: list[str]) -> str | None:
    """Returns why a command of Ebbtide, with settings before it, cannot be given today; None if it
    can."""
    at = words.index("ebbtide")
    settings = dict(each.split("=", 1) for each in words[:at])
    if found := unknown_variables(settings):
        return f"there is no setting {found[0]}"
    engine = settings.get("EBBTIDE_SPARK_MASTER", "none")
    if not ENGINE.fullmatch(engine):
        return f"there is no engine {engine}"
    node, name, rest, context = dict(commands())["ebbtide"], "ebbtide", words[at + 1 :], None
    try:
        while True:
            context = node.make_context(name, rest, parent=context)
            if not hasattr(node, "resolve_command"):
                return None
            name, node, rest = node.resolve_command(context, context._protected_args + context.args)
    except TyperException as error:
        return f"{shlex.join(words)}: {error}"


def faults(tables: Tables) -> Iterator[str]:
    """Yields what is wrong with documents and results."""
    for page in PAGES:
        text = (ROOT / page).read_text()
        if filled(text, tables) != text:
            yield f"{page}: tables and results differ: scripts/figures"
    declared = {
        name: ["python", "-m", *shlex.split(command), "--save", name]
        for table in tables.values()
        for name, command in table["results"].items()
    }
    for name, command in declared.items():
        if why := unknown(command):
            yield f"benchmarks/tables.toml, {name}: {why}"
    for path in sorted(RESULTS.glob("*.json")):
        found = read(path.stem)
        assert found is not None
        if path.stem not in declared:
            yield f"{path.name}: no table has it"
        elif found["command"] != declared[path.stem]:
            yield f"{path.name}: its table names another command"
        for why in map(unknown_run, found["ran"]):
            if why:
                yield f"{path.name}: {why}"


def aged(now: datetime) -> Iterator[str]:
    """Yields the results that are much older than the last change of the collector."""
    command = ("git", "log", "-1", "--format=%cI", "--", "src/ebbtide/gc")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    changed = datetime.fromisoformat(done.stdout.strip()) if done.stdout.strip() else now
    for path in sorted(RESULTS.glob("*.json")):
        measured_at = datetime.fromisoformat(json.loads(path.read_text())["measured_at"])
        if changed - measured_at > AGE_MAX:
            yield f"{path.name} is {(changed - measured_at).days} days older than the collector"


def main() -> int:
    """Writes the tables, or checks them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if wrong")
    checks = parser.parse_args().check
    sys.path.insert(0, str(ROOT))
    tables = declared()
    if not checks:
        for page in PAGES:
            path = ROOT / page
            path.write_text(filled(path.read_text(), tables))
    wrong = list(faults(tables))
    print("\n".join([*wrong, *(f"warning: {each}" for each in aged(datetime.now(UTC)))]))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
