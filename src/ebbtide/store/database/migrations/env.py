"""Run by Alembic: applies the scripts in `versions/` to the connection that `migrate` passes."""

from alembic import context

from ebbtide.store.database.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    # SQLite changes a column by copying the table.
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
