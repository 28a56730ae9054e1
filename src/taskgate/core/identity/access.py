"""The decision about one request: the access class of its route, the identity behind its credential, and the scope it names.

Resolving a credential to an identity needs keys, stores and clocks and happens in `taskgate.access`. What the identity
may do then is decided here, by one pure function for MCP, the API, the console, bridges and requests between gateways.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from taskgate.core.identity.identity import (
    NO_REQUIREMENT,
    Identity,
    missing_claim,
    missing_group,
    missing_oauth_scopes,
    tenant_of,
    tenant_of_person,
)
from taskgate.core.identity.roles import Permission, allows
from taskgate.core.settings.identity import ScopeRequirement


class Access(StrEnum):
    """The one requirement that each route declares."""

    PUBLIC = "public"
    """Anyone: probes, documents that are looked up by machines, login pages, webhooks that carry their own signature."""
    LOGIN = "login"
    """Any verified credential; the route shows and changes only what belongs to its holder."""
    CALL = "call"
    """A credential that may call tools in the scope that the request names."""
    SEE = "see"
    DECIDE = "decide"
    ACT = "act"
    CONFIGURE = "configure"

    @property
    def permission(self) -> Permission | None:
        """The permission that a role must give; None for classes that need no role."""
        return _PERMISSIONS.get(self)


_PERMISSIONS: Final = {Access(permission.value): permission for permission in Permission}


class AccessRefusal(StrEnum):
    """Why a request is not authorized."""

    NO_CREDENTIAL = "no_credential"
    UNKNOWN_CREDENTIAL = "unknown_credential"
    EXPIRED = "credential_expired"
    REVOKED = "credential_revoked"
    OTHER_AUDIENCE = "other_audience"
    TOO_MANY_ATTEMPTS = "too_many_attempts"
    UNVERIFIABLE = "credential_unverifiable"
    """The issuer of the credential cannot be reached."""
    MAY_NOT_CALL = "may_not_call"
    NO_SUCH_SCOPE = "no_such_scope"
    """The scope does not exist, or may not be known to this identity."""
    LACKS_OAUTH_SCOPE = "lacks_oauth_scope"
    LACKS_GROUP = "lacks_group"
    LACKS_CLAIM = "lacks_claim"
    LACKS_PERMISSION = "lacks_permission"

    @property
    def status(self) -> int:
        """The HTTP status of this refusal."""
        return _STATUS[self]

    @property
    def is_failed_authentication(self) -> bool:
        """Whether the credential proves no identity. Such attempts are counted by address."""
        return self in _FAILED


_STATUS: Final = {
    AccessRefusal.NO_CREDENTIAL: 401,
    AccessRefusal.UNKNOWN_CREDENTIAL: 401,
    AccessRefusal.EXPIRED: 401,
    AccessRefusal.REVOKED: 401,
    AccessRefusal.OTHER_AUDIENCE: 401,
    AccessRefusal.TOO_MANY_ATTEMPTS: 429,
    AccessRefusal.UNVERIFIABLE: 503,
    AccessRefusal.MAY_NOT_CALL: 403,
    AccessRefusal.NO_SUCH_SCOPE: 404,
    AccessRefusal.LACKS_OAUTH_SCOPE: 403,
    AccessRefusal.LACKS_GROUP: 403,
    AccessRefusal.LACKS_CLAIM: 403,
    AccessRefusal.LACKS_PERMISSION: 403,
}
_FAILED: Final = frozenset({AccessRefusal.UNKNOWN_CREDENTIAL, AccessRefusal.EXPIRED, AccessRefusal.REVOKED})


class TargetScope(msgspec.Struct, frozen=True):
    """The scope in which a request would call, as far as the decision depends on it."""

    name: str
    exists: bool
    resource: str = ""
    """Its identifier as an OAuth resource: the address at which it is served."""
    requirement: ScopeRequirement = NO_REQUIREMENT
    handed_over_by: str | None = None
    """The principal that created a temporary scope; None for a scope of the configuration."""


def decide(
    access: Access,
    identity: Identity,
    scope: TargetScope | None,
    gateway_audiences: frozenset[str],
    *,
    anonymous: bool,
    names: frozenset[str] = frozenset(),
) -> AccessRefusal | None:
    """Return None if the request is authorized, else the reason.

    `scope` is required for class `call`. `gateway_audiences` are the audiences of a token for the gateway as a whole.
    `anonymous`: the route also serves callers without a credential; whether the gateway has such callers was decided
    when the identity was resolved. `names`: all names of the person, if there are several.
    """
    if access is Access.PUBLIC:
        return None
    if identity.anonymous and not anonymous:
        return AccessRefusal.NO_CREDENTIAL
    if access is Access.CALL:
        assert scope is not None
        return _may_call(identity, scope, names)
    if identity.audiences is not None and not identity.audiences & gateway_audiences:
        return AccessRefusal.OTHER_AUDIENCE
    permission = access.permission
    if permission is not None and not allows(identity.roles, permission):
        return AccessRefusal.LACKS_PERMISSION
    return None


def _may_call(identity: Identity, scope: TargetScope, names: frozenset[str]) -> AccessRefusal | None:
    if not identity.may_call:
        return AccessRefusal.MAY_NOT_CALL
    if not _is_open_to(identity, scope, names):
        # A caller without a credential is asked for one, instead of getting the refusal that there is no such scope.
        return AccessRefusal.NO_CREDENTIAL if identity.anonymous else AccessRefusal.NO_SUCH_SCOPE
    if not scope.exists:
        return AccessRefusal.NO_SUCH_SCOPE
    if identity.audiences is not None and scope.resource not in identity.audiences:
        return AccessRefusal.OTHER_AUDIENCE
    requirement = scope.requirement
    return None if requirement is NO_REQUIREMENT else _unmet(requirement, identity)


def _is_open_to(identity: Identity, scope: TargetScope, names: frozenset[str]) -> bool:
    """A credential that is bound to a scope opens only that one. A temporary scope opens for its own token, and for
    operators of the tenant that created it.
    """
    if identity.scope is not None:
        return identity.scope == scope.name
    if scope.handed_over_by is None:
        return True
    tenant = tenant_of_person(identity.principal, names)
    return identity.is_operator and tenant in ("", tenant_of(scope.handed_over_by))


def _unmet(requirement: ScopeRequirement, identity: Identity) -> AccessRefusal | None:
    if missing_oauth_scopes(requirement, identity):
        return AccessRefusal.LACKS_OAUTH_SCOPE
    if missing_group(requirement, identity):
        return AccessRefusal.LACKS_GROUP
    return AccessRefusal.LACKS_CLAIM if missing_claim(requirement, identity) else None
