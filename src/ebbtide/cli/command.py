"""Declares commands. Every command gets `--store`, `--json`, `--verbose`, and a `Cli`.

Options of a run (`ebbtide.run_request`), and other groups of options, become options of commands.

The error about a name that does not exist gets the nearest known names. Only the command line does
so: its user may read the whole store. The server's answers name nothing that the caller did not
name.
"""

from __future__ import annotations

import inspect
import os
import re
import shlex
import signal
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import wraps
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, get_args, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from ebbtide import logs
from ebbtide.cli import values
from ebbtide.cli.examples import examples_of
from ebbtide.cli.output import Output, answering, confirm
from ebbtide.cli.progress import StepProgress
from ebbtide.errors import EbbtideError, Gone, InvalidInput, NotFound
from ebbtide.formats.schemes import is_elsewhere, scheme_of
from ebbtide.interrupts import exit_code
from ebbtide.run_request import Option, RunRequest, options_of
from ebbtide.text import escaped_lines, shown

if TYPE_CHECKING:
    from ebbtide.formats.capabilities import WithHolds, WithPolicy
    from ebbtide.formats.holds import HoldableRepository
    from ebbtide.settings import Settings
    from ebbtide.store.embedded import Store
    from ebbtide.store.repository import Repository

NAMES_MAX: Final = 10_000
"""The most names that are compared. The comparison takes some ten microseconds for each."""
SUGGESTED_MAX: Final = 3
_ID_LIKE = re.compile(r"[0-9a-f]{6,}")
_AFTER_NAME = re.compile(r"[@~^:=]")
StoreOption = Annotated[
    Path | None,
    typer.Option(
        "--store",
        metavar="DIR",
        help="Directory of the store. Default: EBBTIDE_STORE.",
        show_default=False,
    ),
]
VerboseOption = Annotated[
    bool,
    typer.Option(
        "--verbose",
        help="Show progress on stderr, even if it is no terminal.",
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
    str,
    typer.Argument(
        metavar="REPO",
        help="Name of the repository.",
        show_default=False,
        autocompletion=values.repositories,
    ),
]
CollectedArgument = Annotated[
    str,
    typer.Argument(
        metavar="REPO",
        help="Name of the repository, or icechunk:PATH, icechunk:URL, iceberg:CATALOG, "
        "delta:PATH or lakefs:NAME.",
        show_default=False,
        autocompletion=values.repositories,
    ),
]
WithPolicyArgument = Annotated[
    str,
    typer.Argument(
        metavar="REPO",
        help="Name of the repository, or lakefs:NAME or delta:ROOT.",
        show_default=False,
        autocompletion=values.repositories,
    ),
]
RefArgument = Annotated[
    str,
    typer.Argument(
        metavar="REF",
        help="A branch, tag or commit id; ~N or ^N after it names an ancestor.",
        show_default=False,
        autocompletion=values.refs,
    ),
]
BranchArgument = Annotated[
    str,
    typer.Argument(
        metavar="BRANCH",
        help="Name of the branch.",
        show_default=False,
        autocompletion=values.branches,
    ),
]
RunArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="Id of the run, the beginning of it, or latest.",
        autocompletion=values.runs,
    ),
]
SETTING_CUTOFF: Final = 0.85
"""How similar a variable must be to a setting's to count as misspelt. All begin with EBBTIDE_."""
INTERRUPTED: Final = exit_code(signal.SIGINT)
TERMINATED: Final = exit_code(signal.SIGTERM)
"""The exit codes that shells expect if Ctrl-C or SIGTERM ended a program."""
Command = Callable[..., None]
"""A function with a `Cli` as its first parameter. Typer fills the other parameters."""
_Parameter: Final = inspect.Parameter
_ADDED: Final = (
    _Parameter("store", _Parameter.KEYWORD_ONLY, default=None, annotation=StoreOption),
    _Parameter("json", _Parameter.KEYWORD_ONLY, default=False, annotation=JsonOption),
    _Parameter("verbose", _Parameter.KEYWORD_ONLY, default=False, annotation=VerboseOption),
)


def run_option(name: str) -> Any:  # Typer types options as Any
    """Returns the option of a run, for a command that takes it alone."""
    return _typer_option(options_of(RunRequest)[name])


def parameters_of(function: Callable[..., None]) -> list[Parameter]:
    """Returns the parameters of a command.

    `**options: Unpack[X]` of the command stands for the options of the class X, which are those of
    runs, or Typer's own. They come before its parameters that are keyword-only.
    """
    own = list(inspect.signature(function, eval_str=True).parameters.values())
    if own[-1].kind is not Parameter.VAR_KEYWORD:
        return own
    (asked,) = get_args(own.pop().annotation)
    hints = get_type_hints(asked, include_extras=True)
    made = [_parameter(name, hint, options_of(asked).get(name)) for name, hint in hints.items()]
    leading = [each for each in own if each.kind is not Parameter.KEYWORD_ONLY]
    return [*leading, *made, *own[len(leading) :]]


def _parameter(name: str, hint: Any, option: Option | None) -> Parameter:
    if option is None:
        return Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=hint)
    kind: Any = bool if option.is_flag else str | None
    annotation = Annotated[kind, _typer_option(option)]
    return Parameter(name, Parameter.KEYWORD_ONLY, default=option.default, annotation=annotation)


def _typer_option(option: Option) -> Any:
    otherwise = f" Default: {option.otherwise}." if option.otherwise else ""
    return typer.Option(
        f"--{option.name.replace('_', '-')}",
        metavar=option.metavar,
        help=option.help + otherwise,
        show_default=bool(option.default),
        autocompletion=values.one_of(*option.choices) if option.choices else None,
    )


def did_you_mean(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Returns the text that suggests the nearest names, or an empty text."""
    close = get_close_matches(name, sorted(set(known))[:NAMES_MAX], SUGGESTED_MAX, cutoff)
    listed = " or ".join(shown(each) for each in close)
    return f"did you mean {listed}?" if close else ""


def add_suggestion(store: Store, error: NotFound, arguments: dict[str, Any]) -> None:
    """Adds the names that are nearest to the missing one to the message of the error.

    `arguments` are those of the command line, by name. Ids are never guessed.
    """
    repository = arguments.get("repository")
    if not isinstance(repository, str) or is_elsewhere(repository):
        return
    named = [each for each in _names_of(arguments) if shown(each) in error.message]
    missing = next((each for each in named if not _ID_LIKE.fullmatch(each)), None)
    if missing is None:
        return
    with suppress(EbbtideError):
        if hint := did_you_mean(missing, _known_names(store, error.kind, repository)):
            error.restate(f"{error.message}; {hint}")


def _names_of(arguments: dict[str, Any]) -> Iterator[str]:
    """Yields the arguments, without what can follow the name of a ref."""
    for value in arguments.values():
        for text in value if isinstance(value, list | tuple) else [value]:
            if isinstance(text, str):
                yield _AFTER_NAME.split(text, maxsplit=1)[0]


def _known_names(store: Store, kind: str, repository: str) -> list[str]:
    """Returns the names that the missing one could be: live ones alone."""
    if kind == "repository_not_found":
        return [each.info.name for each in store.catalog.list()]
    if kind not in ("branch_not_found", "tag_not_found", "ref_not_found"):
        return []
    found = store.repository(repository)
    names: list[str] = []
    if kind != "tag_not_found":
        names += [branch.name for branch in found.branches.list() if not branch.hidden]
    if kind != "branch_not_found":
        names += [tag.name for tag in found.tags.list()]
    return names


def command_line(
    context: typer.Context,
    words: Sequence[str] = (),
    arguments: Iterable[str] = (),
    *,
    without: Collection[str] = (),
) -> str:
    """Returns a command as it is typed: the present one, or `words` followed by `arguments`.

    The result has the options that were given to the present command, if that command has them, and
    none of those that `without` names.
    """
    root = context.find_root()
    command: Any = root.command  # from a library inside Typer
    if words:
        for word in words:
            command = command.commands[word]
        listed = [*words, *arguments]
    else:
        command = context.command
        listed = context.command_path.split()[1:]
        listed += [text for p in command.params for text in _argument(context, p)]
    known = {option for p in command.params for option in p.opts}
    options = [text for p in root.command.params if p.name == "store" for text in _option(root, p)]
    for parameter in context.command.params:
        if known.intersection(parameter.opts) and not set(without).intersection(parameter.opts):
            options += _option(context, parameter)
    return shlex.join(["ebbtide", *listed, *options])


def _argument(context: typer.Context, parameter: Any) -> list[str]:
    if parameter.param_type_name != "argument":
        return []
    value = context.params.get(parameter.name)
    if value is None or not _is_given(context, parameter):
        return []
    return [str(each) for each in value] if isinstance(value, list | tuple) else [str(value)]


def _option(context: Any, parameter: Any) -> list[str]:
    if parameter.param_type_name != "option" or not _is_given(context, parameter):
        return []
    value = context.params.get(parameter.name)
    name = next((each for each in parameter.opts if each.startswith("--")), parameter.opts[0])
    if parameter.is_flag:
        return [name]
    values = value if isinstance(value, list | tuple) else [value]
    return [text for each in values for text in (name, str(each))]


def _is_given(context: Any, parameter: Any) -> bool:
    source = context.get_parameter_source(parameter.name)
    return source is not None and source.name == "COMMANDLINE"


@dataclass(frozen=True, slots=True)
class Given:
    """The options that were given before the command."""

    store: Path | None
    verbose: bool


class Cli:
    """The tools of one command: its output, its progress and its store, which is opened on first
    use.

    `told` returns the text for an interrupt. If a command can leave work unfinished, the text says
    so, and how to continue. `told_besides` adds lines about the work around it.
    """

    def __init__(
        self, context: typer.Context, *, directory: Path | None, as_json: bool, verbose: bool
    ) -> None:
        self.context = context
        self.directory = directory
        self.output = Output(as_json=as_json)
        self._checked_variables = False  # before the settings are read
        self._verbose = verbose
        logs_steps = verbose and self.set_up_log(self.settings)
        self.progress = StepProgress(quiet=as_json, verbose=verbose, logs=logs_steps)
        self.told: Callable[[], str] = lambda: "interrupted"
        self.told_besides: Callable[[], str] = lambda: ""
        self._store: Store | None = None

    def set_up_log(self, settings: Settings) -> bool:
        """Sends the log of this process to stderr. Returns whether its lines are JSON."""
        level = settings.log_level
        if self._verbose and level != "debug":
            level = "info"
        logs.set_up(settings.log_format, level, secrets=settings.secrets)
        return settings.log_format == "json"

    def when_interrupted(
        self,
        told: Callable[[], str],
        words: Sequence[str] = (),
        arguments: Iterable[str] = (),
        *,
        done: Callable[[], str | None] = lambda: None,
    ) -> None:
        """Sets the text for an interrupt: the text of `told`, and the command that continues.

        Without `words`, the present command continues. With `words`, they name the command that
        continues, and `arguments` are its arguments. If no work is left, `done` returns the text.
        """
        lead = "Continue with" if words else "Start it again with"
        way = f"\n{lead}: {command_line(self.context, words, arguments)}"
        self.told = lambda: (done() or told() + way) + self.told_besides()

    @property
    def store(self) -> Store:
        """The store that `--store` or the environment names."""
        if self._store is None:
            self._check_variables()
            from ebbtide.store.embedded import Store

            self._store = Store.open(self.directory)
            self._warn_of_times(self._store.settings)
        return self._store

    @property
    def is_open(self) -> bool:
        """Whether the command has opened the store."""
        return self._store is not None

    def _warn_of_times(self, promised: Settings) -> None:
        """Warns of settings of the environment that have no effect, because the store promises
        another time."""
        from ebbtide.durations import format_duration
        from ebbtide.settings import ENV_PREFIX
        from ebbtide.store.repositories.repository_rows import times_of

        asked, times = self.settings, times_of(promised)
        for name in sorted(times.keys() & asked.model_fields_set):
            told, counts = format_duration(getattr(asked, name)), format_duration(times[name])
            if told != counts:
                self.output.warn(
                    f"{ENV_PREFIX}{name.upper()} is {told}, but the store promises {counts}, which "
                    "applies to all of its processes; to change it: ebbtide promises "
                    f"--{name.replace('_', '-')} {told}"
                )

    def repository(self, name: str) -> Repository:
        """Returns a repository by its name. Raises InvalidInput for one outside the store."""
        if is_elsewhere(name):
            raise InvalidInput(
                "invalid_argument",
                f"{name} is not a repository of a store, and this command is only for those: use "
                "'explain' or 'gc', 'retention' and 'hold' for lakeFS and Delta, and 'expire' for "
                "Icechunk and Iceberg, where tags keep what a hold would",
            )
        return self.store.repository(name)

    @property
    def settings(self) -> Settings:
        """The settings of the environment, for use without a store."""
        self._check_variables()
        from ebbtide.settings import Settings

        return Settings()

    def with_policy(self, name: str) -> WithPolicy:
        """Returns a repository whose policy can be read and set. Raises InvalidInput for any other
        one."""
        outside = self._with_policy_outside(name)
        if outside is not None:
            return outside
        from ebbtide.formats.embedded import EmbeddedRepository

        return EmbeddedRepository(self.repository(name).context, store_id=self.store.store_id)

    def _with_policy_outside(self, name: str) -> HoldableRepository | None:
        from ebbtide.formats.capabilities import WithPolicy

        scheme = scheme_of(name)
        if scheme is None or not scheme.has_policy:
            return None
        found, _ = scheme.open(name, self.settings)
        assert isinstance(found, WithPolicy)
        return found

    def with_holds(self, name: str) -> WithHolds:
        """Returns the holds of a repository. Raises InvalidInput for one without a policy."""
        outside = self._with_policy_outside(name)
        if outside is None:
            return self.repository(name).retention
        from ebbtide.formats.holds import NotedHolds

        return NotedHolds(outside)

    def may(self, question: str, *, yes: bool) -> bool:
        """Asks a question, and returns whether the user said yes. If not, prints that nothing was
        changed."""
        if confirm(question, yes=yes):
            return True
        self.declined("nothing was changed")
        return False

    def declined(self, text: str) -> None:
        """Answers that the user said no."""
        self.output.answer({"done": False}, lambda: self.output.say(text))

    def suggest(self, error: NotFound) -> None:
        """Adds the nearest names that the store has to an error about a missing name."""
        if self._store is not None:
            add_suggestion(self._store, error, self.context.params)

    def _check_variables(self) -> None:
        """Warns of variables of the environment that look like settings and are none. Raises
        InvalidInput `invalid_setting` if such a name is almost the name of a setting."""
        if self._checked_variables:
            return
        self._checked_variables = True
        from ebbtide.settings import list_settings, unknown_variables

        known = [setting.variable for setting in list_settings()]
        for variable in unknown_variables(os.environ):
            hint = did_you_mean(variable, known, cutoff=SETTING_CUTOFF)
            problem = f"{variable} is set, but there is no such setting"
            if hint:
                raise InvalidInput("invalid_setting", f"{problem}: {hint}")
            print(f"warning: {escaped_lines(problem)}", file=sys.stderr)

    def close(self) -> None:
        """Closes the store, if it was opened."""
        if self._store is not None:
            self._store.close()


def _first_sentence(help_text: str | None) -> str:
    """Returns what the list of commands says of a command: its first sentence, whole."""
    paragraph = " ".join((help_text or "").strip().partition("\n\n")[0].split())
    sentence, dot, _ = paragraph.partition(". ")
    return sentence + "." if dot else paragraph


class _Command(TyperCommand):
    """A command with examples in its help. It refuses an option given twice, because Typer would
    silently use the last one."""

    def get_short_help_str(self, limit: int = 45) -> str:
        """Returns the first sentence, which the list of commands wraps and does not cut."""
        del limit
        return _first_sentence(self.help)

    # The types of contexts and formatters are from a library inside Typer.
    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Writes the examples after the options, one a line and never wrapped."""
        examples = examples_of(ctx.command_path)
        if examples:
            with formatter.section("Example" if len(examples) == 1 else "Examples"):
                indent = " " * formatter.current_indent
                formatter.write("".join(f"{indent}{each}\n" for each in examples))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Raises a usage error that names the option."""
        if not ctx.resilient_parsing:
            _, _, order = self.make_parser(ctx).parse_args(args=list(args))
            for name, count in Counter(map(_single_option, order)).items():
                if name is not None and count > 1:
                    ctx.fail(f"{name} is given {count} times: give it once")
        # `--help` is answered here.
        with answering():
            return super().parse_args(ctx, args)


class CommandGroup(TyperGroup):
    """A group of commands."""

    def get_short_help_str(self, limit: int = 45) -> str:
        """Returns the first sentence, as commands do."""
        del limit
        return _first_sentence(self.help)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Raises Failed `answer_lost` if `--help` cannot be written."""
        with answering():
            return super().parse_args(ctx, args)


def _single_option(parameter: Any) -> str | None:
    """Returns the name of an option with one value; None for arguments, flags and lists."""
    if parameter.param_type_name != "option" or parameter.multiple or parameter.is_flag:
        return None
    return str(parameter.opts[0])


def group(help_text: str) -> typer.Typer:
    """Returns a group of commands."""
    return typer.Typer(cls=CommandGroup, help=help_text, rich_markup_mode=None)


def command(app: typer.Typer, name: str) -> Callable[[Command], Command]:
    """Registers a function as the command `name` of `app`. Its docstring is the help text. Its
    `**options` are options of a run, as `parameters_of` says."""

    def register(function: Command) -> Command:
        @wraps(function)
        def invoke(
            context: typer.Context,
            *arguments: Any,  # the command's own, as Typer parsed them
            store: Path | None,
            json: bool,
            verbose: bool,
            **options: Any,
        ) -> None:
            given = context.obj
            cli = Cli(
                context,
                directory=store or given.store,
                as_json=json,
                verbose=verbose or given.verbose,
            )
            told = ""
            try:
                try:
                    with logs.unbound():
                        function(cli, *arguments, **options)
                except NotFound as error:
                    cli.suggest(error)
                    raise
                except Gone as error:
                    if cli.is_open:
                        cli.store.tell(error)
                    raise
                except KeyboardInterrupt:
                    told = cli.told()  # may read the store, which is still open
                    raise
                finally:
                    cli.close()
                    logs.take_down()
            except KeyboardInterrupt as interrupt:
                cli.progress.pause()
                cli.output.interrupted(told or cli.told())
                raise typer.Exit(getattr(interrupt, "exit_code", INTERRUPTED)) from None

        _, *own = parameters_of(function)
        leading = _Parameter("context", _Parameter.POSITIONAL_ONLY, annotation=typer.Context)
        named = [parameter.replace(kind=_Parameter.KEYWORD_ONLY) for parameter in own]
        signature = inspect.Signature([leading, *named, *_ADDED])
        # Typer reads the signature of `invoke`. Through `wraps` it would get the function's.
        del invoke.__wrapped__
        invoke.__signature__ = signature  # type: ignore[attr-defined]
        invoke.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
        app.command(name, cls=_Command)(invoke)
        return function

    return register
