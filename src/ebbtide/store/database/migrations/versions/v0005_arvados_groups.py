"""Arvados's links: stars, tags, names and permissions."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

_TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Adds a table."""
    op.create_table(
        "arvados_links",
        sa.Column("link_id", sa.Text(), nullable=False),
        sa.Column(
            "repository_id",
            sa.Text(),
            sa.ForeignKey(
                "repositories.repository_id", name=op.f("fk_arvados_links_repository_id")
            ),
            nullable=False,
        ),
        sa.Column("link_class", _TEXT, nullable=False),
        sa.Column("name", _TEXT, nullable=False),
        sa.Column("owner_uuid", _TEXT, nullable=False),
        sa.Column("tail_uuid", _TEXT, nullable=True),
        sa.Column("head_uuid", _TEXT, nullable=True),
        sa.Column("properties", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("modified_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("link_id", name=op.f("pk_arvados_links")),
    )
    op.create_index(
        op.f("ix_arvados_links_repository_id_head_uuid"),
        "arvados_links",
        ["repository_id", "head_uuid"],
    )
