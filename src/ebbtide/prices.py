"""What storage and requests cost: prices from a file, and every amount that the program shows.

The file is TOML or JSON (`EBBTIDE_PRICES`):

    currency = "EUR"
    [storage]       # a GiB for a month, by storage class
    default = 0.023
    STANDARD_IA = 0.0125
    [requests]      # 1,000 requests, by kind
    copy = 0.005

An amount is unknown, and None, if the file has no price for it. Not for: the bill of a provider,
which also has minimum times (`gc.costs`), transfer and taxes.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from ebbtide.errors import InvalidInput
from ebbtide.strict_json import read_document
from ebbtide.text import shown

if TYPE_CHECKING:
    from ebbtide.settings import Settings

GIB: Final = 1 << 30
GB: Final = 1_000_000_000
DEFAULT: Final = "default"
KEYS: Final = ("currency", "storage", "requests")
RequestKind = Literal["list", "get", "put", "copy", "delete"]
REQUEST_KINDS: Final[tuple[RequestKind, ...]] = get_args(RequestKind)
DELETES_AT_ONCE: Final = 1000
"""The files that one request deletes from an object storage."""
CURRENCY_CHARACTERS_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of a GiB for a month by storage class, and of 1,000 requests by kind. DEFAULT is the
    price of other and unknown classes. `gb_month` is the setting `price_gb_month`, if the prices
    come from it."""

    currency: str = ""
    storage: Mapping[str, float] = field(default_factory=dict)
    requests: Mapping[str, float] = field(default_factory=dict)
    gb_month: float | None = None

    @classmethod
    def of(cls, settings: Settings) -> Prices | None:
        """Returns the prices of the settings; None if there are none. Reads the file. Raises
        InvalidInput `invalid_setting`."""
        if settings.prices is not None:
            return read_prices(settings.prices)
        if settings.price_gb_month is None:
            return None
        price = settings.price_gb_month
        return cls(storage={DEFAULT: price * GIB / GB}, gb_month=price)

    def month(self, classes: Mapping[str, int]) -> float | None:
        """Returns the price of a month for bytes by storage class; "" is an unknown class."""
        total = 0.0
        for name, size_bytes in classes.items():
            price = self.storage.get(name, self.storage.get(DEFAULT))
            if price is None:
                if size_bytes:
                    return None
                continue
            total += size_bytes / GIB * price
        return total

    def month_of(self, size_bytes: int | None) -> float | None:
        """Returns the price of a month for bytes of unknown classes; None if the bytes are
        unknown."""
        return None if size_bytes is None else self.month({"": size_bytes})

    def asked(self, requests: Mapping[RequestKind, int]) -> float | None:
        """Returns the price of so many requests of each kind."""
        total = 0.0
        for kind, count in requests.items():
            if not count:
                continue
            if kind not in self.requests:
                return None
            total += count / 1000 * self.requests[kind]
        return total

    def sweep(self, files: int, *, quarantine: bool) -> float | None:
        """Returns the price of the requests of a sweep: deletes, and with a quarantine a copy of
        each file, and deletes at its end too."""
        deletes = math.ceil(files / DELETES_AT_ONCE)
        if quarantine:
            return self.asked({"copy": files, "delete": 2 * deletes})
        return self.asked({"delete": deletes})

    def text(self, amount: float | None) -> str:
        """Returns an amount for people: `EUR 12.30`, or `-` if it is unknown. A small amount is not
        shown as 0."""
        if amount is None:
            return "-"
        lead = f"{self.currency} " if self.currency else ""
        sign = "-" if amount < 0 else ""
        size = abs(amount)
        return f"{sign}{lead}<0.01" if 0 < size < 0.005 else f"{sign}{lead}{size:,.2f}"


def read_prices(path: Path) -> Prices:
    """Reads a file of prices. Raises InvalidInput `invalid_setting`, which names the file and the
    key at fault."""
    what = f"EBBTIDE_PRICES: {shown(str(path))}"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise _invalid(f"{what} cannot be read ({reason})") from None
    if text.lstrip().startswith("{"):
        found = read_document(text, kind="invalid_setting", what=what)
    else:
        try:
            found = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise _invalid(f"{what} is not TOML: {error}") from None
    return _parsed(found, what)


def _parsed(found: object, what: str) -> Prices:
    if not isinstance(found, dict):
        raise _invalid(f"{what} is not an object: write {', '.join(KEYS)}")
    for key in found:
        if key not in KEYS:
            raise _invalid(f"{what}: unknown key {shown(key)}: write {', '.join(KEYS)}")
    currency = found.get("currency", "")
    if not isinstance(currency, str) or len(currency) > CURRENCY_CHARACTERS_MAX:
        raise _invalid(f'{what}: currency: write a short text such as "EUR"')
    requests = _amounts(found.get("requests", {}), "requests", what)
    for kind in requests:
        if kind not in REQUEST_KINDS:
            raise _invalid(
                f"{what}: requests.{shown(kind)}: no such kind: write {', '.join(REQUEST_KINDS)}"
            )
    return Prices(currency, _amounts(found.get("storage", {}), "storage", what), requests)


def _amounts(value: object, key: str, what: str) -> dict[str, float]:
    if not isinstance(value, dict):
        raise _invalid(f"{what}: {key}: write a table of prices, such as {DEFAULT} = 0.023")
    found: dict[str, float] = {}
    for name, price in value.items():
        is_number = isinstance(price, int | float) and not isinstance(price, bool)
        if not is_number or not math.isfinite(price) or price < 0:
            raise _invalid(
                f"{what}: {key}.{shown(str(name))}: {shown(str(price))} is not a price: write a "
                "number of 0 or more"
            )
        found[str(name)] = float(price)
    return found


def _invalid(message: str) -> InvalidInput:
    return InvalidInput("invalid_setting", message, setting="prices")


def price_json(prices: Prices | None) -> dict[str, Any] | None:
    """Returns the prices for JSON answers."""
    if prices is None:
        return None
    return {
        "currency": prices.currency,
        "storage_gib_month": dict(prices.storage),
        "requests_1000": dict(prices.requests),
    }
