"""Clients of S3 on the servers that all tests of the server share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import boto3
import lakefs
import pytest
from botocore.config import Config

from tests.support.server import Server

Client = Any
"""boto3 makes its clients' methods when they are called."""


def s3_client(server: Server, role: str = "admin", **config: Any) -> Client:
    """boto3's client with the key of a role. It tries nothing twice."""
    key = server.keys[role]
    chosen = {"retries": {"total_max_attempts": 1}, "s3": {"addressing_style": "path"}}
    return boto3.client(
        "s3",
        endpoint_url=server.url,
        aws_access_key_id=key.access_key_id,
        aws_secret_access_key=key.secret,
        region_name="us-east-1",
        config=Config(**chosen | config),
    )


@pytest.fixture
def s3(server: Server) -> Client:
    """A client on a server of one kind."""
    return s3_client(server)


@pytest.fixture
def client_of(server: Server) -> Callable[..., Client]:
    """Makes clients with other roles or settings on that server."""
    return lambda role="admin", **config: s3_client(server, role, **config)


@pytest.fixture
def bucket(repo: lakefs.Repository) -> str:
    """The name of a new repository on that server."""
    return str(repo.id)
