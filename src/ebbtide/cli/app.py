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
    addresses,
    collected_files,
    commits,
    expire,
    explain,
    gc,
    history,
    holds,
    keys,
    policies,
    projects,
    purges,
    reclaim,
    refs,
    repositories,
    runs,
    serve,
    stores,
    undo,
    verifying,
    whatif,
)
from ebbtide.cli.command import INTERRUPTED, Given, StoreOption, VerboseOption
from ebbtide.cli.completing import VARIABLE
from ebbtide.cli.output import answering, drop_output, print_error
from ebbtide.errors import EbbtideError, ExitCode, Failed, InvalidInput

PATH_SHOWN = 300
"""Characters of a path in a message."""

MESSAGE_SHOWN = 1000
"""Characters of a message that repeats what was typed."""

app = typer.Typer(
    name="ebbtide",
    help="Retention and garbage collection for versioned data on object storage.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def _program(
    context: typer.Context,
    store: StoreOption = None,
    verbose: VerboseOption = False,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    show_traceback: Annotated[
        bool, typer.Option("--traceback", help="Show where in the program an error arose.")
    ] = False,
) -> None:
    context.obj = Given(store, verbose)
    # `--traceback` is looked up by `run`, which meets errors of the command line itself too.
    del show_traceback
    if version:
        from importlib.metadata import version as version_of

        print(f"ebbtide {version_of('ebbtide')}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit


stores.register(app)
app.add_typer(repositories.app, name="repo")
app.add_typer(refs.branch_app, name="branch")
app.add_typer(refs.tag_app, name="tag")
app.add_typer(addresses.app, name="fs")
app.add_typer(projects.app, name="project")
app.add_typer(collected_files.app, name="collection")
commits.register(app)
history.register(app)
app.add_typer(policies.app, name="retention")
app.add_typer(holds.app, name="hold")
runs.register(gc.app)
undo.register(gc.app)
verifying.register(gc.app)
app.add_typer(gc.app, name="gc")
explain.register(app)
expire.register(app)
whatif.register(app)
app.add_typer(purges.app, name="purge")
reclaim.register(app)
serve.register(app)
app.add_typer(keys.app, name="key")


def main() -> None:
    """Run the program on the arguments of this process, and end it."""
    _open_streams()
    if isinstance(sys.stdout, TextIOWrapper):
        # File names of this machine may hold bytes that are no text.
        sys.stdout.reconfigure(errors="backslashreplace")
    interrupts.install()
    code = run(sys.argv[1:])
    # Python looks through all that is left several times before it ends: a quarter of a second.
    freeze()
    sys.exit(code)


def _open_streams() -> None:
    """Whoever starts a program with a stream closed wants nothing of it. Left closed, its number
    would be that of the next file to be opened, into which others then write their messages."""
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(opened)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115, PTH123 - open till the end


def run(arguments: Sequence[str]) -> int:
    """Run the program; the exit code. Every error is shown, none is raised."""
    if VARIABLE in os.environ:
        return _complete(arguments)
    streams = sys.stdout, sys.stderr
    code = _run(arguments)
    # Typer has put others in their place, where nobody reads them.
    sys.stdout, sys.stderr = streams
    try:
        sys.stdout.flush()
    except OSError:
        # That it failed was said when it first did. At its end Python would say it again.
        drop_output()
    return code


def _run(arguments: Sequence[str]) -> int:
    as_json = "--json" in arguments
    show_traceback = "--traceback" in arguments
    try:
        code: Any = app(list(arguments), standalone_mode=False, prog_name="ebbtide")
        # Whatever is still in the buffer may find that nobody reads it: now, not after this.
        with answering():
            sys.stdout.flush()
        return code if isinstance(code, int) else ExitCode.DONE
    except SystemExit as ended:
        # So the options for completion end, which are Typer's.
        return ended.code if isinstance(ended.code, int) else ExitCode.DONE
    except EbbtideError as error:
        return _failed(error, as_json=as_json, show_traceback=show_traceback)
    except typer.TyperException as error:
        hint = _usage_hint(error)
        text = error.format_message()[:MESSAGE_SHOWN]
        print_error("invalid_argument", text, as_json=as_json, hint=hint)
        return ExitCode.USAGE
    except BrokenPipeError:
        # Whoever read our output has seen enough.
        return ExitCode.FAILED
    except KeyboardInterrupt as interrupt:
        # Before the command, or behind it: it says itself what an interrupt left undone.
        print_error("interrupted", "interrupted", as_json=as_json, lead="")
        return getattr(interrupt, "exit_code", INTERRUPTED)
    except UnicodeEncodeError:
        text = "an argument, or the name of a file, is no valid UTF-8"
        print_error("invalid_argument", text, as_json=as_json)
        return ExitCode.USAGE
    except OSError as error:
        return _failed(_file_error(error), as_json=as_json, show_traceback=show_traceback)
    except Exception as error:  # noqa: BLE001 - the last resort of the whole program
        return _unexpected(error, as_json=as_json, show_traceback=show_traceback)


def _complete(arguments: Sequence[str]) -> int:
    """Answer a shell that completes a command line. Somebody is typing there: whatever goes wrong,
    nothing is said."""
    try:
        app(list(arguments), standalone_mode=False, prog_name="ebbtide")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else ExitCode.DONE
    except Exception:  # noqa: BLE001 - as above
        return ExitCode.FAILED
    return ExitCode.DONE


def _failed(error: EbbtideError, *, as_json: bool, show_traceback: bool) -> int:
    if show_traceback:
        traceback.print_exc()
    print_error(error.kind, error.message, as_json=as_json)
    return error.exit_code


def _unexpected(error: Exception, *, as_json: bool, show_traceback: bool) -> int:
    if show_traceback:
        traceback.print_exc()
    hint = "" if show_traceback else "put --traceback behind 'ebbtide' to see where it arose"
    message = f"a defect in this program: {type(error).__name__}: {str(error)[:500]}"
    print_error("internal", message, as_json=as_json, hint=hint)
    return ExitCode.FAILED


def _usage_hint(error: typer.TyperException) -> str:
    context: typer.Context | None = getattr(error, "ctx", None)
    if context is None:
        return ""
    return f"{context.get_usage()}\n'{context.command_path} --help' says more"


def _file_error(error: OSError) -> EbbtideError:
    """What is wrong with a file that the caller named; other storages have errors of their own."""
    where = "" if error.filename is None else f"{os.fsdecode(error.filename)[:PATH_SHOWN]}: "
    text = f"{where}{error.strerror or error}"
    if isinstance(error, FileNotFoundError | IsADirectoryError | NotADirectoryError):
        return InvalidInput("invalid_argument", text)
    return Failed("storage_error", text)
