"""Grants: the roles of access keys in single repositories, besides their role in the whole store.

A grant names the repository by its id. Therefore a later repository of the same name has none.
Not for: which role a request needs (the server), or the roles themselves (`keys`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

import sqlalchemy as sa

from ebbtide.documents import documented
from ebbtide.errors import InvalidInput, NotFound
from ebbtide.store.access.keys import Role, find_key
from ebbtide.store.access.secrets import SecretBox
from ebbtide.store.database.engine import Metadata, Transaction
from ebbtide.store.database.rows import values_of
from ebbtide.store.database.schema import access_key_grants, repositories
from ebbtide.store.repositories.queries import find_repository, lock_all_repositories
from ebbtide.text import shown


@dataclass(frozen=True, slots=True)
class GrantRow:
    """One grant as it is stored. `seal` binds key, repository and role to each other."""

    access_key_id: str
    repository_id: str
    role: str
    seal: bytes = field(repr=False)
    created_at: datetime


def write_grant(tx: Transaction, row: GrantRow) -> None:
    """Records a grant. It replaces an earlier one of the same key and repository."""
    delete_grant(tx, row.access_key_id, row.repository_id)
    tx.execute(sa.insert(access_key_grants).values(values_of(row)))


def delete_grant(tx: Transaction, access_key_id: str, repository_id: str) -> int:
    """Deletes a grant. Returns how many there were: 0 or 1."""
    done = tx.execute(
        sa.delete(access_key_grants).where(
            access_key_grants.c.access_key_id == access_key_id,
            access_key_grants.c.repository_id == repository_id,
        )
    )
    return int(done.rowcount)


_OF_KEY: Final = sa.select(access_key_grants).where(
    access_key_grants.c.access_key_id == sa.bindparam("access_key_id")
)
"""Built once: every request of a key with grants runs this statement."""


@documented
@dataclass(frozen=True, slots=True)
class Grant:
    """The role of a key in one repository."""

    access_key_id: str
    repository_id: str
    repository: str
    role: Role


class Grants:
    """The grants of a store."""

    def __init__(self, metadata: Metadata, box: SecretBox) -> None:
        self._metadata = metadata
        self._box = box

    def add(self, access_key_id: str, repository: str, role: Role) -> Grant:
        """Gives a key a role in a live repository. It replaces the key's earlier role there.

        A role that the key has in the whole store stays: the higher of both counts. Raises NotFound
        `key_not_found` (also for a revoked key) or `repository_not_found`, InvalidInput
        `invalid_argument` for the role `none`, Failed `secret_key_missing`.
        """
        if role is Role.NONE:
            raise InvalidInput(
                "invalid_argument",
                "a grant gives a role: 'ebbtide key revoke-grant' takes it away",
            )
        with self._metadata.transaction() as tx:
            # A repository that is being deleted gets no grant afterwards.
            lock_all_repositories(tx, "share")
            key = find_key(tx, access_key_id)
            if key is None or key.revoked_at is not None:
                raise _no_key(access_key_id)
            info = find_repository(tx, repository)
            if info is None:
                raise NotFound(
                    "repository_not_found",
                    f"there is no repository {shown(repository)}: 'ebbtide repo list' lists them",
                )
            bound_to = _binding(access_key_id, info.repository_id, role)
            seal = self._box.seal(b"", bound_to=bound_to)
            write_grant(tx, GrantRow(access_key_id, info.repository_id, role, seal, tx.now()))
        return Grant(access_key_id, info.repository_id, info.name, role)

    def remove(self, access_key_id: str, repository: str) -> bool:
        """Takes away the role of a key in a live repository. Returns whether there was one. The
        role in the whole store stays.

        Raises NotFound `key_not_found`, `repository_not_found`.
        """
        with self._metadata.transaction() as tx:
            if find_key(tx, access_key_id) is None:
                raise _no_key(access_key_id)
            info = find_repository(tx, repository)
            if info is None:
                raise NotFound(
                    "repository_not_found",
                    f"there is no repository {shown(repository)}, and so no grants in it",
                )
            return delete_grant(tx, access_key_id, info.repository_id) > 0

    def list(self) -> list[Grant]:
        """Returns all grants, by key and name of the repository."""
        columns = (
            access_key_grants.c.access_key_id,
            access_key_grants.c.repository_id,
            repositories.c.name,
            access_key_grants.c.role,
        )
        with self._metadata.snapshot() as tx:
            rows = tx.execute(
                sa.select(*columns)
                .join(
                    repositories,
                    repositories.c.repository_id == access_key_grants.c.repository_id,
                )
                .order_by(columns[0], columns[2], columns[1])
            ).all()
        return [
            Grant(row.access_key_id, row.repository_id, row.name, Role(row.role)) for row in rows
        ]

    def of(self, access_key_id: str) -> dict[str, Role]:
        """Returns the roles of a key by the ids of repositories.

        Raises Failed `secret_key_missing`, or `secret_key_wrong` for a row that was tampered with.
        """
        with self._metadata.snapshot() as tx:
            rows = tx.execute(_OF_KEY, {"access_key_id": access_key_id}).all()
        found: dict[str, Role] = {}
        for row in rows:
            role = Role(row.role)
            self._box.open(row.seal, bound_to=_binding(access_key_id, row.repository_id, role))
            found[row.repository_id] = role
        return found


def _binding(access_key_id: str, repository_id: str, role: Role) -> str:
    """Returns the text to which the seal of a grant is bound: write access to the database alone is
    not enough to make a grant."""
    return f"grant {access_key_id} {repository_id} {role}"


def _no_key(access_key_id: str) -> NotFound:
    return NotFound("key_not_found", f"there is no access key {shown(access_key_id)} in use")
