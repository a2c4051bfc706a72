"""What the processes of runs are forked from, with all loaded that a run needs: else each would
load it for longer than a small run takes.

`multiprocessing` imports this module in its fork server, where nothing else happens.
"""

from __future__ import annotations

from ebbtide.imports import prepare_forks

prepare_forks()

import sqlalchemy.dialects.postgresql.psycopg  # noqa: E402
import sqlalchemy.dialects.sqlite  # noqa: E402, F401

import ebbtide.gc.collector  # noqa: E402
import ebbtide.gc.planning.whatif  # noqa: E402
import ebbtide.server.jobs  # noqa: E402
import ebbtide.store.embedded  # noqa: E402, F401
