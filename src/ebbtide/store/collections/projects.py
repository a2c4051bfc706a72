"""Projects: making, listing, changing, trashing and restoring them. Each belongs to one repository.

A trashed project hides everything in it. When the project is gone, everything in it is gone, too.
The records of the items do not change: the state of an item follows from the earliest date of the
item and the projects above it.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from ebbtide.errors import Conflict, InvalidInput, NotFound
from ebbtide.escaping import shown
from ebbtide.ids import new_id
from ebbtide.retention.lifecycle import LifecycleState, earliest, expiry_asked, state_at
from ebbtide.store.collections.project_queries import (
    DEPTH_MAX,
    ProjectRow,
    insert_project,
    lineage_of,
    page_of_projects,
    projects_in_states,
    projects_named,
    read_project_tree,
    update_project,
)
from ebbtide.store.collections.updates import KEEP, Keep, Omitted, check_asked, given
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.engine import Transaction
from ebbtide.store.database.expiries import StateFilter
from ebbtide.store.listing import check_amount
from ebbtide.store.names import free_name
from ebbtide.store.repositories.lifecycle import not_trashed


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """A project as it was when it was read.

    `expires_at` is its own date. `ends_at` is the earliest date of the project and the projects
    above it, and decides `state`. `path` has the names from the outermost project on.
    """

    project_id: str
    parent_id: str | None
    name: str
    path: str
    description: str
    properties: Mapping[str, Any]
    created_at: datetime
    modified_at: datetime
    expires_at: datetime | None
    ends_at: datetime | None
    state: LifecycleState


@dataclass(frozen=True, slots=True)
class Lineage:
    """A project and all projects above it, the innermost first."""

    rows: tuple[ProjectRow, ...]

    @property
    def path(self) -> str:
        """The names, from the outermost project on."""
        return "/".join(row.name for row in reversed(self.rows))

    @property
    def ends_at(self) -> datetime | None:
        """The earliest date at which one of the projects expires."""
        return earliest(*(row.expires_at for row in self.rows))


class Projects:
    """The projects of one repository."""

    def __init__(self, context: RepositoryContext) -> None:
        self._context = context
        self._metadata = context.metadata
        self._repository_id = context.repository_id

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
            above = self.require_live_in(tx, parent_id)
            _check_depth(len(above.rows) + 1)
        now = tx.now()
        row = ProjectRow(
            project_id=new_id(),
            repository_id=self._repository_id,
            parent_id=parent_id,
            name=self._free_name(tx, parent_id, name, ensure_unique=ensure_unique_name),
            description=description,
            properties=dict(properties or {}),
            created_at=now,
            modified_at=now,
            expires_at=expiry_asked(expires_at, now=now),
        )
        insert_project(tx, row)
        return self._project(tx, Lineage(tuple(lineage_of(tx, row.project_id))))

    def get(self, project_id: str, *, include_expired: bool = False) -> Project:
        """Returns a project; with `include_expired`, also one in the trash.

        Raises NotFound `project_not_found`.
        """
        with self._metadata.snapshot() as tx:
            return self._get(tx, project_id, include_expired=include_expired)

    def find(self, path: str, *, include_expired: bool = False) -> Project:
        """Returns a project by its id, or by a path such as `genomes/2026`.

        With `include_expired`, a trashed project is found by its path if no other project, live or
        trashed, has this path. Raises NotFound `project_not_found`, Conflict `ref_ambiguous` (with
        the ids).
        """
        with self._metadata.snapshot() as tx:
            if self._lineage(tx, path) is not None:
                return self._get(tx, path, include_expired=include_expired)
            parent_id: str | None = None
            for name in path.split("/"):
                parent_id = self._child(tx, parent_id, name, path, include_expired=include_expired)
            assert parent_id is not None
            return self._get(tx, parent_id, include_expired=include_expired)

    def page(
        self,
        *,
        parent_id: str | None = None,
        include_expired: bool = False,
        state: LifecycleState | None = None,
        from_date: datetime | None = None,
        to_date: datetime | None = None,
        prefix: str = "",
        after: tuple[str, str] = ("", ""),
        amount: int = 1000,
    ) -> builtins.list[Project]:
        """Returns at most `amount` projects of a parent, sorted by name and id.

        Without `parent_id`, they are the projects that are in no other project. They sort behind
        `after`. Their names begin with `prefix`. With `include_expired` the trash is listed too.
        `state`, `from_date` (inclusive) and `to_date` (exclusive) restrict the list by the
        projects' own `expires_at`.

        Raises InvalidInput `invalid_argument` or `invalid_date`, NotFound `project_not_found`.
        """
        check_amount(amount)
        with self._metadata.snapshot() as tx:
            above = Lineage(())
            if parent_id is not None:
                above = self._require_visible(tx, parent_id, include_expired=include_expired)
            rows = page_of_projects(
                tx,
                self._repository_id,
                parent_id=parent_id,
                states=StateFilter(
                    now=tx.now(),
                    trash_time=self._context.trash_time,
                    include_expired=include_expired,
                    state=state,
                    from_date=from_date,
                    to_date=to_date,
                ),
                prefix=prefix,
                after=after,
                amount=amount,
            )
            return [self._project(tx, Lineage((row, *above.rows))) for row in rows]

    def trash(
        self, *, after: tuple[str, str] = ("", ""), amount: int = 1000
    ) -> builtins.list[Project]:
        """Returns at most `amount` trashed projects of the repository, sorted by name and id.

        They sort behind `after`. Only the projects' own `expires_at` counts: the content of a
        trashed project is restored with it. Raises InvalidInput `invalid_argument`.
        """
        check_amount(amount)
        with self._metadata.snapshot() as tx:
            rows = projects_in_states(
                tx,
                self._repository_id,
                states=trashed_now(tx, self._context),
                after=after,
                amount=amount,
            )
            return [self._project(tx, self.lineage_in(tx, row.project_id)) for row in rows]

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
            line = self._require_visible(tx, project_id, include_expired=True)
            row = line.rows[0]
            require_changeable(
                asked,
                what=f"project {shown(row.name)}",
                own=self._state(tx, row.expires_at),
                above=self._state(tx, Lineage(line.rows[1:]).ends_at),
            )
            if parent_id is not KEEP and parent_id != row.parent_id:
                self._check_parent(tx, row, parent_id)
            changed = replace(
                row,
                **asked,
                modified_at=tx.now(),
                expires_at=row.expires_at
                if isinstance(expires_at, Omitted)
                else expiry_asked(expires_at, now=tx.now()),
            )
            place = (changed.parent_id, changed.name)
            stays = not self._is_over(tx, row.expires_at) and place == (row.parent_id, row.name)
            if not stays and not self._is_over(tx, changed.expires_at):
                name = self._free_name(
                    tx, *place, ensure_unique=ensure_unique_name, holder_id=project_id
                )
                changed = replace(changed, name=name)
            update_project(
                tx,
                project_id,
                name=changed.name,
                description=changed.description,
                properties=dict(changed.properties),
                parent_id=changed.parent_id,
                modified_at=changed.modified_at,
                expires_at=changed.expires_at,
            )
            return self._project(tx, Lineage(tuple(lineage_of(tx, project_id))))

    def delete(self, project_id: str) -> Project:
        """Moves a project to the trash, with everything in it.

        Raises NotFound `project_not_found`, also if it is in the trash already.
        """
        with self._context.changing("exclusive") as tx:
            self.require_live_in(tx, project_id)
            update_project(tx, project_id, expires_at=tx.now())
            return self._project(tx, Lineage(tuple(lineage_of(tx, project_id))))

    def restore(self, project_id: str, *, ensure_unique_name: bool = False) -> Project:
        """Restores a project from the trash, with everything in it.

        Raises NotFound `project_not_found`, and Conflict `project_exists` if it is not in the
        trash. Raises Conflict `project_exists` if its name is taken, unless `ensure_unique_name`.
        Raises Conflict `trashed` if its parent is in the trash.
        """
        with self._metadata.snapshot() as tx:
            found = self._get(tx, project_id, include_expired=True)
            named = projects_named(tx, self._repository_id, found.parent_id, found.name)
            states = [(row.project_id, self._state(tx, row.expires_at)) for row in named]
        if found.state is not LifecycleState.TRASHED:
            raise not_trashed("project", found.path, states)
        return self.update(project_id, expires_at=None, ensure_unique_name=ensure_unique_name)

    def require_live_in(self, tx: Transaction, project_id: str) -> Lineage:
        """Returns a live project and the projects above it.

        If the caller then changes the project or its content, its transaction must have locked the
        repository's row. Raises NotFound `project_not_found` if the project is trashed or gone.
        """
        return self._require_visible(tx, project_id, include_expired=False)

    def lineage_in(self, tx: Transaction, project_id: str) -> Lineage:
        """Returns a project in any state, with the projects above it."""
        return Lineage(tuple(lineage_of(tx, project_id)))

    def _get(self, tx: Transaction, project_id: str, *, include_expired: bool) -> Project:
        return self._project(
            tx, self._require_visible(tx, project_id, include_expired=include_expired)
        )

    def _child(
        self,
        tx: Transaction,
        parent_id: str | None,
        name: str,
        path: str,
        *,
        include_expired: bool,
    ) -> str:
        """Returns the id of the project of that name in a parent. Errors name the whole `path`."""
        named = projects_named(tx, self._repository_id, parent_id, name)
        return one_of(
            [(row.project_id, self._state(tx, row.expires_at)) for row in named],
            include_expired=include_expired,
            what=f"project {shown(path)}",
            missing=lambda is_trashed: no_project(path, is_trashed=is_trashed),
        )

    def _lineage(self, tx: Transaction, project_id: str) -> Lineage | None:
        rows = lineage_of(tx, project_id)
        if not rows or rows[0].repository_id != self._repository_id:
            return None
        return Lineage(tuple(rows))

    def _require_visible(
        self, tx: Transaction, project_id: str, *, include_expired: bool
    ) -> Lineage:
        line = self._lineage(tx, project_id)
        if line is None:
            raise no_project(project_id)
        state = self._state(tx, line.ends_at)
        if not state.is_visible(include_expired=include_expired):
            raise no_project(project_id, is_trashed=state is LifecycleState.TRASHED)
        return line

    def _check_parent(self, tx: Transaction, row: ProjectRow, parent_id: str | None) -> None:
        """Checks that a project may move to a parent.

        Raises InvalidInput `project_cycle` or `invalid_argument`, NotFound.
        """
        if parent_id is None:
            return
        above = self.require_live_in(tx, parent_id)
        if row.project_id in {project.project_id for project in above.rows}:
            raise InvalidInput(
                "project_cycle",
                f"project {shown(row.name)} cannot be moved into {shown(above.path)}, which lies "
                "in it",
            )
        _check_depth(len(above.rows) + _height(tx, row))

    def _free_name(
        self,
        tx: Transaction,
        parent_id: str | None,
        name: str,
        *,
        ensure_unique: bool,
        holder_id: str | None = None,
    ) -> str:
        """Returns the name, or a similar one that is free.

        The project `holder_id` may have the name. Raises Conflict `project_exists`.
        """

        def is_taken(candidate: str) -> bool:
            return any(
                row.project_id != holder_id and not self._is_over(tx, row.expires_at)
                for row in projects_named(tx, self._repository_id, parent_id, candidate)
            )

        return free_name("project", name, is_taken, ensure_unique=ensure_unique)

    def _is_over(self, tx: Transaction, ends_at: datetime | None) -> bool:
        return ends_at is not None and ends_at <= tx.now()

    def _state(self, tx: Transaction, ends_at: datetime | None) -> LifecycleState:
        return state_at(ends_at, trash_time=self._context.trash_time, now=tx.now())

    def _project(self, tx: Transaction, line: Lineage) -> Project:
        row = line.rows[0]
        return Project(
            project_id=row.project_id,
            parent_id=row.parent_id,
            name=row.name,
            path=line.path,
            description=row.description,
            properties=row.properties,
            created_at=row.created_at,
            modified_at=row.modified_at,
            expires_at=row.expires_at,
            ends_at=line.ends_at,
            state=self._state(tx, line.ends_at),
        )


def require_changeable(
    asked: Iterable[str], *, what: str, own: LifecycleState, above: LifecycleState
) -> None:
    """Raises Conflict `trashed` if the fields `asked` of an item cannot be changed.

    If an item is in the trash, only `expires_at` can be changed. If it is in a trashed project, no
    field can be changed.
    """
    if above is LifecycleState.TRASHED:
        raise Conflict(
            "trashed", f"{what} lies in a project that is in the trash: restore the project first"
        )
    refused = sorted(field for field in asked if not own.can_change(field))
    if refused:
        raise Conflict(
            "trashed",
            f"{what} is in the trash: restore it before you change its {' and '.join(refused)}",
        )


def trashed_now(tx: Transaction, context: RepositoryContext) -> StateFilter:
    """Returns the filter for items that are in the trash and not gone."""
    return StateFilter(
        now=tx.now(),
        trash_time=context.trash_time,
        include_expired=True,
        state=LifecycleState.TRASHED,
    )


def one_of(
    found: Sequence[tuple[str, LifecycleState]],
    *,
    include_expired: bool,
    what: str,
    missing: Callable[[bool], NotFound],  # its argument: is one in the trash?
) -> str:
    """Returns the id of the item that a name means.

    This is the live item. With `include_expired`, if no item is live, it is the item in the trash.
    Raises `missing`, Conflict `ref_ambiguous`.
    """
    live = [item_id for item_id, state in found if state.is_visible()]
    if live:
        return live[0]
    trashed = [item_id for item_id, state in found if state is LifecycleState.TRASHED]
    if not trashed or not include_expired:
        raise missing(bool(trashed))
    if len(trashed) > 1:
        raise Conflict(
            "ref_ambiguous",
            f"the trash holds {len(trashed)} of {what}: name one by its id, {', '.join(trashed)}",
            ids=trashed,
        )
    return trashed[0]


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


def no_project(name: str, *, is_trashed: bool = False) -> NotFound:
    """The error for a project that does not exist, or is in the trash."""
    hint = ""
    if is_trashed:
        hint = ": it was deleted or has expired; 'ebbtide project restore' may restore it"
    return NotFound("project_not_found", f"there is no project {shown(name)}{hint}")
