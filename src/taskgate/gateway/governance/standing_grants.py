"""What is known in memory for every call and kept in the store: grants that stand, and principals beyond the configuration."""

from __future__ import annotations

import secrets
from collections import ChainMap, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from taskgate.core.audit.chain import AuditEntry
from taskgate.core.errors import CallerError
from taskgate.core.governance.approval import Approval, Refusal, State, Verdict
from taskgate.core.governance.approver import Approver
from taskgate.core.governance.grants import DEFAULT_GRANT_MS, Grant, NoGrant, grant_from
from taskgate.core.governance.workflow import Workflow
from taskgate.core.identity.caller import OPERATOR
from taskgate.core.identity.identity import Identity
from taskgate.core.identity.roles import GATEWAY_ROLES
from taskgate.core.ids import RANDOM_BYTES, ulid
from taskgate.gateway.events import CredentialsChanged, EventHub
from taskgate.gateway.governance.expiries import ApprovalExpiries
from taskgate.gateway.plan import Live, Plan
from taskgate.ports.approval_store import HeldCall
from taskgate.ports.store import CONSOLE_SESSION, PERSON, IdentityRecord, Store


@dataclass(frozen=True, slots=True)
class GrantWish:
    """ "And the next ones too": what an approver may add to a yes."""

    for_ms: int = DEFAULT_GRANT_MS
    exact_arguments: bool = False
    whole_scope: bool = False


@dataclass(frozen=True, slots=True)
class Ruling:
    """What became of a person's word. `refusal` is empty when it counted; `text` is for that person."""

    text: str
    refusal: str = ""
    held: HeldCall | None = None
    grant: Grant | None = None
    starts: bool | None = None
    """Whether the task of the call starts now, rather than at its caller's next look; None where it is no task, or not approved."""


STARTS_NOW: Final = "It runs now."
WAITS_FOR_CALLER: Final = "It runs when its caller asks for the task again."
_WHY: Final[Mapping[Refusal, str]] = {
    Refusal.ALREADY_VOTED: "You have approved this call already. Another approver must agree too.",
    Refusal.EXPIRED: "Too late: the time for a decision is over, and the call was refused. Its caller can make it again.",
    Refusal.NOT_APPROVED: "This call is not approved.",
    Refusal.NOT_DUE: "It is not due yet.",
}


_ANOTHER_APPROVER: Final = "`taskgate token new NAME --role approver` makes a token for one"


def refused_text(why: Refusal, approval: Approval, who: Approver, page: str) -> str:
    """Why a decision did not count, and a way that works. `page`: where this call is decided on."""
    if why is Refusal.OWN_CALL:
        allow = f"`self_approval: true` in the workflow {approval.workflow} lets people decide on their own calls."
        if who.id == OPERATOR:
            # An agent may have called with the operator's token; it cannot have logged in.
            return (
                "This call was made with the operator's token, which therefore cannot approve it. Log in with the link that "
                f"`taskgate approvals login` prints, and decide at {page}; or let another approver decide "
                f"({_ANOTHER_APPROVER}). {allow}"
            )
        return f"You made this call, so another approver must decide ({_ANOTHER_APPROVER}). {allow}"
    if why is Refusal.NOT_AN_APPROVER:
        return (
            f"You are not an approver of the workflow {approval.workflow}. Its approvers, and the operator, can decide at "
            f"{page}. {_ANOTHER_APPROVER}; `approvers` in the workflow lists who may decide."
        )
    if why is Refusal.LOGIN_TOO_OLD:
        return f"Approving this call needs a fresh login: log in again at {page}, and decide there."
    if why is not Refusal.ALREADY_DECIDED:
        return _WHY[why]
    by = ", ".join(dict.fromkeys(vote.approver for vote in approval.votes))
    state = "approved and sent" if approval.state is State.USED else approval.state.value
    return f"This call is {state} already{f' (by {by})' if by else ''}."


def accepted_text(approval: Approval, workflow: Workflow, grant: Grant | None, *, starts: bool | None) -> str:
    """`starts`: whether the task of the call starts now, or when its caller comes back; None where it is no task."""
    if approval.state is State.DENIED:
        return "Denied. The tool will not run."
    if approval.state is State.OPEN:
        yes = sum(1 for vote in approval.votes if vote.verdict is Verdict.APPROVE)
        return f"Noted: {yes} of {workflow.approvals_needed} approvals."
    said = "Approved." if grant is None else f"Approved, and granted until it is revoked or over (grant {grant.id})."
    if starts is None:
        return said
    return f"{said} {STARTS_NOW if starts else WAITS_FOR_CALLER}"


PREFIX: Final = "gr_"


class StandingGrants:
    def __init__(self, store: Store, plan: Live[Plan], expiries: ApprovalExpiries) -> None:
        self._store = store
        self._plan = plan
        self._expiries = expiries

    @property
    def current(self) -> tuple[Grant, ...]:
        return self._expiries.standing(self._store.known_grants)

    async def load(self) -> None:
        await self._store.grants()
        self._expiries.standing(self._store.known_grants)

    def check(self, wish: GrantWish) -> None:
        """Refuse a wish before anything is decided by it."""
        governing = self._plan.value.governing
        if not governing.grants:
            raise CallerError("invalid_params", "Grants are switched off in this configuration.")
        if not 0 < wish.for_ms <= governing.longest_grant_ms:
            raise CallerError(
                "invalid_params", f"A grant may last at most {governing.longest_grant_ms // 60_000} minutes here."
            )

    async def give(self, wish: GrantWish, approval: Approval) -> Grant | None:
        """Only once everybody needed has agreed."""
        if approval.state not in (State.APPROVED, State.USED):
            return None
        now = self._store.now_ms()
        try:
            grant = grant_from(
                approval,
                PREFIX + ulid(now, secrets.token_bytes(RANDOM_BYTES)),
                now,
                for_ms=wish.for_ms,
                exact_arguments=wish.exact_arguments,
                whole_scope=wish.whole_scope,
            )
        except NoGrant as problem:
            raise CallerError("invalid_params", f"No grant: {problem}.") from None
        await self._store.add_grant(grant)
        await self.load()
        return grant

    async def revoke(self, who: Approver, grant_id: str) -> Grant | None:
        grant = await self._store.revoke_grant(grant_id, who.id)
        await self.load()
        return grant


# What is known about principals beyond the configuration, in the store that all gateways share: roles of issuers'
# subjects as they were last proved, and credentials that were revoked before their time.
#
# The configuration knows the roles of its own tokens. Whoever an issuer vouches for is known from the last credential
# that was verified, so that an approval or a task that waits is judged by who they are and not by what a request still
# carries. Read often and by everybody, so all of it is in memory; changes of other gateways arrive within seconds.

REVOKED: Final = "revoked"
MOST_PEOPLE: Final = 50_000
KEPT_MS: Final = 30 * 24 * 3_600_000
RENEW_MS: Final = 24 * 3_600_000
NOTED_WITHIN_MS: Final = 60_000
FOR_EVER_MS: Final = 2**53


class _Person(msgspec.Struct, frozen=True):
    roles: list[str]


class Revoked(msgspec.Struct, frozen=True):
    """`at_ms`: credentials of an issuer's subject that were issued until then are refused."""

    by: str
    at_ms: int
    reason: str = ""


class KnownPeople:
    def __init__(self, store: Store, events: EventHub) -> None:
        self._store = store
        self._events = events
        self._roles: OrderedDict[str, frozenset[str]] = OrderedDict()
        self._approvers: dict[str, Approver] = {}
        self._noted_ms: dict[str, int] = {}
        self._revoked: dict[str, Revoked] = {}

    async def load(self) -> None:
        """At the start, and whenever another gateway may have changed something."""
        revoked = await self._store.identity_records(REVOKED)
        people = await self._store.identity_records(PERSON)
        before = (self._revoked, dict(self._approvers))
        self._revoked = {record.name: msgspec.json.decode(record.body, type=Revoked) for record in revoked}
        for record in people:
            self._put(record.principal, frozenset(msgspec.json.decode(record.body, type=_Person).roles))
        # Erased at another gateway. What was noted here a moment ago may not be written yet.
        lately = self._store.now_ms() - NOTED_WITHIN_MS
        for principal in self._roles.keys() - {record.principal for record in people}:
            if self._noted_ms.get(principal, 0) < lately:
                self._drop(principal)
        if before != (self._revoked, self._approvers):
            self._events.publish(CredentialsChanged())

    def merged(self, plan: Plan) -> Plan:
        """The plan with everybody who is known; what the configuration says about somebody wins."""
        governing = plan.governing
        known = replace(
            governing,
            roles=ChainMap(dict(governing.roles), self._roles),
            approvers=ChainMap(dict(governing.approvers), self._approvers),
        )
        return replace(plan, governing=known)

    def note(self, identity: Identity) -> None:
        """Somebody's credential was just verified: these are their roles now."""
        principal, now = identity.principal, self._store.now_ms()
        if self._roles.get(principal) == identity.roles and now - self._noted_ms.get(principal, 0) < RENEW_MS:
            return
        before = self._roles.get(principal, frozenset())
        self._put(principal, identity.roles)
        if before & GATEWAY_ROLES and before != identity.roles:
            self._events.publish(CredentialsChanged())
        self._noted_ms[principal] = now
        body = msgspec.json.encode(_Person(sorted(identity.roles)))
        kept = IdentityRecord(PERSON, principal, principal, now + KEPT_MS, body)
        # Others must know who may decide; of everybody else they hear when they come.
        self._store.note_identity_record(kept, announce=bool(before & GATEWAY_ROLES or identity.roles & GATEWAY_ROLES))

    def _put(self, principal: str, roles: frozenset[str]) -> None:
        self._roles[principal] = roles
        if roles & GATEWAY_ROLES:
            self._approvers[principal] = Approver(principal, roles)
        else:
            self._approvers.pop(principal, None)
        if len(self._roles) > MOST_PEOPLE:
            self._drop(next(iter(self._roles)))

    def _drop(self, principal: str) -> None:
        self._roles.pop(principal, None)
        self._approvers.pop(principal, None)
        self._noted_ms.pop(principal, None)

    def is_revoked(self, digest: str) -> bool:
        """Whether the token of ours with this digest was revoked."""
        return digest in self._revoked

    def is_recalled(self, identity: Identity) -> bool:
        """Whether an issuer's credential was issued before its subject's credentials were revoked."""
        revoked = self._revoked.get(identity.principal)
        if revoked is None:
            return False
        issued = identity.claims.get("iat")
        return not isinstance(issued, (int, float)) or issued * 1000 <= revoked.at_ms

    async def revoke(self, name: str, principal: str, by: str, reason: str) -> None:
        """`name` is the digest of a token of ours, or the principal whose issuer's credentials are meant."""
        revoked = Revoked(by, self._store.now_ms(), reason)
        entry = AuditEntry(0, "token_revoked", principal, kind="token", decision="revoked", reason=f"by {by}: {reason}")
        body = msgspec.json.encode(revoked)
        kept = IdentityRecord(REVOKED, name, principal, FOR_EVER_MS, body)
        await self._store.keep_identity_record(kept, entry, announce=True)
        self._revoked[name] = revoked
        self._events.publish(CredentialsChanged())
        await self._store.forget_identity_records_of(CONSOLE_SESSION, principal)
        self._events.publish(CredentialsChanged())

    @property
    def revoked(self) -> Mapping[str, Revoked]:
        return self._revoked

    async def forget(self, principal: str) -> None:
        """Somebody's data are erased."""
        self._drop(principal)
        await self._store.forget_identity_records_of(PERSON, principal)
