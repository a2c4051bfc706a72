"""Every error of Ebbtide: few classes, by what the caller can do; many kinds, by what happened.

`KINDS` is append-only: programs match on a kind, so none is renamed or given another meaning.
Exit codes are class attributes here and nowhere else. So are the HTTP statuses that a class stands
for; the server's own table (`server/errors.py`) has one for each kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, ClassVar, Final

from ebbtide.escaping import escaped

KINDS: Final[Mapping[str, str]] = {
    # The caller's input.
    "invalid_duration": "a period without a unit, negative, or absurdly long",
    "invalid_policy": "a retention policy that is empty or cannot be understood",
    "invalid_name": "a name of a repository, branch or tag that is not allowed",
    "invalid_path": "an object path that is not allowed",
    "invalid_inventory": "no inventory, or one that nothing dates",
    "invalid_date": "a commit date in the future, before its parents', or without a zone",
    "invalid_setting": "a setting whose value cannot be understood",
    "invalid_address": "an address that leads outside the storage root or cannot be stored",
    "invalid_argument": "any other argument that cannot be understood",
    "unsafe_grace": "a grace below the safe minimum without the unsafe flag",
    "token_invalid": "a token that the store did not sign",
    "token_foreign": "a token for another repository, branch or path",
    "token_truncated": "a token that is cut off",
    "token_key_retired": "a token whose key was retired",
    "project_cycle": "a project that would come to lie in itself",
    "checksum_mismatch": "an upload whose size or checksum is not the one given",
    "upload_broken": "an upload that ended before all of it came",
    "too_large": "a request that is larger than a limit allows",
    "headers_too_large": "a request whose line and headers are longer than a limit allows",
    "range_invalid": "a range of bytes that begins behind the end of an object",
    # Who asks.
    "key_invalid": "no access key, an unknown or revoked one, or a wrong secret",
    "role_missing": "an access key whose role does not allow what was asked",
    "request_forged": "a form that was not sent from the page that this server made",
    "import_forbidden": "an object outside the storage root at a place that may not be imported",
    # What was named is not there.
    "store_not_found": "no store at the place named",
    "repository_not_found": "no repository of that name",
    "ref_not_found": "no branch, tag or commit of that name",
    "branch_not_found": "no branch of that name",
    "tag_not_found": "no tag of that name",
    "commit_not_found": "no commit of that id",
    "object_not_found": "no object at that path",
    "run_not_found": "no collector run of that id",
    "purge_not_found": "no purge of that id",
    "not_quarantined": "a run that has nothing aside to bring back or to delete",
    "hold_not_found": "no hold on that commit",
    "project_not_found": "no project of that id or path",
    "collection_not_found": "no collection of that id, path or content",
    "version_not_found": "no such version of a collection is kept",
    "key_not_found": "no access key of that id",
    "policy_not_found": "the repository has no retention policy",
    "task_not_found": "no task of that id",
    "route_not_found": "no such place on the server, or not with that method",
    # What is there stands in the way.
    "store_exists": "a store is there already",
    "repository_exists": "a repository of that name is there already",
    "branch_exists": "a branch of that name is there already",
    "tag_exists": "a tag of that name is there already",
    "object_exists": "an object is at that address already",
    "project_exists": "a project of that name is there already",
    "collection_exists": "a collection of that name is there already",
    "trashed": "what is in the trash can only be brought back",
    "collection_changed": "somebody else changed the collection's content meanwhile: try again",
    "not_committed": "what is only staged, and cannot be promised to anybody yet",
    "nested_root": "the storage root lies inside another repository's, or holds one",
    "root_not_empty": "the storage root holds files already",
    "merge_conflict": "both sides changed the same paths",
    "nothing_to_commit": "the branch has no staged change",
    "nothing_to_merge": "the source has nothing that the destination lacks",
    "branch_moved": "another commit moved the branch meanwhile: try again",
    "branch_dirty": "the branch has staged changes that the operation would mix with",
    "branch_protected": "the default branch cannot be deleted",
    "write_expired": "an upload or commit took longer than its registration lasts",
    "ref_ambiguous": "a name or id prefix that several things share",
    "repository_changed": "a branch, tag or commit came to need what was about to go",
    "commit_in_use": "a branch, tag or hold is on the commit",
    "plan_used": "the plan was swept already",
    "purge_ended": "a purge that has come to its end, so that nothing of it can be resumed",
    "token_expired": "a token whose time is over",
    "token_used": "a token that was used before",
    "reading_ended": "a reading in pages that has ended or ran out of time",
    "object_changed": "an object that somebody else changed meanwhile",
    "precondition_failed": "an object is, or is not, at the path that was to be written to",
    "policy_not_in_days": "a policy that says more than a number of days for each branch",
    # What was there has been let go.
    "commit_expired": "the commit's data was let go by a collector run",
    "data_released": "a collection whose data is not kept",
    "purged": "data that an administrator deleted for good, ahead of its time",
    # Gates: the collector refuses, and deletes nothing.
    "zero_refs": "no refs over a storage that is not empty",
    "zero_commits": "no commits over a storage that is not empty",
    "missing_parent": "a commit's parent is missing and no run let it go",
    "missing_tree": "a tree that is needed is not there",
    "missing_node": "a range that is needed is not there",
    "corrupt_tree": "a tree that is needed is damaged",
    "corrupt_node": "a range that is needed is damaged",
    "missing_object": "a file that a kept commit refers to is not there",
    "corrupt_repo": "the file that lists refs and snapshots is damaged",
    "corrupt_ref": "a branch's or tag's file is damaged",
    "missing_backup": "a copy that tells what was reachable lately is not there",
    "repository_readonly": "a repository whose owners allow no changes",
    "repository_mixed": "a repository to which clients of two versions of the format write",
    "repository_rooted": "a repository whose keys begin with a slash",
    "unknown_format_version": "a file or database of a version that this program does not know",
    "plan_corrupt": "a plan that is not as it was written",
    "report_corrupt": "a report of a run that is not as it was written",
    "plan_missing": "a plan that is not there",
    "inventory_foreign": "an inventory of another storage, or of more or less than one",
    "inventory_corrupt": "an inventory that cannot be read",
    "plan_foreign": "a plan of another repository or store",
    "over_share": "candidates above the allowed share of the inventory",
    "run_in_progress": "another run holds the repository",
    "lease_lost": "another run took the repository over",
    "clock_skew": "clocks further apart than allowed",
    "storage_foreign": "a storage that is not this database's",
    "repository_not_gone": "a repository that is not gone, or was brought back",
    "repository_in_use": "a gone repository of which something that was given out has not ended",
    "purge_in_use": "something that was not named refers to what was to be purged",
    "purge_held": "a hold is on a commit that refers to what was to be purged",
    # Something broke.
    "storage_error": "the object storage answered with an error",
    "storage_unconditional": "the storage cannot write on the condition that nothing changed",
    "corrupt_object": "an object whose bytes are not those that were stored",
    "schema_outdated": "a metadata database of an older version: upgrade it",
    "database_error": "the metadata database answered with an error",
    "spark_error": "the Spark job failed",
    "archive_failed": "the archive for Spark's executors could not be written",
    "task_failed": "a step of a run met what it did not expect",
    "worker_died": "the process of a run ended before it said how",
    "java_not_found": "no Java that Spark can run on",
    "secret_key_missing": "no key at hand by which the secrets of access keys are encrypted",
    "secret_key_wrong": "another key than that by which the secrets were encrypted",
    "incomplete": "some deletions failed: sweep again",
    "answer_lost": "what a command answers could not be written to stdout",
    "interrupted": "Ctrl-C or SIGTERM ended it before its end",
    "internal": "a defect in this program",
    "disk_full": "a disk, or a quota on it, that has no room left",
}


class ExitCode(IntEnum):
    """Exit codes of the command line."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    REFUSED = 3
    INCOMPLETE = 4


class EbbtideError(Exception):
    """Base of all. `message` says what happened and what to do; `details` is for programs."""

    exit_code: ClassVar[ExitCode] = ExitCode.FAILED
    http_status: ClassVar[int] = 500

    def __init__(self, kind: str, message: str, **details: Any) -> None:  # JSON-ready values
        if kind not in KINDS:
            raise ValueError(f"unknown error kind {kind!r}")
        # Names in it may hold anything, and it is shown on terminals, in logs and on pages.
        self.message = escaped(message)
        super().__init__(kind, self.message, details)
        self.kind = kind
        self.details = details

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.kind, self.message, self.details))

    def __str__(self) -> str:
        return self.message


def _rebuild(
    cls: type[EbbtideError], kind: str, message: str, details: dict[str, Any]
) -> EbbtideError:
    return cls(kind, message, **details)


class InvalidInput(EbbtideError):
    """The caller must change what it asked for. Nothing was changed."""

    exit_code = ExitCode.USAGE
    http_status = 400


class NotFound(EbbtideError):
    """What was named is not there."""

    http_status = 404


class Denied(EbbtideError):
    """Whoever asks may not have it; with another key it might be given."""

    http_status = 403


class Conflict(EbbtideError):
    """What is there stands in the way; look at it, then decide or try again."""

    http_status = 409


class Gone(EbbtideError):
    """What was named was let go on purpose; it will not come back."""

    http_status = 410


class Refused(EbbtideError):
    """A gate of the collector closed: nothing was deleted. The message says what it found."""

    exit_code = ExitCode.REFUSED
    http_status = 409


class Failed(EbbtideError):
    """Something outside broke; trying again may help."""

    http_status = 503


class Incomplete(EbbtideError):
    """Part of the work is done, and a record says which; doing it again finishes it."""

    exit_code = ExitCode.INCOMPLETE
    http_status = 500


def disk_full(disk: str, reason: str) -> Failed:
    """The error for a disk without room, on which a program that frees some cannot work either."""
    return Failed(
        "disk_full",
        f"{disk} is full ({reason}): what was begun there is undone, or goes on when it is asked "
        "for again. A run needs some room to make more: free a MiB by other means first, as 'When "
        "a disk is full' in docs/operations.md says",
    )
