"""Lists of projects and collections against lists that are computed one record at a time; and a
benchmark that fills stores faster than the server does, with the same result."""

from __future__ import annotations

import hashlib
import re
import stat
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
import sqlalchemy as sa

from benchmarks import arvados_store as filled
from ebbtide.doors.arvados.store.filters import Filter, Ordering
from ebbtide.doors.arvados.store.groups import ContentsPlace
from ebbtide.doors.arvados.store.lists import ListPage, ListQuery
from ebbtide.doors.arvados.store.repository import ArvadosRepository
from ebbtide.doors.arvados.store.uuids import GROUP, KINDS, root_uuid
from ebbtide.ids import new_id
from ebbtide.settings import Settings
from ebbtide.store.content.layout import DATA_PREFIX
from ebbtide.store.database.schema import (
    collections,
    metadata,
)
from ebbtide.store.embedded import Store
from ebbtide.store.repository import Repository
from tests.doors.arvados.store.listed import (
    KEYS,
    NAMES,
    VALUES,
    Population,
    Record,
    listed,
    populate,
)
from tests.support.clock import ManualClock
from tests.support.randomized import randomized
from tests.support.world import START

EVERYWHERE = ContentsPlace()
TEXTS = ("=", "!=", "in", "not in", "<", "<=", ">", ">=", "like", "ilike")
COMPARED = ("=", "!=", "in", "not in", "<", "<=", ">", ">=")
PATTERNS = ("a%", "%", "_", "A_", "%*%", "[x]", "\\%", "100\\%", "%\\\\%", "?", "ä", "%B", "")
ORDERED = ("name", "created_at", "modified_at", "trash_at", "delete_at", "uuid")
OF_COLLECTIONS = ("portable_data_hash", "file_count", "file_size_total", "version")


@pytest.mark.twins
@randomized("lists of Arvados")
def test_lists_are_what_the_filters_say(store: Store, seed: int) -> None:
    random = Random(seed)
    repository = store.create_repository(f"r-{new_id()}", storage_url=f"memory:{new_id()}")
    population = populate(repository, random, projects=12, collections=12)
    now = repository.context.clock.host_now()
    for _ in range(40):
        resources = random.choice((("groups",), ("collections",), ("groups", "collections")))
        asked = draw_listing(random, population, resources)
        place = draw_place(random, population) if len(resources) == 2 else EVERYWHERE
        found = page_of(repository, resources, asked, place)
        horizon = now - repository.context.trash_time if asked.include_trash else now
        uuids, available = listed(population, resources, asked, place, horizon)
        assert [item.uuid for item in found.items] == uuids, asked
        assert found.available == (available if asked.is_counted else None), asked


def page_of(
    lake: Repository, resources: tuple[str, ...], asked: ListQuery, place: ContentsPlace
) -> ListPage[Any]:
    if resources == ("groups",):
        return ArvadosRepository(lake).groups.list(asked)
    if resources == ("collections",):
        return ArvadosRepository(lake).lists.list(asked)
    return ArvadosRepository(lake).contents.list(asked, place)


def draw_place(random: Random, population: Population) -> ContentsPlace:
    owners = [root_uuid(population.cluster), *population.users]
    owners += [record["uuid"] for record in population.groups]
    owner = random.choice((None, *owners))
    if owner is None:
        return ContentsPlace(except_of=random.choice((None, *population.users)))
    return ContentsPlace(owner_uuid=owner, is_recursive=random.random() < 0.5)


def draw_listing(random: Random, population: Population, resources: tuple[str, ...]) -> ListQuery:
    records = [record for name in resources for record in getattr(population, name)]
    fields = [*ORDERED]
    fields += OF_COLLECTIONS if resources == ("collections",) else ()
    return ListQuery(
        filters=tuple(
            draw_filter(random, population, resources, records)
            for _ in range(random.choice((0, 1, 1, 1, 2, 3)))
        ),
        order=tuple(
            Ordering(random.choice(fields), is_descending=random.random() < 0.5)
            for _ in range(random.choice((0, 1, 2)))
        ),
        limit=random.choice((0, 1, 3, 100)),
        offset=random.choice((0, 0, 0, 1, 5)),
        is_counted=random.random() < 0.5,
        include_trash=random.random() < 0.5,
        distinct_by=draw_distinct(random, resources),
    )


def draw_distinct(random: Random, resources: tuple[str, ...]) -> tuple[str, ...] | None:
    if random.random() < 0.6:
        return None
    fields = [*ORDERED, "owner_uuid", "description", "is_trashed", "properties"]
    fields += [*OF_COLLECTIONS, "preserve_version"] if "collections" in resources else []
    fields += ["group_class"] if "groups" in resources else []
    return tuple(random.sample(fields, random.randrange(4)))


def draw_filter(
    random: Random, population: Population, resources: tuple[str, ...], records: list[Record]
) -> Filter:
    fields = ["uuid", "owner_uuid", "name", "description", "properties", "created_at"]
    fields += ["modified_at", "trash_at", "delete_at", "is_trashed"]
    fields += OF_COLLECTIONS if "collections" in resources else ()
    fields += ("preserve_version",) if "collections" in resources else ()
    fields += ("group_class",) if "groups" in resources else ()
    field = random.choice(fields)
    if field == "properties":
        return draw_property(random)
    operator, operand = draw_operand(random, field, population, records)
    if len(resources) == 2 and random.random() < 0.3:
        resource = random.choice(resources)
        if field in getattr(population, resource)[0]:
            field = f"{resource}.{field}"
    return Filter(field, operator, operand)


def draw_operand(
    random: Random, field: str, population: Population, records: list[Record]
) -> tuple[str, Any]:
    pool = [written(record[field]) for record in records if field in record]
    operators: tuple[str, ...] = COMPARED
    if field in ("uuid", "owner_uuid"):
        operators = ("=", "!=", "in", "not in", "is_a")
        pool += [
            *population.users,
            root_uuid(population.cluster),
            "x",
            f"{population.cluster}-{GROUP}",
        ]
        operators += ("<", "<=", ">", ">=", "like") if field == "uuid" else ()
    elif field in ("name", "portable_data_hash"):
        operators = TEXTS
        pool += NAMES
    elif field == "description":
        operators = ("=", "!=", "in", "not in", "like", "ilike")
    elif field in ("is_trashed", "preserve_version", "group_class"):
        operators = ("=", "!=")
    operator = random.choice(operators)
    if operator == "is_a":
        kinds = sorted(KINDS.values())
        return operator, random.choice((random.choice(kinds), random.sample(kinds, 2)))
    if operator in ("like", "ilike"):
        if field == "uuid":
            uuid = random.choice([each for each in pool if len(each) == 27])
            return operator, random.choice((uuid, "%", uuid[: random.randrange(27)] + "%"))
        return operator, random.choice(PATTERNS)
    if operator in ("in", "not in"):
        return operator, random.sample(pool, random.randrange(min(4, len(pool))))
    if operator in ("<", "<=", ">", ">="):
        pool = [each for each in pool if each is not None] or [written(records[0]["created_at"])]
    return operator, random.choice(pool)


def draw_property(random: Random) -> Filter:
    operator = random.choice((*TEXTS, "exists", "contains"))
    key = random.choice(KEYS)
    scalars = [each for each in VALUES if not isinstance(each, (list, dict))]
    texts = [each for each in scalars if isinstance(each, str)]
    operands: dict[str, Any] = {
        "=": random.choice(scalars),
        "!=": random.choice(scalars),
        "in": random.sample(scalars, 2),
        "not in": random.sample(scalars, 2),
        "exists": random.random() < 0.5,
        "contains": random.choice((random.choice(texts), ["x", "y"], ["x"])),
        "like": random.choice((*PATTERNS, "x%")),
        "ilike": random.choice((*PATTERNS, "X%")),
    }
    if operator == "exists" and random.random() < 0.5:
        return Filter("properties", "exists", key)
    return Filter("properties", operator, operands.get(operator, random.choice(texts)), key)


def written(value: Any) -> Any:
    """A value as a client writes it."""
    return value.isoformat() if isinstance(value, datetime) else value


COLLECTIONS, BLOCKS, ENDED = 5, 3, 2
RANDOM: Final = re.compile(r"[0-9a-f]{64}|[0-9a-f]{32}|\b[0-9a-z]{5}-[0-9a-z]{5}-[0-9a-z]{15}\b")
"""Ids, checksums of files that have ids in them, and Arvados's ids."""
OTHERS: Final = ("owner_epochs", "signing_keys", "store_info")
"""Tables that say nothing about collections. OWNER moves with changes of what is kept."""


def fill_as_the_server(lake: Repository) -> None:
    project_id = lake.projects.create("samples").project_id
    for number in range(COLLECTIONS):
        locators = [
            ArvadosRepository(lake).blocks.put(
                hashlib.md5(data, usedforsecurity=False).hexdigest(), data, holder=filled.HOLDER
            )
            for data in filled.block_data(number, BLOCKS)
        ]
        made = ArvadosRepository(lake).collections.create(
            project_id,
            filled.collection_name(number),
            filled.manifest_text(locators),
            holder=filled.HOLDER,
        )
        if number % ENDED == 0:
            ArvadosRepository(lake).collections.delete(made.listed.uuid)


def described(store: Store, lake: Repository) -> dict[str, object]:
    """Rows and files of a store without what is random in them; manifests, with their files."""
    root = Path(lake.storage.url.removeprefix("file://"))

    def plain(text: str) -> str:
        return RANDOM.sub("#", text.replace(str(root), "root"))

    with store.metadata.snapshot() as tx:
        tables = {
            table.name: tx.execute(sa.select(table)).mappings().all()
            for table in metadata.sorted_tables
            if table.name not in OTHERS
        }
    files = {str(path.relative_to(root)): path for path in root.rglob("*") if path.is_file()}
    del files["_ebbtide/OWNER"]
    return {
        "rows": {name: sorted(plain(str(dict(row))) for row in tables[name]) for name in tables},
        # Trees and ranges name random addresses. They are compared by what is read from them.
        "files": sorted(
            (
                plain(address),
                path.read_bytes() if address.startswith(DATA_PREFIX) else b"",
                stat.filemode(path.stat().st_mode),
            )
            for address, path in files.items()
        ),
        "manifests": {
            row["name"]: (
                ArvadosRepository(lake).collections.unsigned_manifest(row["collection_id"]),
                [
                    (entry.path, entry.size_bytes, entry.checksum, entry.metadata)
                    for entry in lake.collections.walk(row["collection_id"], include_expired=True)
                ],
            )
            for row in tables[collections.name]
        },
    }


def test_the_benchmark_fills_a_store_as_the_server_does(tmp_path: Path) -> None:
    """The same rows in all tables, the same manifests, and the same files with the same modes."""
    found: list[dict[str, object]] = []
    for name in ("server", "benchmark"):
        settings = Settings(lease_ttl="1h", trash_time="7d")
        with Store.init(tmp_path / name, settings=settings, clock=ManualClock(START)) as store:
            lake = store.create_repository("lake")
            if name == "server":
                fill_as_the_server(lake)
            else:
                filled.fill(lake, COLLECTIONS, BLOCKS, ENDED, processes=1)
            found.append(described(store, lake))
    server, benchmark = found
    assert server["manifests"]
    for what in server:
        assert server[what] == benchmark[what], what
