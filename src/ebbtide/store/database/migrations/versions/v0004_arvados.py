"""Arvados's blocks, and what its collections have besides."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Adds two tables."""
    op.create_table(
        "arvados_blocks",
        _repository_id("arvados_blocks"),
        sa.Column("md5", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("checksum", sa.Text(), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("content_id", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint(
            "repository_id", "md5", "size_bytes", name=op.f("pk_arvados_blocks")
        ),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "arvados_collections",
        sa.Column(
            "collection_id",
            sa.Text(),
            sa.ForeignKey(
                "collections.collection_id", name=op.f("fk_arvados_collections_collection_id")
            ),
            nullable=False,
        ),
        _repository_id("arvados_collections"),
        sa.Column("uuid", sa.Text(), nullable=False),
        sa.Column("portable_data_hash", sa.Text(), nullable=False),
        sa.Column("file_count", sa.BigInteger(), nullable=False),
        sa.Column("file_size_total", sa.BigInteger(), nullable=False),
        sa.Column("preserve_version", sa.Boolean(), nullable=False),
        sa.Column("modified_by", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("collection_id", name=op.f("pk_arvados_collections")),
        sa.UniqueConstraint("uuid", name=op.f("uq_arvados_collections_uuid")),
    )
    op.create_index(
        op.f("ix_arvados_collections_repository_id_portable_data_hash"),
        "arvados_collections",
        ["repository_id", "portable_data_hash"],
    )


def _repository_id(table: str) -> sa.Column[str]:
    return sa.Column(
        "repository_id",
        sa.Text(),
        sa.ForeignKey("repositories.repository_id", name=op.f(f"fk_{table}_repository_id")),
        nullable=False,
    )
