"""Retention: as days for each branch, which lakeFS clients know, and as it is."""

from __future__ import annotations

from fastapi import Response

from ebbtide.errors import NotFound
from ebbtide.server.routing import Routes
from ebbtide.server.serving import ServedDep
from ebbtide.server.wire.base import Segment
from ebbtide.server.wire.collecting import DaysAnswer, PolicyAnswer, PolicyDocument
from ebbtide.store.keys import Role

routes = Routes("retention")

_SETTINGS = "/repositories/{repository:segment}/settings"


@routes.add("GET", _SETTINGS + "/gc_rules", Role.READER)
def get_gc_rules(repository: Segment, served: ServedDep) -> DaysAnswer:
    """The policy, if days can express it."""
    return DaysAnswer.of(served.repository(repository).retention.get_days())


@routes.add("PUT", _SETTINGS + "/gc_rules", Role.ADMIN, status=204)
def set_gc_rules(repository: Segment, asked: DaysAnswer, served: ServedDep) -> Response:
    """Set a policy of days, in place of none or of another one of days."""
    served.repository(repository).retention.set_days(asked.rules())
    return Response(status_code=204)


@routes.add("DELETE", _SETTINGS + "/gc_rules", Role.ADMIN, status=204)
def delete_gc_rules(repository: Segment, served: ServedDep) -> Response:
    """Drop a policy of days: nothing expires any more."""
    served.repository(repository).retention.unset_days()
    return Response(status_code=204)


@routes.add("GET", _SETTINGS + "/retention", Role.READER)
def get_retention(repository: Segment, served: ServedDep) -> PolicyAnswer:
    """The policy, whatever it says."""
    policy = served.repository(repository).retention.get()
    if policy is None:
        raise NotFound("policy_not_found", "the repository has no retention policy")
    return PolicyAnswer(policy=policy.to_mapping())


@routes.add("PUT", _SETTINGS + "/retention", Role.ADMIN)
def set_retention(repository: Segment, asked: PolicyDocument, served: ServedDep) -> PolicyAnswer:
    """Set the policy."""
    retention = served.repository(repository).retention
    unmatched = retention.set(asked.policy)
    policy = retention.get()
    return PolicyAnswer(
        policy={} if policy is None else policy.to_mapping(), unmatched=list(unmatched)
    )


@routes.add("DELETE", _SETTINGS + "/retention", Role.ADMIN, status=204)
def delete_retention(repository: Segment, served: ServedDep) -> Response:
    """Drop the policy: nothing expires any more."""
    served.repository(repository).retention.unset()
    return Response(status_code=204)
