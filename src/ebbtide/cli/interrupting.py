"""What is said to whoever interrupted a command: what state things are in, and how to go on."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from typing import Any, Final

import typer

from ebbtide.cli.progress import Step, StepProgress
from ebbtide.cli.text import count_text

SWEPT: Final = (
    "Interrupted behind the end of the sweep, which is done. What earlier runs had aside for long "
    "enough is deleted by the next"
)
"""Of a sweep whose report is written."""


def planning_told(progress: StepProgress) -> str:
    """Of a plan that was not finished."""
    step = progress.current
    doing = "" if step is None else f" while {step.text}"
    return f"Interrupted{doing}: the plan was not finished, and nothing was deleted"


def sweep_told(progress: StepProgress) -> str:
    """Of a sweep: how much of what it had to do is done."""
    deleting = progress.reached("delete ")
    stays = "Nothing is lost: what was planned stays planned"
    if deleting is None:
        return f"Interrupted before any file was deleted. {stays}"
    done = "moved aside" if progress.moves_aside else "deleted"
    return f"Interrupted in the sweep: {share_text(deleting)} {done}. {stays}"


def undo_told(progress: StepProgress) -> str:
    """Of an undo."""
    moving = progress.reached("bring back")
    share = "0 files" if moving is None else share_text(moving)
    return f"Interrupted in the undo: {share} are back, and stay so. The rest stays aside"


def purge_told(progress: StepProgress) -> str:
    """Of deleting for good what a run had aside."""
    deleting = progress.reached("purge")
    share = "0 files" if deleting is None else share_text(deleting)
    return f"Interrupted: {share} that were aside are deleted for good. The rest stays aside"


def share_text(step: Step) -> str:
    """`120,000 of 1,000,000 files`."""
    found = step.reading
    if found is None:
        return "0 files"
    if found.total is None or found.total < found.done:
        return count_text(found.done, found.unit.removesuffix("s"))
    return f"{count_text(found.done)} of {count_text(found.total)} {found.unit}"


def command_line(
    context: typer.Context, words: Sequence[str] = (), arguments: Iterable[str] = ()
) -> str:
    """A command as it is typed, with those options that were given to the present one and that it
    has: the present one itself, or the one of these `words` on these `arguments`."""
    root = context.find_root()
    command: Any = root.command  # of the library that Typer carries within it
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
        if known.intersection(parameter.opts):
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
