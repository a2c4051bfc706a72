"""A PgBouncer in transaction mode before a database, as hosted PostgreSQL often has one."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Final

import psycopg
from sqlalchemy.engine import make_url

from tests.support.postgres import free_port

START_SECONDS_MAX: Final = 30
CONFIGURATION: Final = """
[databases]
{database} = host={host} port={target} dbname={database}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
auth_type = plain
auth_file = {home}/users
pool_mode = transaction
default_pool_size = 3
unix_socket_dir =
logfile = {home}/log
"""


def find_pgbouncer() -> str | None:
    """The program; Debian puts it where only root looks."""
    return shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")


@contextmanager
def pooled(database_url: str) -> Iterator[str]:
    program, url = find_pgbouncer(), make_url(database_url)
    assert program is not None
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="ebbtide-pgbouncer-") as name:
        home = Path(name)
        text = CONFIGURATION.format(
            database=url.database, host=url.host, target=url.port, port=port, home=home
        )
        (home / "ini").write_text(text)
        (home / "users").write_text(f'"{url.username}" "{url.password}"\n')
        user = None
        if os.geteuid() == 0:  # it refuses to run as root
            user = pwd.getpwnam("nobody").pw_uid
            for path in (home, *home.iterdir()):
                os.chown(path, user, -1)
        process = subprocess.Popen([program, home / "ini"], user=user, stderr=subprocess.DEVNULL)
        try:
            behind = url.set(port=port, host="127.0.0.1", drivername="postgresql")
            found = behind.render_as_string(hide_password=False)
            _wait(found, process)
            yield found
        finally:
            process.terminate()
            process.wait(30)


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = monotonic() + START_SECONDS_MAX
    while True:
        try:
            psycopg.connect(url).close()
            return
        except psycopg.OperationalError:
            if process.poll() is not None or monotonic() > deadline:
                raise
            sleep(0.05)
