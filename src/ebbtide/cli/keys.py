"""The commands `key`: access keys for clients of the server, and the keys that sign tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ebbtide.cli import completing, documents
from ebbtide.cli.command import Cli, YesOption, command, group
from ebbtide.text import date_text, short_id

if TYPE_CHECKING:
    from ebbtide.cli.documents import Document
    from ebbtide.store.access.keys import KeyPair

app = group("Make, list and revoke access keys; rotate the keys that sign tokens.")

KeyArgument = Annotated[
    str,
    typer.Argument(
        metavar="KEY",
        help="Id of the access key.",
        show_default=False,
        autocompletion=completing.keys,
    ),
]


@command(app, "create")
def create(
    cli: Cli,
    role: Annotated[
        str,
        typer.Option(
            metavar="ROLE",
            autocompletion=completing.one_of("reader", "writer", "admin"),
            help="reader: read. writer: also change the content of repositories. admin: also make "
            "repositories, set policies and collect.",
        ),
    ] = "reader",
    name: Annotated[
        str,
        typer.Option(
            metavar="TEXT",
            help="Name of the key's owner, which commits record as the committer.",
            show_default=False,
        ),
    ] = "",
) -> None:
    """Make an access key. Its secret is printed now, and never again."""
    from ebbtide.store.access.keys import Role

    made = cli.store.keys.create(Role.parse(role), name=name)
    cli.output.answer(pair_document(made), lambda: show_pair(cli, made))


@command(app, "list")
def list_all(cli: Cli) -> None:
    """List the access keys, also revoked ones."""
    found = cli.store.keys.list()

    def show() -> None:
        cli.output.table(
            ["key", "role", "name", "created", "revoked"],
            [
                [
                    key.access_key_id,
                    key.role,
                    key.name,
                    date_text(key.created_at),
                    "" if key.revoked_at is None else date_text(key.revoked_at),
                ]
                for key in found
            ],
            none="no access keys: make one with 'ebbtide key create --role admin'",
        )

    cli.output.answer({"keys": [documents.access_key(key) for key in found]}, show)


@command(app, "revoke")
def revoke(cli: Cli, access_key_id: KeyArgument, yes: YesOption = False) -> None:
    """Revoke an access key for good. It is refused from now on."""
    if cli.may(f"revoke {access_key_id} for good?", yes=yes):
        key = cli.store.keys.revoke(access_key_id)
        cli.output.answer(
            documents.access_key(key), lambda: cli.output.line(f"revoked {key.access_key_id}")
        )


@command(app, "rotate-signing")
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

    cli.output.answer(documents.rotation(done), show)


def pair_document(pair: KeyPair) -> Document:
    """Returns the document of a new key, with its secret."""
    return documents.access_key(pair.key) | {"secret_access_key": pair.secret}


def show_pair(cli: Cli, pair: KeyPair) -> None:
    """Prints a new key with its secret for people."""
    cli.output.fields(
        [
            ("access key id", pair.key.access_key_id),
            ("secret access key", pair.secret),
            ("role", pair.key.role),
        ]
    )
    cli.output.line("the secret is shown only once: keep it")
