"""A private PostgreSQL server for one test run. Not for servers that anything else uses: it keeps
nothing, and trades all durability for speed.
"""

import os
import pwd
import secrets
import shlex
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "timezone": "UTC",
}
DURABLE = {"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on"}
PORT_ATTEMPTS_MAX = 5

# Runs a server for as long as its own standard input stays open. The pipe closes with the test
# process however that ends, so even a killed run leaves no server and no data behind.
KEEPER = """
if "$1/pg_ctl" --pgdata="$2/data" --log="$2/log" --options="$3" --wait start >"$2/start" 2>&1
then
    echo ready
    cat >/dev/null
    "$1/pg_ctl" --pgdata="$2/data" --mode=immediate --wait stop >/dev/null 2>&1
    rm -rf "$2" 2>/dev/null
else
    echo failed
    cat "$2/start" "$2/log"
fi
"""


def find_postgres() -> Path | None:
    """The directory with ``initdb`` and ``pg_ctl``, the newest version first; None without one."""
    debian = Path("/usr/lib/postgresql").glob("*/bin")
    candidates = sorted(debian, key=lambda path: _version_number(path.parent.name), reverse=True)
    if on_path := shutil.which("initdb"):
        candidates.append(Path(on_path).resolve().parent)
    for candidate in candidates:
        if (candidate / "initdb").is_file() and (candidate / "pg_ctl").is_file():
            return candidate
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresServer:
    """A running server with an empty database ``postgres``. ``url`` is in SQLAlchemy's spelling."""

    url: str
    home: Path
    keeper: subprocess.Popen[str]

    def stop(self) -> None:
        """Ends the server and removes its files. May be called again."""
        self.keeper.communicate()
        shutil.rmtree(self.home, ignore_errors=True)


def start_postgres(
    directory: Path, lifeline: int = subprocess.PIPE, *, durable: bool = False
) -> PostgresServer:
    """Starts a server with its files under ``directory``, on a free port of the loopback address.

    With ``durable`` each commit waits for the disk. The server ends when ``lifeline``, the end of a
    pipe that it reads, closes: the one that `stop` closes, unless another is given. Where root's
    server may not enter ``directory``, its files go to the system's temporary one.
    """
    binaries = find_postgres()
    if binaries is None:
        raise FileNotFoundError("no initdb in /usr/lib/postgresql/*/bin or on PATH")
    home = _Home.make(directory)
    try:
        password = _make_cluster(binaries, home)
        settings = SETTINGS | (DURABLE if durable else {})
        port, keeper = _start_on_free_port(binaries, home, lifeline, settings)
    except BaseException:
        shutil.rmtree(home.path)
        raise
    url = f"postgresql+psycopg://postgres:{password}@127.0.0.1:{port}/postgres"
    return PostgresServer(url=url, home=home.path, keeper=keeper)


@dataclass(frozen=True, slots=True)
class _Home:
    """The directory of one server, and the user it belongs to: None for this process's own."""

    path: Path
    user: pwd.struct_passwd | None

    @classmethod
    def make(cls, directory: Path) -> "_Home":
        if os.geteuid() != 0:
            return cls(Path(tempfile.mkdtemp(prefix="postgres-", dir=directory)), None)
        parents = [directory.resolve(), *directory.resolve().parents]
        parent = directory if all(each.stat().st_mode & 0o001 for each in parents) else None
        home = cls(Path(tempfile.mkdtemp(prefix="ebbtide-postgres-", dir=parent)), _server_user())
        home.give(home.path)
        return home

    def give(self, path: Path) -> None:
        if self.user is not None:
            os.chown(path, self.user.pw_uid, self.user.pw_gid)

    def start(self, *command: str | Path, stdin: int = subprocess.PIPE) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            cwd=self.path,
            env={"PATH": os.environ["PATH"], "HOME": str(self.path), "LC_ALL": "C"},
            user=self.user.pw_uid if self.user else None,
            group=self.user.pw_gid if self.user else None,
            extra_groups=[] if self.user else None,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # An interrupt from the terminal is for the tests; the keeper follows when they end.
            start_new_session=True,
        )


def _server_user() -> pwd.struct_passwd:
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pwd.getpwnam("nobody")


def _make_cluster(binaries: Path, home: _Home) -> str:
    password = secrets.token_hex(16)
    password_file = home.path / "password"
    password_file.touch(mode=0o600)
    password_file.write_text(password)
    home.give(password_file)
    initdb = home.start(
        binaries / "initdb",
        f"--pgdata={home.path / 'data'}",
        "--username=postgres",
        f"--pwfile={password_file}",
        "--auth=scram-sha-256",
        "--encoding=UTF8",
        "--locale=C",
        "--no-sync",
    )
    output, _ = initdb.communicate()
    if initdb.returncode != 0:
        raise RuntimeError(f"initdb failed:\n{output}")
    return password


def _start_on_free_port(
    binaries: Path, home: _Home, lifeline: int, settings: Mapping[str, str]
) -> tuple[int, subprocess.Popen[str]]:
    output = ""
    for _ in range(PORT_ATTEMPTS_MAX):
        port = free_port()
        given = {**settings, "port": str(port)}
        options = shlex.join(f"--{name}={value}" for name, value in given.items())
        command: list[str | Path] = [
            "/bin/sh",
            "-c",
            KEEPER,
            "keeper",
            binaries,
            home.path,
            options,
        ]
        keeper = home.start(*command, stdin=lifeline)
        assert keeper.stdout is not None
        if keeper.stdout.readline() == "ready\n":
            return port, keeper
        output, _ = keeper.communicate()
        # Another process can take the port between the look and the start; all else is final.
        if "could not bind" not in output:
            break
    raise RuntimeError(f"PostgreSQL did not start:\n{output}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _version_number(name: str) -> float:
    try:
        return float(name)
    except ValueError:
        return 0.0
