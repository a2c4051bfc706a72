"""A store that has a little of everything, made once and reset before each try.

It can describe its content without ids and dates, and check that all committed files can be read.
All of it lies below one directory with a fixed path, because the record of a run names paths.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import icechunk
import zarr

from ebbtide.storage import LocalStorage
from ebbtide.store.commits.publication import CommitDetails
from ebbtide.store.content.layout import tree_address
from ebbtide.store.content.trees import iterate_entries, read_tree
from ebbtide.store.embedded import DATABASE_FILE, Store
from ebbtide.store.import_sources import ImportSource
from ebbtide.store.imports import ImportRequest
from ebbtide.store.repository import Repository
from tests.support.icechunk import backdate, create_repository
from tests.support.templates import AGE, date_files

Do = Callable[..., Any]
"""Runs a command with `--json`; its document."""

View = Mapping[str, list[tuple[Any, ...]]]

ENVIRONMENT: Final = {
    "EBBTIDE_SPARK_MASTER": "none",
    "EBBTIDE_LEASE_TTL": "0s",
    "EBBTIDE_SHARE_MAX": "1",
    "EBBTIDE_IMPORT_PREFIXES": "s3:// file://",
    "USER": "tester",
}

_OF: Final = "JOIN repositories AS r USING (repository_id)"
_LIVE: Final = """FROM staged AS s JOIN branches AS b ON b.repository_id = s.repository_id
 AND (b.staging_token = s.token OR instr(' ' || b.sealed_tokens || ' ', ' ' || s.token || ' '))
 JOIN repositories AS r ON r.repository_id = s.repository_id"""
VIEWS: Final[Mapping[str, str]] = {
    "repositories": "SELECT name, default_branch, policy, protected_branches, metadata,"
    " expires_at IS NULL,"
    " tombstoned_by IS NULL FROM repositories",
    "branches": "SELECT r.name, x.name, c.message, x.expires_at IS NULL, x.hidden"
    f" FROM branches AS x {_OF} JOIN commits AS c USING (repository_id, commit_id)",
    # A request for symlink files makes a tag whose name ends in digits of its own.
    "tags": "SELECT r.name, iif(x.name GLOB 'symlinks/*-*', 'symlinks/…', x.name), c.message,"
    " x.expires_at IS NULL"
    f" FROM tags AS x {_OF} JOIN commits AS c USING (repository_id, commit_id)",
    "commits": "SELECT r.name, x.message, x.committer, x.tombstoned_by IS NULL,"
    " x.forgotten_by IS NULL, x.given_up_reason"
    f" FROM commits AS x {_OF} WHERE x.collection_id IS NULL",
    "staged": f"SELECT DISTINCT r.name, b.name, s.path, s.checksum, s.address IS NULL {_LIVE}",
    "holds": "SELECT r.name, c.message, x.reason"
    f" FROM holds AS x {_OF} JOIN commits AS c USING (repository_id, commit_id)",
    "projects": "SELECT r.name, y.name, x.name, x.description, x.properties,"
    f" x.expires_at IS NULL FROM projects AS x {_OF}"
    " LEFT JOIN projects AS y ON y.project_id = x.parent_id",
    "collections": "SELECT r.name, p.name, x.name, x.description, x.properties, x.content_hash,"
    f" x.replication_desired, x.expires_at IS NULL FROM collections AS x {_OF}"
    " JOIN projects AS p USING (project_id)",
    "collection_versions": "SELECT c.name, x.content_hash"
    " FROM collection_versions AS x JOIN collections AS c USING (collection_id)",
    "gc_runs": f"SELECT r.name FROM gc_runs AS x {_OF}",
    "purges": "SELECT repository_name, state, json_extract(request, '$.reason') FROM purges",
    "purged": f"SELECT r.name FROM purged AS x {_OF}",
    "removals": "SELECT name, finished_at IS NULL FROM removals",
    "access_keys": "SELECT role, name, revoked_at IS NULL FROM access_keys",
    "access_key_grants": "SELECT r.name, k.name, x.role"
    f" FROM access_key_grants AS x {_OF} JOIN access_keys AS k USING (access_key_id)",
    "signing_keys": "SELECT secret IS NULL FROM signing_keys",
    "upload_tokens": f"SELECT r.name FROM upload_tokens AS x {_OF}",
    "multipart_uploads": f"SELECT r.name, x.path FROM multipart_uploads AS x {_OF}",
    "multipart_parts": "SELECT r.name, x.part_number, x.size_bytes"
    f" FROM multipart_parts AS x {_OF}",
    "schedules": "SELECT r.name, x.cron, x.timezone, x.jitter_seconds, x.options, x.set_by,"
    " x.next_due_at IS NULL FROM schedules AS x"
    " JOIN repositories AS r ON r.repository_id = x.repository_key",
    "imports": f"SELECT r.name, x.branch, x.state FROM imports AS x {_OF}",
}
"""What the tables say that somebody asked for."""

WEEK: Final = timedelta(days=7)
"""For how long what is in the trash can be brought back."""
_THERE: Final = (
    "SELECT repository_id, name, storage_url FROM repositories"
    " WHERE tombstoned_by IS NULL AND (expires_at IS NULL OR expires_at > ?)"
)
_INTACT: Final = (
    "SELECT tree_id, tree_checksum FROM commits WHERE repository_id = ?"
    " AND tombstoned_by IS NULL AND forgotten_by IS NULL AND given_up_at IS NULL"
)
_STAGED: Final = f"SELECT s.address {_LIVE} WHERE s.address IS NOT NULL AND s.repository_id = ?"
_PURGED: Final = "SELECT address FROM purged WHERE repository_id = ?"


@dataclass
class SmallWorld:
    """The world in `directory`: the store, files of the user's in `work`, an Icechunk repository
    in `ice`. `names` are ids by what the calls say for them."""

    directory: Path
    pristine: Path
    names: dict[str, str] = field(default_factory=dict)
    made: frozenset[str] = frozenset()
    """The objects that were made with it."""

    @property
    def store(self) -> Path:
        return self.directory / "store"

    @property
    def work(self) -> Path:
        return self.directory / "work"

    @property
    def database(self) -> Path:
        return self.store / DATABASE_FILE

    def make(self, do: Do) -> None:
        self.work.mkdir(parents=True)
        _write_files(self.work)
        _fill(self, do)
        self.made = frozenset(self.data())
        self.pristine.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(self.directory, self.pristine)

    def reset(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)
        shutil.copytree(self.pristine, self.directory)

    def execute(self, statement: str, *values: Any) -> None:
        with closing(sqlite3.connect(self.database)) as connection, connection:
            connection.execute(statement, values)

    def stopped_purges(self, reason: str) -> list[str]:
        with closing(sqlite3.connect(self.database)) as connection:
            found = connection.execute(
                "SELECT purge_id FROM purges WHERE state IN ('planned', 'deleting', 'incomplete')"
                " AND json_extract(request, '$.reason') = ?",
                (reason,),
            ).fetchall()
        return [purge_id for (purge_id,) in found]

    def view(self) -> View:
        if not self.database.exists():
            return {}
        with closing(sqlite3.connect(self.database)) as connection:
            try:
                found = {
                    name: sorted(connection.execute(query).fetchall(), key=repr)
                    for name, query in VIEWS.items()
                }
            except sqlite3.DatabaseError:
                return {}
        left = self.data()
        found["data"] = [(name,) for name in sorted(self.made) if name in left]
        found["icechunk"] = [(_ice_messages(self.directory / "ice"),)]
        return found

    def data(self) -> set[str]:
        root = self.store / "storage"
        return {
            str(path.relative_to(root))
            for path in root.glob("*/data/**/*")
            if path.is_file() and "#" not in path.name
        }

    def files(self) -> dict[str, bytes]:
        return {
            str(path.relative_to(self.work)): path.read_bytes()
            for path in self.work.rglob("*")
            if path.is_file()
        }

    def is_held(self) -> bool:
        with closing(sqlite3.connect(self.database)) as connection:
            held = "SELECT count(*) FROM gc_leases WHERE run_id IS NOT NULL"
            return bool(connection.execute(held).fetchone()[0])

    def end_process(self) -> None:
        """Whoever holds something is a process that is gone."""
        with closing(sqlite3.connect(self.database)) as connection, connection:
            for repository_id, holder in connection.execute(
                "SELECT repository_id, holder FROM gc_leases WHERE run_id IS NOT NULL"
            ).fetchall():
                connection.execute(
                    "UPDATE gc_leases SET holder = ? WHERE repository_id = ?",
                    (_dead(holder), repository_id),
                )
        lease = self.directory / "ice" / "_ebbtide" / "gc" / "LEASE"
        if lease.exists():
            content = json.loads(lease.read_bytes())
            content["holder"] = _dead(content.get("holder"))
            lease.write_text(json.dumps(content))

    def age(self) -> None:
        date_files(self.store, datetime.now(UTC) - AGE)

    def check_whole(self) -> None:
        """What commits, collections and branches have is there, of every repository that is not
        gone; but for what a run let go, and what was purged."""
        with closing(sqlite3.connect(self.database)) as connection:
            week_ago = int((datetime.now(UTC) - WEEK).timestamp() * 1_000_000)
            for repository_id, name, url in connection.execute(_THERE, (week_ago,)).fetchall():
                root = Path(unquote(urlsplit(url).path))
                needed = {address for (address,) in connection.execute(_STAGED, (repository_id,))}
                for tree_id, checksum in connection.execute(_INTACT, (repository_id,)):
                    files, addresses = _reached(root, tree_id, checksum)
                    needed |= addresses
                    lost = [each for each in files if not (root / each).is_file()]
                    assert not lost, f"{name} lost {lost}"
                gone = {address for (address,) in connection.execute(_PURGED, (repository_id,))}
                own = (each for each in needed - gone if ":" not in each)
                missing = [each for each in own if not (root / each).is_file()]
                assert not missing, f"{name} lost {missing}"


def without_runs(view: View) -> View:
    """All but runs, purges and imports: one that is refused is on record."""
    recorded = ("gc_runs", "purges", "imports")
    return {name: rows for name, rows in view.items() if name not in recorded}


def is_done(view: View, after: View, adds: Collection[str]) -> bool:
    """Whether all is as `after` what nothing befell; more where something `adds` each time."""
    return all(
        set(rows) >= set(after[name]) if name in adds else rows == after[name]
        for name, rows in view.items()
    )


_READ: Final[dict[str, tuple[list[str], set[str]]]] = {}
"""By the id of a tree: what nobody changes is read once."""


def _reached(root: Path, tree_id: str, checksum: str) -> tuple[list[str], set[str]]:
    """The files of a tree and its ranges, and the addresses that its entries have."""
    if tree_id not in _READ:
        storage = LocalStorage(str(root))
        tree = read_tree(storage, tree_id, checksum)
        files = [tree_address(tree_id), *(info.address for info in tree.ranges)]
        _READ[tree_id] = files, {entry.address for entry in iterate_entries(storage, tree)}
    return _READ[tree_id]


def _dead(holder: str | None) -> str:
    """The same process, had it begun at another time: one that is gone."""
    machine, pid, _ = (holder or "none 1 1").rsplit(" ", 2)
    return f"{machine} {pid} 1"


def _ice_messages(root: Path) -> tuple[str, ...]:
    content = (root / "repo").read_bytes()
    if content not in _HISTORIES:
        found = icechunk.Repository.open(icechunk.local_filesystem_storage(str(root)))
        _HISTORIES[content] = tuple(each.message for each in found.ancestry(branch="main"))
    return _HISTORIES[content]


_HISTORIES: Final[dict[bytes, tuple[str, ...]]] = {}
"""By the bytes of the file that says them."""


def _write_files(work: Path) -> None:
    (work / "tree" / "deep").mkdir(parents=True)
    for name in ("source", "other", "tree/one", "tree/deep/two"):
        (work / name).write_text(f"{name} ".ljust(40, "."))
    (work / "policy.json").write_text('{"default": {"keep_last": 2}}')
    (work / "out").mkdir()


def _fill(world: SmallWorld, do: Do) -> None:
    do("init", world.store)
    _fill_lake(do)
    _fill_collections(world, do)
    _fill_trash(world, do)
    for name in ("swept", "planned", "gone"):
        _fill_old(do, name)
    world.age()
    run = do("gc", "run", "swept", "--grace", "1s", "--unsafe", "--quarantine", "1d", "--yes")
    plan = do("gc", "plan", "planned", "--grace", "1s", "--unsafe")
    world.names |= {"run": run["run_id"], "plan": plan["run_id"]}
    do("schedule", "set", "planned", "0 3 29 2 *", "--dry-run")
    do("repo", "delete", "gone")
    month_ago = datetime.now(UTC) - timedelta(days=30)
    world.execute(
        "UPDATE repositories SET expires_at = ? WHERE name = 'gone'",
        int(month_ago.timestamp() * 1_000_000),
    )
    purge = ("purge", "run", "lake", "--reason")
    planned = do(*purge, "planned", "--path", "dev:e", "--dry-run")
    done = do(*purge, "done", "--path", "dirty:secret", "--yes-i-mean", "lake")
    world.names |= {"purge": planned["purge_id"], "done": done["purge_id"]}
    _make_ice(world.directory / "ice")


def _commit(do: Do, repository: str, branch: str, message: str, day: int) -> str:
    date = f"2020-01-{day:02}T00:00:00Z"
    made = do("commit", repository, branch, "-m", message, "--date", date)
    return str(made["commit_id"])


def _fill_lake(do: Do) -> None:
    do("repo", "create", "lake")
    for path, source in (("a", "source"), ("b", "other"), ("d/x", "tree/one")):
        do("fs", "put", "lake", "main", source, path)
    _commit(do, "lake", "main", "first", 1)
    do("fs", "put", "lake", "main", "tree/deep/two", "a")
    do("fs", "rm", "lake", "main", "d/x")
    _commit(do, "lake", "main", "second", 2)
    do("branch", "create", "lake", "dev")
    do("fs", "put", "lake", "dev", "source", "e")
    _commit(do, "lake", "dev", "on dev", 3)
    do("fs", "put", "lake", "main", "policy.json", "f")
    _commit(do, "lake", "main", "third", 4)
    do("branch", "protect", "lake", "kept-*")
    do("tag", "create", "lake", "v1", "main~1")
    do("hold", "add", "lake", "main~1", "--reason", "audit")
    do("branch", "create", "lake", "dirty")
    for path in ("staged", "let-go", "secret", "s/x"):
        do("fs", "put", "lake", "dirty", "tree/one", path)
    do("fs", "rm", "lake", "dirty", "let-go")
    do("retention", "set", "lake", "--default", "keep_last:1")


def _fill_collections(world: SmallWorld, do: Do) -> None:
    project = do("project", "create", "lake", "p")
    inner = do("project", "create", "lake", "p/q")
    changed = do("collection", "create", "lake", "p/c", "tree")
    do("collection", "put", "lake", "p/c", "source", "--keep-version")
    made = do("collection", "create", "lake", "p/d", "--from-ref", "main")
    given = do("fs", "address", "lake", "dirty", "linked")
    place = Path(unquote(urlsplit(given["url"]).path))
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("linked".ljust(40, "."))
    key = do("key", "create", "--role", "reader", "--name", "r", "--repository", "lake=admin")
    admin = do("key", "create", "--role", "admin", "--name", "admin")
    first = do("log", "lake", "main", "--limit", "3")["commits"]
    world.names |= {
        "token": given["token"],
        "linked": given["url"],
        "project": project["project_id"],
        "inner_project": inner["project_id"],
        "collection": changed["collection_id"],
        "other_collection": made["collection_id"],
        "admin": admin["access_key_id"],
        "secret": admin["secret_access_key"],
        "key": key["access_key_id"],
        "hash": made["content_hash"],
        "head": first[0]["commit_id"],
        "first": first[-1]["commit_id"],
        "first_address": do("fs", "stat", "lake", first[-1]["commit_id"], "d/x")["address"],
        "ice": f"icechunk:{world.directory / 'ice'}",
        "store": str(world.store),
        "work": str(world.work),
    }
    # The rest of the store's life has no leases; what was given out before lasts all the same.
    do("promises", "--lease-ttl", "1d")
    locators = do("collection", "locators", "lake", "p/d")
    (world.work / "locators.json").write_text(json.dumps(locators))
    with Store.open(world.store) as store:
        lake = store.repository("lake")
        lake.tags.create("dumped", "main")
        world.names["task"] = lake.exports.begin()
        lake.exports.carry_out(world.names["task"])
        world.names["dump_task"] = lake.dumps.begin()
        lake.dumps.carry_out_dump(world.names["dump_task"])
        dump = lake.dumps.dump()
        world.names |= {
            "dumped_branches": dump.branches_id,
            "dumped_tags": dump.tags_id,
            "dumped_commits": dump.commits_id,
        }
        lake.tags.delete("dumped")
        source = ImportSource("s3://bucket/key", "away", is_prefix=False)
        asked = ImportRequest(branch="dev", sources=(source,), details=CommitDetails("imported"))
        world.names["import"] = lake.imports.begin(asked)
        world.names |= _begin_upload(lake)
        world.names["locator"] = lake.locators.sign_path("main", "a").locator
    do("promises", "--lease-ttl", "0s", "--yes")


def _begin_upload(lake: Repository) -> dict[str, str]:
    upload = lake.multipart.create("dirty", "in-parts")
    part = lake.multipart.put_part(upload, 1, b"part".ljust(40, b"."))
    return {
        "upload": upload.upload_id,
        "upload_url": lake.signed_parts.url_of(upload.upload_id),
        "part_etag": part.etag,
    }


def _fill_trash(world: SmallWorld, do: Do) -> None:
    for kind in ("branch", "tag"):
        more = ("main",) if kind == "tag" else ()
        do(kind, "create", "lake", f"{kind}-bin", *more)
        do(kind, "delete", "lake", f"{kind}-bin")
    project = do("project", "create", "lake", "bin")
    do("project", "delete", "lake", "bin")
    collection = do("collection", "create", "lake", "p/bin")
    do("collection", "delete", "lake", "p/bin")
    do("repo", "create", "binned")
    do("repo", "delete", "binned")
    do("repo", "create", "days")
    do("retention", "set", "days", "--default", "7d")
    world.names |= {
        "binned_project": project["project_id"],
        "binned_collection": collection["collection_id"],
    }


def _fill_old(do: Do, name: str) -> None:
    do("repo", "create", name)
    do("fs", "put", name, "main", "source", "old")
    _commit(do, name, "main", "old", 1)
    do("fs", "rm", name, "main", "old")
    do("fs", "put", name, "main", "other", "new")
    _commit(do, name, "main", "new", 2)
    do("retention", "set", name, "--default", "keep_last:1")


def _make_ice(path: Path) -> None:
    repository = create_repository(path, 2)
    for number in range(3):
        session = repository.writable_session("main")
        root = zarr.open_group(session.store, mode="a")
        array = root.require_array("a", shape=(8,), chunks=(4,), dtype="float64", compressors=None)
        array[...] = number + 1
        session.commit(f"commit {number}")
    backdate(path, AGE.total_seconds())
