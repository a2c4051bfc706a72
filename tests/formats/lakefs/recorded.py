"""A server that answers what a real one answered when a repository was recorded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ebbtide.errors import NotFound
from ebbtide.formats.lakefs.server import (
    AnsweredCommit,
    AnsweredRepository,
    AnsweredRules,
    DumpedRefs,
    LakefsServer,
)
from tests.formats.lakefs.fake import ACCOUNT


class RecordedServer(LakefsServer):
    """Of `expected`, the JSON beside the recorded files."""

    __slots__ = ("expected",)
    expected: dict[str, Any]

    def __init__(self, expected: dict[str, Any]) -> None:
        object.__setattr__(self, "account", ACCOUNT)
        object.__setattr__(self, "name", expected["repository"]["id"])
        object.__setattr__(self, "expected", expected)

    def __reduce__(self) -> tuple[type[RecordedServer], tuple[dict[str, Any]]]:
        return RecordedServer, (self.expected,)

    @property
    def namespace(self) -> str:
        return str(self.expected["repository"]["storage_namespace"])

    def repository(self) -> AnsweredRepository:
        return AnsweredRepository(self.name, self.namespace, 0)

    def rules(self) -> AnsweredRules:
        rules = self.expected["rules"]
        branches = {each["branch_id"]: each["retention_days"] for each in rules["branches"]}
        return AnsweredRules(rules["default_retention_days"], branches)

    def dump(self) -> DumpedRefs:
        dumped = self.expected["dump_refs"]
        return DumpedRefs(
            dumped["commits_meta_range_id"],
            dumped["branches_meta_range_id"],
            dumped["tags_meta_range_id"],
        )

    def branches(self) -> dict[str, str]:
        return dict(self.expected["branches"])

    def tags(self) -> dict[str, str]:
        return dict(self.expected["tags"])

    def commit(self, commit_id: str) -> AnsweredCommit:
        found = self.expected["commits"].get(commit_id)
        if found is None:
            raise NotFound("commit_not_found", commit_id)
        return AnsweredCommit(
            commit_id,
            tuple(found["parents"]),
            found["creation_date"],
            found["meta_range_id"],
            1,
        )

    def uncommitted(self) -> list[str]:
        found = self.expected["prepare_uncommitted"]
        return [each["gc_uncommitted_location"].rstrip("/") for each in found]

    def address_at(self, ref: str, path: str) -> str:
        found: str | None = self.expected["branch_listings"][ref].get(path)
        if found is None:
            raise NotFound("object_not_found", path)
        return found if "://" in found else self.namespace + found

    def view(self, branch: str) -> Iterator[tuple[str, str]]:
        for path in self.expected["branch_listings"][branch]:
            yield path, self.address_at(branch, path)
