"""Makes the reference of all commands in Markdown (`docs/cli.md`) from the program itself.

python -m ebbtide.program.reference > docs/cli.md
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import typer

from ebbtide.cli.command import INTERRUPTED, TERMINATED
from ebbtide.cli.examples import examples_of
from ebbtide.errors import ExitCode
from ebbtide.program.app import app

_PERIODS: Final = """\
## Periods and dates

| value | form |
|---|---|
| PERIOD | a number with a unit, `s`, `min`, `h`, `d` or `w`: `20d`, `12h`, `30min`, `1d12h` |
| DATE | a day, which is its midnight in UTC: `2026-03-01`; or an instant with its zone: \
`2026-03-01T12:30:00Z`, `2026-03-01T14:30:00+02:00` |
| WHEN | a DATE, or a PERIOD from now; for `--older-than`, a PERIOD before now |

Months and years have no fixed length: write `30d` or `365d`. A number with a bare `m` could be
minutes or months. Rules, expiry, the trash and the quarantine refuse it: write `60min` or `30d`.
Other periods take `m` as minutes. Settings in the environment have the same forms.
"""
EXIT_TEXT: Final = {
    ExitCode.DONE: "done",
    ExitCode.FAILED: "failed; the message says why",
    ExitCode.USAGE: "the command line or its input is wrong; nothing was changed",
    ExitCode.REFUSED: "a gate refused; nothing was deleted (see [safety.md](safety.md))",
    ExitCode.INCOMPLETE: "part of a sweep is done: sweep the same run again",
}
_INTRODUCTION: Final = """\
# The command line

Made by `python -m ebbtide.program.reference`; a test compares it with the program.

Every command has three more options than its table shows: `--store DIR` and `--verbose`, which may
also stand before the command, and `--json`. [terminal.md](terminal.md) describes progress, Ctrl-C
and completion. Without `--store`, `EBBTIDE_STORE` names the store; [settings.md](settings.md) has
all settings. A REF is a branch, a tag, a commit id or at least its first six digits. `~N` after it
goes N first parents back, and `^N` to the N-th parent. `main@` is the branch `main` without its
staged changes.

With `--json`, stdout gets one JSON document and nothing else. Messages, questions and progress go
to stderr. An error is `{"error": {"kind": …, "message": …}}`. Kinds never change their meaning, and
[errors.md](errors.md) has them all. Times are ISO 8601 in UTC, sizes are bytes.

Commands that destroy something ask first. Without a terminal to ask at, they end with exit code 2,
unless `--yes` is given.

| exit code | meaning |
|---|---|
"""


def render() -> str:
    """Returns the whole reference."""
    codes = [f"| {int(code)} | {text} |" for code, text in EXIT_TEXT.items()]
    codes.append(f"| {INTERRUPTED}, {TERMINATED} | interrupted by Ctrl-C, by SIGTERM |")
    sections = [_section(path, command) for path, command in commands()]
    return "\n\n".join([_INTRODUCTION + "\n".join(codes), _PERIODS, "\n".join(sections)])


Node = Any  # a command or group: a type of Typer's copy of Click


def commands() -> Iterator[tuple[str, Node]]:
    """Yields every command with the words that are typed for it, the program itself first."""
    return _below("ebbtide", typer.main.get_command(app))


def _below(path: str, node: Node) -> Iterator[tuple[str, Node]]:
    yield path, node
    for name, child in getattr(node, "commands", {}).items():
        yield from _below(f"{path} {name}", child)


def _section(path: str, command: Node) -> str:
    lines = [f"## {path}" if path.count(" ") < 2 else f"### {path}", "", _text(command.help), ""]
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and _is_told(path, p)]
    if not hasattr(command, "commands"):
        names = [_argument_text(argument) for argument in arguments]
        lines += ["```", " ".join([path, *names, "[OPTIONS]"]), "```", ""]
    rows = [f"| `{argument.metavar}` | {_meaning(argument)} |" for argument in arguments]
    rows += [f"| {option_text(option)} | {_meaning(option)} |" for option in options]
    if rows:
        lines += ["| | |", "|---|---|", *rows, ""]
    examples = examples_of(path)
    if examples:
        lines += ["For example:", "", "```sh", *examples, "```", ""]
    return "\n".join(lines)


def _is_told(path: str, option: Node) -> bool:
    """Whether a command's table has the option. The introduction describes the options that every
    command has."""
    return path == "ebbtide" or option.name not in ("store", "json", "verbose")


def _argument_text(argument: Node) -> str:
    return argument.metavar if argument.required else f"[{argument.metavar}]"


def option_text(option: Node) -> str:
    """Returns an option as the reference writes it: every spelling, with its value."""
    value = ""
    if not option.is_flag:
        choices = option.type_descriptor.choices
        value = " " + (option.metavar or "\\|".join(choices or ("N",)))
    return ", ".join(f"`{name}{value}`" for name in option.opts)


def _meaning(parameter: Node) -> str:
    text = _text(parameter.help)
    default = parameter.default
    if isinstance(default, int | str) and not isinstance(default, bool) and default != "":
        text += f" Default: `{default}`."
    if parameter.param_type_name == "option" and parameter.required:
        text += " Required."
    return text


def _text(text: str | None) -> str:
    """Returns a help text as paragraphs, with the characters of Markdown's markup escaped."""
    paragraphs = [" ".join(part.split()) for part in (text or "").split("\n\n")]
    return re.sub(r"([*|<>])", r"\\\1", "\n\n".join(paragraphs))


if __name__ == "__main__":
    print(render(), end="")
