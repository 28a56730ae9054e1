"""Roles at the gateway and the permissions that each grants. Pages, the API and commands all check these.

A role is listed in a token, or granted to groups by `auth.jwt[].roles`. Other names in a token are groups: Cedar
policies, `scopes.NAME.require` and the approvers of a workflow refer to them, but they give no permission by
themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class Permission(StrEnum):
    """A kind of action at the gateway, apart from calling tools."""

    SEE = "see"
    """View approvals, tasks, questions, grants, servers and definitions."""
    DECIDE = "decide"
    """Approve and deny calls, and revoke standing grants. A workflow may restrict who decides."""
    ACT = "act"
    """Intervene in running work: cancel tasks, answer for callers, accept definitions, create temporary scopes."""
    CONFIGURE = "configure"
    """Change what the gateway trusts: revoke tokens, end other people's sessions, export and erase data."""


class Role(StrEnum):
    VIEWER = "viewer"
    APPROVER = "approver"
    OPERATOR = "operator"
    ADMIN = "admin"


_VIEWER: Final = frozenset({Permission.SEE})
_APPROVER: Final = _VIEWER | {Permission.DECIDE}
_OPERATOR: Final = _APPROVER | {Permission.ACT}

PERMISSIONS: Final[Mapping[str, frozenset[Permission]]] = MappingProxyType(
    {
        Role.VIEWER.value: _VIEWER,
        Role.APPROVER.value: _APPROVER,
        Role.OPERATOR.value: _OPERATOR,
        Role.ADMIN.value: _OPERATOR | {Permission.CONFIGURE},
    }
)
GATEWAY_ROLES: Final = frozenset(PERMISSIONS)
OWNER_ROLES: Final = frozenset({Role.OPERATOR.value, Role.ADMIN.value})
"""Roles of the user who started the gateway."""


def allows(roles: Iterable[str], permission: Permission) -> bool:
    """Whether any of these roles grants the permission. Groups grant none."""
    return any(permission in PERMISSIONS.get(role, ()) for role in roles)


def groups_in(roles: Iterable[str]) -> frozenset[str]:
    """Return the groups among the roles of a token."""
    return frozenset(roles) - GATEWAY_ROLES
