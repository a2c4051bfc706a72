"""The command `usage`: which refs, holds and protections hold the bytes of a repository."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Unpack

import typer

from ebbtide.api.looks import TOP, name_of, periods_of, usage_json
from ebbtide.cli.collectors import open_collector
from ebbtide.cli.command import Cli, CollectedArgument, command
from ebbtide.cli.figures import prices_of
from ebbtide.cli.gc import GraceOption, MasterOption, RunDirOption
from ebbtide.gc import FOUND
from ebbtide.run_request import InventoryOptions
from ebbtide.text import count_text, known_size_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ebbtide.prices import Prices


def register(app: typer.Typer) -> None:
    """Adds the command to the program."""
    command(app, "usage")(usage)


def usage(
    cli: Cli,
    repository: CollectedArgument,
    top: Annotated[
        int,
        typer.Option(min=1, help="The holders, and the sets of holders, to show."),
    ] = TOP,
    grace: GraceOption = None,
    run_dir: RunDirOption = None,
    *,
    master: MasterOption = None,
    **options: Unpack[InventoryOptions],
) -> None:
    """Show which branches, tags, holds and staged data hold the bytes. Changes nothing.

    'alone' are the files that nothing else holds: they could be deleted if the holder went. The
    command takes no lock, and leaves no files behind.
    """
    run = open_collector(
        cli,
        repository,
        grace=grace,
        unsafe=True,  # nothing is deleted
        run_dir=run_dir,
        mode="clean",
        master=master,
        **options,
    )
    prices = prices_of(cli)
    cli.when_interrupted(lambda: "Interrupted before its end: nothing was changed")
    with run.progress:
        found = run.collector.usage()
    document = usage_json(found, prices, top=top)
    cli.output.answer(document, lambda: _show(cli, document, prices))


def _show(cli: Cli, found: Mapping[str, Any], prices: Prices | None) -> None:
    headers = ["held by", "alone", "files", "in all", "files in all"]
    headers += ["alone, a month"] * (prices is not None)
    rows = [_holder_row(each, prices) for each in found["holders"]]
    others = found["other_holders"]
    if others["holder_count"]:
        named = count_text(others["holder_count"], "other holder")
        rows.append([named, *_figures(others["alone"]), "", ""])
    cli.output.table(headers, rows, right=headers[1:], none="nothing is held")
    cli.output.line()
    cli.output.table(["all files", "size", "files"], _parts(found), right=["size", "files"])
    cli.output.line()
    cli.output.table(
        ["newest commit that needs the file", "size", "files"],
        [[label, *_figures(each)] for label, each in periods_of(found["periods"])],
        right=["size", "files"],
    )
    for warning in found["warnings"]:
        cli.output.warn(warning)
    cli.output.line()
    if prices is not None:
        cli.output.line(f"all files cost {prices.text(found['money_month'])} a month")
    cli.output.line("nothing was changed")


def _holder_row(each: Mapping[str, Any], prices: Prices | None) -> list[str]:
    row = [name_of(each), *_figures(each["alone"]), *_figures(each["in_all"])]
    return row if prices is None else [*row, prices.text(each["alone_money_month"])]


def _figures(count: Mapping[str, Any]) -> list[str]:
    return [known_size_text(count["bytes_total"]), count_text(count["objects"])]


def _parts(found: Mapping[str, Any]) -> list[list[str]]:
    """Returns the rows whose sum is the listed files, and their sum."""
    from ebbtide.gc.parts import Count

    alone = [each["alone"] for each in (*found["holders"], found["other_holders"])]
    total = sum((Count.from_json(each) for each in alone), Count())
    rows = [["held by one alone", *_figures(total.to_json())]]
    for each in found["together"]:
        names = ", ".join(name_of(holder) for holder in each["holders"])
        more = each["holder_count"] - len(each["holders"])
        rows.append(
            [f"together: {names}" + (f" and {more:,} more" if more else ""), *_figures(each)]
        )
    others = found["other_sets"]
    if others["set_count"]:
        rows.append(
            [f"together: {count_text(others['set_count'], 'other set')}", *_figures(others)]
        )
    unheld = found["unheld"]
    rows += [
        [label, *_figures(unheld[key])]
        for label, key in (
            (FOUND["candidate"], "would_be_deleted"),
            (FOUND["young"], "younger_than_grace"),
            ("Ebbtide's own and other system files", "own_files"),
            ("foreign files", "foreign_files"),
        )
        if unheld[key]["objects"] or key == "would_be_deleted"
    ]
    rows.append(["sum", *_figures(found["listed"])])
    if found["quarantine"]["objects"]:
        rows.append(["besides, in quarantine", *_figures(found["quarantine"])])
    return rows
