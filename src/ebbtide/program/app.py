"""The program: its groups of commands, its exit codes, and how errors are shown."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from gc import freeze
from io import TextIOWrapper
from typing import Annotated, Any

import typer

from ebbtide import interrupts
from ebbtide.cli import (
    collected_files,
    commits,
    expire,
    explain,
    files,
    gc,
    policies,
    projects,
    purges,
    reclaim,
    refs,
    repositories,
    runs,
    schedules,
    stores,
    usage,
    whatif,
)
from ebbtide.cli.command import INTERRUPTED, CommandGroup, Given, StoreOption, VerboseOption
from ebbtide.cli.output import answering, drop_output, print_error
from ebbtide.cli.values import VARIABLE
from ebbtide.errors import EbbtideError, ExitCode, Failed, InvalidInput, quarantine_fields
from ebbtide.program import serve

TRACEBACK = "--traceback"
"""An option of the program that may also stand after a command."""

PATH_SHOWN = 300
"""The most characters of a path in a message."""

MESSAGE_SHOWN = 1000
"""The most characters of a message that repeats parts of the command line."""

app = typer.Typer(
    name="ebbtide",
    cls=CommandGroup,
    help="Retention and garbage collection for versioned data on object storage.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    # All commands inherit it.
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _program(
    context: typer.Context,
    store: StoreOption = None,
    verbose: VerboseOption = False,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    show_traceback: Annotated[
        bool, typer.Option(TRACEBACK, help="Show where in the program an error arose.")
    ] = False,
) -> None:
    context.obj = Given(store, verbose)
    # `_run` takes the option away before the command line is parsed, wherever it stands.
    del show_traceback
    if version:
        from importlib.metadata import version as version_of

        with answering():
            print(f"ebbtide {version_of('ebbtide')}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        with answering():
            print(context.get_help())
        raise typer.Exit


stores.register(app)
app.add_typer(repositories.app, name="repo")
app.add_typer(refs.branch_app, name="branch")
app.add_typer(refs.tag_app, name="tag")
app.add_typer(files.app, name="fs")
app.add_typer(projects.app, name="project")
app.add_typer(collected_files.app, name="collection")
commits.register(app)
app.add_typer(policies.app, name="retention")
app.add_typer(policies.hold_app, name="hold")
runs.register(gc.app)
app.add_typer(gc.app, name="gc")
app.add_typer(schedules.app, name="schedule")
explain.register(app)
expire.register(app)
whatif.register(app)
usage.register(app)
app.add_typer(purges.app, name="purge")
reclaim.register(app)
serve.register(app)
app.add_typer(stores.key_app, name="key")


def main() -> None:
    """Runs the program with the arguments of this process, and ends the process."""
    _open_streams()
    if isinstance(sys.stdout, TextIOWrapper):
        # File names can contain bytes that are not valid text.
        sys.stdout.reconfigure(errors="backslashreplace")
    interrupts.install()
    code = run(sys.argv[1:])
    # Otherwise Python searches all remaining objects several times before it ends, which takes a
    # quarter of a second.
    freeze()
    sys.exit(code)


def _open_streams() -> None:
    """Opens closed standard streams on the null device.

    Otherwise the next file that is opened would get the number of a closed stream, and messages
    would be written into this file.
    """
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(opened)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115, PTH123 - open till the end


def run(arguments: Sequence[str]) -> int:
    """Runs the program, and returns the exit code. Every error is shown, none is raised."""
    if VARIABLE in os.environ:
        return _complete(arguments)
    streams = sys.stdout, sys.stderr
    code = _run(arguments)
    # After a broken pipe, Typer replaces the streams by wrappers that hide the failure.
    sys.stdout, sys.stderr = streams
    try:
        sys.stdout.flush()
    except OSError:
        # The first failure was reported already. At its end, Python would report it again.
        drop_output()
    return code


def _run(arguments: Sequence[str]) -> int:
    options, dashes, values = _parted(arguments)
    as_json, show_traceback = "--json" in options, TRACEBACK in options
    rest = [*(each for each in options if each != TRACEBACK), *dashes, *values]
    try:
        code: Any = app(rest, standalone_mode=False, prog_name="ebbtide")
        # The rest of the buffer is written here, where a failure is still handled.
        with answering():
            sys.stdout.flush()
        return code if isinstance(code, int) else ExitCode.DONE
    except SystemExit as ended:
        # Typer's options for completion end like this.
        return ended.code if isinstance(ended.code, int) else ExitCode.DONE
    except EbbtideError as error:
        return _failed(error, as_json=as_json, show_traceback=show_traceback)
    except typer.TyperException as error:
        hint = _usage_hint(error)
        text = error.format_message()[:MESSAGE_SHOWN]
        print_error("invalid_argument", text, as_json=as_json, hint=hint)
        return ExitCode.USAGE
    except BrokenPipeError:
        # The reader of the output has closed the pipe.
        return ExitCode.FAILED
    except KeyboardInterrupt as interrupt:
        # The interrupt came before or after the command. During the command, the command itself
        # says what the interrupt left undone.
        print_error("interrupted", "interrupted", as_json=as_json, lead="")
        return getattr(interrupt, "exit_code", INTERRUPTED)
    except UnicodeEncodeError:
        text = "an argument, or the name of a file, is not valid UTF-8"
        print_error("invalid_argument", text, as_json=as_json)
        return ExitCode.USAGE
    except OSError as error:
        return _failed(_file_error(error), as_json=as_json, show_traceback=show_traceback)
    except Exception as error:  # noqa: BLE001 - the last resort of the whole program
        return _unexpected(error, as_json=as_json, show_traceback=show_traceback)


def _parted(arguments: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """Returns the arguments before `--`, the `--` itself, and the arguments after it, which are
    values even if they look like options."""
    place = list(arguments).index("--") if "--" in arguments else len(arguments)
    return list(arguments[:place]), list(arguments[place : place + 1]), list(arguments[place + 1 :])


def _complete(arguments: Sequence[str]) -> int:
    """Answers a shell that completes a command line. Prints no errors, because a user is typing on
    the same terminal."""
    try:
        app(list(arguments), standalone_mode=False, prog_name="ebbtide")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else ExitCode.DONE
    except Exception:  # noqa: BLE001 - a completion must not fail visibly
        return ExitCode.FAILED
    return ExitCode.DONE


def _failed(error: EbbtideError, *, as_json: bool, show_traceback: bool) -> int:
    if show_traceback:
        traceback.print_exc()
    print_error(error.kind, error.message, as_json=as_json, more=quarantine_fields(error))
    return error.exit_code


def _unexpected(error: Exception, *, as_json: bool, show_traceback: bool) -> int:
    if show_traceback:
        traceback.print_exc()
    hint = "" if show_traceback else "give --traceback to see where it arose"
    message = f"a defect in this program: {type(error).__name__}: {str(error)[:500]}"
    print_error("internal", message, as_json=as_json, hint=hint)
    return ExitCode.FAILED


def _usage_hint(error: typer.TyperException) -> str:
    context: typer.Context | None = getattr(error, "ctx", None)
    if context is None:
        return ""
    return f"{context.get_usage()}\n'{context.command_path} --help' says more"


def _file_error(error: OSError) -> EbbtideError:
    """Returns the error for a file that the user named. Storages raise errors of their own."""
    where = "" if error.filename is None else f"{os.fsdecode(error.filename)[:PATH_SHOWN]}: "
    text = f"{where}{error.strerror or error}"
    if isinstance(error, FileNotFoundError | IsADirectoryError | NotADirectoryError):
        return InvalidInput("invalid_argument", text)
    return Failed("storage_error", text)
