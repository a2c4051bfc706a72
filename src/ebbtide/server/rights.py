"""What the access key of one request may do: in the whole store, and in single repositories.

A key has a role in the whole store, and can have higher roles in single repositories. The database
is asked for the latter only if the former does not suffice. Not for: who the key is (`auth`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from starlette.types import Scope

from ebbtide.errors import Conflict, Denied, NotFound
from ebbtide.server.auth import principal_of
from ebbtide.store.access.access_keys import AccessKey, Role
from ebbtide.store.embedded import Store
from ebbtide.store.repository import Repository

RIGHTS = "ebbtide.rights"
"""The entry of a request's scope that holds its rights."""


class Rights:
    """The rights of one key during one request."""

    def __init__(self, key: AccessKey, store: Store) -> None:
        self.key = key
        self._store = store
        self.limited_to: str | None = None
        """The id of the repository that the request is limited to, because the key's role in the
        whole store did not suffice; None is no limit."""
        self._needed = Role.NONE

    @cached_property
    def granted(self) -> Mapping[str, Role]:
        """The roles in single repositories, by their ids: grants, and roles that the login gave.
        The higher of both counts."""
        found = self._store.grants.of(self.key.access_key_id)
        for repository_id, role in self.key.of_login.items():
            if not found.get(repository_id, Role.NONE).allows(role):
                found[repository_id] = role
        return found

    @property
    def readable_ids(self) -> frozenset[str] | None:
        """The ids of the repositories that the key may read; None if it may read all."""
        return None if self.key.role.allows(Role.READER) else frozenset(self.granted)

    def role_in(self, repository_id: str | None) -> Role:
        """Returns the higher of the roles in the whole store and in a repository."""
        if repository_id is None or self.key.role is Role.ADMIN:
            return self.key.role
        granted = self.granted.get(repository_id, Role.NONE)
        return granted if granted.allows(self.key.role) else self.key.role

    def require(self, needed: Role, named: Mapping[str, str]) -> None:
        """Checks the role in a repository. `named` is as in `id_of`; if it names none, the role in
        the whole store counts.

        Raises Denied `role_missing`, whether the repository exists or not.
        """
        if not self.key.role.allows(needed):
            repository_id = self.id_of(named)
            role = self.role_in(repository_id)
            if not role.allows(needed):
                raise self._denied(needed, role)
            self.limited_to = repository_id
            self._needed = needed

    def require_anywhere(self, needed: Role) -> None:
        """Checks that the key has the role in the whole store or in any repository. Raises Denied
        `role_missing`."""
        if not any(role.allows(needed) for role in (self.key.role, *self.granted.values())):
            raise self._denied(needed, self.key.role)

    def opened(self, repository: Repository) -> Repository:
        """Returns a repository that was opened by its name. Raises Denied `role_missing` if another
        repository got the name since the role was checked."""
        if self.limited_to not in (None, repository.info.repository_id):
            raise self._denied(self._needed, self.key.role)
        return repository

    def id_of(self, named: Mapping[str, str]) -> str | None:
        """Returns the id of the repository that parameters name: `repository` is its name or id,
        `project_id` and `collection_id` are in it. None if there is no such repository."""
        text = [named[name] for name in _NAMING if name in named]
        if not text or "\0" in text[0]:
            return None
        try:
            if "repository" in named:
                found = self._store.catalog.get(named["repository"], include_expired=True)
                return found.info.repository_id
            if "project_id" in named:
                return self._store.repository_of_project(text[0]).info.repository_id
            return self._store.repository_of_collection(text[0]).info.repository_id
        except (NotFound, Conflict):
            return None

    def _denied(self, needed: Role, role: Role) -> Denied:
        return Denied(
            "role_missing",
            f"access key {self.key.access_key_id} has the role {role}: this needs {needed}",
        )


_NAMING = ("repository", "project_id", "collection_id")


def rights_of(scope: Scope, store: Store) -> Rights:
    """Returns the rights of a request. Raises Denied `key_invalid`."""
    found = scope.get(RIGHTS)
    if not isinstance(found, Rights):
        scope[RIGHTS] = found = Rights(principal_of(scope), store)
    return found
