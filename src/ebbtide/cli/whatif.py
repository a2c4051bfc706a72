"""The command `what-if`: the effect of other policies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Unpack

import typer

from ebbtide.api.looks import curve_json
from ebbtide.cli.collectors import open_collector
from ebbtide.cli.command import Cli, CollectedArgument, command
from ebbtide.cli.expire import compare_expiries
from ebbtide.cli.figures import prices_of
from ebbtide.cli.gc import GraceOption, MasterOption, RunDirOption
from ebbtide.cli.policies import POLICY_FORMS, read_policy
from ebbtide.errors import InvalidInput
from ebbtide.formats.schemes import has_policy
from ebbtide.gc import FOUND
from ebbtide.retention.policy import EVERY_BRANCH
from ebbtide.run_request import InventoryOptions
from ebbtide.text import count_text, date_text, known_size_text, size_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ebbtide.gc.whatif import Alternative, WhatIf
    from ebbtide.prices import Prices

UNCHANGED: Final = "files younger than the grace stay with every policy; nothing was changed"
NAME_SHOWN: Final = 60
"""The most characters that are shown of a policy from the command line."""

PoliciesArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="POLICY", help=f"Other policies: {POLICY_FORMS}"),
]
PolicyOption = Annotated[
    list[str] | None, typer.Option(metavar="POLICY", help="The same as an option. Repeatable.")
]
CurveOption = Annotated[
    bool,
    typer.Option("--curve", help="Show periods from a day to two years, and counts."),
]
RuleOption = Annotated[
    str | None,
    typer.Option(
        metavar="PATTERN",
        help="The rule that changes along the curve, by its pattern of branches; * is the default "
        "rule. Default: *, or if each branch has another rule, that of most branches.",
    ),
]


def register(app: typer.Typer) -> None:
    """Adds the command to the program."""
    command(app, "what-if")(what_if)


def what_if(
    cli: Cli,
    repository: CollectedArgument,
    policies: PoliciesArgument = None,
    policy: PolicyOption = None,
    curve: CurveOption = False,
    rule: RuleOption = None,
    grace: GraceOption = None,
    run_dir: RunDirOption = None,
    *,
    master: MasterOption = None,
    **options: Unpack[InventoryOptions],
) -> None:
    """Compare the files that other policies and the present one would delete. Changes nothing.

    The figures are those that 'gc plan' would show after 'retention set'. With --curve, they are
    those of many periods and counts in one rule, from one look. The command takes no lock, and
    leaves no files behind. For Icechunk and Iceberg, it compares expiries by the policies.
    """
    names = [*(policies or ()), *(policy or ())]
    _check_asked(names, curve=curve, rule=rule)
    others = [read_policy(text) for text in names]
    if not has_policy(repository):
        if curve:
            raise InvalidInput(
                "invalid_argument", f"{repository} has no policy of its own: give a POLICY"
            )
        compare_expiries(cli, repository, dict(zip(names, others, strict=True)), master=master)
        return
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
    prices = prices_of(cli)
    with run.progress:
        if curve:
            drawn = curve_json(run.collector.curve(rule), prices)
        else:
            found = run.collector.what_if(others)
    if curve:
        cli.output.answer(drawn, lambda: _show_curve(cli, drawn, prices))
        return
    cli.output.answer(found.to_json(names, prices), lambda: _show(cli, found, names, prices))


def _check_asked(policies: Sequence[str], *, curve: bool, rule: str | None) -> None:
    if curve == bool(policies):
        raise InvalidInput("invalid_argument", "give a POLICY, several, or --curve")
    if rule is not None and not curve:
        raise InvalidInput("invalid_argument", "--rule needs --curve: give both, or neither")


def _show_curve(cli: Cli, found: Mapping[str, Any], prices: Prices | None) -> None:
    for axis, title in (("period", "keep within"), ("count", "keep last")):
        headers = [title, FOUND["candidate"], "size", "kept", "commits kept"]
        headers += ["restore points lost"] + ["saves a month"] * (prices is not None)
        points = [each for each in found["points"] if each["axis"] == axis]
        rows = [_curve_row(each, prices) for each in (found["present"], *points)]
        cli.output.table(headers, rows, right=headers[1:])
        cli.output.line()
    changed = "the default rule" if found["rule"] == EVERY_BRANCH else f"the rule {found['rule']}"
    cli.output.line(f"what changes is {changed}; * is the present policy")
    for warning in found["warnings"]:
        cli.output.warn(warning)
    cli.output.line(UNCHANGED)


def _curve_row(point: Mapping[str, Any], prices: Prices | None) -> list[str]:
    return [
        point["label"] + (" *" if point["is_present"] else ""),
        count_text(point["candidate_count"]),
        size_text(point["candidate_bytes"]),
        known_size_text(point["kept_bytes"]),
        count_text(point["active_count"]),
        count_text(point["lost_count"]),
        *([] if prices is None else [prices.text(point["saves_month"])]),
    ]


def _show(cli: Cli, found: WhatIf, names: Sequence[str], prices: Prices | None) -> None:
    from ebbtide.retention import Policy

    shown = [name if len(name) <= NAME_SHOWN else f"{name[:NAME_SHOWN]}…" for name in names]
    pairs = [("present", found.present), *zip(shown, found.others, strict=True)]
    headers = ["policy", FOUND["candidate"], "size", "more", "expire next", "restore points lost"]
    headers += ["saves a month"] * (prices is not None)
    cli.output.table(
        headers,
        [_row(name, each, found.present, prices) for name, each in pairs],
        right=headers[1:],
    )
    of_all = [it for it in found.present.warnings if all(it in e.warnings for e in found.others)]
    for name, each in pairs:
        cli.output.line()
        rules = None if each.policy is None else Policy.parse(each.policy).describe()
        cli.output.line(f"{name}: {rules or 'no policy, everything is kept'}")
        _show_refs(cli, each)
        for warning in (it for it in each.warnings if it not in of_all):
            cli.output.warn(f"{name}: {warning}")
    for warning in of_all:
        cli.output.warn(warning)
    cli.output.line()
    cli.output.line(UNCHANGED)


def _row(name: str, found: Alternative, present: Alternative, prices: Prices | None) -> list[str]:
    size = found.reclaimable.bytes_total
    more = size - present.reclaimable.bytes_total
    return [
        name,
        count_text(found.reclaimable.objects),
        size_text(size),
        ("-" if more < 0 else "") + size_text(abs(more)),
        count_text(found.expired_count),
        count_text(len(found.lost)),
        *([] if prices is None else [prices.text(prices.month(found.classes))]),
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
    if len(rules) < sum(each.ref_count for each in rules):
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
