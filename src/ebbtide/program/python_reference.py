"""Makes the reference of the Python interface in Markdown (`docs/python.md`) from its docstrings.

python -m ebbtide.program.python_reference > docs/python.md
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from fsspec import AbstractFileSystem

from ebbtide.api.repositories import CollectedRepository, PlannedRun, open_repository, open_store
from ebbtide.filesystem.filesystem import EbbtideFileSystem
from ebbtide.run_request import Option, PlanAndSweepOptions, SweepOptions, options_of

INTRODUCTION: Final = """\
# Python

After this page you can plan, sweep and explain from Python, and use a store as a file system. Made
by `python -m ebbtide.program.python_reference`; a test compares it with the docstrings, and runs
the examples.

`import ebbtide` is fast: modules load on first use. Errors are those of `ebbtide.errors`: a class
says what the caller can do, and `kind` says what happened ([errors.md](errors.md)). A refused run
raises `Refused`, an incomplete sweep `Incomplete`.

```python
import ebbtide

with ebbtide.open_repository("lake", store=directory, master="duckdb") as lake:
    lake.set_policy({"default": "30d", "branches": {"main": "90d"}})
    planned = lake.plan()
    table = planned.candidates().read_all()
    assert table.num_rows == planned.file_count
    report = lake.sweep(planned, quarantine="7d")
    assert report.state == "swept"
    assert lake.runs()[0].run_id == planned.run_id
```

A store's repositories are also read and written by `ebbtide://REPO/REF/PATH` in every library that
uses fsspec, such as pandas, pyarrow, DuckDB and Zarr. It needs the extra `fsspec`
([deployment.md](deployment.md#installing)). A whole file is checked against its checksum when it is
read. A file moves within its branch at once. The methods of every file system of fsspec are left
out below.

```python
import fsspec

fs = fsspec.filesystem("ebbtide", store=directory)
with fs.transaction as change:
    change.message = "first table"
    fs.pipe_file("lake/main/tables/a.csv", b"id,name\\n1,one\\n")
commit = change.commits["lake/main"]
assert fs.cat_file(f"lake/{commit}/tables/a.csv", 0, 7) == b"id,name"
assert fs.ls("lake/main/tables", detail=False) == ["lake/main/tables/a.csv"]
```

Airflow: `ebbtide.integrations.airflow.EbbtideRunOperator`. Dagster:
`ebbtide.integrations.dagster.run_op` and `run_asset`. A task fails if a
gate refuses or files are left. A task cannot accept lost commits,
because it would accept each later loss too.
"""
FUNCTIONS: Final = (open_store, open_repository)
CLASSES: Final = (CollectedRepository, PlannedRun, EbbtideFileSystem)


def render() -> str:
    """Returns the whole reference."""
    sections = [_section(f"ebbtide.{each.__name__}", each) for each in FUNCTIONS]
    for each in CLASSES:
        lead = "" if each is EbbtideFileSystem else "ebbtide."
        sections.append(f"## {lead}{each.__name__}\n\n{_text(each)}\n")
        sections += [_section(name, member, level=3) for name, member in _members(each)]
    return INTRODUCTION + "\n" + "\n".join([*sections, _options()])


def _options() -> str:
    """Returns the section about the options of runs."""
    names = ", ".join(f"`{_named(each)}`" for each in options_of(PlanAndSweepOptions).values())
    of_a_sweep = ", ".join(f"`{name}`" for name in options_of(SweepOptions))
    lead = f"`run` takes all of them, `sweep` {of_a_sweep}, and `plan` all but `quarantine`."
    lead += ' A PERIOD is a `timedelta` or a text such as `"7d"`, and a DATE a `datetime`.'
    lead += " [cli.md](cli.md#arguments-and-options-of-several-commands) says what each does."
    return f"## Options\n\n{lead}\n\n{names}\n"


def _named(option: Option) -> str:
    return f"{option.name} {option.metavar}" if option.metavar else option.name


def _members(owner: type) -> Iterator[tuple[str, Any]]:
    """Yields the documented public members of a class, in the order of its source. Not those that
    every file system of fsspec has."""
    for name, member in vars(owner).items():
        is_public = not name.startswith("_") or (name == "__init__" and inspect.getdoc(member))
        found = member.fget if isinstance(member, property) else member
        is_new = name == "__init__" or not hasattr(AbstractFileSystem, name)
        if is_public and is_new and inspect.isfunction(found) and found.__doc__:
            yield name, member


def _section(name: str, member: Any, *, level: int = 2) -> str:
    title = f"{'#' * level} {name.replace('__init__', 'storage options')}"
    if isinstance(member, property):
        returned = inspect.signature(_function(member)).return_annotation
        return f"{title}\n\n```python\n{name}: {returned}\n```\n\n{_text(member)}\n"
    shown = _signature(name, member)
    return f"{title}\n\n```text\n{shown}\n```\n\n{_text(member)}\n"


def _function(member: property) -> Callable[..., object]:
    assert member.fget is not None  # every property of these classes can be read
    return member.fget


def _signature(name: str, member: Callable[..., object]) -> str:
    signature = inspect.signature(member)
    kept = [each for each in signature.parameters.values() if each.name != "self"]
    text = str(signature.replace(parameters=kept)).replace("'", "")
    return re.sub(r"^\(", f"{name}(", text)


def _text(member: object) -> str:
    return inspect.getdoc(member) or ""


if __name__ == "__main__":
    print(render(), end="")
