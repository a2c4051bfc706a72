"""Symlink files, through which Hive, Presto and Athena read a branch's objects."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Query

from ebbtide.server.api.base import Segment, Text, Wire
from ebbtide.server.api.routing import Routes
from ebbtide.server.serving import ServedDep
from ebbtide.store.access.access_keys import Role


class SymlinkLocation(Wire):
    """The URL below which the files are, at `REPOSITORY/BRANCH/DIRECTORY/symlink.txt`."""

    location: str


routes = Routes("symlinks")

LocationQuery = Annotated[Text, Query()]

_BRANCH: Final = "/repositories/{repository:segment}/refs/{branch:segment}"


@routes.add("POST", _BRANCH + "/symlink", Role.WRITER, status=201)
def write_symlinks(
    repository: Segment, branch: Segment, served: ServedDep, location: LocationQuery = ""
) -> SymlinkLocation:
    """Writes the symlink files of a branch's last commit, and tags the commit."""
    files = served.repository(repository).symlinks.write(branch, location)
    return SymlinkLocation(location=files.url)
