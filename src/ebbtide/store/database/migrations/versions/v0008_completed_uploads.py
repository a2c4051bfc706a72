"""Results of completed uploads in parts: a table of their own.

They were rows of `multipart_uploads`, with an id that began with `completed:`.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"

_PATH = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
_PREFIX = "completed:"
_UPLOADS = sa.table(
    "multipart_uploads",
    sa.column("repository_id", sa.Text()),
    sa.column("upload_id", sa.Text()),
    sa.column("branch", sa.Text()),
    sa.column("path", sa.Text()),
    sa.column("metadata", sa.JSON()),
    sa.column("expires_at", sa.BigInteger()),
)


def upgrade() -> None:
    """Adds the table of completed uploads, and moves their results into it."""
    completed = op.create_table(
        "completed_uploads",
        sa.Column(
            "repository_id",
            sa.Text(),
            sa.ForeignKey(
                "repositories.repository_id", name=op.f("fk_completed_uploads_repository_id")
            ),
            nullable=False,
        ),
        sa.Column("upload_id", sa.Text(), nullable=False),
        sa.Column("branch", _PATH, nullable=False),
        sa.Column("path", _PATH, nullable=False),
        sa.Column("parts", sa.Text(), nullable=False),
        sa.Column("checksum", sa.Text(), nullable=False),
        sa.Column("sums", sa.JSON(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("repository_id", "upload_id", name=op.f("pk_completed_uploads")),
    )
    connection = op.get_bind()
    is_result = _UPLOADS.c.upload_id.startswith(_PREFIX)
    found = connection.execute(sa.select(_UPLOADS).where(is_result)).mappings().all()
    op.bulk_insert(
        completed,
        [
            {
                "repository_id": row["repository_id"],
                "upload_id": row["upload_id"].removeprefix(_PREFIX),
                "branch": row["branch"],
                "path": row["path"],
                "expires_at": row["expires_at"],
                **row["metadata"],
            }
            for row in found
        ],
    )
    connection.execute(sa.delete(_UPLOADS).where(is_result))
