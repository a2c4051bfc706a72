"""Imports everything that a run needs into the process from which runs are forked.

Without it, each run would import these modules itself, which takes longer than a small run.
`multiprocessing` imports this module in its fork server, which does nothing else.
"""

from __future__ import annotations

from ebbtide.imports import prepare_forks

prepare_forks()

import sqlalchemy.dialects.postgresql.psycopg  # noqa: E402
import sqlalchemy.dialects.sqlite  # noqa: E402, F401

import ebbtide.gc.collector  # noqa: E402
import ebbtide.gc.whatif  # noqa: E402
import ebbtide.server.jobs  # noqa: E402
import ebbtide.store.embedded  # noqa: E402, F401
