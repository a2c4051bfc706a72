"""Roles of access keys in single repositories."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Adds one table. Keys of earlier versions have no grants."""
    op.create_table(
        "access_key_grants",
        sa.Column(
            "access_key_id",
            sa.Text(),
            sa.ForeignKey(
                "access_keys.access_key_id", name=op.f("fk_access_key_grants_access_key_id")
            ),
            nullable=False,
        ),
        sa.Column(
            "repository_id",
            sa.Text(),
            sa.ForeignKey(
                "repositories.repository_id", name=op.f("fk_access_key_grants_repository_id")
            ),
            nullable=False,
        ),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("seal", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint(
            "access_key_id", "repository_id", name=op.f("pk_access_key_grants")
        ),
    )
    op.create_index(
        op.f("ix_access_key_grants_repository_id"), "access_key_grants", ["repository_id"]
    )
