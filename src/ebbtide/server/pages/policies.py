"""The policy of a repository: its text, its effect now, and the editor. Compares policies with the
present one: the commits that each keeps, by branch and by rule.

Not for: how many bytes a policy frees (a look of `server.jobs` computes that), and the curve
(`looks`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from starlette.responses import Response

from ebbtide.errors import InvalidInput, NotFound, Refused
from ebbtide.formats.capabilities import WithPolicy
from ebbtide.formats.schemes import is_elsewhere
from ebbtide.gc.whatif import Alternative, RefOutlook, alternative_of
from ebbtide.retention.decision import Roots, decide
from ebbtide.retention.policy import Policy
from ebbtide.server.api.runs import steps_of
from ebbtide.server.job_files import Job
from ebbtide.server.pages.charts import shares
from ebbtide.server.pages.html import clause
from ebbtide.server.pages.looks import curve_axes, proposed_policy, shown_prices, start_look
from ebbtide.server.pages.policy_form import PolicyFields
from ebbtide.server.pages.routes import Pages
from ebbtide.server.pages.visit import Visit
from ebbtide.store.access.access_keys import Role

pages = Pages()

NAMES: Final = ("A", "B", "C")
PRESENT: Final = "Present"
REFS_COMPARED: Final = 50
BRANCHES_CHARTED: Final = 100
FIELDS: Final[Mapping[str, str]] = dict(zip(NAMES, ("policy", "policy_b", "policy_c"), strict=True))
"""The form field of each editor, by name. The first editor holds the policy that can be set."""
_PATH: Final = "/repositories/{repository:segment}/policy"


@pages.add("GET", _PATH, Role.READER)
def show_policy(visit: Visit) -> Response:
    """Shows the policy as text, and the commits of each branch that it keeps and expires now. The
    query can name a curve, and a period or a count that the form shows."""
    found = visit.collected.with_policy
    in_force = _in_force(found)
    try:
        proposed = proposed_policy(visit, in_force)
    except InvalidInput as error:
        return _page(visit, error=error, status=400)
    if proposed is None or not visit.allows(Role.ADMIN):
        return _page(visit)
    comparison = compare(found, in_force, {NAMES[0]: proposed})
    return _page(visit, edited=proposed, comparison=comparison)


@pages.add("POST", _PATH, Role.ADMIN)
def set_policy(visit: Visit) -> Response:
    """Sets or tries the policy of the editor that is open: the form or the JSON. Errors are shown
    beside the editors."""
    here, action = visit.collected, visit.form("action")
    try:
        if action == "more":
            return _page(visit)
        if action == "try":
            return _try(visit)
        policy = _edited(visit)
        unmatched = here.with_policy.set_policy(policy)
    except WrongPolicy as error:
        return _page(visit, error=error, wrong_field=error.field, status=400)
    except InvalidInput as error:
        wrong_field = "" if _is_of_form(visit) else FIELDS["A"]
        return _page(visit, error=error, wrong_field=wrong_field, status=400)
    if unmatched:
        return _page(visit, edited=policy, saved=True, unmatched=unmatched)
    return visit.to("repositories", here.name, "policy", notice="policy_set")


@pages.add("POST", _PATH + "/unset", Role.ADMIN)
def unset_policy(visit: Visit) -> Response:
    """Removes the policy."""
    here = visit.collected
    here.with_policy.set_policy(None)
    return visit.to("repositories", here.name, "policy", notice="policy_unset")


@pages.add("POST", _PATH + "/preview", Role.ADMIN)
def preview(visit: Visit) -> Response:
    """Returns as HTML which commits the policies in the editors would keep, and the first policy as
    the other editor shows it. The page's script requests it while the user types."""
    found = visit.collected.with_policy
    answer: dict[str, str] = {}
    try:
        given = _given(visit)
        comparison, error = compare(found, _in_force(found), given), None
        if _is_of_form(visit):
            answer["policy"] = _text(given[NAMES[0]])
        else:
            fields = PolicyFields.of(given[NAMES[0]])
            answer["rules"] = visit.render("policy_rules.html", rules=fields)
    except InvalidInput as problem:
        comparison, error = None, problem
    answer["html"] = visit.render("policy_comparison.html", comparison=comparison, error=error)
    return visit.json(answer)


@pages.add("GET", _PATH + "/looks/{look_id:segment}", Role.ADMIN)
def show_look(visit: Visit) -> Response:
    """Shows the progress of a look, within the page that started it or as a page of its own."""
    look = visit.served.jobs.find_look(visit.collected.key, visit.segment("look_id"))
    if look is None:
        raise NotFound(
            "run_not_found",
            "this server does not know this trial any more: try the policy again",
        )
    values = _look_values(look, visit.collected.name)
    if visit.request.headers.get("accept") == "application/json":
        return visit.json({"ended": look.ended, "html": visit.render("look.html", **values)})
    return visit.page("look_page.html", **values)


class WrongPolicy(InvalidInput):
    """The error for a text that is no policy. `field` is the form field that has the text."""

    def __init__(self, name: str, error: InvalidInput) -> None:
        super().__init__(error.kind, f"Policy {name}: {clause(error)}")
        self.field = FIELDS[name]


def parse_policy(text: str) -> Policy:
    """Returns the policy of a text, which commands take too.

    Raises InvalidInput `invalid_policy`, `invalid_duration`.
    """
    return Policy.parse_text(text, what="this")


def _is_of_form(visit: Visit) -> bool:
    """Whether the form counts, and not the JSON: the editor that is open."""
    return visit.form("edited") == "form"


def _edited(visit: Visit) -> Policy:
    """Returns the first policy, from the form or from the JSON. Raises as `parse_policy`."""
    if _is_of_form(visit):
        return PolicyFields.read(visit.form).policy()
    return parse_policy(visit.form("policy"))


def _text(policy: Policy | None) -> str:
    return "" if policy is None else json.dumps(policy.to_mapping(), indent=2)


def _given(visit: Visit) -> dict[str, Policy]:
    """Returns the policies of the editors, by name. The first one is required. Raises WrongPolicy,
    whose message names the editor."""
    found: dict[str, Policy] = {}
    if _is_of_form(visit):
        found[NAMES[0]] = _edited(visit)
    for name, field in FIELDS.items():
        if name in found:
            continue
        text = visit.form(field)
        if not text.strip() and found:
            continue
        try:
            found[name] = parse_policy(text)
        except InvalidInput as error:
            raise WrongPolicy(name, error) from None
    return found


def _in_force(found: WithPolicy) -> Policy | None:
    """Returns the policy in force; None if nothing says what may go, so that everything is kept."""
    try:
        return found.policy()
    except Refused:
        return None


def _try(visit: Visit) -> Response:
    """Compares at once which commits the policies keep. Starts a look to compute the bytes, because
    this needs a listing of the storage."""
    policies = _given(visit)
    here = visit.collected
    comparison = compare(here.with_policy, _in_force(here.with_policy), policies)
    look = start_look(visit, "policies", list(policies.values()))
    return _page(visit, edited=policies[NAMES[0]], comparison=comparison, look=look)


def _look_values(look: Job, repository: str) -> dict[str, Any]:
    """Returns the values that the templates of a look show."""
    if look.looks_at == "curve":
        axes, prices = curve_axes(look, repository), shown_prices(look)
        return {"look": look, "steps": steps_of(look), "axes": axes, "prices": prices}
    return {
        "look": look,
        "steps": steps_of(look),
        "rows": looked_rows(look.found),
    }


def _editors(
    visit: Visit, edited: Policy | None, in_force: Policy | None
) -> tuple[dict[str, str], PolicyFields | None]:
    """Returns the texts of the JSON editors and the fields of the form. Both show the `edited`
    policy; without one, what was sent, and on the page's first view the policy in force."""
    texts = {field: visit.form(field) for field in FIELDS.values()}
    if visit.request.method == "GET":
        shown = edited or in_force
        return texts | {"policy": _text(shown)}, PolicyFields.of(shown)
    if edited is None:
        return texts, PolicyFields.read(visit.form)
    if _is_of_form(visit):
        texts["policy"] = _text(edited)
    return texts, PolicyFields.of(edited)


def _page(
    visit: Visit,
    *,
    edited: Policy | None = None,
    comparison: Comparison | None = None,
    look: Job | None = None,
    error: InvalidInput | None = None,
    wrong_field: str | None = None,
    saved: bool = False,
    unmatched: tuple[str, ...] = (),
    status: int = 200,
) -> Response:
    here = visit.collected
    found = here.with_policy
    policy = found.written_policy()
    in_force = policy or _in_force(found)
    present = compare(found, in_force, {}).present
    by_ref = sorted(present.by_ref, key=lambda each: (-each.expired_count, each.name))
    texts, rules = _editors(visit, edited, in_force)
    return visit.page(
        "policy.html",
        status=status,
        policy=policy,
        in_force=in_force,
        is_elsewhere=is_elsewhere(here.name),
        fields=FIELDS,
        texts=texts,
        rules=rules,
        is_form_open=rules is not None and (visit.request.method == "GET" or _is_of_form(visit)),
        error=error,
        wrong_field=wrong_field,
        saved=saved,
        unmatched=unmatched,
        shares=shares(
            (each.name, each.rule, each.kept_count, each.expired_count)
            for each in by_ref[:BRANCHES_CHARTED]
        ),
        more_branches=max(0, len(by_ref) - BRANCHES_CHARTED),
        present=present,
        comparison=comparison,
        curve=_curve_values(visit),
        **({"look": None} if look is None else _look_values(look, here.name)),
    )


def _curve_values(visit: Visit) -> dict[str, Any] | None:
    """Returns the values of the curve that the query names; None without one that this server
    knows."""
    look_id, here = visit.query("curve"), visit.collected
    look = visit.served.jobs.find_look(here.key, look_id) if visit.allows(Role.ADMIN) else None
    return _look_values(look, here.name) if look and look.looks_at == "curve" else None


@dataclass(frozen=True, slots=True)
class Comparison:
    """The present policy, and other policies by name.

    `rules` has the rules of the others as they were understood. `refs` has a row for each branch,
    with the outcome of each policy, the present one first. Branches that lose the most commits
    under any policy come first.
    """

    present: Alternative
    others: Mapping[str, Alternative]
    rules: Mapping[str, Sequence[tuple[str, str]]]
    refs: Sequence[Sequence[RefOutlook]]
    more_refs: int

    @property
    def by_name(self) -> dict[str, Alternative]:
        """All policies by name, the present one first."""
        return {PRESENT: self.present, **self.others}


def history_of(roots: Roots) -> Roots:
    """Returns the roots without the contents of collections, which no policy changes. Contents have
    no parents, so that no other commit is kept or expired because of them."""
    contents = {commit.commit_id for commit in roots.commits if commit.is_content}
    holds = {held: why for held, why in roots.holds.items() if held not in contents}
    policy = roots.policy
    if policy is not None:
        kept = {held: why for held, why in policy.holds.items() if held not in contents}
        policy = replace(policy, holds=kept)
    return replace(
        roots,
        commits=tuple(commit for commit in roots.commits if not commit.is_content),
        refs=tuple(ref for ref in roots.refs if ref.commit_id not in contents),
        policy=policy,
        holds=holds,
    )


def compare(
    repository: WithPolicy, present: Policy | None, policies: Mapping[str, Policy]
) -> Comparison:
    """Compares policies with the `present` one, in one reading of refs and commits. Files are not
    listed.

    Only the commits of the history are counted, as on the other pages. The contents of collections
    are left out: no policy changes them.
    """
    roots = history_of(repository.roots(present))
    decision = decide(roots)
    now = alternative_of(roots, decision, decision)
    others: dict[str, Alternative] = {}
    for name, policy in policies.items():
        other = replace(roots, policy=policy.with_holds(roots.holds))
        others[name] = alternative_of(other, decide(other), decision)
    rows = _by_ref([now, *others.values()]) if others else []
    rules = {name: policy.rules() for name, policy in policies.items()}
    return Comparison(now, others, rules, rows[:REFS_COMPARED], max(0, len(rows) - REFS_COMPARED))


def _by_ref(alternatives: Sequence[Alternative]) -> list[list[RefOutlook]]:
    """Returns a row for each branch, for all dangling commits, and for all tagged commits; only
    rows that every policy has."""
    rows: dict[tuple[str, str], list[RefOutlook]] = {}
    for each in alternatives:
        for ref in each.by_ref:
            rows.setdefault((ref.kind, ref.name), []).append(ref)
    whole = [row for row in rows.values() if len(row) == len(alternatives)]
    return sorted(whole, key=lambda row: (-max(ref.fewer_count for ref in row), row[0].name))


def looked_rows(found: Sequence[Mapping[str, Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    """Returns the results of a look so far, with the names of the policies."""
    return list(zip((PRESENT, *NAMES), found, strict=False))
