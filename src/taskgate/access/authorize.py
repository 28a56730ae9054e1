"""The one function that every request passes before anything is done for it.

`Authorizer.authorize` resolves the proof that a request shows to a credential, limits failed attempts, decides by the access class
of the route, the identity and the scope (`core.access.decide`), and records a denial. `Authorizer.admit` is the same for proofs
that can be resolved without waiting, which is every call but the first one with a credential.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final

from taskgate.access.arrival import Arrivals
from taskgate.access.attempts import FailedAttempts, TooManyAttempts
from taskgate.access.credentials import CredentialRefused, Credentials, NotVerifiedYet
from taskgate.access.guard import Guard
from taskgate.access.proof import HopProof, HttpProof, NeedsLookup, Proof
from taskgate.access.resources import ProtectedResources
from taskgate.core.governance.approver import Approver
from taskgate.core.identity.access import Access, AccessRefusal, TargetScope, decide
from taskgate.core.identity.caller import Caller
from taskgate.core.identity.identity import NO_REQUIREMENT, Identity
from taskgate.gateway.plan import Plan
from taskgate.gateway.services.access import AccessServices
from taskgate.ports.credentials import Credential, IssuerUnavailable
from taskgate.telemetry.logs import log

MOST_FAILURES: Final = 60
WITHIN_S: Final = 60.0
MOST_REMEMBERED: Final = 4_096
UNVERIFIABLE_S: Final = 5


class AccessRefused(Exception):
    """A request that is not authorized. The message states the reason for its sender."""

    def __init__(
        self,
        reason: AccessRefusal,
        text: str,
        *,
        why: str = "",
        identity: Identity | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(text)
        self.reason = reason
        self.text = text
        self.why = why
        """What is wrong with the credential, for a text of another kind."""
        self.identity = identity
        """Whose credential it was, if that is known."""
        self.retry_after_s = retry_after_s

    @property
    def status(self) -> int:
        return self.reason.status


@dataclass(frozen=True, slots=True)
class Authorized:
    """An authorized request: what was proved, for which class and scope, and by what it can be authorized again."""

    proof: Proof
    access: Access
    scope: str
    """The scope for class `call`, otherwise empty."""
    anonymous: bool
    credential: Credential
    caller: Caller

    @property
    def person(self) -> Approver | None:
        """The holder of the credential; None for anonymous callers."""
        identity = self.credential.identity
        if identity.anonymous:
            return None
        return self.credential.person or Approver(identity.principal, identity.roles, identity.may_call)

    @property
    def forwarded(self) -> HopProof:
        """What another gateway needs to authorize the same request: the caller, and by what its credential is revoked."""
        issued = self.credential.identity.claims.get("iat")
        return HopProof(self.caller, self.credential.digest, int(issued) if isinstance(issued, (int, float)) else None)


_ANONYMOUS: Final = Credential(Identity())
_NO_CALLER: Final = Caller(scope="")
_Question = tuple[Credential, Access, str, bool, str]
"""Everything that a decision depends on, apart from the plan and the configured credentials: these are the same for all entries."""


class Authorizer:
    def __init__(self, gateway: AccessServices, credentials: Credentials, arrivals: Arrivals, guard: Guard) -> None:
        self._gateway = gateway
        self._attempts = FailedAttempts(MOST_FAILURES, WITHIN_S)
        self._denials = gateway.denials
        self._plan = gateway.plan
        self.adopt(credentials, arrivals, guard)

    def adopt(self, credentials: Credentials, arrivals: Arrivals, guard: Guard) -> None:
        """A configuration: it counts from the next request on."""
        self.credentials = credentials
        self.arrivals = arrivals
        self.guard = guard
        self.resources = ProtectedResources(self._gateway, credentials)
        self._remembered: tuple[Plan, dict[_Question, Caller]] = (self._plan.value, {})

    async def authorize(self, proof: Proof, access: Access, scope: str = "", *, anonymous: bool = False) -> Authorized:
        """Raises AccessRefused.

        `scope` is the one that the request names, for class `call`; empty: the one that the credential is bound to, or the default
        one. `anonymous`: the route also serves callers without a credential.
        """
        try:
            return self.admit(proof, access, scope, anonymous=anonymous)
        except NotVerifiedYet as unverified:
            shown = unverified.credential
            credential = await self._tried(lambda: self.credentials.verify(shown), proof)
        except NeedsLookup as needed:
            if needed.is_guess:
                look_up = needed.look_up
                credential = await self._tried(lambda: look_up(self.credentials), proof)
            else:
                credential = await self._looked_up(needed)
        return self._decided(credential, proof, access, scope, anonymous=anonymous)

    def admit(self, proof: Proof, access: Access, scope: str = "", *, anonymous: bool = False) -> Authorized:
        """The same without waiting. Raises NotVerifiedYet or NeedsLookup where `authorize` would have to wait."""
        if access is Access.PUBLIC:
            return Authorized(proof, access, "", anonymous, _ANONYMOUS, _NO_CALLER)
        try:
            credential = proof.resolve(self.credentials, self.arrivals)
        except CredentialRefused as refused:
            raise self._not_authenticated(refused, proof) from None
        return self._decided(credential, proof, access, scope, anonymous=anonymous)

    def again_now(self, authorized: Authorized) -> Authorized:
        """Authorize an earlier request once more, for a response that stays open. Raises AccessRefused, and NotVerifiedYet or
        NeedsLookup where `again` would have to wait. This is no attempt: it is neither counted nor recorded.
        """
        try:
            self.credentials.refuse_recalled(authorized.credential.identity)
            credential = authorized.proof.resolve(self.credentials, self.arrivals)
        except CredentialRefused as refused:
            raise AccessRefused(refused.reason, text_of(refused.reason, why=str(refused))) from None
        return self._decided_again(authorized, credential)

    async def again(self, authorized: Authorized) -> Authorized:
        """Raises AccessRefused."""
        found: Awaitable[Credential]
        try:
            return self.again_now(authorized)
        except NotVerifiedYet as unverified:
            found = self.credentials.verify(unverified.credential)
        except NeedsLookup as needed:
            found = needed.look_up(self.credentials)
        try:
            credential = await found
        except CredentialRefused as refused:
            raise AccessRefused(refused.reason, text_of(refused.reason, why=str(refused))) from None
        except IssuerUnavailable as fault:
            raise _unverifiable(fault) from None
        return self._decided_again(authorized, credential)

    def _decided_again(self, authorized: Authorized, credential: Credential) -> Authorized:
        caller, refusal = self._decide(
            credential, authorized.proof, authorized.access, authorized.scope, authorized.anonymous
        )
        if refusal is not None:
            raise AccessRefused(refusal, text_of(refusal, authorized.access), identity=credential.identity)
        return replace(authorized, credential=credential, caller=caller)

    # Authentication

    async def _looked_up(self, needed: NeedsLookup) -> Credential:
        try:
            return await needed.look_up(self.credentials)
        except CredentialRefused as refused:
            raise AccessRefused(refused.reason, text_of(refused.reason, why=str(refused))) from None

    async def _tried(self, find: Callable[[], Awaitable[Credential]], proof: Proof) -> Credential:
        """Of a credential that is shown for the first time. The attempt counts before anything is awaited."""
        address = proof.address(self.arrivals)
        try:
            begun = await self._attempts.begin(address)
        except TooManyAttempts as too_many:
            raise _too_many(too_many) from None
        with begun as attempt:
            try:
                found = await find()
            except IssuerUnavailable as fault:
                attempt.not_examined()
                raise _unverifiable(fault) from None
            except CredentialRefused as refused:
                raise self._recorded(refused, address) from None
            attempt.passed()
            return found

    def _not_authenticated(self, refused: CredentialRefused, proof: Proof) -> AccessRefused:
        if not refused.reason.is_failed_authentication:
            return AccessRefused(refused.reason, text_of(refused.reason))
        address = proof.address(self.arrivals)
        try:
            self._attempts.failed(address)
        except TooManyAttempts as too_many:
            return _too_many(too_many)
        return self._recorded(refused, address)

    def _recorded(self, refused: CredentialRefused, address: str) -> AccessRefused:
        self._denials.authentication_failed(address, refused.reason.value)
        return AccessRefused(refused.reason, text_of(refused.reason, why=str(refused)), why=str(refused))

    # Authorization

    def _decided(
        self, credential: Credential, proof: Proof, access: Access, scope: str, *, anonymous: bool
    ) -> Authorized:
        caller, refusal = self._decide(credential, proof, access, scope, anonymous)
        if refusal is None:
            return Authorized(
                proof, access, caller.scope if access is Access.CALL else "", anonymous, credential, caller
            )
        identity = credential.identity
        if refusal is AccessRefusal.NO_CREDENTIAL and proof.shows_credential:
            # An open gateway serves calls with any token as anonymous. Elsewhere that token is a wrong one.
            raise self._not_authenticated(CredentialRefused(AccessRefusal.UNKNOWN_CREDENTIAL, "it is not known"), proof)
        if not identity.anonymous:
            self._denials.access_refused(identity.principal, caller.scope, access.value, refusal.value)
        raise AccessRefused(refusal, text_of(refusal, access), identity=identity)

    def _decide(
        self, credential: Credential, proof: Proof, access: Access, scope: str, anonymous: bool
    ) -> tuple[Caller, AccessRefusal | None]:
        """Decisions in favour are remembered while plan and configuration stay the same; whether the credential is still good was
        looked up before."""
        plan, remembered = self._remembered
        if plan is not self._plan.value:
            remembered = {}
            self._remembered = (self._plan.value, remembered)
        identity = credential.identity
        address = proof.address(self.arrivals) if identity.anonymous else ""
        question = (credential, access, scope, anonymous, address)
        caller = remembered.get(question)
        if caller is not None:
            return caller, None
        target = self._target(scope, identity, proof) if access is Access.CALL else None
        refusal = decide(access, identity, target, self.resources.of_gateway(), anonymous=anonymous)
        if isinstance(proof, HopProof):
            return proof.caller, refusal
        name = target.name if target is not None else ""
        caller = Caller(identity.principal, identity.roles, name, address=address, facts=identity.facts)
        if refusal is None and isinstance(proof, HttpProof):
            if len(remembered) >= MOST_REMEMBERED:
                remembered.clear()
            remembered[question] = caller
        return caller, refusal

    def _target(self, asked: str, identity: Identity, proof: Proof) -> TargetScope:
        name = asked or identity.scope or self._gateway.default_scope
        handed_over = self._gateway.temporary_scopes.find(name)
        # The gateway that forwarded a request has compared the requirement with claims that are not forwarded.
        vouched = isinstance(proof, HopProof)
        return TargetScope(
            name,
            self._gateway.has_scope(name),
            self.resources.of_scope(name),
            NO_REQUIREMENT if vouched else self.credentials.requirement(name),
            handed_over.created_by if handed_over is not None else None,
        )


def _too_many(too_many: TooManyAttempts) -> AccessRefused:
    reason = AccessRefusal.TOO_MANY_ATTEMPTS
    return AccessRefused(reason, text_of(reason), retry_after_s=too_many.retry_after_s)


def _unverifiable(fault: IssuerUnavailable) -> AccessRefused:
    log.warning("a token could not be verified", why=str(fault))
    reason = AccessRefusal.UNVERIFIABLE
    return AccessRefused(reason, text_of(reason), retry_after_s=UNVERIFIABLE_S)


_TEXTS: Final = {
    AccessRefusal.NO_CREDENTIAL: (
        "A credential is needed here: send `Authorization: Bearer TOKEN`. The operator of this gateway can give you a token."
    ),
    AccessRefusal.OTHER_AUDIENCE: "The token was issued for another resource. Get one for this address.",
    AccessRefusal.TOO_MANY_ATTEMPTS: "Too many wrong tokens came from your address. Wait, then send a good one.",
    AccessRefusal.UNVERIFIABLE: (
        "Your token cannot be verified now, because its issuer cannot be reached. Nothing was executed; try again in a moment."
    ),
    AccessRefusal.MAY_NOT_CALL: "This token may decide on approvals, but it may not call tools.",
    AccessRefusal.NO_SUCH_SCOPE: "There is no such scope.",
    AccessRefusal.LACKS_OAUTH_SCOPE: "Your token lacks an OAuth scope that is needed here; get one that has it.",
    AccessRefusal.LACKS_GROUP: "Your token lacks a group that is needed here.",
    AccessRefusal.LACKS_CLAIM: "Your token lacks a claim that is needed here.",
}


def text_of(reason: AccessRefusal, access: Access | None = None, why: str = "") -> str:
    """The refusal for its sender. It repeats nothing out of a credential."""
    if reason is AccessRefusal.LACKS_PERMISSION and access is not None:
        return f"You may not do this here: it needs a role that may {access.value}."
    return _TEXTS.get(reason) or f"The token is not accepted: {why or reason.value.replace('_', ' ')}."
