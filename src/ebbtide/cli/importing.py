"""The command `import`: one commit of objects that stay outside the repository."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ebbtide.cli import documents
from ebbtide.cli.command import BranchArgument, Cli, RepositoryArgument, command
from ebbtide.cli.commits import CommitterOption, MessageOption, MetaOption
from ebbtide.cli.parsing import parse_pairs
from ebbtide.text import count_text, one_line, short_id

if TYPE_CHECKING:
    from ebbtide.store.database.commits import CommitRecord
    from ebbtide.store.importing.imports import ImportRequest, Imports


def register(app: typer.Typer) -> None:
    """Adds the command to the program."""
    command(app, "import")(import_objects)


def import_objects(
    cli: Cli,
    repository: RepositoryArgument,
    branch: BranchArgument,
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL",
            help="URL or path of an object; or of a prefix or directory, with a slash at the end.",
            show_default=False,
        ),
    ],
    destination: Annotated[
        str,
        typer.Argument(
            metavar="DEST",
            help="Path of the object. For a prefix: the directory of the branch that it replaces, "
            "'' for the whole branch.",
            show_default=False,
        ),
    ],
    message: MessageOption = None,
    meta: MetaOption = None,
    committer: CommitterOption = "",
) -> None:
    """Import objects where they are: commit their addresses, and copy nothing.

    The objects must be outside the roots of all repositories, of Icechunk and lakeFS too: there
    they may be collected. Elsewhere Ebbtide never deletes them. Paths of the branch below DEST that
    the prefix does not have are deleted by the commit.
    """
    from ebbtide.store.commits.publishing import CommitDetails
    from ebbtide.store.importing.imports import ImportRequest
    from ebbtide.store.importing.sources import ImportSource

    metadata = parse_pairs(meta or [], option="--meta")
    source = ImportSource(url, destination, is_prefix=url.endswith("/"))
    request = ImportRequest(
        branch=branch,
        sources=(source,),
        details=CommitDetails(message or "", committer, None, metadata),
    )
    imports = cli.repository(repository).imports
    made, count = _run(cli, imports, request)
    text = f"imported {count_text(count, 'object')}: {branch} is at commit "
    text += f"{short_id(made.commit_id)}: {one_line(made.message)}"
    cli.output.answer(
        documents.commit(made) | {"object_count": count}, lambda: cli.output.line(text)
    )


def _run(cli: Cli, imports: Imports, request: ImportRequest) -> tuple[CommitRecord, int]:
    """Carries out an import with its progress. Returns the commit, and the number of objects."""
    from ebbtide.gc.steps import Meter, advance
    from ebbtide.store.importing.imports import Signs

    import_id = imports.begin(request)

    def done() -> str | None:
        made = imports.state(request.branch, import_id).commit
        if made is None:
            return None
        return f"Interrupted, but the import is done: commit {made.commit_id}"

    cli.when_interrupted(lambda: "Interrupted: nothing was imported", done=done)
    meter = Meter()
    cli.progress.watch(meter)
    total = 0

    def counted(count: int) -> None:
        nonlocal total
        advance(count - total)
        total = count

    with cli.progress:
        cli.progress("import", "start")
        meter.begin("objects")
        made = imports.run(import_id, request, Signs(counted=counted))
    return made, total
