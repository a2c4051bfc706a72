"""Texts for an interrupted command: the present state, and how to continue."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from typing import Any, Final

import typer

from ebbtide.cli.progress import Step, StepProgress
from ebbtide.text import count_text

SWEPT: Final = (
    "Interrupted after the end of the sweep, which is done. The next sweep deletes the files of "
    "earlier runs whose quarantine has ended"
)
"""The text for a sweep whose report is written."""


def planning_told(progress: StepProgress) -> str:
    """Returns the text for a plan that was not finished."""
    step = progress.current
    doing = "" if step is None else f" while {step.text}"
    return f"Interrupted{doing}: the plan was not finished, and nothing was deleted"


def sweep_told(progress: StepProgress) -> str:
    """Returns the text for a sweep: how much of its work is done."""
    deleting = progress.reached("delete ")
    stays = "Nothing is lost: the plan stays"
    if deleting is None:
        return f"Interrupted before any file was deleted. {stays}"
    done = "quarantined" if progress.quarantines else "deleted"
    return f"Interrupted in the sweep: {share_text(deleting)} {done}. {stays}"


def undo_told(progress: StepProgress) -> str:
    """Returns the text for an undo."""
    moving = progress.reached("bring back")
    share = "0 files" if moving is None else share_text(moving)
    return (
        f"Interrupted in the undo: {share} are restored and stay. The rest is still in quarantine"
    )


def purge_told(progress: StepProgress) -> str:
    """Returns the text for a `gc purge`, which deletes files in quarantine."""
    deleting = progress.reached("purge")
    share = "0 files" if deleting is None else share_text(deleting)
    return f"Interrupted: {share} in quarantine deleted for good. The rest stays in quarantine"


def share_text(step: Step) -> str:
    """Returns the progress of a step, such as `120,000 of 1,000,000 files`."""
    found = step.reading
    if found is None:
        return "0 files"
    if found.total is None or found.total < found.done:
        return count_text(found.done, found.unit.removesuffix("s"))
    return f"{count_text(found.done)} of {count_text(found.total)} {found.unit}"


def command_line(
    context: typer.Context, words: Sequence[str] = (), arguments: Iterable[str] = ()
) -> str:
    """Returns a command as it is typed: the present one, or `words` followed by `arguments`.

    The result has the options that were given to the present command, if that command has them.
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
