"""A verified identity, the tenant it belongs to, and what a scope may require of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from taskgate.core.identity.caller import ANONYMOUS, CredentialFacts
from taskgate.core.identity.roles import Permission, allows
from taskgate.core.settings.identity import ScopeRequirement

TENANT_MARK: Final = "/"


class Identity(msgspec.Struct, frozen=True):
    """The identity of a request. Code behind the authentication does not depend on how it was established."""

    principal: str = ANONYMOUS
    roles: frozenset[str] = frozenset()
    """Roles of a token and groups of an issuer; Cedar sees them as the caller's parents."""
    scope: str | None = None
    """The only scope that the credential opens."""
    may_call: bool = True
    tenant: str = ""
    audiences: frozenset[str] | None = None
    """The resources that the credential was issued for. None: for this gateway as a whole."""
    oauth_scopes: frozenset[str] = frozenset()
    client_id: str = ""
    authenticated_at: int | None = None
    """When the person logged in, in seconds since 1970, if the issuer states it."""
    claims: Mapping[str, Any] = msgspec.field(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        """A renewed token of the same caller has other claims, such as its expiry."""
        return isinstance(other, Identity) and _compared(self) == _compared(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(_compared(self))

    @property
    def anonymous(self) -> bool:
        return self.principal == ANONYMOUS

    @property
    def facts(self) -> CredentialFacts | None:
        """Facts for policies, in addition to the roles; None for a credential that no issuer issued."""
        if not self.claims:
            return None
        return CredentialFacts(self.oauth_scopes, self.client_id, self.authenticated_at)

    @property
    def is_operator(self) -> bool:
        return allows(self.roles, Permission.ACT)


def _compared(identity: Identity) -> tuple[object, ...]:
    return tuple(getattr(identity, name) for name in identity.__struct_fields__ if name != "claims")


ANONYMOUS_IDENTITY: Final = Identity()


def principal_name(tenant: str, name: str) -> str:
    """Return the name of a principal. It begins with the tenant, so every row with a principal separates tenants."""
    return f"{tenant}{TENANT_MARK}{name}" if tenant else name


def tenant_of(principal: str) -> str:
    """Return the tenant of a principal; empty if it has none.

    Issuers are URLs, whose first slash follows a colon; names of tokens and tenants have neither.
    """
    before, mark, _ = principal.partition(TENANT_MARK)
    return before if mark and ":" not in before else ""


def tenant_of_person(name: str, names: Iterable[str]) -> str:
    """Return the tenant to which a person with these names is limited while they use the name `name`; empty if to none.

    One name with a tenant limits all of them. The configuration lets no person have names in several tenants.
    """
    return next((tenant for each in (name, *sorted(names)) if (tenant := tenant_of(each))), "")


NO_REQUIREMENT: Final = ScopeRequirement()


def missing_oauth_scopes(requirement: ScopeRequirement, identity: Identity) -> bool:
    """Whether the identity lacks one of the OAuth scopes."""
    return not identity.oauth_scopes.issuperset(requirement.oauth_scopes)


def missing_group(requirement: ScopeRequirement, identity: Identity) -> bool:
    """Whether the identity has none of the groups."""
    return bool(requirement.groups) and identity.roles.isdisjoint(requirement.groups)


def missing_claim(requirement: ScopeRequirement, identity: Identity) -> bool:
    """Whether the identity has one of the claims with none of its values."""
    return any(not _holds(claim_at(identity.claims, path), allowed) for path, allowed in requirement.claims.items())


def claim_at(claims: Mapping[str, Any], path: str) -> Any:
    """Return the value of a claim by its name or by a path such as `realm_access.roles`.

    A name with dots, such as `https://example.com/groups`, counts only without the claim in which the path begins: who can
    add a claim must not replace the value of a path.
    """
    if path.partition(".")[0] not in claims:
        return claims.get(path)
    value: Any = claims
    for part in path.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value


def _holds(value: Any, allowed: tuple[str, ...]) -> bool:
    found = value if isinstance(value, list) else [value]
    return any(_word(each) in allowed for each in found if isinstance(each, (str, int, bool)))


def _word(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
