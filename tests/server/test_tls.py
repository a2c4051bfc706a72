"""A server with a certificate: every interface over TLS, renewals, and files of no use."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from ebbtide.errors import ExitCode
from tests.doors.s3.conftest import s3_client
from tests.support.certificates import Issued, Issuer
from tests.support.server import API, Server, new_server


@dataclass(frozen=True, slots=True)
class Secured:
    """A server that speaks TLS, its issuer, and the files that it reads."""

    server: Server
    issuer: Issuer
    issued: Issued
    certificate: Path
    key: Path

    def client(self, role: str | None = None) -> httpx.Client:
        """A client that trusts this issuer alone."""
        trusting = ssl.create_default_context(cafile=self.issuer.trusted)
        auth = None if role is None else self.server.keys[role].pair
        return httpx.Client(base_url=self.server.url, auth=auth, verify=trusting)

    def served(self) -> bytes:
        """The certificate that a new connection gets, as PEM."""
        host, port = self.server.url.removeprefix("https://").split(":")
        return ssl.get_server_certificate((host, int(port))).encode()


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("tls")
    issuer = Issuer(directory)
    issued = issuer.issue()
    certificate, key = directory / "server.pem", directory / "server.key"
    issued.write(certificate, key)
    settings = {"EBBTIDE_TLS_CERTIFICATE": str(certificate), "EBBTIDE_TLS_KEY": str(key)}
    server = new_server(directory / "store", **settings).start()
    yield Secured(server, issuer, issued, certificate, key)
    server.stop()


def test_the_api_over_tls(secured: Secured) -> None:
    """Not without it, not in an old form, and not to who does not trust the issuer."""
    url = secured.server.url + f"{API}/healthcheck"
    assert url.startswith("https://127.0.0.1:")
    with secured.client("admin") as client:
        assert client.get(f"{API}/repositories").status_code == 200
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(url, verify=ssl.create_default_context())
    with pytest.raises(httpx.TransportError):
        httpx.get(url.replace("https://", "http://"))
    old = ssl.create_default_context(cafile=secured.issuer.trusted)
    with pytest.warns(DeprecationWarning):
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(httpx.ConnectError), httpx.Client(verify=old) as client:
        client.get(url)


def test_s3_over_tls(secured: Secured) -> None:
    secured.server.command("repo", "create", "lake")
    client = s3_client(
        secured.server, "writer", str(secured.issuer.trusted), signature_version="s3v4"
    )
    client.put_object(Bucket="lake", Key="main/a", Body=b"over TLS")
    assert client.get_object(Bucket="lake", Key="main/a")["Body"].read() == b"over TLS"
    signed = client.generate_presigned_url("get_object", Params={"Bucket": "lake", "Key": "main/a"})
    with secured.client() as anybody:
        assert anybody.get(signed).content == b"over TLS"


def test_cookies_are_only_for_tls(secured: Secured) -> None:
    key = secured.server.keys["reader"]
    data = {"access_key_id": key.access_key_id, "secret": key.secret}
    told = {"access_key_id": key.access_key_id, "secret_access_key": key.secret}
    with secured.client() as client:
        form = client.post("/ui/login", data=data, headers={"Origin": secured.server.url})
        assert form.status_code == 303
        assert client.get("/ui").status_code == 200
        for answer in (form, client.post(f"{API}/auth/login", json=told)):
            assert "Secure" in answer.headers["set-cookie"].split("; ")


def test_a_renewed_certificate_needs_no_restart(secured: Secured) -> None:
    with secured.client("admin") as open_before:
        assert open_before.get(f"{API}/repositories").status_code == 200
        assert secured.served() == secured.issued.certificate
        renewed = secured.issuer.issue()
        # First one file, then the other: in between they do not belong together.
        secured.certificate.write_bytes(renewed.certificate)
        assert secured.served() == secured.issued.certificate
        assert "the previous certificate stays in use" in secured.server.log
        secured.key.write_bytes(renewed.key)
        assert secured.served() == renewed.certificate
        secured.key.unlink()
        assert secured.served() == renewed.certificate
        secured.issued.write(secured.certificate, secured.key)
        assert secured.served() == secured.issued.certificate
        assert open_before.get(f"{API}/repositories").status_code == 200


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    """The command ends before it listens, and names the setting, the file and the reason."""
    idle = new_server(tmp_path / "store")
    assert idle.command("init", str(idle.directory)).returncode == 0
    issuer = Issuer(tmp_path)
    one, other = issuer.issue(), issuer.issue()
    # The contents of both files. None: there is no such file.
    spoilt: dict[str, tuple[bytes | None, bytes | None, str, str]] = {
        "no certificate": (None, one.key, "CERTIFICATE", "No such file"),
        "another's": (one.certificate, other.key, "KEY", "does not belong to the certificate"),
        "encrypted": (one.certificate, one.encrypted, "KEY", "the key is encrypted"),
        "no PEM as key": (one.certificate, b"no PEM", "KEY", "no private key"),
        "exchanged": (one.key, one.certificate, "CERTIFICATE", "no certificate in PEM"),
    }
    for name, (certificate, key, setting, reason) in spoilt.items():
        directory = tmp_path / name
        directory.mkdir()
        for file, content in (("certificate", certificate), ("key", key)):
            if content is not None:
                (directory / file).write_bytes(content)
        check_refused(idle, directory, setting, reason)
    (tmp_path / "key").write_bytes(one.key)
    (tmp_path / "certificate").mkdir()
    check_refused(idle, tmp_path, "CERTIFICATE", "Is a directory")
    for given, lacking in (("certificate", "key"), ("key", "certificate")):
        done = idle.command("serve", "--port", "0", f"--tls-{given}", "/nowhere/file")
        assert done.returncode == ExitCode.USAGE
        assert f"--tls-{lacking} or EBBTIDE_TLS_{lacking.upper()}" in done.stderr


def check_refused(idle: Server, directory: Path, setting: str, reason: str) -> None:
    certificate, key = str(directory / "certificate"), str(directory / "key")
    files = ("--tls-certificate", certificate, "--tls-key", key)
    done = idle.command("serve", "--port", "0", *files, "--json")
    assert done.returncode == ExitCode.USAGE, (directory, done.stdout)
    error = json.loads(done.stdout)["error"]
    assert error["kind"] == "invalid_setting", directory
    # A message has the first hundred characters of a path.
    path = str(directory / setting.lower())[:90]
    for part in (f"EBBTIDE_TLS_{setting}", path, reason):
        assert part in error["message"], directory
