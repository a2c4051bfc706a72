"""A private server of Azure's blob storage for one test run: Azurite, with all in its memory.

Azurite is a package of npm, and is looked for on PATH and in `.azurite` of the checkout. Not for
servers that anything else uses.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import shutil
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic, sleep
from typing import Final

from tests.support.postgres import free_port

PROGRAM: Final = "azurite-blob"
CONTAINER: Final = "ebbtide-tests"
ACCOUNT: Final = "devstoreaccount1"
KEY: Final = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
"""The account that every Azurite has, and its key, which is public."""
START_SECONDS_MAX: Final = 60
_API_VERSION: Final = "2021-08-06"

# Runs the server for as long as its own standard input stays open, so that even a killed run leaves
# none behind.
KEEPER: Final = """
cd "$1"
"$2" --silent --inMemoryPersistence --disableTelemetry --disableProductStyleUrl \
    --skipApiVersionCheck --blobHost 127.0.0.1 --blobPort "$3" >start.log 2>&1 &
cat >/dev/null
kill $! 2>/dev/null
wait
rm -rf "$1"
"""


def find_azurite() -> str | None:
    local = Path(__file__).parents[2] / ".azurite" / "node_modules" / ".bin" / PROGRAM
    found = shutil.which(PROGRAM)
    if found is None and local.exists() and shutil.which("node"):
        return str(local)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Azurite:
    port: int
    keeper: subprocess.Popen[str]

    def environment(self) -> dict[str, str]:
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": KEY,
            "AZURE_STORAGE_ENDPOINT": f"http://127.0.0.1:{self.port}/{ACCOUNT}",
            "AZURE_ALLOW_HTTP": "true",
        }


def start_azurite(directory: Path, lifeline: int) -> Azurite:
    """Starts a server on a free port of the loopback address. It ends when `lifeline`, the end of a
    pipe that it reads, closes. Raises RuntimeError if it does not start."""
    program = find_azurite()
    assert program is not None
    home, port = directory / "azurite", free_port()
    home.mkdir()
    keeper = subprocess.Popen(
        ["/bin/bash", "-c", KEEPER, "keeper", str(home), program, str(port)],
        stdin=lifeline,
        text=True,
        start_new_session=True,
    )
    deadline = monotonic() + START_SECONDS_MAX
    while True:
        try:
            make_container(port, CONTAINER)
            return Azurite(port=port, keeper=keeper)
        except OSError as error:
            if keeper.poll() is not None or monotonic() > deadline:
                raise RuntimeError(f"Azurite did not start: see {home / 'start.log'}") from error
            sleep(0.2)


def make_container(port: int, name: str) -> None:
    """Makes a container: the storage clients that the project uses make none."""
    status = _ask(port, f"/{name}", {"restype": "container"}, b"")
    if status != 201:
        raise RuntimeError(f"Azurite made no container: {status}")


def set_soft_delete(port: int, days: int) -> None:
    """Turns soft delete for blobs on, in the properties of the service. Azurite only notes it."""
    policy = f"<Enabled>true</Enabled><Days>{days}</Days>"
    body = (
        "<StorageServiceProperties><DeleteRetentionPolicy>"
        f"{policy}</DeleteRetentionPolicy></StorageServiceProperties>"
    ).encode()
    status = _ask(port, "/", {"comp": "properties", "restype": "service"}, body)
    if status != 202:
        raise RuntimeError(f"Azurite did not set the properties: {status}")


def set_tier(port: int, key: str, tier: str) -> None:
    status = _ask(port, f"/{CONTAINER}/{key}", {"comp": "tier"}, b"", tier=tier)
    if status not in (200, 202):
        raise RuntimeError(f"Azurite did not set the tier: {status}")


def _ask(port: int, path: str, query: dict[str, str], body: bytes, tier: str = "") -> int:
    """The status of a PUT, which is signed here (Azure, "Authorize with Shared Key")."""
    tiered = f"x-ms-access-tier:{tier}\n" if tier else ""
    now = f"{datetime.now(UTC):%a, %d %b %Y %H:%M:%S GMT}"
    length = str(len(body)) if body else ""
    asked = "".join(f"\n{name}:{value}" for name, value in sorted(query.items()))
    signed = (
        f"PUT\n\n\n{length}{chr(10) * 9}{tiered}x-ms-date:{now}\nx-ms-version:{_API_VERSION}\n"
        f"/{ACCOUNT}/{ACCOUNT}{path}{asked}"
    )
    mark = hmac.new(base64.b64decode(KEY), signed.encode(), hashlib.sha256).digest()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    headers = {
        "x-ms-date": now,
        "x-ms-version": _API_VERSION,
        "authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(mark).decode()}",
        "content-length": str(len(body)),
    }
    headers |= {"x-ms-access-tier": tier} if tier else {}
    parameters = "&".join(f"{name}={value}" for name, value in query.items())
    connection.request("PUT", f"/{ACCOUNT}{path}?{parameters}", body=body, headers=headers)
    status = connection.getresponse().status
    connection.close()
    return status
