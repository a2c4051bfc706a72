"""The policy of a repository: what it says, what it means now, and the editor."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Final

from starlette.responses import Response

from ebbtide.errors import InvalidInput
from ebbtide.formats.embedded import EmbeddedRepository
from ebbtide.retention.decision import decide
from ebbtide.retention.policy import Policy
from ebbtide.server.pages.charts import shares
from ebbtide.server.pages.routing import Pages
from ebbtide.server.pages.visit import Visit
from ebbtide.store.keys import Role

pages = Pages()

BRANCHES_CHARTED: Final = 100
_PATH: Final = "/repositories/{repository:segment}/policy"


@pages.add("GET", _PATH, Role.READER)
def show_policy(visit: Visit) -> Response:
    """The policy as text, and what it keeps and lets go of each branch now."""
    return _page(visit)


@pages.add("POST", _PATH, Role.ADMIN)
def set_policy(visit: Visit) -> Response:
    """Set what the editor holds, or try it; what is wrong with it is shown beside it."""
    repository = visit.repository()
    text = visit.form("policy")
    try:
        policy = parse_policy(text)
        if visit.form("action") == "try":
            return _page(visit, text=text, tried=policy)
        unmatched = repository.retention.set(policy)
    except InvalidInput as error:
        return _page(visit, text=text, error=error, status=400)
    if unmatched:
        return _page(visit, saved=True, unmatched=unmatched)
    return visit.to("repositories", repository.info.name, "policy", notice="policy_set")


@pages.add("POST", _PATH + "/unset", Role.ADMIN)
def unset_policy(visit: Visit) -> Response:
    """Drop the policy."""
    repository = visit.repository()
    repository.retention.unset()
    return visit.to("repositories", repository.info.name, "policy", notice="policy_unset")


def parse_policy(text: str) -> Policy:
    """The policy of a JSON text, as `ebbtide retention set --file` takes it.

    Raises InvalidInput `invalid_policy`, `invalid_duration`.
    """
    try:
        written = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput("invalid_policy", f"this is not JSON: {error}") from None
    return Policy.parse(written)


def _page(
    visit: Visit,
    *,
    text: str | None = None,
    tried: Policy | None = None,
    error: InvalidInput | None = None,
    saved: bool = False,
    unmatched: tuple[str, ...] = (),
    status: int = 200,
) -> Response:
    repository = visit.repository()
    form = EmbeddedRepository(repository.context, store_id=visit.store.store_id)
    with form.reading() as reading:
        roots = reading.roots()
    policy = repository.retention.get()
    present = decide(roots)
    decision = present
    if tried is not None:
        decision = decide(replace(roots, policy=tried.with_holds(roots.holds)))
    by_ref = sorted(decision.by_ref, key=lambda each: (-each.expired_count, each.name))
    if text is None:
        text = "" if policy is None else json.dumps(policy.to_mapping(), indent=2)
    return visit.page(
        "policy.html",
        status=status,
        policy=policy,
        text=text,
        error=error,
        saved=saved,
        unmatched=unmatched,
        shares=shares(
            (each.name, each.rule, each.kept_count, each.expired_count)
            for each in by_ref[:BRANCHES_CHARTED]
        ),
        more_branches=max(0, len(by_ref) - BRANCHES_CHARTED),
        kept_count=len(decision.active),
        lost_count=len(decision.expired),
        is_tried=tried is not None,
        fewer_count=len(present.active.keys() - decision.active.keys()),
        more_count=len(decision.active.keys() - present.active.keys()),
    )
