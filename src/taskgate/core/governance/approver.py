"""An approver: the person who votes, whether they may vote on a call, and when they count as a second person."""

from __future__ import annotations

from dataclasses import dataclass

from taskgate.core.identity.caller import ANONYMOUS, OPERATOR
from taskgate.core.identity.identity import tenant_of
from taskgate.core.identity.roles import Permission, Role, allows

APPROVER_ROLE = Role.APPROVER.value
CLOCK_SKEW_MS = 60_000


@dataclass(frozen=True, slots=True)
class Approver:
    """A person, identified by a session, a token or a channel's own check; never by what a request body claims."""

    id: str
    roles: frozenset[str] = frozenset()
    may_call: bool = True
    """Whether the same credential opens `/mcp`, so that an agent may hold it."""
    logged_in: bool = False
    """Identified by a login on our own pages rather than by a token or a channel."""
    authenticated_at: int | None = None
    """When they last logged in, in seconds since 1970, as far as that is known."""
    identities: frozenset[str] = frozenset()
    """Every name under which the same person is known (`people` in the configuration); empty if only this one."""

    def is_also(self, principal: str) -> bool:
        """Whether this person is known by that name, too."""
        return principal == self.id or principal in self.identities

    def owns_account_of(self, principal: str, operators_own: frozenset[str]) -> bool:
        """Whether an account that is connected for this principal is this person's own. No role stands in for that: with the
        account of another person the calls of the principal would run under that person's name. `operators_own`: principals of
        callers without an identity, whose person is the operator.
        """
        return self.is_also(principal) or (self.id == OPERATOR and principal in operators_own)

    def reaches(self, principal: str) -> bool:
        """Whether this principal is of the same tenant. Who belongs to no tenant under any name reaches everybody."""
        own = {tenant_of(name) for name in (self.id, *self.identities)} - {""}
        return not own or tenant_of(principal) in own

    def may_see_of(self, principal: str) -> bool:
        """Whether what is this principal's may be shown to this person: within the tenant, by role or as their own."""
        return self.reaches(principal) and (principal == self.id or self.may(Permission.SEE))

    def logged_in_since(self, max_age_s: int, now_ms: int) -> bool:
        """Whether they proved who they are on our pages within that time. One in the future means that a clock was set back."""
        if self.authenticated_at is None:
            return False
        return -CLOCK_SKEW_MS <= now_ms - self.authenticated_at * 1000 <= max_age_s * 1000

    @property
    def person(self) -> str:
        """One name for all identities of a person, for counting people."""
        return min(self.identities | {self.id})

    def is_second_person(self, requester: str) -> bool:
        """Whether this is somebody other than whoever asked for the call. The one place that says so.

        The operator's own login always is. A credential that may call is never one for its own calls, nor for anonymous ones:
        it could have been left out. The operator's token is not handed to agents, so it counts for anonymous calls.
        """
        if requester != self.id and self.is_also(requester):
            return False
        if self.id == OPERATOR:
            return self.logged_in or requester != OPERATOR
        if requester == self.id:
            return False
        return requester != ANONYMOUS or not self.may_call

    def may(self, permission: Permission) -> bool:
        """Whether one of their roles allows it. Who may not even see only gets what is meant for themselves."""
        return allows(self.roles, permission)
