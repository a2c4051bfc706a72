"""Buckets and keys: which repository, ref and path a request names.

A key is `REF/PATH`. A slash in the ref is written `%2F`, so that the first slash ends the ref.
"""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

from ebbtide.server.s3.errors import S3Error


def bucket_and_key(raw_path: str, host: str, domain: str | None) -> tuple[str, str]:
    """Returns the bucket and the key of a request, "" for none. `raw_path` is percent-encoded.

    Raises S3Error `InvalidURI`.
    """
    path = decoded(unquote_to_bytes(raw_path)).removeprefix("/")
    name = host.partition(":")[0].lower()
    if domain is not None and name.endswith("." + domain.lower()):
        return name.removesuffix("." + domain.lower()), path
    bucket, _, key = path.partition("/")
    return bucket, key


def copy_source(header: str) -> tuple[str, str]:
    """Returns the bucket and the key in `x-amz-copy-source`. Raises S3Error."""
    text, question, version = header.partition("?")
    if question and version not in ("", "versionId=null"):
        raise S3Error("NotImplemented", "objects have no versions: name a commit as the ref")
    bucket, slash, key = (
        decoded(unquote_to_bytes(text.encode("latin-1"))).removeprefix("/").partition("/")
    )
    if not slash or not key:
        raise S3Error("InvalidArgument", "write x-amz-copy-source as BUCKET/REF/PATH")
    return bucket, key


def decoded(raw: bytes) -> str:
    """Returns bytes as text that the store can hold. Raises S3Error `InvalidURI`."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise S3Error("InvalidURI", "the request's path and query must be UTF-8") from None
    if "\0" in text:
        raise S3Error("InvalidURI", "the request's path or query holds a zero byte")
    return text


def split_key(key: str) -> tuple[str, str | None]:
    """Returns the ref and the path of a key. The path is None for a key without a slash."""
    ref, slash, path = key.partition("/")
    return ref.replace("%2F", "/").replace("%2f", "/"), path if slash else None


def key_of(ref: str, path: str) -> str:
    """Returns the key of a path of a ref."""
    return f"{ref.replace('/', '%2F')}/{path}"
