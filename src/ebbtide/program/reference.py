"""Makes the reference of all commands in Markdown (`docs/cli.md`) from the program itself.

python -m ebbtide.program.reference > docs/cli.md
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import typer

from ebbtide.cli.command import INTERRUPTED, TERMINATED
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
    ExitCode.REFUSED: "a gate refused, and nothing was deleted: [errors.md](errors.md)",
    ExitCode.INCOMPLETE: "part of a sweep is done: sweep the same run again",
}
_INTRODUCTION: Final = """\
# The command line

After this page you can look up each command, argument and option, and what an exit code means.
Made by `python -m ebbtide.program.reference`; a test compares it with the program.

Every command takes `--store DIR` and `--verbose`, which may also stand before it, and `--json`.
[terminal.md](terminal.md) describes progress, Ctrl-C, JSON and completion. Without `--store`,
`EBBTIDE_STORE` names the store; [settings.md](settings.md) has all settings. `--help` of a command
has examples. A REF is a branch, a tag, a commit id or at least its first six digits. `~N` after it
goes N first parents back, and `^N` to the N-th parent. `main@` is the branch `main` without its
staged changes.

With `--json`, stdout gets one JSON document and nothing else. Messages, questions and progress go
to stderr. An error is `{"error": {"kind": …, "message": …}}` ([all kinds](errors.md)). Times are
ISO 8601 in UTC, sizes are bytes. Commands that destroy something ask first. Without a terminal to
ask at, they end with exit code 2, unless `--yes` is given.

| exit code | meaning |
|---|---|
"""
_SHARED: Final = """\
## Arguments and options of several commands

Commands name these without their meaning. A number tells two meanings of one name apart.
"""


class Parameter(NamedTuple):
    """An argument or option as the reference writes it, and its meaning."""

    text: str
    meaning: str
    is_argument: bool


Labels = Mapping[Parameter, str]
"""What a command's section calls each parameter that several commands have."""


def render() -> str:
    """Returns the whole reference."""
    codes = [f"| {int(code)} | {text} |" for code, text in EXIT_TEXT.items()]
    codes.append(f"| {INTERRUPTED}, {TERMINATED} | interrupted by Ctrl-C, by SIGTERM |")
    labels = _labels()
    listed = sorted(labels, key=lambda each: (not each.is_argument, labels[each].strip("`-")))
    shared = [_SHARED, *(f"- {labels[each]}: {each.meaning}" for each in listed)]
    sections = [_section(path, command, labels) for path, command in commands()]
    return "\n\n".join(
        [_INTRODUCTION + "\n".join(codes), _PERIODS, "\n".join(shared), "\n".join(sections)]
    )


def _labels() -> Labels:
    """Returns the parameters that several commands have. The second meaning of a name gets a 2."""
    counts = Counter(each for path, command in commands() for each in _parameters(path, command))
    found: dict[Parameter, str] = {}
    meanings: Counter[str] = Counter()
    for each, count in counts.most_common():
        if count > 1:
            meanings[each.text] += 1
            number = meanings[each.text]
            found[each] = each.text if number == 1 else f"{each.text} ({number})"
    return found


Node = Any  # a command or group: a type of Typer's copy of Click


def commands() -> Iterator[tuple[str, Node]]:
    """Yields every command with the words that are typed for it, the program itself first."""
    return _below("ebbtide", typer.main.get_command(app))


def _below(path: str, node: Node) -> Iterator[tuple[str, Node]]:
    yield path, node
    for name, child in getattr(node, "commands", {}).items():
        yield from _below(f"{path} {name}", child)


def _section(path: str, command: Node, labels: Labels) -> str:
    parameters = _parameters(path, command)
    arguments = (p for p in command.params if p.param_type_name == "argument")
    heading = " ".join([path.removeprefix("ebbtide "), *map(_argument_text, arguments)])
    lines = [f"## `{heading}`" if path.count(" ") < 2 else f"### `{heading}`", ""]
    lines += [_text(command.help), ""]
    if own := [f"- {each.text}: {each.meaning}" for each in parameters if each not in labels]:
        lines += [*own, ""]
    # The heading has the arguments, whose first meaning needs no word.
    shared = [
        labels[each].replace(each.text, _name(each.text))
        for each in parameters
        if each in labels and not (each.is_argument and labels[each] == each.text)
    ]
    if shared:
        lines += [f"{'Also' if own else 'Takes'} {', '.join(shared)}.", ""]
    return "\n".join(lines)


def _parameters(path: str, command: Node) -> list[Parameter]:
    return [
        Parameter(f"`{each.metavar}`", _meaning(each), True)
        if each.param_type_name == "argument"
        else Parameter(option_text(each), _meaning(each), False)
        for each in command.params
        if each.param_type_name == "argument" or _is_told(path, each)
    ]


def _name(text: str) -> str:
    """Returns the first spelling of an option, without its value."""
    return re.sub(r"^`(--[\w-]+).*", r"`\1`", text)


def _is_told(path: str, option: Node) -> bool:
    """Whether a command's section has the option. The introduction describes the options that
    every command has."""
    return path == "ebbtide" or option.name not in ("store", "json", "verbose")


def _argument_text(argument: Node) -> str:
    named = f"{argument.metavar}{'…' if argument.nargs == -1 else ''}"
    return named if argument.required else f"[{named}]"


def option_text(option: Node) -> str:
    """Returns an option as the reference writes it: every spelling, with its value."""
    value = ""
    if not option.is_flag:
        choices = option.type_descriptor.choices
        value = " " + (option.metavar or "|".join(choices or ("N",)))
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
