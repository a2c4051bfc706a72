"""Symlink files: for each directory of a branch's commit, a text that lists the addresses of its
objects. Hive, Presto and Athena read tables through such files (`SymlinkTextInputFormat`).

A run does not look into the files. So each request first makes a tag of the commit, which keeps its
data. The next request for the same branch and location writes all files of the location again, and
deletes the others there. Then it deletes the tags of requests that have certainly ended. No run
deletes the files. Source of route and file format: lakeFS (`CreateSymlinkFile` in
`pkg/api/controller.go`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from typing import Final
from urllib.parse import quote

from ebbtide.errors import Conflict, InvalidInput, NotFound
from ebbtide.ids import new_id
from ebbtide.storage.base import split_address
from ebbtide.store.content.entries import Entry, address_url
from ebbtide.store.content.layout import SYMLINKS_PREFIX
from ebbtide.store.content.trees import iterate_entries
from ebbtide.store.context import RepositoryContext
from ebbtide.store.database.commit_rows import CommitRecord, require_commit
from ebbtide.store.database.rows import begins_with
from ebbtide.store.lifecycle import ends_after
from ebbtide.store.names import PATH_BYTES_MAX, check_ref_name, check_text
from ebbtide.store.refs.ref_rows import TAGS, require_branch
from ebbtide.store.refs.refs import Tag, Tags
from ebbtide.text import shown

FILE_NAME: Final = "symlink.txt"
THREADS: Final = 8
BATCH: Final = 256
_DIGITS: Final = 8


@dataclass(frozen=True, slots=True)
class SymlinkFiles:
    """The result of a request. The files are at `URL/REPOSITORY/BRANCH/DIRECTORY/symlink.txt`, with
    `%2F` for a slash in the branch's name. `tag` keeps the commit."""

    url: str
    tag: str
    commit_id: str
    file_count: int


class Symlinks:
    """The symlink files of one repository."""

    def __init__(self, context: RepositoryContext, tags: Tags) -> None:
        self._context = context
        self._tags = tags

    def write(self, branch: str, location: str = "") -> SymlinkFiles:
        """Writes the files of a branch's last commit, for the paths that begin with `location`.

        Staged changes are not in them. After an error in the middle, the tag of this request and
        those of earlier ones stay, so that each file that was written still names intact objects.

        Raises NotFound `branch_not_found`, `tag_not_found`; Gone `commit_expired`; Conflict
        `write_expired`; Refused `storage_foreign`; Failed `storage_error`. Raises InvalidInput
        `invalid_path` if a directory's name cannot be the name of a file, and `invalid_name` if the
        branch's name is too long for the tag.
        """
        check_text("the location", location, bytes_max=PATH_BYTES_MAX)
        context = self._context
        commit = self._head(branch)
        for directory, entries in self._directories(commit, location):
            _check(directory, entries)
        tag, ended = self._keep(branch, location, commit)
        place = f"{SYMLINKS_PREFIX}{context.info.name}/{quote(branch, safe='')}/"
        written: set[str] = set()
        with ThreadPoolExecutor(THREADS) as pool:
            directories = self._directories(commit, location)
            while batch := list(islice(directories, BATCH)):
                self._require_time(tag)
                files = {f"{place}{_file(each)}": self._text(entries) for each, entries in batch}
                list(pool.map(context.storage.put, files.keys(), files.values()))
                written.update(files)
        self._require_time(tag)
        self._delete_others(place, location, written)
        self._require_kept(tag)
        for tag_id in ended:
            with suppress(NotFound):
                self._tags.delete(tag_id)
        root = context.info.storage_url.rstrip("/")
        url = f"{root}/{SYMLINKS_PREFIX.rstrip('/')}"
        return SymlinkFiles(url, tag.name, commit.commit_id, len(written))

    def _head(self, branch: str) -> CommitRecord:
        repository_id = self._context.repository_id
        with self._context.metadata.snapshot() as tx:
            row = require_branch(tx, repository_id, branch)
            return require_commit(tx, repository_id, row.commit_id)

    def _keep(self, branch: str, location: str, commit: CommitRecord) -> tuple[Tag, list[str]]:
        """Makes the tag of this request. Returns it, and the ids of the tags of requests for the
        same files that have ended by now: no request writes for longer than EBBTIDE_WRITE_TTL."""
        context = self._context
        location_id = sha256(location.encode()).hexdigest()[:_DIGITS]
        prefix = f"symlinks/{branch}/{location_id}-"
        name = f"{prefix}{new_id()[-_DIGITS:]}"
        check_ref_name(name)
        with context.metadata.snapshot() as tx:
            oldest = tx.now() - context.settings.write_ttl
            found = TAGS.all(
                tx,
                context.repository_id,
                ends_after(TAGS.table.c.expires_at, tx.now()),
                TAGS.table.c.created_at < oldest,
                *begins_with(TAGS.table.c.name, prefix),
            )
        # A branch can have a name that begins like this.
        whole = re.compile(rf"{re.escape(prefix)}[0-9a-f]{{{_DIGITS}}}")
        ended = [each.tag_id for each in found if whole.fullmatch(each.name)]
        return self._tags.create(name, commit.commit_id), ended

    def _require_time(self, tag: Tag) -> None:
        """Checks that no other request deletes the tag soon. What was checked has half of
        EBBTIDE_WRITE_TTL to be written.

        Raises Conflict `write_expired`.
        """
        with self._context.metadata.snapshot() as tx:
            if tx.now() >= tag.created_at + self._context.settings.write_ttl / 2:
                raise Conflict(
                    "write_expired",
                    "writing the symlink files took longer than half of EBBTIDE_WRITE_TTL: raise "
                    "it, or ask for a smaller location",
                )

    def _require_kept(self, tag: Tag) -> None:
        try:
            self._tags.get(tag.tag_id)
        except NotFound:
            raise NotFound(
                "tag_not_found",
                f"the tag {tag.name}, which keeps the objects that the symlink files name, was "
                "deleted meanwhile: ask again",
            ) from None

    def _directories(
        self, commit: CommitRecord, location: str
    ) -> Iterator[tuple[str, list[Entry]]]:
        context = self._context
        with context.reading(commit):
            tree = context.tree_of(commit)
            yield from by_directory(iterate_entries(context.storage, tree, prefix=location))

    def _text(self, entries: Iterable[Entry]) -> bytes:
        root = self._context.info.storage_url
        return "\n".join(address_url(each.address, root) for each in entries).encode()

    def _delete_others(self, place: str, location: str, written: set[str]) -> None:
        """Deletes the files of directories that have no objects any more. Files of directories that
        are only partly within the location stay."""
        storage = self._context.storage
        for batch in storage.list(place):
            addresses = [str(each) for each in batch.column("address").to_pylist() if each]
            others = [
                each
                for each in addresses
                if each.endswith(FILE_NAME)
                and each not in written
                and each.removeprefix(place).removesuffix(FILE_NAME).startswith(location)
            ]
            if others:
                storage.delete(others)


def by_directory(entries: Iterable[Entry]) -> Iterator[tuple[str, list[Entry]]]:
    """Yields each directory that has entries of its own, with these. The entries are sorted by
    path. Those of directories that are not complete yet are in memory."""
    unfinished: list[tuple[str, list[Entry]]] = []
    for entry in entries:
        directory = entry.path.rpartition("/")[0]
        while unfinished and not entry.path.startswith(_prefix(unfinished[-1][0])):
            yield unfinished.pop()
        if not unfinished or unfinished[-1][0] != directory:
            unfinished.append((directory, []))
        unfinished[-1][1].append(entry)
    yield from reversed(unfinished)


def _prefix(directory: str) -> str:
    return f"{directory}/" if directory else ""


def _file(directory: str) -> str:
    return f"{_prefix(directory)}{FILE_NAME}"


def _check(directory: str, entries: Iterable[Entry]) -> None:
    """Raises InvalidInput `invalid_path` if the directory cannot have a symlink file."""
    try:
        parts = split_address(_file(directory))
    except InvalidInput as error:
        raise InvalidInput(
            "invalid_path", f"{shown(directory)} can have no symlink file: {error.message}"
        ) from None
    if FILE_NAME in parts[:-1]:
        raise InvalidInput(
            "invalid_path", f"{shown(directory)} can have no symlink file: it is named like one"
        )
    for each in entries:
        if "\n" in each.address:
            raise InvalidInput(
                "invalid_path",
                f"the address of {shown(each.path)} has a line break, so that no symlink file can "
                "name it",
            )
