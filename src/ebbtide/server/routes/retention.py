"""Retention policies: as days for each branch, which lakeFS clients know, and in full."""

from __future__ import annotations

from fastapi import Response

from ebbtide.errors import NotFound
from ebbtide.server.routing import Routes
from ebbtide.server.serving import ServedDep
from ebbtide.server.wire.base import Segment
from ebbtide.server.wire.collecting import DaysAnswer, PolicyAnswer, PolicyDocument
from ebbtide.store.access.keys import Role

routes = Routes("retention")

_SETTINGS = "/repositories/{repository:segment}/settings"


@routes.add("GET", _SETTINGS + "/gc_rules", Role.READER)
def get_gc_rules(repository: Segment, served: ServedDep) -> DaysAnswer:
    """Returns the policy as days; fails if days cannot express it (`policy_not_in_days`)."""
    return DaysAnswer.of(served.repository(repository).retention.get_days())


@routes.add("PUT", _SETTINGS + "/gc_rules", Role.ADMIN, status=204)
def set_gc_rules(repository: Segment, asked: DaysAnswer, served: ServedDep) -> Response:
    """Sets a policy of days. A policy that days cannot express is not replaced
    (`policy_not_in_days`)."""
    served.repository(repository).retention.set_days(asked.rules())
    return Response(status_code=204)


@routes.add("DELETE", _SETTINGS + "/gc_rules", Role.ADMIN, status=204)
def delete_gc_rules(repository: Segment, served: ServedDep) -> Response:
    """Removes a policy of days. Without a policy no commit expires."""
    served.repository(repository).retention.unset_days()
    return Response(status_code=204)


@routes.add("GET", _SETTINGS + "/retention", Role.READER)
def get_retention(repository: Segment, served: ServedDep) -> PolicyAnswer:
    """Returns the policy in full."""
    policy = served.repository(repository).retention.get()
    if policy is None:
        raise NotFound("policy_not_found", "the repository has no retention policy")
    return PolicyAnswer(policy=policy.to_mapping())


@routes.add("PUT", _SETTINGS + "/retention", Role.ADMIN)
def set_retention(repository: Segment, asked: PolicyDocument, served: ServedDep) -> PolicyAnswer:
    """Sets the policy."""
    retention = served.repository(repository).retention
    unmatched = retention.set(asked.policy)
    policy = retention.get()
    return PolicyAnswer(
        policy={} if policy is None else policy.to_mapping(), unmatched=list(unmatched)
    )


@routes.add("DELETE", _SETTINGS + "/retention", Role.ADMIN, status=204)
def delete_retention(repository: Segment, served: ServedDep) -> Response:
    """Removes the policy. Without a policy no commit expires."""
    served.repository(repository).retention.unset()
    return Response(status_code=204)
