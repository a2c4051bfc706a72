"""Objects of S3 whose keys are no addresses, which no client of the project writes."""

from __future__ import annotations

import hashlib
import hmac
import os
import urllib.request
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote, urlsplit

STRAY: Final = (
    *("seed//x", "seed//deep/y", "a/../b", "a/./b", "/first", "//", "end//", "folder/"),
    *("folder/inner/", "control\x01x", "line\nfeed", "dir\x7f/y"),
)
"""Keys of a bucket. `folder/` and `folder/inner/` are what consoles make for an empty directory."""


def put_key(url: str, key: str, data: bytes = b"stray") -> None:
    """Write an object below a storage's URL, by a request that is signed here: AWS Signature
    Version 4 (Amazon S3 API Reference, "Authenticating Requests: Using the Authorization Header").
    """
    parts = urlsplit(url)
    endpoint = os.environ["AWS_ENDPOINT"]
    root = parts.path.strip("/")
    path = f"/{parts.netloc}/{quote(f'{root}/{key}' if root else key, safe='/-_.~')}"
    now = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    checksum = hashlib.sha256(data).hexdigest()
    headers = {
        "host": urlsplit(endpoint).netloc,
        "x-amz-content-sha256": checksum,
        "x-amz-date": now,
    }
    names = ";".join(headers)
    lines = [f"{name}:{value}" for name, value in headers.items()]
    request = "\n".join(["PUT", path, "", *lines, "", names, checksum])
    scope = [now[:8], os.environ.get("AWS_REGION", "us-east-1"), "s3", "aws4_request"]
    hashed = hashlib.sha256(request.encode()).hexdigest()
    text = "\n".join(["AWS4-HMAC-SHA256", now, "/".join(scope), hashed])
    secret = b"AWS4" + os.environ["AWS_SECRET_ACCESS_KEY"].encode()
    for part in (*scope, text):
        secret = hmac.new(secret, part.encode(), hashlib.sha256).digest()
    credential = f"{os.environ['AWS_ACCESS_KEY_ID']}/{'/'.join(scope)}"
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={names}, Signature={secret.hex()}"
    )
    with urllib.request.urlopen(
        urllib.request.Request(endpoint + path, data=data, method="PUT", headers=headers)
    ):
        pass
