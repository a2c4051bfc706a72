"""Whether an account of Azure keeps deleted objects, which obstore cannot ask.

Only an account key may read the properties of the service. Other credentials are for objects and
containers. Source: Azure Storage REST, the properties of the service, and "Authorize with Shared
Key". Not for: objects (`remote`).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlsplit
from urllib.request import Request, urlopen
from xml.etree import ElementTree

from ebbtide.storage import asking
from ebbtide.storage.base import Retained

_API_VERSION: Final = "2021-08-06"
_ACCOUNTS: Final = ("account_name", "azure_storage_account_name")
_KEYS: Final = (
    "account_key",
    "access_key",
    "azure_storage_account_key",
    "azure_storage_access_key",
    "azure_storage_master_key",
)
_ASKED: Final = "?restype=service&comp=properties"


def retained(object_url: str | None, options: Mapping[str, str]) -> Retained:
    """Returns whether an account has soft delete for objects. `object_url` is the URL of any of its
    objects, or None if the credentials sign none. `options` and the environment can have the
    account and its key, as for obstore.

    Versioning is not among the properties of the service: without soft delete, the answer is
    `unknown`.
    """
    account, key = _option(_ACCOUNTS, options), _option(_KEYS, options)
    if object_url is None or account is None or key is None:
        return Retained("unknown", "its soft delete can be read only with an account key")
    try:
        days = _days(object_url, account, key)
    except (binascii.Error, *asking.FAILURES) as error:
        return Retained("unknown", f"its soft delete could not be read ({error})")
    if days is None:
        return Retained("unknown", "soft delete is off, and versioning is not read on Azure")
    return Retained("soft_delete", f"soft delete is on, for {days} days")


def _option(names: Iterable[str], options: Mapping[str, str]) -> str | None:
    found = [options.get(name) or os.environ.get(name.upper()) for name in names]
    return next(filter(None, found), None)


def _days(object_url: str, account: str, key: str) -> str | None:
    """Returns for how many days the account keeps deleted objects; None if it keeps none. Raises
    FAILURES, and binascii.Error for a key that is not base64."""
    parts = urlsplit(object_url)
    # An emulator has the account in the path, and Azure in the name of the host.
    root = f"/{account}/" if parts.path.startswith(f"/{account}/") else "/"
    now = f"{datetime.now(UTC):%a, %d %b %Y %H:%M:%S GMT}"
    signed = (
        f"GET{chr(10) * 12}x-ms-date:{now}\nx-ms-version:{_API_VERSION}\n"
        f"/{account}{root}\ncomp:properties\nrestype:service"
    )
    mark = hmac.new(base64.b64decode(key), signed.encode(), hashlib.sha256).digest()
    request = Request(
        f"{parts.scheme}://{parts.netloc}{root}{_ASKED}",
        headers={
            "x-ms-date": now,
            "x-ms-version": _API_VERSION,
            "authorization": f"SharedKey {account}:{base64.b64encode(mark).decode()}",
        },
    )

    def send() -> ElementTree.Element | None:
        with urlopen(request, timeout=asking.TIMEOUT_SECONDS) as answer:
            found = asking.document(answer.read(), "StorageServiceProperties")
            return found.find("DeleteRetentionPolicy")

    found = asking.repeated(send)
    if found is None or found.findtext("Enabled") != "true":
        return None
    return found.findtext("Days")
