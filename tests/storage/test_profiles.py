"""Credentials for each bucket, from the file of profiles and from each of AWS's own sources; and
the proxies and certificates of the environment."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from ebbtide.errors import Failed, InvalidInput
from ebbtide.settings import list_settings
from ebbtide.storage import RemoteStorage, clients, open_storage, options_of, profiles
from tests.support.cloud import Cloud, make_certificates, running_cloud
from tests.support.errors import raises

SECRET = "very-secret"
OF_NETWORK = ("_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR", "CA_BUNDLE")


OF_B = '[a]\nprefixes = ["s3://b"]\n'


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """An environment without credentials, proxies or clients, and its own home."""
    for name in list(os.environ):
        if name.startswith("AWS_") or name.upper().endswith(OF_NETWORK):
            monkeypatch.delenv(name)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")  # for boto3; obstore ignores it
    for cache in (clients.connect, profiles.aws_provider):
        cache.cache_clear()
    yield
    for cache in (clients.connect, profiles.aws_provider):
        cache.cache_clear()


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "credentials.toml"
    path.touch()
    monkeypatch.setenv(profiles.VARIABLE, str(path))
    return path


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    with running_cloud() as found:
        monkeypatch.setenv("AWS_ENDPOINT", found.endpoint)
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        yield found


def asked_with(url: str) -> str:
    """The key and the token that a read of the storage was signed with."""
    return open_storage(url).get("object").decode().strip()


def test_the_longest_prefix_counts(file: Path) -> None:
    assert profiles.VARIABLE in {each.variable for each in list_settings()}
    file.write_text(
        """
        [all]
        prefixes = ["s3://lakes/", "s3a://other"]
        region = "eu-1"
        [deep]
        prefixes = ["s3://lakes/a/b"]
        region = "eu-2"
        endpoint = "http://localhost:1"
        allow_http = true
        addressing = "virtual"
        """
    )
    everywhere = (("region", "eu-1"),)
    deep = (
        ("allow_http", "true"),
        ("endpoint", "http://localhost:1"),
        ("region", "eu-2"),
        ("virtual_hosted_style_request", "true"),
    )
    found = {
        "s3://lakes": everywhere,
        "s3://lakes/a": everywhere,
        "s3://lakes/a/b": deep,
        "s3://lakes/a/b/c": deep,
        "s3://lakes/a/bc": everywhere,
        "s3://other/x": everywhere,
        "s3://lakes2": (),
        "gs://lakes": (),
        "file:///lakes": (),
    }
    assert {url: options_of(url) for url in found} == found


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f'secret_access_key = "{SECRET}"', "write 'secret_access_key' below a line [PROFILE]"),
        ("[a]\nx = ", "is not valid TOML"),
        ("[a]\nprefixes = []", "[a]: prefixes are missing"),
        ('[a]\nprefixes = ["lakes"]', "[a]: prefixes are URLs"),
        ('[a]\nprefixes = ["s3://"]', "[a]: prefixes are URLs"),
        (f'{OF_B}key = "{SECRET}"', "[a]: there is no field 'key'"),
        (f'{OF_B}secret_access_key = "{SECRET}"', "belong together"),
        (f'{OF_B}session_token = "{SECRET}"', "belong together"),
        (f'{OF_B}allow_http = "yes"', "allow_http is true or false"),
        (f'{OF_B}addressing = "host"', 'addressing is "path" or "virtual"'),
        (f"{OF_B}region = 7", "region is not a text"),
        (
            f'{OF_B}aws_profile = "p"\naccess_key_id = "k"\nsecret_access_key = "{SECRET}"',
            "write keys or aws_profile, not both",
        ),
        (f'{OF_B}[c]\nprefixes = ["s3a://b/"]', "[c]: s3://b is also in [a]"),
        (None, "cannot be read: No such file"),
    ],
)
def test_a_wrong_file_is_refused(file: Path, text: str | None, reason: str) -> None:
    if text is None:
        file.unlink()
    else:
        file.write_text(text)
    with raises("invalid_setting", reason, str(file), of=InvalidInput) as caught:
        open_storage("s3://b/x")
    assert SECRET not in caught.value.message


def test_two_buckets_are_asked_with_two_keys(
    file: Path, cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token of the environment goes with the environment's keys alone."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ENV")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "env-token")
    with running_cloud() as second:
        file.write_text(
            f"""
            [one]
            prefixes = ["s3://one"]
            access_key_id = "ONE"
            secret_access_key = "{SECRET}"
            [two]
            prefixes = ["s3://two"]
            endpoint = "{second.endpoint}"
            access_key_id = "TWO"
            secret_access_key = "{SECRET}"
            session_token = "two-token"
            """
        )
        assert asked_with("s3://one/x") == "ONE"
        assert asked_with("s3://two/x") == "TWO two-token"
        assert asked_with("s3://three/x") == "ENV env-token"
        assert second.seen == [("GET", "/two/x/object")]
        assert cloud.seen == [("GET", "/one/x/object"), ("GET", "/three/x/object")]
        signed = open_storage("s3://two/x").sign_get("object", lasts=timedelta(minutes=1))
        assert signed is not None
        assert signed.startswith(f"{second.endpoint}/two/x/object?")
        assert "=TWO%2F" in signed
        sent = pickle.dumps(open_storage("s3://two/x"))
    monkeypatch.delenv(profiles.VARIABLE)
    assert dict(pickle.loads(sent).options)["access_key_id"] == "TWO"


def test_nothing_shows_a_key(file: Path) -> None:
    file.write_text(f'{OF_B}access_key_id = "k"\nsecret_access_key = "{SECRET}"')
    storage = pickle.loads(pickle.dumps(open_storage("s3://b/x")))
    shown = [storage, profiles.read_profiles(file), profiles.provider_of(dict(storage.options))]
    assert SECRET in storage.options[1]
    assert SECRET not in repr(shown)


def test_new_keys_count_at_once(file: Path, cloud: Cloud) -> None:
    text = '[a]\nprefixes = ["s3://b"]\naccess_key_id = "{}"\nsecret_access_key = "x"'
    file.write_text(text.format("OLD"))
    storage = open_storage("s3://b")
    assert storage.get("object") == b"OLD "
    file.write_text(text.format("NEWER"))
    assert storage.get("object") == b"NEWER "
    assert len(cloud.seen) == 2


def write_aws_files(home: Path) -> None:
    """Profiles as the AWS tools keep them: with keys, and with a program that prints keys."""
    (home / ".aws").mkdir(exist_ok=True)
    (home / ".aws" / "credentials").write_text(
        "[plain]\naws_access_key_id = PLAIN\naws_secret_access_key = x\n"
    )
    program = home / "keys.py"
    program.write_text(
        "import json\nprint(json.dumps({'Version': 1, 'AccessKeyId': 'PROGRAM', "
        "'SecretAccessKey': 'x', 'SessionToken': 'program-token', "
        "'Expiration': '2099-01-01T00:00:00Z'}))"
    )
    (home / ".aws" / "config").write_text(
        "[profile plain]\nregion = eu-9\n"
        f"[profile program]\ncredential_process = {sys.executable} {program}\n"
    )


def test_profiles_of_the_aws_tools(
    file: Path, cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_aws_files(Path.home())
    file.write_text(
        '[a]\nprefixes = ["s3://plain"]\naws_profile = "plain"\n'
        '[b]\nprefixes = ["s3://program"]\naws_profile = "program"\n'
    )
    assert asked_with("s3://plain/x") == "PLAIN"
    assert asked_with("s3://program/x") == "PROGRAM program-token"
    sent = pickle.dumps(open_storage("s3://program/x"))
    monkeypatch.delenv(profiles.VARIABLE)
    (Path.home() / ".aws" / "config").unlink()
    clients.connect.cache_clear()
    profiles.aws_provider.cache_clear()
    assert pickle.loads(sent).get("object") == b"PROGRAM program-token"
    assert len(cloud.seen) == 3


def test_aws_profile_of_the_environment(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of the environment come before it, as in the AWS tools."""
    write_aws_files(Path.home())
    monkeypatch.setenv("AWS_PROFILE", "plain")
    monkeypatch.delenv("AWS_REGION")
    assert asked_with("s3://b/x") == "PLAIN"
    options = dict(pickle.loads(pickle.dumps(open_storage("s3://b/x"))).options)
    assert (options["region"], options["access_key_id"]) == ("eu-9", "PLAIN")
    clients.connect.cache_clear()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ENV")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    assert asked_with("s3://b/x") == "ENV"
    assert len(cloud.seen) == 2


def test_an_aws_profile_that_is_missing(
    file: Path, cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or whose program gives no keys, or that nothing can read."""
    with monkeypatch.context() as patched:
        patched.setenv("AWS_PROFILE", "nobody")
        with raises("invalid_setting", "AWS profile 'nobody' has no credentials", of=InvalidInput):
            open_storage("s3://b/x")
    write_aws_files(Path.home())
    (Path.home() / "keys.py").write_text("raise SystemExit('the login has ended')")
    file.write_text(f'{OF_B}aws_profile = "program"\n')
    with pytest.raises(Failed, match=r"AWS profile 'program' gave no keys: .*login has ended"):
        open_storage("s3://b/x")
    assert cloud.seen == []
    monkeypatch.setitem(sys.modules, "boto3", None)
    with raises("extra_missing", "pip install 'boto3>", of=Failed):
        open_storage("s3://b/y")


def test_a_login_that_ended(file: Path, cloud: Cloud) -> None:
    """Of SSO, whose keys boto3 asks for only when they are needed."""
    (Path.home() / ".aws").mkdir()
    (Path.home() / ".aws" / "config").write_text(
        "[profile person]\nsso_session = company\nsso_account_id = 1\nsso_role_name = reader\n"
        "[sso-session company]\nsso_start_url = https://sso.invalid\nsso_region = us-east-1\n"
    )
    file.write_text('[b]\nprefixes = ["s3://b"]\naws_profile = "person"\n')
    storage = open_storage("s3://b/x")
    with raises("storage_error", "SSO", of=Failed):
        storage.get("object")
    with pytest.raises(Failed, match=r"AWS profile 'person' gave no keys: .*SSO"):
        pickle.dumps(storage)
    assert cloud.seen == []


def test_web_identity(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As pods of EKS have it (IRSA). obstore does this by itself, by TLS alone."""
    authority, certificate = make_certificates(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    token = tmp_path / "token"
    token.write_text("signed")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(token))
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/collector")
    with running_cloud(certificate) as cloud:
        monkeypatch.setenv("AWS_ENDPOINT", cloud.endpoint)
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", cloud.endpoint)
        assert asked_with("s3://b/x") == "WEB WEB-token"
        assert cloud.seen == [("POST", "/"), ("GET", "/b/x/object")]


def test_roles_of_containers_and_machines(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """As tasks of ECS and pods of EKS have them. obstore does this by itself."""
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", cloud.endpoint)
    assert asked_with("s3://b/x") == "MACHINE MACHINE-token"
    assert cloud.seen[0] == ("PUT", "/latest/api/token")
    clients.connect.cache_clear()
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{cloud.endpoint}/container")
    (Path.home() / "token").write_text("signed")
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(Path.home() / "token"))
    assert asked_with("s3://b/x") == "CONTAINER CONTAINER-token"


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ENV")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")


def once(url: str) -> bytes:
    """An object, read by a client that does not try again."""
    storage = open_storage(url)
    assert isinstance(storage, RemoteStorage)
    client = clients.connect(url, storage.effective_options(), tries_again=False)
    with clients.translated(url):
        return bytes(client.get("object").bytes())


@pytest.mark.usefixtures("keys")
def test_authorities_of_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    authority, certificate = make_certificates(tmp_path)
    with running_cloud(certificate) as cloud:
        monkeypatch.setenv("AWS_ENDPOINT", cloud.endpoint)
        # boto3 knows this variable, obstore does not.
        monkeypatch.setenv("AWS_CA_BUNDLE", str(authority))
        with pytest.raises(Failed, match="error sending request"):
            once("s3://b/x")
        assert cloud.seen == []
        clients.connect.cache_clear()
        monkeypatch.setenv("SSL_CERT_FILE", str(authority))
        assert once("s3://b/x") == b"ENV "


@pytest.mark.usefixtures("keys")
def test_proxies_of_the_environment(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A name that does not exist is found by the proxy alone."""
    monkeypatch.setenv("AWS_ENDPOINT", "http://storage.invalid")
    monkeypatch.setenv("HTTP_PROXY", cloud.endpoint)
    assert once("s3://b/x") == b"ENV "
    assert cloud.seen == [("GET", "http://storage.invalid/b/x/object")]
    clients.connect.cache_clear()
    monkeypatch.setenv("NO_PROXY", "storage.invalid")
    with pytest.raises(Failed, match="error sending request"):
        once("s3://b/x")
    assert len(cloud.seen) == 1

    authority, certificate = make_certificates(tmp_path)
    with running_cloud(certificate) as second:
        clients.connect.cache_clear()
        monkeypatch.setenv("HTTPS_PROXY", cloud.endpoint)
        monkeypatch.setenv("SSL_CERT_FILE", str(authority))
        monkeypatch.setenv("AWS_ENDPOINT", second.endpoint)
        assert once("s3://b/x") == b"ENV "
        assert cloud.seen[1:] == [("CONNECT", second.endpoint.removeprefix("https://"))]
