"""The command line: reads arguments, calls the layers below, prints. It never decides anything.

Modules that take long to import (Spark, Arrow, SQLAlchemy, pydantic) are imported inside the
functions that need them, so that `ebbtide --help` answers at once.
"""

from ebbtide.cli.app import main, run

__all__ = ["main", "run"]
