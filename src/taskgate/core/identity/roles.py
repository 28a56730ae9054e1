"""Roles at the gateway and the permissions that each gives. Pages, the API and commands all check these.

A role is listed in a token, or granted to groups by `auth.jwt[].roles`. Other names in a token are groups: Cedar
policies, `scopes.NAME.require` and the approvers of a workflow refer to them, but they give no permission by
themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

# Roles of people at the gateway, and what each may do. Everything that a page, the API or a command does asks here.
#
# A role is a word among the roles of a token, or earned from groups by `auth.jwt[].roles`. Other words are groups: they
# matter to Cedar, to `scopes.NAME.require` and to the approvers of a workflow, and open nothing by themselves.


class Permission(StrEnum):
    """One kind of thing that somebody may do with the gateway, apart from calling tools."""

    SEE = "see"
    """Look at approvals, tasks, questions, grants, servers and definitions."""
    DECIDE = "decide"
    """Approve and deny calls, and end standing grants. A workflow may name fewer people."""
    ACT = "act"
    """Step into running work: cancel tasks, answer for callers, accept definitions, hand over scopes for a time."""
    CONFIGURE = "configure"
    """Change who and what the gateway trusts: revoke tokens, end other people's sessions, export and erase data."""


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
"""Of whoever started the gateway: there is nobody above them."""


def allows(roles: Iterable[str], permission: Permission) -> bool:
    """Whether any of these roles gives the permission. Groups give none."""
    return any(permission in PERMISSIONS.get(role, ()) for role in roles)


def groups_in(roles: Iterable[str]) -> frozenset[str]:
    """What is left of the words of a token when the gateway's own roles are taken out."""
    return frozenset(roles) - GATEWAY_ROLES
