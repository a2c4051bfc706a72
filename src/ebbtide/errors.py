"""Every error of Ebbtide. A class says what the caller can do; a kind says what happened.

`KINDS` is append-only. Programs match on kinds: a kind is never renamed, and never gets another
meaning.
Exit codes are class attributes here and nowhere else. So are the HTTP statuses of the classes; the
server's own table (`server/errors.py`) has a status for each kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, ClassVar, Final

from ebbtide.text import readable

KINDS: Final[Mapping[str, str]] = {
    # The caller's input.
    "invalid_duration": "a period that is negative, longer than 36,500 days, or without a unit",
    "invalid_policy": "a retention policy that is empty or not valid",
    "invalid_schedule": "a schedule whose cron text, time zone or jitter is not valid",
    "invalid_name": "a name of a repository, branch or tag that is not allowed",
    "invalid_path": "an object path that is not allowed",
    "invalid_manifest": "a manifest of Arvados that cannot be read",
    "invalid_inventory": "an inventory that this program cannot use, or that has no valid date",
    "invalid_date": "a date that cannot be read, has no zone, or is not allowed for a commit",
    "invalid_setting": "an unknown setting, or a setting whose value is not valid",
    "invalid_address": "an address that leads outside the storage root or cannot be stored",
    "invalid_argument": "any other argument that is not valid",
    "unsafe_grace": "a grace below the safe minimum without the unsafe flag",
    "token_invalid": "a token that the store did not sign",
    "token_foreign": "a token for another repository, branch or path",
    "token_truncated": "a token that is cut off",
    "token_key_retired": "a token whose key was retired",
    "project_cycle": "a project that would be inside itself",
    "part_invalid": "a part of an upload that does not exist, or has another ETag",
    "checksum_mismatch": "an upload whose size or checksum differs from the given one",
    "upload_broken": "an upload that ended before all its bytes arrived",
    "too_large": "a request that is larger than a limit allows",
    "headers_too_large": "a request whose line and headers are longer than a limit allows",
    "presign_unsupported": "a signed URL of a storage that has none, or none for that long",
    "range_invalid": "a range of bytes that begins after the end of an object",
    "not_supported": "a wish of another program's interface that this program cannot fulfil",
    "range_malformed": "a range of bytes that cannot be read, or several ranges",
    # The caller's identity and rights.
    "key_invalid": "no access key, an unknown or revoked key, or a wrong secret",
    "login_refused": "a login by an issuer that is not genuine, is too late, or gives no role",
    "role_missing": "an access key whose role does not allow the request",
    "request_forged": "a form that was not sent from a page of this server, or is of another login",
    "import_forbidden": "an import from a place outside the storage root that is not allowed",
    # The named object does not exist.
    "store_not_found": "no store at the given place",
    "repository_not_found": "no repository with that name, id or URL",
    "ref_not_found": "no branch, tag or commit with that name",
    "branch_not_found": "no branch with that name",
    "tag_not_found": "no tag with that name",
    "commit_not_found": "no commit with that id",
    "object_not_found": "no object at that path",
    "upload_not_found": "no upload in parts with that id that can still be used",
    "run_not_found": "no collector run with that id",
    "purge_not_found": "no purge with that id",
    "not_quarantined": "a run that has no files in quarantine",
    "hold_not_found": "no hold on that commit",
    "schedule_not_found": "no schedule of that repository",
    "protection_not_found": "no rule for protected branches with that pattern",
    "project_not_found": "no project with that id or path",
    "collection_not_found": "no collection with that id, path or content",
    "version_not_found": "the collection has no kept version with that number",
    "key_not_found": "no access key with that id",
    "policy_not_found": "the repository has no retention policy",
    "task_not_found": "no task with that id",
    "route_not_found": "no such route on the server, or not with that method",
    # The current state does not allow the operation.
    "store_exists": "a store exists there already",
    "repository_exists": "a repository with that name exists already",
    "branch_exists": "a branch with that name exists already",
    "key_exists": "an access key with that id exists already, perhaps a revoked one",
    "tag_exists": "a tag with that name exists already",
    "object_exists": "an object exists at that address already",
    "project_exists": "a project with that name exists already",
    "collection_exists": "a collection with that name exists already",
    "trashed": "an item in the trash, or in a project that is in the trash",
    "collection_changed": "another process changed the collection's content meanwhile: try again",
    "not_committed": "an object that is only staged, and cannot have a locator yet",
    "nested_root": "the storage root lies inside the root of another repository, or contains one",
    "root_not_empty": "the storage root holds files already",
    "merge_conflict": "both sides changed the same paths",
    "nothing_to_commit": "the branch has no staged change",
    "nothing_to_merge": "the source has no change that the destination lacks, or no common history",
    "branch_moved": "another process moved the branch meanwhile: try again",
    "branch_dirty": "the branch has staged changes, which must be committed or reset first",
    "branch_protected": "the default branch cannot be deleted",
    "write_protected": "a branch that takes no direct changes, because a rule protects it",
    "write_expired": "an upload or commit took longer than its registration lasts",
    "ref_ambiguous": "a name or id prefix that stands for more than one item",
    "repository_changed": "another process changed the repository: the operation cannot continue",
    "commit_in_use": "a branch, tag, collection or hold is on the commit",
    "plan_used": "the plan was swept already, or the run was undone or its quarantine deleted",
    "purge_ended": "a purge that has ended: nothing is left to do",
    "import_ended": "an import that has committed, failed or was cancelled already",
    "token_expired": "a token that has expired",
    "token_used": "a token that was used before",
    "reading_ended": "a list read in pages that has ended or timed out",
    "object_changed": "an object that another process changed meanwhile",
    "precondition_failed": "the object at the path does not meet the condition of the write",
    "policy_not_in_days": "a policy that cannot be written as a number of days for each branch",
    # The data was deleted on purpose.
    "commit_expired": "the commit's data was quarantined or deleted by a run, or it was given up",
    "data_released": "a collection whose data is not kept",
    "purged": "data that an administrator deleted for good with a purge",
    "source_changed": "an imported object that was overwritten where it lies",
    # Gates: the collector refuses, and deletes nothing.
    "zero_refs": "no refs over a storage that is not empty",
    "zero_commits": "no commits over a storage that is not empty",
    "missing_parent": "a commit's parent or a ref's commit is missing, and no run deleted it",
    "lost_commits": "the metadata lacks commits that an earlier run knew: it is an older copy",
    "missing_tree": "a tree or snapshot that is needed is missing",
    "missing_node": "a range or manifest that is needed is missing",
    "corrupt_tree": "a tree or snapshot that is needed is damaged",
    "corrupt_node": "a range or manifest that is needed is damaged",
    "missing_object": "a file that a kept commit refers to is missing, and in no quarantine",
    "corrupt_repo": "the file that lists refs and snapshots is damaged",
    "corrupt_ref": "a branch's or tag's file is damaged",
    "missing_backup": "a copy that shows what was reachable within the grace is missing",
    "repository_readonly": "a repository that is set to allow no changes",
    "repository_mixed": "a repository to which clients of two versions of the format write",
    "foreign_table": "files of an Iceberg table that the catalog does not know",
    "prefix_mismatch": "a location that may name the storage in another spelling",
    "repository_rooted": "a repository whose keys begin with a slash",
    "unknown_format_version": "a file or database of a version that this program does not know",
    "plan_corrupt": "a plan that is not as it was written",
    "report_corrupt": "a report of a run that is not as it was written",
    "plan_missing": "a plan that is missing",
    "inventory_foreign": "an inventory of another storage, of a part of it, or of several days",
    "inventory_corrupt": "an inventory that cannot be read",
    "plan_foreign": "a plan of another repository or store",
    "over_share": "candidates above the allowed share of the inventory",
    "run_in_progress": "another run holds the repository",
    "lease_lost": "another run took the repository over",
    "clock_skew": "clocks further apart than allowed",
    "storage_foreign": "a storage that does not belong to this database",
    "repository_not_gone": "a repository that is not gone, or was restored",
    "repository_in_use": "a gone repository with a lease, upload, write or list that has not ended",
    "purge_in_use": "other data refers to the objects of the purge",
    "purge_held": "a hold is on a commit that has objects of the purge",
    # A failure of the environment, or of this program.
    "storage_error": "the object storage answered with an error",
    "storage_unconditional": "a storage without conditional writes",
    "corrupt_object": "an object whose bytes are missing, or differ from the stored ones",
    "schema_outdated": "a metadata database of an older version: upgrade it",
    "database_error": "the metadata database answered with an error",
    "spark_error": "the Spark job failed",
    "lakefs_error": "a lakeFS server does not answer, or answers with an error",
    "catalog_error": "an Iceberg catalog does not answer, or answers with an error",
    "issuer_error": "the issuer of logins does not answer, or answers with an error",
    "archive_failed": "the archive for Spark's executors could not be written",
    "task_failed": "a step of a run failed unexpectedly",
    "worker_died": "the process of a run ended without a result",
    "extra_missing": "a package that only an extra of this program installs",
    "java_not_found": "no Java that Spark can run on",
    "secret_key_missing": "the key that encrypts the secrets of access keys is missing",
    "secret_key_wrong": "the secrets of access keys were encrypted with another key",
    "incomplete": "some deletions failed: sweep again",
    "answer_lost": "the answer of a command could not be written to stdout",
    "interrupted": "Ctrl-C or SIGTERM ended the command early",
    "internal": "a defect in this program",
    "disk_full": "a disk, or a quota on it, that is full",
}


class ExitCode(IntEnum):
    """Exit codes of the command line."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    REFUSED = 3
    INCOMPLETE = 4


class EbbtideError(Exception):
    """The base class. `message` says what happened and what to do; `details` is for programs."""

    exit_code: ClassVar[ExitCode] = ExitCode.FAILED

    def __init__(self, kind: str, message: str, **details: Any) -> None:  # JSON-ready values
        if kind not in KINDS:
            raise ValueError(f"unknown error kind {kind!r}")
        # The message is shown on terminals, in logs and on pages, and may have names from outside.
        self.message = readable(message)
        super().__init__(kind, self.message, details)
        self.kind = kind
        self.details = details

    def restate(self, message: str, **details: Any) -> None:  # JSON-ready values
        """Replaces the message, and adds details: somebody who knows more has seen the error."""
        self.message = readable(message)
        self.details |= details

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.kind, self.message, self.details))

    def __str__(self) -> str:
        return self.message


def _rebuild(
    cls: type[EbbtideError], kind: str, message: str, details: dict[str, Any]
) -> EbbtideError:
    return cls(kind, message, **details)


class InvalidInput(EbbtideError):
    """The caller must change its request. Nothing was changed."""

    exit_code = ExitCode.USAGE


class NotFound(EbbtideError):
    """The named object does not exist."""


class UnknownRepository(NotFound):
    """The named repository does not exist. A scheduler need not try again."""

    exit_code = ExitCode.USAGE


class Denied(EbbtideError):
    """The caller's key does not allow the request. Another key might."""


class Conflict(EbbtideError):
    """The current state does not allow the request. Look at it, then decide or try again."""


class Gone(EbbtideError):
    """The named data was deleted on purpose, or replaced by its owner."""


class Refused(EbbtideError):
    """A gate of the collector refused: nothing was deleted. The message says what it found."""

    exit_code = ExitCode.REFUSED


class Failed(EbbtideError):
    """A failure outside this program. A retry may help."""


class Incomplete(EbbtideError):
    """Part of the work is done, and a record says which part. A repetition finishes it."""

    exit_code = ExitCode.INCOMPLETE


def disk_full(disk: str, reason: str) -> Failed:
    """Returns the error for a full disk. A run, which frees space, needs some space there too."""
    return Failed(
        "disk_full",
        f"{disk} is full ({reason}). The interrupted work is undone, or continues when it is "
        "repeated. A run needs some free space itself: first free a MiB by other means, as 'When a "
        "disk is full' in docs/operations.md says",
    )


QUARANTINE_FIELDS: Final = ("quarantined_until", "restore_command")
"""The details of an error, and the fields of an answer, about data in quarantine."""


def quarantine_fields(error: EbbtideError) -> dict[str, str]:
    """Returns the fields about data in quarantine that an error has."""
    return {name: error.details[name] for name in QUARANTINE_FIELDS if name in error.details}
