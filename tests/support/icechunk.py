"""Real Icechunk repositories, on the local disk or on S3: histories, what a reader sees, what
Icechunk's own collection does. Not for decoding files: all goes through Icechunk, so that a test
has a second opinion.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, cast

import icechunk
import zarr
from icechunk import ManifestSplitCondition, ManifestSplitDimCondition, Repository, Session

from ebbtide.storage import open_storage

SPEC_VERSIONS: Final[tuple[int, ...]] = (1, 2) if hasattr(icechunk, "SpecVersion") else (1,)
"""The versions of the format that the installed Icechunk can write."""

NATIVE_CHUNK_BYTES_MIN: Final = 9
"""The smallest chunk that becomes a file, in repositories that say nothing else."""

VIRTUAL_FILE_BYTES: Final = 4096

Place = Path | str
"""A directory, or the URL of a prefix in a bucket of S3: its server and key are in variables."""

# Before Icechunk 2 no access is the way to ask for it, and in Icechunk 2 that is a warning.
_LOCAL_ACCESS: Final = getattr(icechunk.credentials, "LocalFileSystemAccess", None)


def create_repository(
    path: Place,
    spec_version: int,
    *,
    inline_bytes_max: int = NATIVE_CHUNK_BYTES_MIN - 1,
    split_every: int | None = None,
    updates_per_file: int | None = None,
) -> Repository:
    """Make one at `path`, with a directory of virtual chunks beside it if that is one.

    Chunks of `inline_bytes_max` at most lie in manifests. `split_every` begins a manifest after so
    many chunks along each dimension; `updates_per_file` (version 2) is the length of the log of
    operations that the `repo` file itself has.
    """
    config = icechunk.RepositoryConfig(inline_chunk_threshold_bytes=inline_bytes_max)
    if isinstance(path, Path):
        virtual = virtual_file(path)
        virtual.parent.mkdir(parents=True)
        virtual.write_bytes(bytes(i * 7 % 251 for i in range(VIRTUAL_FILE_BYTES)))
        config.set_virtual_chunk_container(
            icechunk.VirtualChunkContainer(
                f"file://{virtual.parent}/", icechunk.local_filesystem_store(str(virtual.parent))
            )
        )
    if split_every is not None:
        config.manifest = icechunk.ManifestConfig(
            splitting=icechunk.ManifestSplittingConfig.from_dict(
                {ManifestSplitCondition.AnyArray(): {ManifestSplitDimCondition.Any(): split_every}}
            )
        )
    # Icechunk 1 knows neither of these.
    if updates_per_file is not None:
        config.num_updates_per_repo_info_file = updates_per_file
    options: dict[str, Any] = {"spec_version": spec_version} if len(SPEC_VERSIONS) > 1 else {}
    return Repository.create(
        _storage(path),
        config=config,
        authorize_virtual_chunk_access=_access(config),
        **options,
    )


def open_repository(path: Place) -> Repository:
    storage = _storage(path)
    config = Repository.fetch_config(storage)
    return Repository.open(storage, authorize_virtual_chunk_access=_access(config))


def upgrade(path: Place, *, keeps_old_files: bool = False) -> Repository:
    return icechunk.upgrade_icechunk_repository(
        open_repository(path), dry_run=False, delete_unused_v1_files=not keeps_old_files
    )


def virtual_file(path: Path) -> Path:
    """The file that virtual chunks of the repository created at `path` may point into."""
    return path.resolve().parent / f"{path.name}.virtual" / "data"


def _storage(path: Place) -> icechunk.Storage:
    # Without this, each storage says that the local disk is not for concurrent writers.
    icechunk.set_logs_filter("error")
    if isinstance(path, Path):
        return icechunk.local_filesystem_storage(str(path))
    bucket, _, prefix = path.removeprefix("s3://").partition("/")
    return icechunk.s3_storage(
        bucket=bucket,
        prefix=prefix,
        region=os.environ["AWS_REGION"],
        endpoint_url=os.environ["AWS_ENDPOINT"],
        allow_http=True,
        access_key_id=os.environ["AWS_ACCESS_KEY_ID"],
        secret_access_key=os.environ["AWS_SECRET_ACCESS_KEY"],
        force_path_style=True,
    )


def _access(config: icechunk.RepositoryConfig | None) -> dict[str, Any]:
    """Access to the containers on the local disk; repositories of others have more."""
    containers = config.virtual_chunk_containers if config is not None else None
    local = [prefix for prefix in containers or {} if prefix.startswith("file://")]
    return dict.fromkeys(local, _LOCAL_ACCESS)


def build_random(path: Path, seed: int, spec_version: int) -> None:
    """Make a repository at `path` with a history whose shape only `seed` and the version decide."""
    choices = random.Random(seed)
    history = RandomHistory(path, choices, spec_version)
    for _ in range(choices.randint(5, 25)):
        history.step()


class RandomHistory:
    """Operations on one repository, each chosen by `choices`. The clock chooses nothing."""

    PATHS: Final = ("a", "b", "g/c", "g/d", "g/h/e")

    def __init__(self, path: Place, choices: random.Random, spec_version: int) -> None:
        self.path = path
        self.choices = choices
        self.number = -1
        self.repository = create_repository(
            path,
            spec_version,
            split_every=choices.choice([None, 1, 2]),
            updates_per_file=choices.choice([None, 1, 3]) if spec_version > 1 else None,
        )
        self.edits = {self._create_array: 3, self._overwrite: 6, self._resize: 1, self._delete: 1}
        if choices.random() < 0.5 and isinstance(path, Path):
            self.edits[self._refer] = 2
        self.steps = {
            self._commit: 12,
            self._abandon: 2,
            self._create_branch: 3,
            self._delete_branch: 1,
            self._reset_branch: 2,
            self._create_tag: 3,
            self._delete_tag: 1,
            self._expire: 1,
            self._save_config: 1,
            self._rewrite_manifests: 1,
        }
        if spec_version > 1:
            self.steps |= {self._amend: 2, self._detach: 1}

    def branches(self) -> list[str]:
        return sorted(self.repository.list_branches())

    def tags(self) -> list[str]:
        return sorted(self.repository.list_tags())

    def new_name(self, kind: str) -> str:
        return f"{kind}{self.number}"

    def step(self) -> None:
        self.number += 1
        steps = list(self.steps)
        chosen = self.choices.choices(steps, list(self.steps.values()))[0]
        (chosen if self.number else self._commit)()

    def _commit(self) -> None:
        self._edit(self._any_branch()).commit(f"commit {self.number}")

    def _amend(self) -> None:
        branch = self._any_branch()
        if len(self._ancestry(branch)) > 1:  # The first snapshot of all cannot be amended.
            self._edit(branch).amend(f"amend {self.number}")

    def _detach(self) -> None:
        self._edit(self._any_branch()).flush(f"detached {self.number}")

    def _abandon(self) -> None:
        self._edit(self._any_branch())

    def _create_branch(self) -> None:
        self.repository.create_branch(self.new_name("branch"), self._any_snapshot().id)

    def _delete_branch(self) -> None:
        if others := [name for name in self.branches() if name != "main"]:
            self.repository.delete_branch(self.choices.choice(others))

    def _reset_branch(self) -> None:
        branch = self._any_branch()
        self.repository.reset_branch(branch, self.choices.choice(self._ancestry(branch)).id)

    def _create_tag(self) -> None:
        self.repository.create_tag(self.new_name("tag"), self._any_snapshot().id)

    def _delete_tag(self) -> None:
        if tags := self.tags():
            self.repository.delete_tag(self.choices.choice(tags))

    def _expire(self) -> None:
        self.repository.expire_snapshots(
            self._any_snapshot().written_at,
            delete_expired_branches=self.choices.random() < 0.3,
            delete_expired_tags=self.choices.random() < 0.3,
        )
        # Version 1 edits snapshot files, of which the repository object has its own copies.
        self.repository = open_repository(self.path)

    def _save_config(self) -> None:
        config = self.repository.config
        config.inline_chunk_threshold_bytes = self.choices.choice([0, 8, 16])
        self.repository = self.repository.reopen(config, _access(config))
        self.repository.save_config()

    def _rewrite_manifests(self) -> None:
        self.repository.rewrite_manifests(f"rewrite {self.number}", branch=self._any_branch())

    def _any_branch(self) -> str:
        return self.choices.choice(self.branches())

    def _any_snapshot(self) -> icechunk.SnapshotInfo:
        tips = [("branch", name) for name in self.branches()]
        tips += [("tag", name) for name in self.tags()]
        kind, name = self.choices.choice(tips)
        return self.choices.choice(list(self.repository.ancestry(**{kind: name})))

    def _ancestry(self, branch: str) -> list[icechunk.SnapshotInfo]:
        return list(self.repository.ancestry(branch=branch))

    def _edit(self, branch: str) -> Session:
        """A session of the branch with changes: always one at least, since none is no commit."""
        session = self.repository.writable_session(branch)
        root = zarr.open_group(session.store, mode="a")
        root.attrs["number"] = self.number
        edits = self.choices.choices(
            list(self.edits), list(self.edits.values()), k=self.choices.randint(1, 4)
        )
        for edit in edits:
            edit(root)
        return session

    def _create_array(self, root: zarr.Group) -> None:
        free = [path for path in self.PATHS if path not in root]
        if not free:
            return
        dimensions = self.choices.randint(1, 2)
        array = root.create_array(
            self.choices.choice(free),
            shape=tuple(self.choices.randint(1, 8) for _ in range(dimensions)),
            chunks=tuple(self.choices.randint(1, 4 // dimensions) for _ in range(dimensions)),
            dtype=self.choices.choice(["int32", "float64"]),
            # Sizes of chunks say which are native, so they are not left to a compressor.
            compressors=None,
        )
        array[...] = self.choices.randint(1, 999)

    def _overwrite(self, root: zarr.Group) -> None:
        array = self._any_array(root)
        starts = [self.choices.randrange(length) for length in array.shape]
        region = tuple(
            slice(start, self.choices.randint(start + 1, length))
            for start, length in zip(starts, array.shape, strict=True)
        )
        # Chunks of nothing but zeros, the fill value, are removed.
        array[region] = self.choices.choice([0, *self.choices.choices(range(1, 999), k=4)])

    def _resize(self, root: zarr.Group) -> None:
        array = self._any_array(root)
        array.resize(tuple(self.choices.randint(1, 8) for _ in array.shape))

    def _delete(self, root: zarr.Group) -> None:
        if paths := sorted(path for path, _ in root.members(max_depth=None)):
            del root[self.choices.choice(paths)]

    def _refer(self, root: zarr.Group) -> None:
        """Let a chunk be some bytes of the file of virtual chunks."""
        assert isinstance(self.path, Path)
        array = self._any_array(root)
        index = [
            self.choices.randrange(math.ceil(length / chunk))
            for length, chunk in zip(array.shape, array.chunks, strict=True)
        ]
        size = math.prod(array.chunks) * array.dtype.itemsize
        cast("icechunk.IcechunkStore", root.store).set_virtual_ref(
            "/".join([array.path, "c", *map(str, index)]),
            f"file://{virtual_file(self.path)}",
            offset=self.choices.randint(0, VIRTUAL_FILE_BYTES - size),
            length=size,
        )

    def _any_array(self, root: zarr.Group) -> zarr.Array[Any]:
        members = sorted(root.members(max_depth=None))
        arrays = [node for _, node in members if isinstance(node, zarr.Array)]
        if not arrays:
            self._create_array(root)
            return self._any_array(root)
        return self.choices.choice(arrays)


@dataclass(frozen=True)
class Contents:
    """What a reader sees.

    `refs` has the ids of a ref's snapshots, from its tip on, by names such as `branch/main`;
    `snapshots` has what `describe` says of a snapshot's nodes, by path, by id.
    """

    refs: dict[str, list[str]]
    snapshots: dict[str, dict[str, str]]


def contents(path: Place, refs_there: Iterable[tuple[str, str]] | None = None) -> Contents:
    """Read all values of every snapshot that a branch or tag reaches: of those that are listed, or
    of these, each by kind and name. Raises if a snapshot is missing."""
    repository = open_repository(path)
    if refs_there is None:
        refs_there = [("branch", name) for name in repository.list_branches()]
        refs_there += [("tag", name) for name in repository.list_tags()]
    refs = {
        f"{kind}/{name}": [snapshot.id for snapshot in repository.ancestry(**{kind: name})]
        for kind, name in sorted(refs_there)
    }
    ids = {snapshot_id for ancestry in refs.values() for snapshot_id in ancestry}
    return Contents(refs, {each: read_snapshot(repository, each) for each in sorted(ids)})


def read_snapshot(repository: Repository, snapshot_id: str) -> dict[str, str]:
    store = repository.readonly_session(snapshot_id=snapshot_id).store
    try:
        root = zarr.open_group(store, mode="r")
    except zarr.errors.GroupNotFoundError:
        return {}
    return {"": describe(root)} | {
        path: describe(node) for path, node in root.members(max_depth=None)
    }


def describe(node: zarr.Array[Any] | zarr.Group) -> str:
    """A group's attributes; an array's also, with its type, shape and a digest of all values."""
    attributes = json.dumps(node.attrs.asdict(), sort_keys=True)
    if isinstance(node, zarr.Group):
        return f"group {attributes}"
    values: Any = node[...]
    digest = hashlib.sha256(values.tobytes()).hexdigest()
    return f"{node.dtype} {node.shape} {digest} {attributes}"


def listing(path: Place) -> dict[str, int]:
    """The size in bytes of each file, by its path in the repository. Ebbtide's own are left out."""
    if isinstance(path, Path):
        files = (each for each in path.rglob("*") if each.is_file())
        sizes = {each.relative_to(path).as_posix(): each.stat().st_size for each in files}
    else:
        batches = list(open_storage(path).list())
        sizes = {row["address"]: row["size_bytes"] for each in batches for row in each.to_pylist()}
    return {each: size for each, size in sizes.items() if not each.startswith("_ebbtide/")}


def copy_repository(path: Place, to: Place) -> None:
    if isinstance(path, Path):
        shutil.copytree(path, to)
        return
    source, target = open_storage(path), open_storage(str(to))
    for address in listing(path):
        target.put(address, source.get(address))


def backdate(path: Path, seconds: float) -> None:
    for each in path.rglob("*"):
        if each.is_file():
            status = each.stat()
            modified = status.st_mtime_ns - round(seconds * 1e9)
            os.utime(each, ns=(status.st_atime_ns, modified))


def instant_between(path: Path) -> datetime:
    """An instant after all that was written to a repository so far, and not after what follows.

    Names of copies of `repo` have whole milliseconds, and the clock that files are dated by is
    behind by a few; so this waits until a new file is younger than now by a millisecond.
    """
    probe = path.with_name(f"{path.name}.clock")
    enough, deadline = datetime.now(UTC) + timedelta(milliseconds=1), time.monotonic() + 10
    while True:
        probe.touch()
        date = datetime.fromtimestamp(probe.stat().st_mtime_ns // 1000 / 1e6, UTC)
        if date > enough:
            return date
        assert time.monotonic() < deadline, "files are dated by another clock than this machine's"
        time.sleep(0.0005)


@dataclass(frozen=True)
class IcechunkCollection:
    """What Icechunk did: the files that went and that came."""

    deleted: frozenset[str]
    added: frozenset[str]


def collect_with_icechunk(
    path: Place, *, delete_older_than: datetime | None = None
) -> IcechunkCollection:
    """Collect garbage, in place. Without `delete_older_than` every file is old enough."""
    before = listing(path)
    threshold = delete_older_than or datetime.now(UTC) + timedelta(days=1)
    open_repository(path).garbage_collect(threshold)
    after = listing(path)
    return IcechunkCollection(
        deleted=frozenset(before.keys() - after.keys()),
        added=frozenset(after.keys() - before.keys()),
    )


PARENTS: Final = {
    1: 0, 2: 1, 3: 2, 4: 2, 5: 4, 6: 3, 7: 6, 8: 7, 9: 7, 10: 6, 11: 10, 12: 5, 13: 12, 14: 13
}  # fmt: skip
"""The design's worked example: each commit's parent. Commit 0 is the repository's first."""

BRANCHES: Final = {"main": 14, "develop": 11, "test": 9, "qa": 8}
TAGS: Final = {"tag1": 3, "tag2": 5}


@dataclass(frozen=True)
class DesignExample:
    """The ids of its snapshots by number, and an instant after 7 was written, and not after 8."""

    ids: dict[int, str]
    threshold: datetime


def design_example(path: Path, spec_version: int) -> DesignExample:
    """Make the design's worked example at `path`, its commits in the order of their numbers.

    Each commit writes one chunk that its descendants keep and one that its children replace.
    """
    repository = create_repository(path, spec_version)
    branch_of = {0: "main"}
    forks = {3: "develop", 7: "test", 8: "qa"}
    ids = {0: repository.lookup_branch("main")}
    for number, parent in PARENTS.items():
        branch_of[number] = forks.get(number, branch_of[parent])
        if number in forks:
            repository.create_branch(forks[number], ids[parent])
        session = repository.writable_session(branch_of[number])
        root = zarr.open_group(session.store, mode="a")
        for name, count in (("each", len(PARENTS)), ("last", 1)):
            array = root.require_array(
                name, shape=(count * 4,), chunks=(4,), dtype="float64", compressors=None
            )
            start = (number - 1) * 4 % (count * 4)
            array[start : start + 4] = number
        ids[number] = session.commit(f"commit {number}")
    for tag, number in TAGS.items():
        repository.create_tag(tag, ids[number])
    return DesignExample(ids, repository.lookup_snapshot(ids[8]).written_at)
