"""Clients of S3 on the servers that all tests of the server share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import boto3
import lakefs
import pytest
from botocore.config import Config

from tests.support.server import Server

Client = Any
"""boto3 makes its clients' methods when they are called."""


def s3_client(
    server: Server, role: str = "admin", verify: str | None = None, **config: Any
) -> Client:
    """boto3's client with the key of a role. It tries nothing twice."""
    key = server.keys[role]
    chosen = {"retries": {"total_max_attempts": 1}, "s3": {"addressing_style": "path"}}
    return boto3.client(
        "s3",
        endpoint_url=server.url,
        aws_access_key_id=key.access_key_id,
        aws_secret_access_key=key.secret,
        region_name="us-east-1",
        verify=verify,
        config=Config(**chosen | config),
    )


@pytest.fixture
def client_of(server: Server) -> Iterator[Callable[..., Client]]:
    """Makes clients on a server of one kind, with any role or settings."""
    with ExitStack() as stack:

        def make(role: str = "admin", **config: Any) -> Client:
            return stack.enter_context(closing(s3_client(server, role, **config)))

        yield make


@pytest.fixture
def s3(client_of: Callable[..., Client]) -> Client:
    """A client on that server, as admin."""
    return client_of()


@pytest.fixture
def bucket(repo: lakefs.Repository) -> str:
    """The name of a new repository on that server."""
    return str(repo.id)
