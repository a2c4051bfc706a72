"""The command `what-if`: the effect of other policies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Unpack

import typer

from ebbtide.cli.collectors import open_collector
from ebbtide.cli.command import Cli, CollectedArgument, command
from ebbtide.cli.gc import (
    GraceOption,
    MasterOption,
    RunDirOption,
)
from ebbtide.cli.policies import read_policy_file
from ebbtide.errors import InvalidInput
from ebbtide.formats.schemes import has_policy, is_elsewhere
from ebbtide.run_request import InventoryOptions
from ebbtide.strict_json import read_document
from ebbtide.text import count_text, date_text, shown, size_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ebbtide.gc.whatif import Alternative, WhatIf

NAME_SHOWN: Final = 60
"""The most characters that are shown of a policy from the command line."""


def register(app: typer.Typer) -> None:
    """Adds the command to the program."""
    command(app, "what-if")(what_if)


def what_if(
    cli: Cli,
    repository: CollectedArgument,
    policy: Annotated[
        list[str],
        typer.Option(
            metavar="POLICY",
            help="Another policy: a JSON file, or the JSON itself; - for stdin; repeatable.",
            show_default=False,
        ),
    ],
    grace: GraceOption = None,
    run_dir: RunDirOption = None,
    *,
    master: MasterOption = None,
    **options: Unpack[InventoryOptions],
) -> None:
    """Compare the files that other policies and the present one would delete. Changes nothing.

    The figures are those that 'gc plan' would show after 'retention set'. The command takes no
    lock, and leaves no files behind.
    """
    from ebbtide.retention import Policy

    if not has_policy(repository):
        raise InvalidInput(
            "invalid_argument",
            f"{repository} has no policy: 'ebbtide expire REPO … --dry-run' shows the files that "
            "an expiry would free",
        )
    policies = [Policy.parse_given(_mapping(text)) for text in policy]
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
    cli.when_interrupted(lambda: "Interrupted before its end: nothing was changed")
    with run.progress:
        found = run.collector.what_if(policies)
    settings = cli.settings if is_elsewhere(repository) else cli.store.settings
    price = settings.price_gb_month
    document = found.to_json(policy, price)
    cli.output.answer(document, lambda: _show(cli, found, policy, price))


def _mapping(text: str) -> object:
    """Returns the JSON of a policy, from the text itself or from a file."""
    if not text.lstrip().startswith("{"):
        return read_policy_file(text)
    return read_document(text, kind="invalid_policy", what=shown(text))


def _show(cli: Cli, found: WhatIf, names: Sequence[str], price: float | None) -> None:
    shown = [name if len(name) <= NAME_SHOWN else f"{name[:NAME_SHOWN]}…" for name in names]
    pairs = [("present", found.present), *zip(shown, found.others, strict=True)]
    headers = ["policy", "would be deleted", "size", "more"]
    headers += ["commits without data", "restore points lost"]
    headers += ["saves a month"] * (price is not None)
    cli.output.table(
        headers, [_row(name, each, found.present, price) for name, each in pairs], right=headers[1:]
    )
    for name, each in pairs:
        cli.output.line()
        cli.output.line(name)
        _show_refs(cli, each)
        for warning in each.warnings:
            cli.output.warn(f"{name}: {warning}")
    cli.output.line()
    cli.output.line("nothing was changed")


def _row(name: str, found: Alternative, present: Alternative, price: float | None) -> list[str]:
    from ebbtide.gc.whatif import money

    size = found.reclaimable.bytes_total
    more = size - present.reclaimable.bytes_total
    cost = money(size, price)
    return [
        name,
        count_text(found.reclaimable.objects),
        size_text(size),
        ("-" if more < 0 else "") + size_text(abs(more)),
        count_text(found.expired_count),
        count_text(len(found.lost)),
        *([] if cost is None else [f"{cost:,.2f}"]),
    ]


def _show_refs(cli: Cli, found: Alternative) -> None:
    cli.output.table(
        ["branch", "rule", "commits", "kept", "fewer", "oldest kept"],
        [
            [
                each.name,
                each.rule,
                count_text(each.commit_count),
                count_text(each.kept_count),
                count_text(each.fewer_count),
                date_text(each.oldest_at),
            ]
            for each in found.by_ref
        ],
        right=["commits", "kept", "fewer"],
        none="no branches",
    )
    rules = found.by_rule
    if len(rules) < len(found.by_ref):
        cli.output.table(
            ["rule", "branches", "commits", "kept", "fewer"],
            [
                [
                    each.rule,
                    count_text(each.ref_count),
                    count_text(each.commit_count),
                    count_text(each.kept_count),
                    count_text(each.fewer_count),
                ]
                for each in rules
            ],
            right=["branches", "commits", "kept", "fewer"],
        )
