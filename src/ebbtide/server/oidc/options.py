"""The settings of logins by an issuer, checked and read.

Not for: the requests to the issuer (`issuer`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from ebbtide.errors import InvalidInput
from ebbtide.imports import require_extra
from ebbtide.server.oidc.roles import RoleRules
from ebbtide.settings import Settings

CALLBACK_PATH: Final = "/ui/login/oidc/callback"


@dataclass(frozen=True, slots=True)
class OidcOptions:
    """How this server logs people in by an issuer. A `client_secret` of None is a public client.
    Without a `redirect_url`, the address of a request counts, if it is a loopback address."""

    issuer: str
    client_id: str
    client_secret: str | None = field(repr=False)
    scopes: str
    redirect_url: str | None
    rules: RoleRules
    name_claim: str

    @property
    def host(self) -> str:
        """The host of the issuer, as the login page shows it."""
        return urlsplit(self.issuer).netloc


def oidc_options(settings: Settings) -> OidcOptions | None:
    """Returns the options, or None without an issuer.

    Raises InvalidInput `invalid_setting` if a setting is missing or cannot be used, and Failed
    `extra_missing`.
    """
    if settings.oidc_issuer is None:
        return None
    require_extra("EBBTIDE_OIDC_ISSUER", "oidc", "jwt")
    if settings.oidc_client_id is None:
        raise _invalid("oidc_client_id", "is not set, and EBBTIDE_OIDC_ISSUER needs it")
    if "openid" not in settings.oidc_scopes.split():
        raise _invalid("oidc_scopes", "lacks 'openid', which makes a login of OpenID Connect")
    url = settings.oidc_redirect_url
    if url is not None and not url.endswith(f"{urlsplit(url).netloc}{CALLBACK_PATH}"):
        raise _invalid("oidc_redirect_url", f"write https://HOST{CALLBACK_PATH}")
    try:
        rules = RoleRules.parse(settings.oidc_roles_claim, settings.oidc_roles)
    except InvalidInput as error:
        raise _invalid("oidc_roles", error.message) from None
    return OidcOptions(
        issuer=settings.oidc_issuer,
        client_id=settings.oidc_client_id,
        client_secret=_client_secret(settings),
        scopes=" ".join(settings.oidc_scopes.split()),
        redirect_url=url,
        rules=rules,
        name_claim=settings.oidc_name_claim,
    )


def _client_secret(settings: Settings) -> str | None:
    path = settings.oidc_client_secret_file
    if path is None:
        return None
    try:
        secret = path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise _invalid("oidc_client_secret_file", f"{path} cannot be read: {error}") from None
    if not secret:
        raise _invalid("oidc_client_secret_file", f"{path} is empty")
    return secret


def _invalid(setting: str, reason: str) -> InvalidInput:
    return InvalidInput("invalid_setting", f"EBBTIDE_{setting.upper()}: {reason}", setting=setting)
