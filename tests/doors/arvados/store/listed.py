"""Projects and collections, and lists of them by Arvados's documentation, one record at a time."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Final

import sqlalchemy as sa

from ebbtide.doors.arvados.store.filters import Filter
from ebbtide.doors.arvados.store.groups import ContentsPlace
from ebbtide.doors.arvados.store.lists import ListQuery
from ebbtide.doors.arvados.store.uuids import (
    COLLECTION,
    GROUP,
    KINDS,
    cluster_of,
    root_uuid,
    user_uuid,
    uuid_of,
)
from ebbtide.ids import new_id
from ebbtide.store.collections.queries import COLLECTIONS, PROJECTS, CollectionRow, ProjectRow
from ebbtide.store.database.engine import Transaction
from ebbtide.store.database.schema import arvados_collections
from ebbtide.store.repository import Repository

Record = dict[str, Any]
NAMES = (
    *("a", "A", "ab", "b_", "100%", "ä", "Ä", "a*b", "[x]", "back\\slash"),
    *("\U0001f600", "\ue001"),
)
VALUES: Final[Sequence[Any]] = (
    *("x", "X", "xy", "ü", "", 1, 1.5, -2, True, False, None),
    *(["x", "y"], ["X"], {"k": "x"}, []),
)
KEYS = ("k", "K", "a b", "ä", "n.m", 'q"')
HOUR = timedelta(hours=1)


@dataclass(frozen=True)
class Population:
    """What a repository has, as records by resource. `_parent` is the store's id of a project."""

    cluster: str
    users: tuple[str, ...]
    groups: list[Record]
    collections: list[Record]
    parents: dict[str, str | None]
    ends: dict[str, datetime | None]
    homes: dict[str, str]

    def lineage(self, project_id: str | None) -> list[str]:
        """A project and all above it."""
        found: list[str] = []
        while project_id is not None:
            found.append(project_id)
            project_id = self.parents[project_id]
        return found


def populate(lake: Repository, random: Random, *, projects: int, collections: int) -> Population:
    """Puts projects and collections of all kinds into a repository, at the tables."""
    cluster = cluster_of(lake.context.repository_id)
    users = tuple(user_uuid(cluster, f"EBBT{number}") for number in range(3))
    found = Population(cluster, users, [], [], {}, {}, {})
    now, trash = lake.context.clock.host_now(), lake.context.trash_time
    with lake.context.metadata.transaction() as tx:
        for number in range(projects):
            is_home = number < 2
            row = ProjectRow(
                project_id=new_id(),
                repository_id=lake.context.repository_id,
                parent_id=None if is_home else random.choice([None, *found.parents]),
                **_drawn(random, now, trash)
                | ({"name": users[number], "expires_at": None} if is_home else {}),
            )
            PROJECTS.insert(tx, row)
            if is_home:
                found.homes[row.project_id] = row.name
            else:
                found.groups.append(
                    _common(found, row, row.parent_id, now, trash)
                    | {"uuid": uuid_of(cluster, GROUP, row.project_id), "group_class": "project"}
                )
            found.parents[row.project_id] = row.parent_id
            found.ends[row.project_id] = row.expires_at
        for _ in range(collections):
            _put_collection(lake, tx, random, found)
    return found


def _put_collection(lake: Repository, tx: Transaction, random: Random, found: Population) -> None:
    now, trash = lake.context.clock.host_now(), lake.context.trash_time
    made = CollectionRow(
        collection_id=new_id(),
        repository_id=lake.context.repository_id,
        project_id=random.choice(list(found.parents)),
        version=random.randrange(1, 4),
        content_id=new_id(),
        content_hash=new_id(),
        file_count=9,
        size_bytes=9,
        replication_desired=1,
        **_drawn(random, now, trash),
    )
    COLLECTIONS.insert(tx, made)
    more: Record = {
        "uuid": uuid_of(found.cluster, COLLECTION, made.collection_id),
        "portable_data_hash": f"{random.choice('ab') * 32}+{random.randrange(9)}",
        "file_count": random.randrange(4),
        "file_size_total": random.randrange(4) * 2**40,
        "preserve_version": random.random() < 0.5,
    }
    tx.execute(
        sa.insert(arvados_collections).values(
            collection_id=made.collection_id,
            repository_id=made.repository_id,
            modified_by="EBBT0",
            **more,
        )
    )
    more |= {
        "version": made.version,
        "replication_desired": 1,
        "current_version_uuid": more["uuid"],
    }
    found.collections.append(_common(found, made, made.project_id, now, trash) | more)


def _drawn(random: Random, now: datetime, trash: timedelta) -> Record:
    """The columns that projects and collections share."""
    ends = [None, None, None, now + HOUR, now, now - HOUR, now - trash, now - trash + HOUR]
    return {
        "name": random.choice(NAMES),
        "description": random.choice(("", *NAMES)),
        "properties": {key: random.choice(VALUES) for key in KEYS if random.random() < 0.4},
        "created_at": now - random.randrange(3) * HOUR,
        "modified_at": now - random.randrange(3) * HOUR,
        "expires_at": random.choice(ends),
    }


def _common(
    found: Population,
    row: ProjectRow | CollectionRow,
    parent_id: str | None,
    now: datetime,
    trash: timedelta,
) -> Record:
    ends = row.expires_at
    return {
        "owner_uuid": _owner(found.cluster, found.homes, parent_id),
        "name": row.name,
        "description": row.description,
        "properties": dict(row.properties),
        "created_at": row.created_at,
        "modified_at": row.modified_at,
        "trash_at": ends,
        "delete_at": None if ends is None else ends + trash,
        "is_trashed": ends is not None and ends <= now,
        "_parent": parent_id,
    }


def _owner(cluster: str, homes: Mapping[str, str], parent_id: str | None) -> str:
    if parent_id is None:
        return root_uuid(cluster)
    return homes.get(parent_id) or uuid_of(cluster, GROUP, parent_id)


def listed(
    population: Population,
    resources: Sequence[str],
    asked: ListQuery,
    place: ContentsPlace,
    horizon: datetime,
) -> tuple[list[str], int]:
    """The ids of a page, and how many items the list has."""
    items = [
        record
        for resource in resources
        for record in getattr(population, resource)
        if _is_visible(population, record, horizon)
        and _is_in(population, record, place)
        and all(_holds(each, record, resource, resources) for each in asked.filters)
    ]
    if asked.distinct_by is not None:
        items = _first_of_equals(items, asked.distinct_by)
    for each in reversed(asked.full_order):
        items.sort(key=_key(each.field.rpartition(".")[2]), reverse=each.is_descending)
    page = items[asked.offset : asked.offset + asked.limit]
    return [record["uuid"] for record in page], len(items)


def _first_of_equals(items: list[Record], names: Sequence[str]) -> list[Record]:
    """Of the items of one kind that are equal in some fields, the one with the first id."""
    found: dict[str, Record] = {}
    for record in sorted(items, key=lambda each: str(each["uuid"])):
        values = [record["uuid"].split("-")[1], *(record.get(name) for name in names)]
        found.setdefault(repr(values), record)
    return list(found.values())


def _key(name: str) -> Callable[[Record], Any]:
    never = datetime.max.replace(tzinfo=UTC)
    return lambda record: never if record[name] is None else record[name]


def _is_visible(population: Population, record: Record, horizon: datetime) -> bool:
    dates = [
        record["trash_at"],
        *(population.ends[each] for each in population.lineage(record["_parent"])),
    ]
    return all(date is None or date > horizon for date in dates)


def _is_in(population: Population, record: Record, place: ContentsPlace) -> bool:
    if place.owner_uuid is None:
        return place.except_of is None or record["owner_uuid"] != place.except_of
    if not place.is_recursive:
        return bool(record["owner_uuid"] == place.owner_uuid)
    above = population.lineage(record["_parent"])
    owners = {
        population.homes.get(each) or uuid_of(population.cluster, GROUP, each) for each in above
    }
    return place.owner_uuid in owners | {root_uuid(population.cluster)}


def _holds(asked: Filter, record: Record, resource: str, resources: Sequence[str]) -> bool:
    prefix, dot, name = asked.field.rpartition(".")
    if dot and prefix != resource and prefix in resources:
        return True
    if name not in record:
        return False
    if asked.operator == "is_a":
        wanted = asked.operand if isinstance(asked.operand, list) else [asked.operand]
        return KINDS[str(record[name]).split("-")[1]] in wanted
    if name == "properties":
        return _property_holds(asked, record["properties"])
    operand = asked.operand
    if isinstance(record[name], datetime) or name.endswith("_at"):
        operand = (
            [each and datetime.fromisoformat(each) for each in operand]
            if isinstance(operand, list)
            else operand and datetime.fromisoformat(operand)
        )
    return OPERATORS[asked.operator](record[name], operand)


def _property_holds(asked: Filter, properties: Record) -> bool:
    if asked.key is None:
        return str(asked.operand) in properties
    missing = object()
    value = properties.get(asked.key, missing)
    if asked.operator == "exists":
        return (value is not missing) is bool(asked.operand)
    if asked.operator == "contains":
        wanted = asked.operand if isinstance(asked.operand, list) else [asked.operand]
        held = value if isinstance(value, list) else [value]
        return all(each in held for each in wanted)
    if asked.operator in ("=", "!=", "in", "not in"):
        operands = asked.operand if "in" in asked.operator else [asked.operand]
        # In Python, True is 1.
        same = any(type(each) is type(value) and each == value for each in operands)
        return same == (asked.operator in ("=", "in"))
    return isinstance(value, str) and OPERATORS[asked.operator](value, asked.operand)


def _like(value: str, pattern: str, flags: int = 0) -> bool:
    parts = re.findall(r"\\.|.", pattern, re.DOTALL)
    signs = {"%": ".*", "_": "."}
    regex = "".join(signs.get(part) or re.escape(part[-1]) for part in parts)
    return re.fullmatch(regex, value, re.DOTALL | flags) is not None


def _ilike(value: str, pattern: str) -> bool:
    table = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
    return _like(value.translate(table), pattern.translate(table))


OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": lambda value, operand: value == operand,
    "!=": lambda value, operand: value != operand,
    "in": lambda value, operand: value in operand,
    "not in": lambda value, operand: value not in operand,
    "<": lambda value, operand: value is not None and value < operand,
    "<=": lambda value, operand: value is not None and value <= operand,
    ">": lambda value, operand: value is not None and value > operand,
    ">=": lambda value, operand: value is not None and value >= operand,
    "like": _like,
    "ilike": _ilike,
}
