"""The roles that the claims of an ID token give.

Not for: whether the token is genuine (`tokens`).
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ebbtide.errors import EbbtideError, InvalidInput
from ebbtide.store.access.access_keys import Role
from ebbtide.store.names import check_repository_name
from ebbtide.text import shown

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
