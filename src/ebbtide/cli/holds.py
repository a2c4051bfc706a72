"""The commands `hold`: commits that are kept regardless of the policy."""

from __future__ import annotations

from typing import Annotated

import typer

from ebbtide.cli import documents
from ebbtide.cli.command import Cli, RefArgument, RepositoryArgument, command, group
from ebbtide.text import date_text, one_line, short_id

app = group("Keep commits regardless of the policy.")


@command(app, "add")
def add(
    cli: Cli,
    repository: RepositoryArgument,
    ref: RefArgument,
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="The reason, which 'hold list' shows.")
    ] = "",
) -> None:
    """Hold the commit that a ref points at now. If the ref moves, the hold stays."""
    made = cli.repository(repository).retention.hold(ref, reason)
    commit = short_id(made.commit_id)
    cli.output.answer(
        documents.hold(made),
        lambda: cli.output.line(
            f"commit {commit} is held until 'ebbtide hold remove {repository} {commit}'"
        ),
    )


@command(app, "list")
def list_all(cli: Cli, repository: RepositoryArgument) -> None:
    """List the holds."""
    found = cli.repository(repository).retention.holds()

    def show() -> None:
        cli.output.table(
            ["commit", "since", "reason"],
            [
                [short_id(hold.commit_id), date_text(hold.created_at), one_line(hold.reason)]
                for hold in found
            ],
            none="no holds",
        )

    cli.output.answer({"holds": [documents.hold(hold) for hold in found]}, show)


@command(app, "remove")
def remove(cli: Cli, repository: RepositoryArgument, ref: RefArgument) -> None:
    """Release the hold on a commit. Then the policy decides about the commit again."""
    found = cli.repository(repository)
    commit_id = found.commits.resolve(ref)
    found.retention.release(commit_id)
    cli.output.answer(
        {"commit_id": commit_id, "held": False},
        lambda: cli.output.line(f"commit {short_id(commit_id)} is not held any more"),
    )
