"""The commands `project`: projects contain collections, and other projects."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from ebbtide.cli.command import Cli, RepositoryArgument, YesOption, command, group
from ebbtide.cli.lifecycle import (
    AfterOption,
    BeforeOption,
    ExpiredOption,
    ExpiresAtOption,
    ExpiresInOption,
    NeverOption,
    StateOption,
    UniqueOption,
    changed_text,
    deleted_text,
    expiry_given,
    expiry_updated,
    filter_of,
    may_delete,
    warn_of_end,
)
from ebbtide.cli.values import parse_pairs
from ebbtide.documents import document_of
from ebbtide.errors import InvalidInput
from ebbtide.retention.lifecycle import LifecycleState
from ebbtide.text import date_text, escaped, shown

if TYPE_CHECKING:
    from datetime import datetime
    from typing import Any

    from ebbtide.store.collections.projects import Project, Projects
    from ebbtide.store.lifecycle import ListFilter

PAGE: int = 1000

app = group("Make, list, change, move, delete and restore projects, which hold collections.")

ProjectArgument = Annotated[
    str,
    typer.Argument(metavar="PROJECT", help="Path of the project, or its id."),
]
DescriptionOption = Annotated[
    str | None,
    typer.Option("--description", metavar="TEXT", help="A description."),
]
PropertyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--property",
        metavar="NAME=VALUE",
        help="A property of any name; repeatable.",
    ),
]
UnsetOption = Annotated[
    list[str] | None,
    typer.Option("--unset-property", metavar="NAME", help="Drop a property; repeatable."),
]
NameOption = Annotated[str | None, typer.Option("--name", metavar="NAME", help="The new name.")]


@command(app, "create")
def create(
    cli: Cli,
    repository: RepositoryArgument,
    path: Annotated[
        str,
        typer.Argument(
            metavar="PROJECT",
            help="Path of the new project. The projects above it must exist.",
        ),
    ],
    description: DescriptionOption = None,
    properties: PropertyOption = None,
    expires_in: ExpiresInOption = None,
    expires_at: ExpiresAtOption = None,
    ensure_unique_name: UniqueOption = False,
) -> None:
    """Make a project."""
    projects = cli.repository(repository).projects
    above, _, name = path.rpartition("/")
    made = projects.create(
        name,
        parent_id=projects.find(above).project_id if above else None,
        description=description or "",
        properties=parse_pairs(properties or [], option="--property"),
        expires_at=expiry_given(cli, expires_in, expires_at, options=_WHEN),
        ensure_unique_name=ensure_unique_name,
    )
    _answer(cli, made, f"project {escaped(made.path)} made")


_WHEN = "--expires-in PERIOD or --expires-at DATE"


@command(app, "list")
def list_all(
    cli: Cli,
    repository: RepositoryArgument,
    parent: Annotated[
        str,
        typer.Argument(
            metavar="PROJECT", help="List the projects in this one. Default: those at the top."
        ),
    ] = "",
    include_expired: ExpiredOption = False,
    state: StateOption = None,
    expires_after: AfterOption = None,
    expires_before: BeforeOption = None,
) -> None:
    """List the projects in a project, or at the top."""
    projects = cli.repository(repository).projects
    listed = filter_of(
        cli,
        include_expired=include_expired,
        state=state,
        after=expires_after,
        before=expires_before,
    )
    expired = listed.include_expired
    parent_id = projects.find(parent, include_expired=expired).project_id if parent else None
    found = list(_pages(projects, parent_id, listed))

    def show() -> None:
        cli.output.table(
            [*(["id"] if expired else []), "name", "created", "state", "expires", "description"],
            [
                [
                    *([project.project_id] if expired else []),
                    project.name,
                    date_text(project.created_at),
                    project.state.value,
                    date_text(project.ends_at),
                    project.description.split("\n")[0],
                ]
                for project in found
            ],
            none="no projects",
        )

    cli.output.answer({"projects": [document_of(each) for each in found]}, show)


def _pages(projects: Projects, parent_id: str | None, listed: ListFilter) -> Iterable[Project]:
    after = ("", "")
    while page := projects.page(parent_id=parent_id, after=after, amount=PAGE, listed=listed):
        yield from page
        after = (page[-1].name, page[-1].project_id)


@command(app, "show")
def show_one(
    cli: Cli,
    repository: RepositoryArgument,
    project: ProjectArgument,
    include_expired: ExpiredOption = False,
) -> None:
    """Show a project's state, dates and properties."""
    found = cli.repository(repository).projects.find(project, include_expired=include_expired)

    def show() -> None:
        cli.output.fields(
            [
                ("path", escaped(found.path)),
                ("id", found.project_id),
                *lifecycle_fields(found.state, found.expires_at, found.ends_at),
                ("created", f"{date_text(found.created_at)} UTC"),
                ("changed", f"{date_text(found.modified_at)} UTC"),
                ("description", escaped(found.description)),
                *property_fields(found.properties),
            ]
        )

    cli.output.answer(document_of(found), show)
    warn_of_end(cli, f"project {escaped(found.path)}", found.ends_at)


def lifecycle_fields(
    state: LifecycleState, expires_at: datetime | None, ends_at: datetime | None
) -> list[tuple[str, str]]:
    """Returns the lines about a state, its date of expiry, and the end of a project above."""
    fields = [("state", state.value)]
    if expires_at is not None:
        fields.append(("expires", f"{date_text(expires_at)} UTC"))
    if ends_at is not None and ends_at != expires_at:
        fields.append(("ends", f"{date_text(ends_at)} UTC, with a project above it"))
    return fields


def property_fields(properties: Any) -> list[tuple[str, str]]:  # JSON
    """Returns a line for each property, sorted by name. A value that is not text is JSON."""
    import json

    return [
        (
            f"property {escaped(name)}",
            escaped(value if isinstance(value, str) else json.dumps(value)),
        )
        for name, value in sorted(properties.items())
    ]


@command(app, "update")
def update(
    cli: Cli,
    repository: RepositoryArgument,
    project: ProjectArgument,
    name: NameOption = None,
    description: DescriptionOption = None,
    properties: PropertyOption = None,
    unset_property: UnsetOption = None,
    expires_in: ExpiresInOption = None,
    expires_at: ExpiresAtOption = None,
    never: NeverOption = False,
    ensure_unique_name: UniqueOption = False,
) -> None:
    """Change the given properties of a project.

    A new date of expiry restores a project from the trash, if the date is not past.
    """
    projects = cli.repository(repository).projects
    found = projects.find(project, include_expired=True)
    changed = projects.update(
        found.project_id,
        **given_options(name=name, description=description),
        **changed_properties(found.properties, properties, unset_property),
        expires_at=expiry_updated(cli, expires_in, expires_at, never=never),
        ensure_unique_name=ensure_unique_name,
    )
    _answer(
        cli,
        changed,
        changed_text(f"project {escaped(changed.path)}", changed.state, changed.ends_at),
    )


def given_options(**values: Any) -> dict[str, Any]:  # values of several types
    """Returns the options that were given."""
    return {name: value for name, value in values.items() if value is not None}


def changed_properties(
    before: Any,  # JSON
    set_to: list[str] | None,
    unset: list[str] | None,
) -> dict[str, Any]:
    """Returns the argument `properties` of `update`, with some properties set and some dropped.

    Returns no argument if there is no change. Raises InvalidInput `invalid_argument` if a property
    to drop does not exist.
    """
    if not set_to and not unset:
        return {}
    properties = dict(before)
    for name in unset or []:
        if name not in properties:
            raise InvalidInput("invalid_argument", f"there is no property {shown(name)} to drop")
        del properties[name]
    return {"properties": properties | parse_pairs(set_to or [], option="--property")}


@command(app, "move")
def move(
    cli: Cli,
    repository: RepositoryArgument,
    project: ProjectArgument,
    parent: Annotated[
        str,
        typer.Argument(
            metavar="PARENT", help="Path or id of the project to move it into. Default: the top."
        ),
    ] = "",
    ensure_unique_name: UniqueOption = False,
) -> None:
    """Move a project, with its content, into another project or to the top."""
    projects = cli.repository(repository).projects
    moved = projects.update(
        projects.find(project).project_id,
        parent_id=projects.find(parent).project_id if parent else None,
        ensure_unique_name=ensure_unique_name,
    )
    _answer(cli, moved, f"the path of the project is {escaped(moved.path)} now")


@command(app, "delete")
def delete(
    cli: Cli, repository: RepositoryArgument, project: ProjectArgument, yes: YesOption = False
) -> None:
    """Move a project and its content to the trash.

    They can be restored until the trash time is over. The command asks only if the trash time is
    zero, because then nothing could restore them.
    """
    projects = cli.repository(repository).projects
    found = projects.find(project)
    what = f"project {escaped(found.path)}"
    if may_delete(cli, f"{what} and all its content", yes=yes):
        deleted = projects.delete(found.project_id)
        restore = f"project restore {repository} {deleted.project_id}"
        _answer(cli, deleted, deleted_text(cli, what, restore))


@command(app, "restore")
def restore(
    cli: Cli,
    repository: RepositoryArgument,
    project: ProjectArgument,
    ensure_unique_name: UniqueOption = False,
) -> None:
    """Restore a project and its content from the trash."""
    projects = cli.repository(repository).projects
    found = projects.find(project, include_expired=True)
    back = projects.restore(found.project_id, ensure_unique_name=ensure_unique_name)
    _answer(cli, back, f"project {escaped(back.path)} is restored")


def _answer(cli: Cli, found: Project, text: str) -> None:
    cli.output.answer(document_of(found), lambda: cli.output.line(text))
