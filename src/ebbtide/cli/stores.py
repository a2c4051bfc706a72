"""The commands on a store: `init`, `promises` and `key`.

`init` makes or upgrades a store, and `promises` sets the times of its promises. The commands `key`
are about the access keys for clients of the server, and the keys that sign tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ebbtide.cli import values
from ebbtide.cli.command import Cli, RepositoryArgument, YesOption, command, group
from ebbtide.cli.values import text_of
from ebbtide.documents import Document, document_of
from ebbtide.durations import format_duration, parse_duration, parse_period
from ebbtide.errors import InvalidInput
from ebbtide.text import date_text, short_id, shown

if TYPE_CHECKING:
    from ebbtide.store.access.access_keys import AccessKey, Grant, KeyPair, Role


key_app = group(
    "Make, list and revoke access keys, grant roles in repositories, and rotate the keys that sign "
    "tokens."
)

KeyArgument = Annotated[
    str,
    typer.Argument(
        metavar="KEY",
        help="Id of the access key.",
        autocompletion=values.keys,
    ),
]

GivenIdOption = Annotated[
    str | None,
    typer.Option(
        "--id",
        metavar="KEY",
        help="Id of a key that clients have already, such as one of lakeFS.",
    ),
]
SecretFileOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="File with the secret of the key that --id names; - for stdin.",
    ),
]


@command(key_app, "create")
def create_key(
    cli: Cli,
    role: Annotated[
        str,
        typer.Option(
            metavar="ROLE",
            autocompletion=values.one_of("none", "reader", "writer", "admin"),
            help="Role in the whole store. none: only what --repository gives. reader: read. "
            "writer: also change the content of repositories. admin: also make repositories, set "
            "policies and collect.",
        ),
    ] = "reader",
    name: Annotated[
        str,
        typer.Option(
            metavar="TEXT",
            help="Name of the key's owner, which commits record as the committer.",
        ),
    ] = "",
    given_id: GivenIdOption = None,
    secret_file: SecretFileOption = None,
    repository: Annotated[
        list[str] | None,
        typer.Option(
            metavar="REPO=ROLE",
            help="A higher role in one repository; may be repeated.",
        ),
    ] = None,
) -> None:
    """Make an access key, or take over one that clients have already.

    The secret is printed now, and never again.
    """
    from ebbtide.store.access.access_keys import GivenKey, Role

    if (given_id is None) != (secret_file is None):
        raise InvalidInput("invalid_argument", "--id and --secret-file belong together")
    given = None
    if given_id is not None and secret_file is not None:
        given = GivenKey(given_id, read_secret(secret_file))
    wanted = [_grant_of(text) for text in repository or ()]
    for place, _ in wanted:
        # Read before the key is made, so that a mistyped name makes none.
        cli.store.repository(place)
    made = cli.store.keys.create(Role.parse(role), name=name, given=given)
    key_id = made.key.access_key_id
    granted = [cli.store.grants.add(key_id, place, higher) for place, higher in wanted]

    def show() -> None:
        show_pair(cli, made, granted)

    cli.output.answer(pair_document(made, granted), show)


def read_secret(file: str) -> str:
    """Returns the secret in a file, or on stdin, without the blanks around it.

    Raises OSError if the file cannot be read, and InvalidInput `invalid_argument`.
    """
    try:
        return text_of(file).strip()
    except UnicodeDecodeError:
        raise InvalidInput("invalid_argument", f"{shown(file)} is not valid UTF-8") from None


@command(key_app, "list")
def list_keys(cli: Cli) -> None:
    """List the access keys, also revoked ones."""
    found, grants = cli.store.keys.list(), cli.store.grants.list()

    def of(key: AccessKey) -> list[Grant]:
        return [grant for grant in grants if grant.access_key_id == key.access_key_id]

    def show() -> None:
        cli.output.table(
            ["key", "role", "in repositories", "name", "created", "revoked"],
            [
                [
                    key.access_key_id,
                    key.role,
                    _grants_text(of(key)),
                    key.name,
                    date_text(key.created_at),
                    "" if key.revoked_at is None else date_text(key.revoked_at),
                ]
                for key in found
            ],
            none="no access keys: make one with 'ebbtide key create --role admin'",
        )

    cli.output.answer({"keys": [_key_document(key, of(key)) for key in found]}, show)


@command(key_app, "revoke")
def revoke_key(cli: Cli, access_key_id: KeyArgument, yes: YesOption = False) -> None:
    """Revoke an access key for good. It is refused from now on."""
    if cli.may(f"revoke {access_key_id} for good?", yes=yes):
        key = cli.store.keys.revoke(access_key_id)
        grants = [each for each in cli.store.grants.list() if each.access_key_id == access_key_id]
        cli.output.answer(
            _key_document(key, grants),
            lambda: cli.output.line(f"revoked {key.access_key_id}"),
        )


@command(key_app, "grant")
def grant(
    cli: Cli,
    access_key_id: KeyArgument,
    granted: Annotated[
        str,
        typer.Argument(
            metavar="REPO=ROLE",
            help="A repository, and the role in it: reader, writer or admin.",
        ),
    ],
) -> None:
    """Give an access key a role in one repository.

    It replaces the key's earlier role there. If the key has a higher role in the whole store, the
    higher one counts. Deleting the repository deletes the grant.
    """
    repository, role = _grant_of(granted)
    done = cli.store.grants.add(access_key_id, repository, role)
    cli.output.answer(
        document_of(done),
        lambda: cli.output.line(f"{done.access_key_id} is {done.role} in {done.repository}"),
    )


@command(key_app, "revoke-grant")
def revoke_grant(cli: Cli, access_key_id: KeyArgument, repository: RepositoryArgument) -> None:
    """Take away the role of an access key in one repository. Its role in the whole store stays."""
    was_there = cli.store.grants.remove(access_key_id, repository)
    text = "revoked the role" if was_there else "there was no role"
    document = {
        "access_key_id": access_key_id,
        "repository": repository,
        "revoked": was_there,
    }
    cli.output.answer(
        document, lambda: cli.output.line(f"{text} of {access_key_id} in {repository}")
    )


@command(key_app, "rotate-signing")
def rotate_signing(
    cli: Cli,
    at_once: Annotated[
        bool,
        typer.Option(
            "--at-once",
            help="For a leaked key: refuse everything that older keys signed, from now on.",
        ),
    ] = False,
    yes: YesOption = False,
) -> None:
    """Sign locators and other tokens with a new key from now on.

    An older key verifies its tokens until the last of them has ended. The next rotation after that
    retires the key.
    """
    if at_once:
        cli.output.say(
            "All locators, and all addresses for direct uploads, that were given until now will\n"
            "be refused. Clients that read a list of uncommitted files in pages must begin again.\n"
            "No data is lost. URLs that the object storage itself signed stay valid until they\n"
            "end: they depend only on its credentials."
        )
        if not cli.may("retire all keys except the new one?", yes=yes):
            return
    done = cli.store.signing_keys.rotate(at_once=at_once)

    def show() -> None:
        cli.output.line(f"key {short_id(done.key_id)} signs from now on")
        for key_id in done.retired_ids:
            cli.output.line(f"key {short_id(key_id)} is retired")
        for key_id in done.verifying_ids:
            cli.output.line(f"key {short_id(key_id)} still verifies what it signed")
        if done.retirable_at is not None:
            cli.output.line(
                f"a rotation after {date_text(done.retirable_at)} UTC retires all of these"
            )

    cli.output.answer(document_of(done), show)


def _key_document(key: AccessKey, grants: Sequence[Grant]) -> Document:
    return document_of(key) | {"grants": [document_of(each) for each in grants]}


def pair_document(pair: KeyPair, grants: Sequence[Grant] = ()) -> Document:
    """Returns the document of a new key, with its secret."""
    return _key_document(pair.key, grants) | {"secret_access_key": pair.secret}


def show_pair(cli: Cli, pair: KeyPair, grants: Sequence[Grant] = ()) -> None:
    """Prints a new key with its secret for people."""
    cli.output.fields(
        [
            ("access key id", pair.key.access_key_id),
            ("secret access key", pair.secret),
            ("role", pair.key.role),
            *([("in repositories", _grants_text(grants))] if grants else []),
        ]
    )
    cli.output.line("the secret is shown only once: keep it")


def _grant_of(text: str) -> tuple[str, Role]:
    """Returns the repository and the role of `REPO=ROLE`. Raises InvalidInput
    `invalid_argument`."""
    from ebbtide.store.access.access_keys import Role

    repository, equals, role = text.partition("=")
    if not repository or not equals or role == Role.NONE:
        raise InvalidInput(
            "invalid_argument", f"write {shown(text)} as REPO=ROLE, such as lake=writer"
        )
    return repository, Role.parse(role)


def _grants_text(grants: Sequence[Grant]) -> str:
    return ", ".join(f"{grant.repository}={grant.role}" for grant in grants)


def register(app: typer.Typer) -> None:
    """Adds the commands to the program."""
    command(app, "init")(init)
    command(app, "promises")(promises)


def init(
    cli: Cli,
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="Directory of the store. It overrides --store.",
        ),
    ],
    upgrade: Annotated[
        bool,
        typer.Option(
            "--upgrade",
            help="Upgrade the database of an existing store to this program's version.",
        ),
    ] = False,
) -> None:
    """Make a store in a directory, and its first access key.

    The directory is made if it is missing. The key has the role admin. Its secret is printed here,
    and never again.
    """
    from ebbtide.store.access.access_keys import Role
    from ebbtide.store.embedded import Store

    pair = None
    with (Store.upgrade if upgrade else Store.init)(directory) as store:
        path = directory.resolve()
        document = {"store": str(path), "store_id": store.store_id}
        if not upgrade:
            pair = store.keys.create(Role.ADMIN)
            document |= pair_document(pair)

    def show() -> None:
        cli.output.line(f"store {'upgraded' if upgrade else 'made'} in {path}")
        if pair is not None:
            show_pair(cli, pair)
        cli.output.line(f"next: export EBBTIDE_STORE={path}")

    cli.output.answer(document, show)


def promises(
    cli: Cli,
    lease_ttl: Annotated[
        str | None,
        typer.Option(
            metavar="PERIOD",
            help="How long locators last, and how long a ref's former target stays.",
        ),
    ] = None,
    trash_time: Annotated[
        str | None,
        typer.Option(metavar="PERIOD", help="How long the content of the trash can be restored."),
    ] = None,
    upload_ttl: Annotated[
        str | None,
        typer.Option(metavar="PERIOD", help="How long addresses for direct uploads last."),
    ] = None,
    prepare_ttl: Annotated[
        str | None,
        typer.Option(
            metavar="PERIOD", help="How long a list of uncommitted data can be read in pages."
        ),
    ] = None,
    yes: YesOption = False,
) -> None:
    """Show or change how long the store's promises last.

    The times belong to the store, not to one process. Their first values are the settings of the
    process that makes the store. Existing locators and addresses keep their end. A new trash time
    also applies to the present content of the trash. A running server deletes by new times at once,
    but promises the old times until it is restarted.
    """
    from ebbtide.store.repositories.repository_rows import times_of

    asked = {
        name: parse_period(text) if name == "trash_time" else parse_duration(text)
        for name, text in {
            "lease_ttl": lease_ttl,
            "trash_time": trash_time,
            "upload_ttl": upload_ttl,
            "prepare_ttl": prepare_ttl,
        }.items()
        if text is not None
    }
    times = times_of(cli.store.settings)
    shorter = [
        f"{name} {format_duration(times[name])} -> {format_duration(asked[name])}"
        for name in asked
        if asked[name] < times[name]
    ]
    if shorter:
        cli.output.say(f"shorter than the present promises: {', '.join(shorter)}")
        if not cli.may("shorten the promises?", yes=yes):
            return
    cli.store.promise(asked)
    times |= asked
    cli.output.answer(
        {name: format_duration(time) for name, time in times.items()},
        lambda: cli.output.fields((name, format_duration(time)) for name, time in times.items()),
    )
