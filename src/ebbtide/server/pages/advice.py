"""What a visitor can do next after a run or a sweep was refused or failed, with a link to it.

Not for: the message of the error, which says what happened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ebbtide.server.pages.rendering import link

SWEEP_FORM: Final = "#sweep"
START_FORM: Final = "start"
"""The ids of the forms that sweep a plan, and that start a run."""
ACCEPTING_FORM: Final = "accepting"
"""The form that starts a run, with the choice to accept lost commits."""


@dataclass(frozen=True, slots=True)
class Advice:
    """One sentence, and the link that leads to the next step."""

    text: str
    url: str
    label: str


_NEW_PLAN: Final = ("This plan cannot be swept any more.", START_FORM, "Make a new plan")
_WAIT: Final = ("Wait until the other run ends, and try again.", "", "Look at the runs")
_RESTORE: Final = (
    "Restore the named file from a backup. Then make a new plan.",
    START_FORM,
    "Make a new plan",
)
_BY_KIND: Final[Mapping[str, tuple[str, str, str]]] = {
    "over_share": (
        "Look at the candidates. If all of them may go, allow the share below, and sweep.",
        SWEEP_FORM,
        "Sweep all the same",
    ),
    "run_in_progress": _WAIT,
    "lease_lost": _WAIT,
    "plan_used": _NEW_PLAN,
    "plan_missing": _NEW_PLAN,
    "plan_corrupt": _NEW_PLAN,
    "plan_foreign": _NEW_PLAN,
    "missing_object": _RESTORE,
    "missing_tree": _RESTORE,
    "missing_node": _RESTORE,
    "corrupt_tree": _RESTORE,
    "corrupt_node": _RESTORE,
    "lost_commits": (
        "Restore the newer database, and try again. If the named commits are lost for good, accept "
        "this in a new plan: their data can then be deleted.",
        ACCEPTING_FORM,
        "Make a plan that accepts the loss",
    ),
    "zero_refs": (
        "Create a branch, or restore one from the trash. Then make a new plan.",
        "refs",
        "Branches and tags",
    ),
}
_SWEEP_AGAIN: Final = (
    "Correct the cause that the message names. The plan can be swept again.",
    SWEEP_FORM,
    "Sweep again",
)
_PLAN_AGAIN: Final = (
    "Correct the cause that the message names. Then make a new plan.",
    START_FORM,
    "Make a new plan",
)


def advice_of(kind: str, repository: str, *, can_sweep: bool) -> Advice:
    """Returns the advice for an error of a run, by the error's kind. `can_sweep` says whether the
    page of the run has the form that sweeps its plan."""
    text, place, label = _BY_KIND.get(kind, _SWEEP_AGAIN if can_sweep else _PLAN_AGAIN)
    if place == SWEEP_FORM and not can_sweep:
        text, place, label = _PLAN_AGAIN
    if place == SWEEP_FORM:
        return Advice(text, SWEEP_FORM, label)
    if place in (START_FORM, ACCEPTING_FORM):
        url = link("repositories", repository, "runs", form=place)
        return Advice(text, f"{url}#{START_FORM}", label)
    return Advice(text, link("repositories", repository, place or "runs"), label)
