"""Credentials for each bucket: the profiles of a file, and the providers of keys for obstore.

The file is TOML, named by `EBBTIDE_CREDENTIALS_FILE`, with one table for each profile. A storage
uses the profile with the longest prefix of its URL. Executors do not need the file: a storage that
is sent to them takes its keys along. Not for: credentials of the environment, which obstore finds.
"""

from __future__ import annotations

import functools
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict

from ebbtide.errors import Failed, InvalidInput
from ebbtide.imports import require_extra
from ebbtide.text import shown

if TYPE_CHECKING:
    from obstore.auth.boto3 import Boto3CredentialProvider

VARIABLE: Final = "EBBTIDE_CREDENTIALS_FILE"
AWS_PROFILE: Final = "aws_profile"
"""The option that names a profile of AWS's own files."""

Options = tuple[tuple[str, str], ...]

_PREFIXES: Final = "prefixes"
_ADDRESSING: Final = "addressing"
_ALLOW_HTTP: Final = "allow_http"
_KEYS: Final = ("access_key_id", "secret_access_key", "session_token")
_TEXTS: Final = ("endpoint", "region", AWS_PROFILE, *_KEYS)
_STYLES: Final = {"path": "false", "virtual": "true"}
_REFRESH: Final = timedelta(minutes=10)
"""How long keys of an AWS profile are used before the profile is asked again. botocore renews keys
that expire within 10 minutes when they are asked for, so that they are valid for as long."""


class Keys(TypedDict):
    """Keys as obstore takes them. `expires_at` is None for keys that do not expire."""

    access_key_id: str
    secret_access_key: str
    token: str | None
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class CredentialProfile:
    """One table of the file. `prefixes` are URLs of buckets, or of prefixes in them; `options` are
    those of `RemoteStorage`."""

    name: str
    prefixes: tuple[str, ...]
    options: Options = field(repr=False)


@dataclass(frozen=True, slots=True)
class FixedKeys:
    """A provider of keys for obstore. In contrast to options, these keys never meet a session token
    of the environment."""

    access_key_id: str = field(repr=False)
    secret_access_key: str = field(repr=False)
    token: str | None = field(repr=False)

    def __call__(self) -> Keys:
        """Returns the keys."""
        return Keys(
            access_key_id=self.access_key_id,
            secret_access_key=self.secret_access_key,
            token=self.token,
            expires_at=None,
        )


def options_of(url: str) -> Options:
    """Returns the options of the profile for a normalized URL; none if no profile is for it.

    Reads the file again when it has changed. Raises InvalidInput `invalid_setting`.
    """
    path = os.environ.get(VARIABLE)
    if not path or not url.startswith("s3://"):
        return ()
    matching = (
        (len(prefix), profile.options)
        for profile in read_profiles(Path(path))
        for prefix in profile.prefixes
        if f"{url}/".startswith(f"{prefix}/")
    )
    return max(matching, default=(0, ()))[1]


def read_profiles(path: Path) -> tuple[CredentialProfile, ...]:
    """Returns the profiles of a file. Raises InvalidInput `invalid_setting`, which names the
    profile and the field, and never a value."""
    try:
        state = path.stat()
    except OSError as error:
        raise _unreadable(path, error) from error
    return _read(path, (state.st_mtime_ns, state.st_size, state.st_ino))


@functools.lru_cache(maxsize=4)
def _read(path: Path, state: tuple[int, int, int]) -> tuple[CredentialProfile, ...]:
    """Reads the file. `state` is only the key of the cache."""
    del state
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        # The message has a position, and at most one character of the file.
        raise InvalidInput(
            "invalid_setting", f"{VARIABLE}: {path} is not valid TOML: {error}"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from None
    found = tuple(_profile(path, name, table) for name, table in tables.items())
    seen: dict[str, str] = {}
    for profile in found:
        for prefix in profile.prefixes:
            if prefix in seen:
                raise _invalid(path, profile.name, f"{prefix} is also in [{seen[prefix]}]")
            seen[prefix] = profile.name
    return found


def _unreadable(path: Path, error: Exception) -> InvalidInput:
    reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
    return InvalidInput("invalid_setting", f"{VARIABLE}: {path} cannot be read: {reason}")


def _profile(path: Path, name: str, table: object) -> CredentialProfile:
    if not isinstance(table, Mapping):
        raise InvalidInput(
            "invalid_setting", f"{VARIABLE}: {path}: write {shown(name)} below a line [PROFILE]"
        )
    unknown = table.keys() - {_PREFIXES, _ADDRESSING, _ALLOW_HTTP, *_TEXTS}
    if unknown:
        raise _invalid(path, name, f"there is no field {shown(min(unknown))}")
    prefixes = table.get(_PREFIXES)
    if not isinstance(prefixes, list) or not prefixes:
        raise _invalid(path, name, 'prefixes are missing: write a list such as ["s3://lakes"]')
    options = dict(_options(path, name, table))
    has_keys = [each in options for each in _KEYS[:2]]
    if any(has_keys) != all(has_keys) or ("session_token" in options and not all(has_keys)):
        raise _invalid(path, name, "access_key_id and secret_access_key belong together")
    if AWS_PROFILE in options and any(has_keys):
        raise _invalid(path, name, "write keys or aws_profile, not both")
    urls = tuple(_prefix(path, name, each) for each in prefixes)
    return CredentialProfile(name, urls, tuple(sorted(options.items())))


def _options(path: Path, name: str, table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key in _TEXTS:
        value = table.get(key)
        if value is not None and (not isinstance(value, str) or not value):
            raise _invalid(path, name, f"{key} is not a text, or is empty")
        if value is not None:
            yield key, value
    allow_http = table.get(_ALLOW_HTTP)
    if allow_http is not None:
        if not isinstance(allow_http, bool):
            raise _invalid(path, name, "allow_http is true or false")
        yield _ALLOW_HTTP, str(allow_http).lower()
    addressing = table.get(_ADDRESSING)
    if addressing is not None:
        if addressing not in _STYLES:
            raise _invalid(path, name, 'addressing is "path" or "virtual"')
        yield "virtual_hosted_style_request", _STYLES[addressing]


def _prefix(path: Path, name: str, value: object) -> str:
    """Returns a prefix in the spelling of normalized URLs."""
    scheme, _, rest = value.partition("://") if isinstance(value, str) else ("", "", "")
    if scheme not in ("s3", "s3a", "s3n") or not rest.strip("/"):
        raise _invalid(path, name, "prefixes are URLs such as s3://lakes or s3://lakes/ebbtide")
    return f"s3://{rest.rstrip('/')}"


def _invalid(path: Path, name: str, reason: str) -> InvalidInput:
    return InvalidInput("invalid_setting", f"{VARIABLE}: {path}: [{name}]: {reason}")


def provider_of(options: dict[str, str]) -> FixedKeys | Boto3CredentialProvider | None:
    """Takes the credentials out of the options of S3, and returns their provider. Returns None if
    obstore finds the credentials by itself: keys of the environment, web identity, the
    container's or the machine's role.

    Without keys in options or environment, `AWS_PROFILE` counts, which obstore does not know.
    Raises InvalidInput `invalid_setting`.
    """
    profile = options.pop(AWS_PROFILE, None)
    if all(key in options for key in _KEYS[:2]):
        keys = [options.pop(key, None) for key in _KEYS]
        return FixedKeys(str(keys[0]), str(keys[1]), keys[2])
    profile = profile or _profile_of_environment(options)
    if profile is None:
        return None
    provider = aws_provider(profile)
    region = provider.config.get("region")
    if region is not None:
        options.setdefault("region", region)
    return provider


def _profile_of_environment(options: Mapping[str, str]) -> str | None:
    has_keys = any(name.lower().endswith("access_key_id") for name in options)
    return None if has_keys or "AWS_ACCESS_KEY_ID" in os.environ else os.environ.get("AWS_PROFILE")


@functools.lru_cache(maxsize=64)
def aws_provider(profile: str) -> Boto3CredentialProvider:
    """Returns the provider of a profile of AWS's own files, which boto3 reads: keys, SSO, roles,
    web identity, and programs that print keys. Raises InvalidInput `invalid_setting`, and Failed
    `storage_error` if the profile is there and gives no keys, or `extra_missing`."""
    require_extra(f"the AWS profile {shown(profile)}", "aws", "boto3")

    import boto3  # slow to import
    from botocore.exceptions import BotoCoreError, ProfileNotFound
    from obstore.auth.boto3 import Boto3CredentialProvider

    try:
        return Boto3CredentialProvider(boto3.Session(profile_name=profile), ttl=_REFRESH)
    except (ProfileNotFound, ValueError) as error:
        raise InvalidInput(
            "invalid_setting", f"the AWS profile {shown(profile)} has no credentials: {error}"
        ) from error
    except BotoCoreError as error:
        raise _no_keys(profile, error) from error


def _no_keys(profile: str, error: Exception) -> Failed:
    return Failed("storage_error", f"the AWS profile {shown(profile)} gave no keys: {error}")


def portable(options: Options) -> Options:
    """Returns options that work on another machine: present keys in place of an AWS profile.

    Raises InvalidInput `invalid_setting`, and Failed `storage_error` if the profile gives no keys,
    for example because a login of SSO has ended.
    """
    named = dict(options)
    provider = provider_of(named)
    if provider is None or isinstance(provider, FixedKeys):
        return options
    try:
        keys = provider()
    except Exception as error:  # of botocore, and of programs that it starts
        raise _no_keys(dict(options).get(AWS_PROFILE, "of the environment"), error) from error
    token = keys.get("token")
    named |= {key: str(keys[key]) for key in ("access_key_id", "secret_access_key")}
    return tuple(sorted((named | ({"session_token": token} if token else {})).items()))
