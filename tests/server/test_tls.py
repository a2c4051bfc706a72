"""A server with a certificate: every interface over TLS, renewals, and files of no use."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import boto3
import httpx
import pytest
from botocore.config import Config

from ebbtide.errors import ExitCode
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
    assert secured.server.url.startswith("https://127.0.0.1:")
    with secured.client("admin") as client:
        made = client.post(
            f"{API}/repositories", json={"name": "api", "storage_namespace": "local://api"}
        )
        assert made.status_code == 201
        asked = client.get(f"{API}/repositories").json()
    assert "api" in {each["id"] for each in asked["results"]}


def test_a_client_that_does_not_trust_the_issuer(secured: Secured) -> None:
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(secured.server.url + "/_health", verify=ssl.create_default_context())


def test_plain_http_gets_no_answer(secured: Secured) -> None:
    with pytest.raises(httpx.TransportError):
        httpx.get(secured.server.url.replace("https://", "http://") + f"{API}/healthcheck")


def test_an_old_tls_is_refused(secured: Secured) -> None:
    with pytest.warns(DeprecationWarning):
        old = ssl.create_default_context(cafile=secured.issuer.trusted)
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(httpx.ConnectError), httpx.Client(verify=old) as client:
        client.get(f"{secured.server.url}{API}/healthcheck")


def test_s3_over_tls(secured: Secured) -> None:
    secured.server.command("repo", "create", "lake")
    key = secured.server.keys["writer"]
    client = boto3.client(
        "s3",
        endpoint_url=secured.server.url,
        aws_access_key_id=key.access_key_id,
        aws_secret_access_key=key.secret,
        region_name="us-east-1",
        verify=str(secured.issuer.trusted),
        config=Config(signature_version="s3v4", s3={"addressing_style": "path"}),
    )
    client.put_object(Bucket="lake", Key="main/a", Body=b"over TLS")
    assert client.get_object(Bucket="lake", Key="main/a")["Body"].read() == b"over TLS"
    signed = client.generate_presigned_url("get_object", Params={"Bucket": "lake", "Key": "main/a"})
    with secured.client() as anybody:
        assert anybody.get(signed).content == b"over TLS"


@pytest.mark.parametrize("place", ["/ui/login", f"{API}/auth/login"])
def test_cookies_are_only_for_tls(secured: Secured, place: str) -> None:
    key = secured.server.keys["reader"]
    with secured.client() as client:
        if place == "/ui/login":
            data = {"access_key_id": key.access_key_id, "secret": key.secret}
            answer = client.post(place, data=data, headers={"Origin": secured.server.url})
            assert answer.status_code == 303
            assert client.get("/ui").status_code == 200
        else:
            told = {"access_key_id": key.access_key_id, "secret_access_key": key.secret}
            answer = client.post(place, json=told)
            assert answer.status_code == 200
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


Spoil = Callable[[Path, Path, Issuer], None]
SPOILT: dict[str, tuple[Spoil, str, str]] = {
    "no certificate": (lambda cert, _key, _i: cert.unlink(), "CERTIFICATE", "No such file"),
    "no key": (lambda _cert, key, _i: key.unlink(), "KEY", "No such file"),
    "a directory": (
        lambda cert, _key, _i: _replace_by_directory(cert),
        "CERTIFICATE",
        "Is a directory",
    ),
    "of another certificate": (
        lambda _cert, key, issuer: _write(key, issuer.issue().key),
        "KEY",
        "does not belong to the certificate",
    ),
    "encrypted": (
        lambda cert, key, issuer: _write_encrypted(cert, key, issuer),
        "KEY",
        "the key is encrypted",
    ),
    "no PEM as certificate": (
        lambda cert, _key, _i: _write(cert, b"no PEM"),
        "CERTIFICATE",
        "no certificate in PEM",
    ),
    "no PEM as key": (lambda _cert, key, _i: _write(key, b"no PEM"), "KEY", "no private key"),
    "exchanged": (
        lambda cert, key, _i: _write(cert, key.read_bytes()),
        "CERTIFICATE",
        "no certificate in PEM",
    ),
    "empty": (lambda cert, _key, _i: _write(cert, b""), "CERTIFICATE", "no certificate in PEM"),
}


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _replace_by_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _write_encrypted(certificate: Path, key: Path, issuer: Issuer) -> None:
    issued = issuer.issue()
    certificate.write_bytes(issued.certificate)
    key.write_bytes(issued.encrypted)


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> Server:
    """A store that nobody serves."""
    server = new_server(tmp_path_factory.mktemp("idle") / "store")
    assert server.command("init", str(server.directory)).returncode == 0
    return server


@pytest.mark.parametrize("name", SPOILT)
def test_files_that_cannot_be_used(idle: Server, tmp_path: Path, name: str) -> None:
    """The command ends before it listens, and names the setting, the file and the reason."""
    spoil, setting, reason = SPOILT[name]
    issuer = Issuer(tmp_path)
    certificate, key = tmp_path / "server.pem", tmp_path / "server.key"
    issuer.issue().write(certificate, key)
    spoil(certificate, key, issuer)
    files = ("--tls-certificate", str(certificate), "--tls-key", str(key))
    done = idle.command("serve", "--port", "0", *files, "--json")
    assert done.returncode == ExitCode.USAGE, done.stdout
    error = json.loads(done.stdout)["error"]
    assert error["kind"] == "invalid_setting"
    assert f"EBBTIDE_TLS_{setting}" in error["message"]
    assert str(certificate if setting == "CERTIFICATE" else key) in error["message"]
    assert reason in error["message"]


@pytest.mark.parametrize(("given", "lacking"), [("certificate", "key"), ("key", "certificate")])
def test_one_file_of_two(idle: Server, given: str, lacking: str) -> None:
    done = idle.command("serve", "--port", "0", f"--tls-{given}", "/nowhere/file")
    assert done.returncode == ExitCode.USAGE
    assert f"--tls-{lacking} or EBBTIDE_TLS_{lacking.upper()}" in done.stderr
