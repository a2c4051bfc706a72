"""Schedules of runs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Adds the table of schedules."""
    op.create_table(
        "schedules",
        sa.Column("repository_key", sa.Text(), nullable=False),
        sa.Column("repository", sa.Text(), nullable=False),
        sa.Column("cron", sa.Text(), nullable=False),
        sa.Column("timezone", sa.Text(), nullable=False),
        sa.Column("jitter_seconds", sa.BigInteger(), nullable=False),
        sa.Column("options", sa.JSON(), nullable=False),
        sa.Column("set_by", sa.Text(), nullable=False),
        sa.Column("set_at", sa.BigInteger(), nullable=False),
        sa.Column("next_due_at", sa.BigInteger(), nullable=True),
        sa.Column("started_count", sa.BigInteger(), nullable=False),
        sa.Column("missed_count", sa.BigInteger(), nullable=False),
        sa.Column("skipped_count", sa.BigInteger(), nullable=False),
        sa.Column("starting_due_at", sa.BigInteger(), nullable=True),
        sa.Column("starting_since", sa.BigInteger(), nullable=True),
        sa.Column("last_due_at", sa.BigInteger(), nullable=True),
        sa.Column("last_started_at", sa.BigInteger(), nullable=True),
        sa.Column("last_run_id", sa.Text(), nullable=True),
        sa.Column("last_outcome", sa.Text(), nullable=True),
        sa.Column("last_error", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("last_ended_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("repository_key", name=op.f("pk_schedules")),
    )
