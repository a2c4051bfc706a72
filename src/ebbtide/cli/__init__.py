"""The command line: reads arguments, calls the layers below, and prints. Not for: decisions.

Functions import slow modules (Spark, Arrow, SQLAlchemy, pydantic) themselves, so that
`ebbtide --help` answers at once. `main` imports the program itself, because each worker process
imports the module of its parent.
"""


def main() -> None:
    """The program `ebbtide`."""
    from ebbtide.imports import leave_algebra_alone, leave_pandas_alone

    leave_algebra_alone()
    leave_pandas_alone()

    from ebbtide.cli import app

    app.main()
