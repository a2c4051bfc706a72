"""Purges: requests and outcomes."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from ebbtide.purge.purger import PurgeReport
from ebbtide.purge.request import REASON_BYTES_MAX, TARGETS_MAX, PathTarget, Request
from ebbtide.purge.verifying import PurgeFindings
from ebbtide.server.wire.base import Pagination, Text, Wire
from ebbtide.store.access.keys import AccessKey

State = Literal["planning", "planned", "refused", "failed", "deleting", "incomplete", "done"]


class PathNamed(Wire):
    """A path at a branch, tag or commit. With a branch's plain name, the object that is staged at
    the path is named too."""

    ref: Text
    path: Text


class PurgeCreation(Wire):
    """The reason of a purge and the data that it names. `confirmation` must repeat the name of the
    repository, unless `dry_run` is set."""

    reason: Annotated[Text, Field(max_length=REASON_BYTES_MAX)]
    paths: Annotated[list[PathNamed], Field(max_length=TARGETS_MAX)] = Field(default_factory=list)
    commits: Annotated[list[Text], Field(max_length=TARGETS_MAX)] = Field(default_factory=list)
    collections: Annotated[list[Text], Field(max_length=TARGETS_MAX)] = Field(default_factory=list)
    repository: bool = False
    all_history: bool = False
    dry_run: bool = False
    confirmation: Text = ""

    def request(self, key: AccessKey) -> Request:
        """Returns the request in the name of the access key. Raises InvalidInput."""
        request = Request(
            reason=self.reason,
            who={"access_key_id": key.access_key_id, "name": key.name},
            paths=tuple(PathTarget.of(each.ref, each.path) for each in self.paths),
            commits=tuple(self.commits),
            collections=tuple(self.collections),
            repository=self.repository,
            all_history=self.all_history,
        )
        request.check()
        return request


class PurgeResumption(Wire):
    """`confirmation` must repeat the name of the repository."""

    confirmation: Text = ""


class PurgeReference(Wire):
    """A reference that blocks the purge: one that the request did not name, or a hold."""

    kind: str
    id: str
    names: list[str]
    entry_count: int
    examples: list[str]


class PurgeAnswer(Wire):
    """A purge. Lists, and the answers to starting and resuming one, leave out counts and
    references."""

    purge_id: str
    repository: str
    repository_id: str
    state: State
    request: dict[str, Any]
    record_path: str
    record_sha256: str | None = None
    started_at: datetime
    closed_at: datetime | None = None
    finished_at: datetime | None = None
    error: dict[str, str] | None = None
    object_count: int | None = None
    size_bytes: int | None = None
    foreign_count: int | None = None
    outcomes: dict[str, int] | None = None
    reference_count: int | None = None
    reference_counts: dict[str, int] | None = None
    references: list[PurgeReference] | None = None

    @classmethod
    def of(cls, report: PurgeReport) -> PurgeAnswer:
        """Makes the answer with everything that is known of a purge."""
        return cls.model_validate(report.to_json())

    @classmethod
    def short(cls, report: PurgeReport) -> PurgeAnswer:
        """Makes the answer from the database alone."""
        return cls.model_validate(report.summary())


class PurgeList(Wire):
    """Purges, the newest first."""

    pagination: Pagination
    results: list[PurgeAnswer]


class PurgeDifference(Wire):
    """A difference between the record and the present state."""

    kind: str
    text: str


class PurgeVerification(Wire):
    """The result of a verification."""

    purge_id: str
    verified: bool
    address_count: int
    differences: list[PurgeDifference]

    @classmethod
    def of(cls, found: PurgeFindings) -> PurgeVerification:
        """Makes the answer for a verification."""
        return cls.model_validate(found.to_json())
