"""A private S3 server for one test run: the gateway of Ceph over one storage daemon that keeps all
in its memory. Not for servers that anything else uses.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final

import boto3

from tests.support.postgres import free_port

PROGRAMS: Final = ("ceph", "ceph-mon", "ceph-mgr", "ceph-osd", "radosgw", "radosgw-admin")
ACCESS_KEY_ID: Final = "test"
SECRET_ACCESS_KEY: Final = "testtest"
LIMITED: Final = ("limited", "limited-secret")
"""The keys of a second user, who may do what the policies of buckets allow."""
BUCKET: Final = "ebbtide-tests"
STORAGE_CLASS: Final = "GLACIER"
"""The storage class that the server has besides the usual one. Its objects are not archived."""
START_SECONDS_MAX: Final = 120

IN_MEMORY: Final = """
osd objectstore = memstore
memstore device bytes = 4294967296
"""
ON_DISK: Final = """
osd objectstore = bluestore
bluestore block path = {home}/block
bluestore block size = 42949672960
bluestore block create = true
osd memory target = 1073741824
rgw gc obj min wait = 1
rgw gc processor period = 5
"""
"""A sparse file. The gateway frees deleted objects soon: else they would fill the disk."""

CONFIGURATION: Final = """
[global]
fsid = {fsid}
mon host = v2:127.0.0.1:{monitor_port}
public addr = 127.0.0.1
auth cluster required = cephx
auth service required = cephx
auth client required = cephx
keyring = {home}/keyring
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd crush chooseleaf type = 0
mon allow pool size one = true
mon warn on pool no redundancy = false
mon data = {home}/mon
mgr data = {home}/mgr
osd data = {home}/osd
osd journal size = 100
{objects}
log file = {home}/$name.log
admin socket = {home}/$name.asok
run dir = {home}
crash dir = {home}/crash
[client]
rgw frontends = beast endpoint=127.0.0.1:{port}
rgw data = {home}/rgw
rgw enable usage log = false
rgw dynamic resharding = false
"""

# Runs the daemons for as long as its own standard input stays open. The pipe closes with the test
# process however that ends, so even a killed run leaves no server and no data behind.
KEEPER: Final = """
cd "$1"
export CEPH_CONF=$1/ceph.conf
started=
ended() { kill $started 2>/dev/null; wait; rm -rf "$1"; }
prepare() {
    set -e
    mkdir -p mon mgr osd rgw crash
    key="ceph-authtool keyring --gen-key"
    ceph-authtool --create-keyring keyring --gen-key -n mon. --cap mon 'allow *'
    $key -n client.admin --cap mon 'allow *' --cap osd 'allow *' --cap mgr 'allow *'
    $key -n client.rgw --cap mon 'allow *' --cap osd 'allow *' --cap mgr 'allow *'
    $key -n mgr.x --cap mon 'allow profile mgr' --cap osd 'allow *'
    $key -n osd.0 --cap mon 'allow profile osd' --cap osd 'allow *' --cap mgr 'allow profile osd'
    monmaptool --create --clobber --fsid "$2" --addv a "[v2:127.0.0.1:$3]" monmap
    ceph-mon --mkfs -i a --monmap monmap --keyring keyring
}
prepare "$@" >start.log 2>&1 || { echo failed; cat start.log; exit 1; }
ceph-mon -f -i a >>start.log 2>&1 & started="$started $!"
ceph-mgr -f -i x >>start.log 2>&1 & started="$started $!"
osd=$(cat /proc/sys/kernel/random/uuid)
{ ceph osd new "$osd" 0 && ceph-osd -i 0 --mkfs --osd-uuid "$osd"; } >>start.log 2>&1 ||
    { echo failed; cat start.log; ended "$@"; exit 1; }
ceph-osd -f -i 0 >>start.log 2>&1 & started="$started $!"
# A storage class can be added as soon as there is a zone, which the first command makes.
{ radosgw-admin user list
  class="--placement-id default-placement --storage-class GLACIER"
  radosgw-admin zonegroup placement add --rgw-zonegroup default $class
  radosgw-admin zone placement add --rgw-zone default $class --data-pool default.rgw.buckets.data
} >>start.log 2>&1 || { echo failed; cat start.log; ended "$@"; exit 1; }
radosgw -f -n client.rgw >>start.log 2>&1 & started="$started $!"
echo started
cat >/dev/null
ended "$@"
"""


def find_ceph() -> bool:
    return all(shutil.which(name) for name in PROGRAMS)


@dataclass(frozen=True, slots=True, kw_only=True)
class CephServer:
    endpoint: str
    home: Path
    keeper: subprocess.Popen[str]

    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT": self.endpoint,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": ACCESS_KEY_ID,
            "AWS_SECRET_ACCESS_KEY": SECRET_ACCESS_KEY,
        }

    def stop(self) -> None:
        """Ends the server and removes its files. May be called again."""
        self.keeper.communicate()
        shutil.rmtree(self.home, ignore_errors=True)


def start_ceph(
    directory: Path | None = None, lifeline: int = subprocess.PIPE, *, objects: str = IN_MEMORY
) -> CephServer:
    """Starts a server on free ports of the loopback address, in some 12 s.

    It ends when `lifeline`, the end of a pipe that it reads, closes: the one that `stop` closes,
    unless another is given. `objects` are the lines of the configuration on where objects lie.
    """
    # Short: sockets lie in it.
    home = Path(tempfile.mkdtemp(prefix="ebbtide-ceph-", dir=directory))
    port, monitor_port = free_port(), free_port()
    fsid = str(uuid.uuid4())
    text = CONFIGURATION.format(
        home=home,
        fsid=fsid,
        port=port,
        monitor_port=monitor_port,
        objects=objects.format(home=home),
    )
    (home / "ceph.conf").write_text(text)
    keeper = subprocess.Popen(
        ["/bin/bash", "-c", KEEPER, "keeper", str(home), fsid, str(monitor_port)],
        stdin=lifeline,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # An interrupt from the terminal is for the tests; the keeper follows when they end.
        start_new_session=True,
    )
    server = CephServer(endpoint=f"http://127.0.0.1:{port}", home=home, keeper=keeper)
    assert keeper.stdout is not None
    try:
        if keeper.stdout.readline() != "started\n":
            raise RuntimeError(f"Ceph did not start:\n{keeper.communicate()[0]}")
        _wait(server)
        make_user(home, "test", ACCESS_KEY_ID, SECRET_ACCESS_KEY)
        make_user(home, LIMITED[0], *LIMITED)
        make_bucket(BUCKET, server.environment())
    except BaseException:
        server.stop()
        raise
    return server


def _wait(server: CephServer) -> None:
    deadline = monotonic() + START_SECONDS_MAX
    while True:
        try:
            with urllib.request.urlopen(server.endpoint, timeout=5):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError) as error:
            if server.keeper.poll() is not None or monotonic() > deadline:
                log = (server.home / "start.log").read_text()
                raise RuntimeError(f"Ceph's gateway does not answer:\n{log}") from error
            sleep(0.2)


def make_user(home: Path, name: str, key_id: str, secret: str) -> None:
    command = ["radosgw-admin", "user", "create", f"--uid={name}", f"--display-name={name}"]
    command += [f"--access-key={key_id}", f"--secret-key={secret}"]
    environment = {**os.environ, "CEPH_CONF": str(home / "ceph.conf")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"Ceph took no user:\n{done.stderr}")


def connect(environment: Mapping[str, str] = os.environ) -> Any:
    """A client of boto3: the storage clients that the project uses make no buckets."""
    return boto3.client(
        "s3",
        endpoint_url=environment["AWS_ENDPOINT"],
        region_name=environment["AWS_REGION"],
        aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
    )


def make_bucket(name: str, environment: Mapping[str, str] = os.environ) -> None:
    connect(environment).create_bucket(Bucket=name)
