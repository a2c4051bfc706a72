"""`key`, and what `init` says of the first one."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Ebbtide


def test_init_prints_the_first_key_once(ebbtide: Ebbtide, tmp_path: Path) -> None:
    made = ebbtide("init", tmp_path / "store", "--json").document
    assert made["role"] == "admin"
    listed = ebbtide("key", "list", "--json")
    assert [key["access_key_id"] for key in listed.document["keys"]] == [made["access_key_id"]]
    assert made["secret_access_key"] not in listed.out
    upgraded = ebbtide("init", tmp_path / "store", "--upgrade", "--json").document
    assert set(upgraded) == {"store", "store_id"}


def test_keys(lake: Ebbtide) -> None:
    made = lake("key", "create", "--role", "writer", "--name", "etl", "--json").document
    assert (made["role"], made["name"], made["revoked_at"]) == ("writer", "etl", None)
    shown = lake("key", "create")
    assert "secret access key" in shown.out
    assert lake("key", "create", "--role", "root", "--json", code=2).error_kind == (
        "invalid_argument"
    )
    revoked = lake("key", "revoke", made["access_key_id"], "--yes", "--json").document
    assert revoked["revoked_at"]
    assert "etl" in lake("key", "list").out
    missing = lake("key", "revoke", "nobody", "--yes", "--json", code=1)
    assert missing.error_kind == "key_not_found"


def test_a_key_that_clients_have_already(lake: Ebbtide, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("wJalrXUtnFEMI/K7MDENG/bPxRfiCY+EXAMPLEKEY\n")
    given = ("key", "create", "--id", "AKIAIOSFODNN7EXAMPLE", "--json")
    made = lake(*given, "--secret-file", secret, "--role", "writer").document
    assert made["access_key_id"] == "AKIAIOSFODNN7EXAMPLE"
    assert made["secret_access_key"] == secret.read_text().strip()
    again = lake(*given, "--secret-file", secret, code=1)
    assert again.error_kind == "key_exists"
    lake("key", "revoke", "AKIAIOSFODNN7EXAMPLE", "--yes")
    assert lake(*given, "--secret-file", secret, code=1).error_kind == "key_exists"
    before = lake("key", "list").out
    for content in (b"", b"short", b"x" * 256, b"a secret with blanks", "ä".encode() * 20, b"\xff"):
        secret.write_bytes(content)
        refused = lake("key", "create", "--id", "A" * 20, "--secret-file", secret, "--json", code=2)
        assert refused.error_kind == "invalid_argument"
    assert lake(*given, code=2).error_kind == "invalid_argument"
    lake("key", "create", "--id", "A" * 20, "--secret-file", tmp_path / "none", code=2)
    assert lake("key", "list").out == before


def test_the_keys_that_sign(lake: Ebbtide) -> None:
    """An older one goes on verifying, unless it leaked."""
    first = lake("key", "rotate-signing", "--json").document
    assert (first["retired_ids"], len(first["verifying_ids"])) == ([], 1)
    assert first["retirable_at"]
    asked = lake("key", "rotate-signing", "--at-once", "--json", code=2)
    assert asked.error_kind == "invalid_argument"
    second = lake("key", "rotate-signing", "--at-once", "--yes")
    assert "will" in second.err
    assert second.out.count("is retired") == 2
    third = lake("key", "rotate-signing", "--json").document
    assert len(third["verifying_ids"]) == 1


def test_a_port_that_is_taken(lake: Ebbtide) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        refused = lake("serve", "--port", port, "--json", code=1)
    assert "cannot listen" in refused.err


def test_a_server_without_a_store(ebbtide: Ebbtide) -> None:
    assert ebbtide("serve", "--json", code=1).error_kind == "store_not_found"
