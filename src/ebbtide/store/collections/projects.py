"""Projects: making, finding and changing them. Each belongs to one repository.

A trashed project hides everything in it. When the project is gone, everything in it is gone, too.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from ebbtide.documents import documented
from ebbtide.errors import InvalidInput
from ebbtide.ids import new_id
from ebbtide.retention.lifecycle import LifecycleState, expiry_asked
from ebbtide.store.collections.items import KEEP, Items, Keep, Omitted, check_asked, given
from ebbtide.store.collections.queries import (
    DEPTH_MAX,
    PROJECTS,
    ProjectRow,
    in_parent,
    lineage_of,
    projects_named,
    read_project_tree,
)
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.engine import Transaction
from ebbtide.store.database.rows import values_of
from ebbtide.store.lifecycle import LIVE, ExpiringRow, ListFilter, Place, SeenItem
from ebbtide.text import shown


@documented
@dataclass(frozen=True, slots=True, kw_only=True)
class Project(ProjectRow):
    """A project as it was when it was read. `repository` is the name of its repository.

    `expires_at` is its own date. `ends_at` is the earliest date of the project and the projects
    above it, and decides `state`. `path` has the names from the outermost project on.
    """

    repository: str
    path: str
    ends_at: datetime | None
    state: LifecycleState


class Projects(Items[ProjectRow, Project]):
    """The projects of one repository."""

    kind = "project"

    def __init__(self, context: RepositoryContext) -> None:
        super().__init__(context, PROJECTS)

    def create(
        self,
        name: str,
        *,
        parent_id: str | None = None,
        description: str = "",
        properties: Mapping[str, Any] | None = None,
        expires_at: datetime | None = None,
        ensure_unique_name: bool = False,
    ) -> Project:
        """Makes a project, in another project or in none.

        Raises InvalidInput `invalid_name`, `invalid_date` or `invalid_argument` (too deep);
        NotFound `project_not_found`. Raises Conflict `project_exists` if the name is taken, unless
        `ensure_unique_name`.
        """
        with self._context.changing("exclusive") as tx:
            return self.create_in(
                tx,
                name,
                parent_id=parent_id,
                description=description,
                properties=properties,
                expires_at=expires_at,
                ensure_unique_name=ensure_unique_name,
            )

    def create_in(
        self,
        tx: Transaction,
        name: str,
        *,
        parent_id: str | None = None,
        description: str = "",
        properties: Mapping[str, Any] | None = None,
        expires_at: datetime | None = None,
        ensure_unique_name: bool = False,
    ) -> Project:
        """Makes a project in a transaction that has locked the repository's row exclusively.

        Raises as `create` does.
        """
        check_asked({"name": name, "description": description, "properties": properties or {}})
        if parent_id is not None:
            _check_depth(len(self._require(tx, parent_id).line) + 1)
        now = tx.now()
        row = ProjectRow(
            project_id=new_id(),
            repository_id=self._repository_id,
            parent_id=parent_id,
            name=self._free_name(tx, (parent_id, name), ensure_unique=ensure_unique_name),
            description=description,
            properties=dict(properties or {}),
            created_at=now,
            modified_at=now,
            expires_at=expiry_asked(expires_at, now=now),
        )
        PROJECTS.insert(tx, row)
        return self._found(tx, self._see(tx, row))

    def find(self, path: str, *, include_expired: bool = False) -> Project:
        """Returns a project by its id, or by a path such as `genomes/2026`.

        With `include_expired`, a trashed project is found by its path if no other project, live or
        trashed, has this path. Raises NotFound `project_not_found`, Conflict `ref_ambiguous` (with
        the ids).
        """
        with self._metadata.snapshot() as tx:
            if self._read(tx, path) is not None:
                seen = self._require(tx, path, include_expired=include_expired)
                return self._found(tx, seen)
            parent_id: str | None = None
            for name in path.split("/"):
                named = projects_named(tx, self._repository_id, parent_id, name)
                parent_id = self._one_of(tx, named, path, include_expired=include_expired)
            assert parent_id is not None
            seen = self._require(tx, parent_id, include_expired=include_expired)
            return self._found(tx, seen)

    def page(
        self,
        *,
        parent_id: str | None = None,
        listed: ListFilter = LIVE,
        prefix: str = "",
        after: tuple[str, str] = ("", ""),
        amount: int = 1000,
    ) -> builtins.list[Project]:
        """Returns at most `amount` projects of a parent, sorted by name and id.

        Without `parent_id`, they are the projects that are in no other project. They sort behind
        `after`. Their names begin with `prefix`, and `listed` filters them.

        Raises InvalidInput `invalid_argument` or `invalid_date`, NotFound `project_not_found`.
        """
        with self._metadata.snapshot() as tx:
            above: tuple[ExpiringRow, ...] = ()
            if parent_id is not None:
                expired = listed.include_expired
                above = self._require(tx, parent_id, include_expired=expired).line
            rows = self._page(
                tx, in_parent(parent_id), listed=listed, prefix=prefix, after=after, amount=amount
            )
            return [self._found(tx, SeenItem(row, above)) for row in rows]

    def update(
        self,
        project_id: str,
        *,
        name: str | Keep = KEEP,
        description: str | Keep = KEEP,
        properties: Mapping[str, Any] | Keep = KEEP,
        parent_id: str | Keep | None = KEEP,
        expires_at: datetime | Keep | None = KEEP,
        ensure_unique_name: bool = False,
    ) -> Project:
        """Changes the fields that are given.

        If the project is in the trash, only `expires_at` can be changed. This restores it.

        Raises NotFound `project_not_found`; Conflict `project_exists`; InvalidInput
        `project_cycle`, and as `create` does. Raises Conflict `trashed` for other fields of a
        trashed project, or if its parent is in the trash.
        """
        asked = given(
            name=name, description=description, properties=properties, parent_id=parent_id
        )
        check_asked(asked)
        with self._context.changing("exclusive") as tx:
            seen = self._require(tx, project_id, include_expired=True)
            self._require_changeable(tx, seen, asked)
            row, now = seen.row, tx.now()
            if parent_id is not KEEP and parent_id != row.parent_id:
                self._check_parent(tx, row, parent_id)
            changed = replace(row, **asked, modified_at=now)
            if not isinstance(expires_at, Omitted):
                changed = replace(changed, expires_at=expiry_asked(expires_at, now=now))
            changed = self._placed(tx, row, changed, ensure_unique=ensure_unique_name)
            self._store(tx, row, changed)
            return self._found(tx, self._see(tx, changed))

    def require_live(self, tx: Transaction, project_id: str) -> None:
        """Raises NotFound `project_not_found` if a project is trashed or gone. If the caller then
        changes its content, its transaction must have locked the repository's row."""
        self._require(tx, project_id)

    def _see(self, tx: Transaction, row: ProjectRow) -> SeenItem[ProjectRow]:
        above = () if row.parent_id is None else lineage_of(tx, row.parent_id)
        return SeenItem(row, tuple(above))

    def _read(self, tx: Transaction, item_id: str) -> SeenItem[ProjectRow] | None:
        """As for other items, in one statement."""
        rows = lineage_of(tx, item_id)
        if not rows or rows[0].repository_id != self._repository_id:
            return None
        return SeenItem(rows[0], tuple(rows[1:]))

    def _named(self, tx: Transaction, place: Place) -> Sequence[ProjectRow]:
        return projects_named(tx, self._repository_id, *place)

    def _place(self, row: ProjectRow) -> Place:
        return (row.parent_id, row.name)

    def _found(self, tx: Transaction, seen: SeenItem[ProjectRow]) -> Project:
        return Project(
            **values_of(seen.row),
            repository=self._context.info.name,
            path=seen.path,
            ends_at=seen.ends_at,
            state=self._state(tx, seen),
        )

    def _check_parent(self, tx: Transaction, row: ProjectRow, parent_id: str | None) -> None:
        """Checks that a project may move to a parent.

        Raises InvalidInput `project_cycle` or `invalid_argument`, NotFound.
        """
        if parent_id is None:
            return
        above = self._require(tx, parent_id)
        if row.project_id in {project.project_id for project in lineage_of(tx, parent_id)}:
            raise InvalidInput(
                "project_cycle",
                f"project {shown(row.name)} cannot be moved into {shown(above.path)}, which lies "
                "in it",
            )
        _check_depth(len(above.line) + _height(tx, row))


def _height(tx: Transaction, row: ProjectRow) -> int:
    """Returns the number of levels from the project down to the deepest one in it, both
    included."""
    children: dict[str, list[str]] = {}
    for project_id, link in read_project_tree(tx, row.repository_id).items():
        if link.parent_id is not None:
            children.setdefault(link.parent_id, []).append(project_id)
    height, level = 0, [row.project_id]
    while level:
        height += 1
        level = [child for project_id in level for child in children.get(project_id, ())]
    return height


def _check_depth(depth: int) -> None:
    if depth > DEPTH_MAX:
        raise InvalidInput(
            "invalid_argument", f"projects nest {DEPTH_MAX} deep at most: this would be {depth}"
        )
