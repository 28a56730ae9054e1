"""An approver: the person who votes, whether they may vote on a call, and when they count as a second person."""

from __future__ import annotations

import msgspec

from taskgate.core.identity.caller import ANONYMOUS, OPERATOR
from taskgate.core.identity.identity import tenant_of, tenant_of_person
from taskgate.core.identity.roles import Permission, Role, allows

APPROVER_ROLE = Role.APPROVER.value
CLOCK_SKEW_MS = 60_000


class Approver(msgspec.Struct, frozen=True):
    """A person, identified by a session, a token or a channel's own check; never by what a request body claims."""

    id: str
    roles: frozenset[str] = frozenset()
    may_call: bool = True
    """Whether the same credential opens `/mcp`, so that an agent may have it."""
    logged_in: bool = False
    """Identified by a login on the gateway's own pages and not by a token or a channel."""
    authenticated_at: int | None = None
    """Time of the last login, in seconds since 1970, if known."""
    identities: frozenset[str] = frozenset()
    """All names of the same person (`people` in the configuration); empty if there is only this one."""

    def is_known_as(self, principal: str) -> bool:
        """Whether this is one of the person's names."""
        return principal == self.id or principal in self.identities

    def owns_account_of(self, principal: str, operators_own: frozenset[str]) -> bool:
        """Whether an account that is connected for this principal is this person's own. No role replaces that: with
        another person's account, the calls of the principal would run under that person's name. `operators_own`:
        principals of callers without an identity, whose person is the operator.
        """
        return self.is_known_as(principal) or (self.id == OPERATOR and principal in operators_own)

    @property
    def tenant(self) -> str | None:
        """The tenant to which this person is limited because one of their names belongs to it. None: not limited.

        Everything that shows or changes data of callers asks this or `reaches`: lists, pages, votes, and streams.
        """
        return tenant_of_person(self.id, self.identities) or None

    def reaches(self, principal: str) -> bool:
        """Whether this principal is in the person's tenant, or is the name that they use now. A person without a tenant
        reaches all principals.
        """
        tenant = self.tenant
        return tenant is None or principal == self.id or tenant_of(principal) == tenant

    def tenant_of_search(self, only: str | None) -> str | None:
        """The tenant to which a search is limited. `only`: the one principal whose data is searched; None: all."""
        return None if only == self.id else self.tenant

    def may_see_data_of(self, principal: str) -> bool:
        """Whether data of this principal may be shown to this person: within the tenant, by role or as their own."""
        return self.reaches(principal) and (principal == self.id or self.may(Permission.SEE))

    def logged_in_since(self, max_age_s: int, now_ms: int) -> bool:
        """Whether they logged in on the gateway's pages within that time. A time in the future means that a clock was
        set back.
        """
        if self.authenticated_at is None:
            return False
        return -CLOCK_SKEW_MS <= now_ms - self.authenticated_at * 1000 <= max_age_s * 1000

    @property
    def person(self) -> str:
        """One name for all identities of a person, for counting people."""
        return min(self.identities | {self.id})

    def is_second_person(self, requester: str) -> bool:
        """Whether this is a different person than the requester. The only definition of that.

        The operator's own login always is. A credential that may call is never a second person for its own calls, nor
        for anonymous ones: the caller could have omitted it. The operator's token is not given to agents, so it counts
        for anonymous calls.
        """
        if requester != self.id and self.is_known_as(requester):
            return False
        if self.id == OPERATOR:
            return self.logged_in or requester != OPERATOR
        if requester == self.id:
            return False
        return requester != ANONYMOUS or not self.may_call

    def may(self, permission: Permission) -> bool:
        """Whether one of their roles allows it. Without the permission to see, a person only gets what is addressed to
        them.
        """
        return allows(self.roles, permission)
