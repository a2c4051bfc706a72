"""The notices that a page shows after an action. A URL can only name one of these, not any other
text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

NOTICES: Final[Mapping[str, str]] = {
    "repository_made": "The repository is created. Upload a file, or let a client write to it.",
    "uploaded": "The file is uploaded. Commit it to make it part of the history.",
    "file_deleted": "The file is deleted from the branch. Commits that have it keep it.",
    "committed": "The changes are committed. The commit is now in the history.",
    "merged": "The branch is merged.",
    "project_made": "The project is created.",
    "collection_made": "The collection is created.",
    "item_deleted": "It is in the trash, and can be restored from there.",
    "ref_made": "The branch or tag is created.",
    "ref_deleted": "The branch or tag is in the trash, and can be restored from there.",
    "policy_set": "The policy is set. No data is deleted before the next run.",
    "policy_unset": "The policy was dropped. Set another before the next run.",
    "hold_added": "The commit is held. The holds are below.",
    "hold_removed": "The hold is removed. The policy decides about the commit again.",
    "rule_added": "The rule is set. Change protected branches by merging other branches.",
    "rule_removed": "The rule is removed. Branches that no other rule protects take changes again.",
    "restored": "It was restored from the trash. It is in its list again.",
    "logged_out": "You are logged out. Log in to continue.",
    "run_started": "The run has started. Its page follows it to the end.",
    "undo_started": "The files in the run's quarantine are being restored. This page follows it.",
    "aside_purged": "The files in the run's quarantine are being deleted. This page follows it.",
    "schedule_set": "The schedule is set. A server starts the runs when they are due.",
    "schedule_enabled": "The schedule is enabled.",
    "schedule_disabled": "The schedule is disabled. Due times until then are not missed.",
    "schedule_deleted": "The schedule is deleted. A run that is going on continues.",
    "purge_started": "The purge has started. It continues when you leave this page.",
    "purge_planned": "The purge is being planned. Nothing is deleted until you carry it out.",
}
