"""The command line: reads arguments, calls the layers below, prints. It never decides anything.

Modules that take long to import (Spark, Arrow, SQLAlchemy, pydantic) are imported inside the
functions that need them, so that `ebbtide --help` answers at once; and the program itself inside
`main`, since each worker process imports the module of its parent.
"""


def main() -> None:
    """The program `ebbtide`."""
    from ebbtide.imports import leave_algebra_alone, leave_pandas_alone

    leave_algebra_alone()
    leave_pandas_alone()

    from ebbtide.cli import app

    app.main()
