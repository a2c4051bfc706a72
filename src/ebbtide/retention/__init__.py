"""Retention: which commits a policy keeps, how history is cut, and when a ref is gone.

Pure: data in, data out. No clock, storage, database or Spark here.
"""

from ebbtide.retention.expiry import Rewrite, plan_rewrite, plan_rewrite_keep
from ebbtide.retention.lifecycle import LifecycleState, state_at
from ebbtide.retention.policy import Policy, Rule
from ebbtide.retention.selection import RefSummary, Selection, select_commits

__all__ = [
    "LifecycleState",
    "Policy",
    "RefSummary",
    "Rewrite",
    "Rule",
    "Selection",
    "plan_rewrite",
    "plan_rewrite_keep",
    "select_commits",
    "state_at",
]
