"""Repositories have the storage namespace that their creator wrote."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Adds the column `namespace`. It is null for earlier repositories."""
    op.add_column("repositories", sa.Column("namespace", sa.Text(), nullable=True))
