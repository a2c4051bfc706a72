"""`key`, and what `init` says of the first one."""

from __future__ import annotations

import socket
from pathlib import Path

from tests.cli.conftest import Ebbtide


def test_init_prints_the_first_key_once(ebbtide: Ebbtide, tmp_path: Path) -> None:
    made = ebbtide.json("init", tmp_path / "store")
    assert made["role"] == "admin"
    listed = ebbtide("key list --json")
    assert [key["access_key_id"] for key in listed.document["keys"]] == [made["access_key_id"]]
    assert made["secret_access_key"] not in listed.out
    upgraded = ebbtide.json("init", tmp_path / "store", "--upgrade")
    assert set(upgraded) == {"store", "store_id"}


def test_keys(lake: Ebbtide) -> None:
    made = lake.json("key create --role writer --name etl")
    assert (made["role"], made["name"], made["revoked_at"]) == ("writer", "etl", None)
    shown = lake("key create")
    assert "secret access key" in shown.out
    lake.refuses("invalid_argument", "key create --role root", code=2)
    revoked = lake.json("key revoke", made["access_key_id"], "--yes")
    assert revoked["revoked_at"]
    assert "etl" in lake("key list").out
    lake.refuses("key_not_found", "key revoke nobody --yes")


def test_a_key_that_clients_have_already(lake: Ebbtide, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("wJalrXUtnFEMI/K7MDENG/bPxRfiCY+EXAMPLEKEY\n")
    given = ("key", "create", "--id", "AKIAIOSFODNN7EXAMPLE", "--json")
    made = lake(*given, "--secret-file", secret, "--role", "writer").document
    assert made["access_key_id"] == "AKIAIOSFODNN7EXAMPLE"
    assert made["secret_access_key"] == secret.read_text().strip()
    again = lake(*given, "--secret-file", secret, code=1)
    assert again.error_kind == "key_exists"
    before = lake("key list").out
    for content in (b"short", b"\xff"):
        secret.write_bytes(content)
        lake.refuses(
            "invalid_argument", "key create --id", "A" * 20, "--secret-file", secret, code=2
        )
    assert lake(*given, code=2).error_kind == "invalid_argument"
    lake("key create --id", "A" * 20, "--secret-file", tmp_path / "none", code=2)
    assert lake("key list").out == before


def test_the_keys_that_sign(lake: Ebbtide) -> None:
    """An older one goes on verifying, unless it leaked."""
    first = lake.json("key rotate-signing")
    assert (first["retired_ids"], len(first["verifying_ids"])) == ([], 1)
    assert first["retirable_at"]
    lake.refuses("invalid_argument", "key rotate-signing --at-once", code=2)
    second = lake("key rotate-signing --at-once --yes")
    assert "will" in second.err
    assert second.out.count("is retired") == 2


def test_a_port_that_is_taken(lake: Ebbtide) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        refused = lake("serve --port", port, "--json", code=1)
    assert "cannot listen" in refused.err
