"""The settings of logins by an issuer, checked and read, with the rules by which claims of an ID
token give roles.

Not for: the requests to the issuer (`issuer`), or whether a token is genuine (`provider`).
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from ebbtide.errors import EbbtideError, InvalidInput
from ebbtide.imports import require_extra
from ebbtide.settings import Settings
from ebbtide.store.access.access_keys import Role
from ebbtide.store.names import check_repository_name
from ebbtide.text import shown

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


_FORM: Final = "write VALUE=ROLE or VALUE=REPOSITORY:ROLE"


@dataclass(frozen=True, slots=True)
class RoleRule:
    """A value of the claim gives a role: in the repository of a name, or in the whole store."""

    value: str
    repository: str | None
    role: Role


@dataclass(frozen=True, slots=True)
class GivenRoles:
    """The role in the whole store, and roles by names of repositories."""

    role: Role = Role.NONE
    repositories: Mapping[str, Role] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RoleRules:
    """The claim that gives roles, and its rules."""

    claim: str
    rules: tuple[RoleRule, ...]

    @classmethod
    def parse(cls, claim: str, text: str) -> RoleRules:
        """Returns the rules of a text such as `admins=admin 'data team'=lake:writer`.

        Commas, blanks and line breaks separate rules, except within quotes. Raises InvalidInput
        `invalid_argument`, also if there is no rule.
        """
        lexer = shlex.shlex(text, posix=True)
        lexer.whitespace = ", \t\r\n"
        lexer.whitespace_split = True
        lexer.commenters = lexer.escape = ""
        try:
            rules = tuple(_rule(each) for each in lexer)
        except ValueError:
            raise InvalidInput("invalid_argument", "a quote is not closed") from None
        if not rules:
            raise InvalidInput("invalid_argument", f"nobody could log in: {_FORM}")
        return cls(claim, rules)

    def given_by(self, claims: Mapping[str, Any]) -> GivenRoles | None:
        """Returns the roles that claims give, the highest of each kind, or None if no rule
        applies."""
        values = _values(claims, self.claim)
        rules = [rule for rule in self.rules if rule.value in values]
        if not rules:
            return None
        role, repositories = Role.NONE, dict[str, Role]()
        for rule in rules:
            if rule.repository is None:
                role = _higher(role, rule.role)
            else:
                before = repositories.get(rule.repository, Role.NONE)
                repositories[rule.repository] = _higher(before, rule.role)
        return GivenRoles(role, repositories)


def claim_of(claims: Mapping[str, Any], name: str) -> Any:  # a value of JSON
    """Returns the claim of a name, or the member that a name with points leads to, or None.

    The address in `email` is none if the issuer does not vouch for it: people may type any address.
    """
    if name == "email" and not _is_email_verified(claims):
        return None
    if name in claims:
        return claims[name]
    found: Any = claims
    for part in name.split("."):
        if not isinstance(found, Mapping):
            return None
        found = found.get(part)
    return found


def _is_email_verified(claims: Mapping[str, Any]) -> bool:
    """Whether `email_verified` is true, or missing. Some issuers send it as a text (OpenID Connect
    Core 1.0, section 5.1, has a Boolean)."""
    found = claims.get("email_verified", True)
    return found is True or (isinstance(found, str) and found.lower() == "true")


def _values(claims: Mapping[str, Any], name: str) -> frozenset[str]:
    """Returns the texts of a claim, which is one text or a list."""
    found = claim_of(claims, name)
    listed = found if isinstance(found, list) else [found]
    return frozenset(each for each in listed if isinstance(each, str))


def _rule(text: str) -> RoleRule:
    value, equals, target = text.rpartition("=")
    if not (value and equals):
        raise InvalidInput("invalid_argument", f"{shown(text)} is no rule: {_FORM}")
    repository, colon, role = target.rpartition(":")
    try:
        if colon:
            check_repository_name(repository)
        found = RoleRule(value, repository if colon else None, Role.parse(role))
    except EbbtideError as error:
        raise InvalidInput("invalid_argument", f"in {shown(text)}, {error.message}") from None
    if colon and found.role is Role.NONE:
        raise InvalidInput(
            "invalid_argument", f"in {shown(text)}, 'none' gives nothing in a repository"
        )
    return found


def _higher(one: Role, other: Role) -> Role:
    return one if one.allows(other) else other
