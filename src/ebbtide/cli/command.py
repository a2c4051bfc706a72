"""How a command is declared, and what every command gets: `--store`, `--json`, and a `Cli`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ebbtide.cli.asking import confirm
from ebbtide.cli.output import Output
from ebbtide.errors import InvalidInput, NotFound

if TYPE_CHECKING:
    from ebbtide.formats.embedded import EmbeddedRepository
    from ebbtide.settings import Settings
    from ebbtide.store.embedded import Store
    from ebbtide.store.repository import Repository

StoreOption = Annotated[
    Path | None,
    typer.Option(
        "--store",
        metavar="DIR",
        help="Directory of the store; without it, EBBTIDE_STORE.",
        show_default=False,
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON document.", show_default=False)
]
YesOption = Annotated[
    bool, typer.Option("--yes", "-y", help="Answer every question with yes.", show_default=False)
]
RepositoryArgument = Annotated[
    str, typer.Argument(metavar="REPO", help="Name of the repository.", show_default=False)
]
CollectedArgument = Annotated[
    str,
    typer.Argument(
        metavar="REPO",
        help="Name of the repository, or icechunk:PATH or icechunk:URL.",
        show_default=False,
    ),
]
RefArgument = Annotated[
    str,
    typer.Argument(
        metavar="REF",
        help="A branch, tag or commit id, with ~N or ^N behind it for its ancestors.",
        show_default=False,
    ),
]
BranchArgument = Annotated[
    str, typer.Argument(metavar="BRANCH", help="Name of the branch.", show_default=False)
]


class Cli:
    """What one command works with. The store is opened when it is first needed."""

    def __init__(self, *, directory: Path | None, as_json: bool) -> None:
        self.directory = directory
        self.output = Output(as_json=as_json)
        self._store: Store | None = None

    @property
    def store(self) -> Store:
        """The store that `--store` or the environment names."""
        if self._store is None:
            from ebbtide.store.embedded import Store

            self._store = Store.open(self.directory)
        return self._store

    def repository(self, name: str) -> Repository:
        """The repository of that name. InvalidInput where it is none of the store's."""
        if name.startswith("icechunk:"):
            raise InvalidInput(
                "invalid_argument",
                f"{name} is none of a store's repositories, for which this command is: Icechunk's "
                "take 'expire', 'explain' and 'gc plan|sweep|run|runs|show'",
            )
        return self.store.repository(name)

    @property
    def settings(self) -> Settings:
        """The settings of the environment, for what lies outside any store."""
        from ebbtide.settings import Settings

        return Settings()

    def collected(self, name: str) -> EmbeddedRepository:
        """The repository of that name, or the gone one of that name or id, as the collector sees
        it."""
        from ebbtide.formats.embedded import EmbeddedRepository
        from ebbtide.formats.gone import GoneRepository

        try:
            context = self.repository(name).context
        except NotFound:
            gone = self.store.catalog.find_gone(name)
            if gone is None:
                raise
            context = self.store.context_of(gone)
            return GoneRepository(context, store_id=self.store.store_id)
        return EmbeddedRepository(context, store_id=self.store.store_id)

    def may(self, question: str, *, yes: bool) -> bool:
        """Whether the answer is yes; says so when it is not."""
        if confirm(question, yes=yes):
            return True
        self.output.say("nothing was changed")
        return False

    def close(self) -> None:
        """Close what was opened."""
        if self._store is not None:
            self._store.close()


Command = Callable[..., None]
"""A function whose first parameter is a `Cli` and whose others are Typer's."""

_Parameter: Final = inspect.Parameter
_ADDED: Final = (
    _Parameter("store", _Parameter.KEYWORD_ONLY, default=None, annotation=StoreOption),
    _Parameter("json", _Parameter.KEYWORD_ONLY, default=False, annotation=JsonOption),
)


def group(help_text: str) -> typer.Typer:
    """A group of commands."""
    return typer.Typer(help=help_text, rich_markup_mode=None)


def command(app: typer.Typer, name: str) -> Callable[[Command], Command]:
    """Register a function as the command `name` of `app`. Its docstring is the help."""

    def register(function: Command) -> Command:
        @wraps(function)
        def invoke(
            context: typer.Context,
            *arguments: Any,  # the command's own, as Typer parsed them
            store: Path | None,
            json: bool,
            **options: Any,
        ) -> None:
            cli = Cli(directory=store or context.obj, as_json=json)
            context.call_on_close(cli.close)
            function(cli, *arguments, **options)

        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
        leading = _Parameter("context", _Parameter.POSITIONAL_ONLY, annotation=typer.Context)
        named = [parameter.replace(kind=_Parameter.KEYWORD_ONLY) for parameter in own]
        signature = inspect.Signature([leading, *named, *_ADDED])
        # Typer reads the signature of what it calls; the one that `wraps` shows is the function's.
        del invoke.__wrapped__
        invoke.__signature__ = signature  # type: ignore[attr-defined]
        invoke.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
        app.command(name)(invoke)
        return function

    return register
