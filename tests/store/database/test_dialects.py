"""Expressions that differ between the two databases, against what they mean."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import sqlalchemy as sa

from ebbtide.store.database.dialects import by_code_points, each_of, either, in_process, insert_on
from ebbtide.store.database.schema import store_info
from ebbtide.store.embedded import Store

pytestmark = pytest.mark.twins

CHARACTERS = "aAbBzZäÄéß_-.% 09\u4e00\U0001f600"


def texts(random: Random) -> list[str]:
    return ["".join(random.choices(CHARACTERS, k=random.randrange(1, 5))) for _ in range(30)]


def test_either_is_the_expression_of_the_database(store: Store) -> None:
    chosen = either(on_sqlite=sa.literal("SQLite"), on_postgresql=sa.literal("PostgreSQL"))
    shown = sa.select(chosen, sa.not_(either(on_sqlite=sa.true(), on_postgresql=sa.false())))
    with store.metadata.snapshot() as tx:
        row: Any = tx.execute(shown).one()
        name, is_other = row
        assert in_process(tx.connection) == tx.in_process
        assert name == ("SQLite" if tx.in_process else "PostgreSQL")
        assert bool(is_other) is not tx.in_process


def test_either_with_other_values_is_another_statement(store: Store) -> None:
    """SQLAlchemy keeps compiled statements: the values of the one before must not stay."""
    for value in ("a", "b", "c"):
        query = sa.select(either(on_sqlite=sa.literal(value), on_postgresql=sa.literal(value * 2)))
        with store.metadata.snapshot() as tx:
            found = tx.execute(query).scalar_one()
            assert found == (value if tx.in_process else value * 2)


@pytest.mark.parametrize("seed", range(5))
def test_texts_sort_by_code_points(store: Store, seed: int) -> None:
    given = texts(Random(seed))
    with store.metadata.snapshot() as tx:
        rows = each_of(tx.connection, given).subquery()
        (column,) = rows.c
        query = sa.select(column)
        assert sorted(tx.execute(query).scalars()) == sorted(given)
        found = tx.execute(query.order_by(by_code_points(column))).scalars().all()
        assert found == sorted(given)
        bound = given[0]
        behind = tx.execute(query.where(by_code_points(column) > bound)).scalars().all()
        assert sorted(behind) == sorted(each for each in given if each > bound)


def test_an_insert_that_conflicts_does_nothing(store: Store) -> None:
    with store.metadata.transaction() as tx:
        before = tx.execute(sa.select(store_info)).mappings().one()
        again = insert_on(tx.connection)(store_info).values(**before)
        made = again.on_conflict_do_nothing().returning(store_info.c.store_id)
        assert tx.execute(made).first() is None
        assert tx.execute(sa.select(store_info)).mappings().one() == before
