"""What a page says once something was done. An address can name these, and make up none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

NOTICES: Final[Mapping[str, str]] = {
    "repository_made": "The repository is there. Upload a file, or let a client write to it.",
    "uploaded": "The file is uploaded. A commit makes it part of the history.",
    "file_deleted": "The file is deleted here. Commits that have it keep it.",
    "committed": "It is committed.",
    "ref_made": "It is there.",
    "ref_deleted": "It is in the trash, and can be brought back from there.",
    "policy_set": "The policy is set. Nothing goes before the next run.",
    "policy_unset": "The policy was dropped: nothing expires any more.",
    "restored": "It was brought back from the trash.",
    "logged_out": "You are logged out.",
    "run_started": "The run has started.",
    "undo_started": "What the run moved aside is coming back.",
    "aside_purged": "What the run moved aside is being deleted.",
    "purge_started": "The purge has started. It goes on when you leave this page.",
    "purge_planned": "The purge is being planned. Nothing is deleted.",
}
