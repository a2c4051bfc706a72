"""Settings of an issuer that are refused before the server listens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ebbtide.errors import ExitCode, InvalidInput
from ebbtide.server.oidc.options import oidc_options
from ebbtide.settings import Settings, is_loopback_name
from tests.server.oidc.conftest import settings_of
from tests.support.issuer import CLIENT_SECRET, TestIssuer
from tests.support.server import new_server

ISSUER = TestIssuer("https://login.example.org/realms/a")


def test_options(tmp_path: Path) -> None:
    found = oidc_options(settings_of(ISSUER, tmp_path, oidc_scopes=" openid  groups "))
    assert found is not None
    assert found.client_secret == CLIENT_SECRET and found.scopes == "openid groups"
    assert found.host == "login.example.org"
    assert CLIENT_SECRET not in repr(found)
    assert oidc_options(Settings()) is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"oidc_client_id": None}, "EBBTIDE_OIDC_CLIENT_ID: is not set"),
        ({"oidc_roles": ""}, "EBBTIDE_OIDC_ROLES: nobody could log in"),
        ({"oidc_scopes": "profile"}, "EBBTIDE_OIDC_SCOPES: lacks 'openid'"),
        ({"oidc_client_secret_file": Path("/none/such")}, "CLIENT_SECRET_FILE: /none/such cannot"),
        ({"oidc_client_secret_file": Path("/dev/null")}, "/dev/null is empty"),
        ({"oidc_redirect_url": "https://a.example/"}, "write https://HOST/ui/login/oidc/callback"),
        ({"oidc_redirect_url": "https://a.example/x/ui/login/oidc/callback"}, "write https://HOST"),
        ({"oidc_redirect_url": "https://a.example/ui/login/oidc/callback?x"}, "write https://HOST"),
        ({"oidc_redirect_url": "http://a.example/ui/login/oidc/callback"}, "only for a loopback"),
        ({"oidc_issuer": "http://login.example.org"}, "only for a loopback"),
        ({"oidc_issuer": "http://127.0.0.1.example.org"}, "only for a loopback"),
        ({"oidc_issuer": "ftp://login.example.org"}, "write an address https://"),
        ({"oidc_issuer": "https://user@login.example.org"}, "write an address https://"),
    ],
    ids=str,
)
def test_settings_that_are_refused(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        oidc_options(settings_of(ISSUER, tmp_path, **change))
    assert caught.value.kind == "invalid_setting"
    assert reason in caught.value.message


def test_loopback_names() -> None:
    for host in ("localhost", "127.0.0.1", "127.9.9.9", "::1"):
        assert is_loopback_name(host), host
    for other in ("0.0.0.0", "localhost.example.org", "127.0.0.1.example.org", "", None):
        assert not is_loopback_name(other), other


def test_the_server_says_so_before_it_starts(tmp_path: Path) -> None:
    server = new_server(tmp_path / "store", EBBTIDE_OIDC_ISSUER="https://login.example.org")
    assert server.command("init", str(server.directory)).returncode == 0
    for options in ((), ("--processes", "2")):
        done = server.command("serve", "--port", "0", *options)
        assert done.returncode == ExitCode.USAGE
        assert "EBBTIDE_OIDC_CLIENT_ID: is not set" in done.stderr
