"""The single entry point for authentication and authorization of requests.

`Authorizer.authorize` resolves the proof of a request to a credential, limits failed attempts, decides by the access
class of the route, the identity and the scope (`core.identity.access.decide`), and records a denial. `Authorizer.admit`
does the same for proofs that can be resolved without waiting, which is every call except the first one with a
credential.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

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
from taskgate.ports.caller_credentials import Credential, IssuerFailed, IssuerUnavailable
from taskgate.telemetry.logs import log

MAX_FAILURES: Final = 60
WITHIN_S: Final = 60.0
MAX_CACHED: Final = 4_096
UNVERIFIABLE_S: Final = 5


class AccessRefused(Exception):
    """The request is not authorized. The message is sent to the caller."""

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
        """What is wrong with the credential."""
        self.identity = identity
        """The identity of the credential, if known."""
        self.retry_after_s = retry_after_s

    @property
    def status(self) -> int:
        return self.reason.status


class Authorized(msgspec.Struct, frozen=True):
    """An authorized request: its proof, access class and scope, with which it can be authorized again."""

    proof: Proof
    access: Access
    scope: str
    """The scope for class `call`, otherwise empty."""
    anonymous: bool
    credential: Credential
    caller: Caller
    people: Mapping[str, frozenset[str]]
    """For each name of a person with several: all of them."""

    @property
    def person(self) -> Approver | None:
        """The holder of the credential with all their names, which limit what they may see; None for anonymous callers."""
        identity = self.credential.identity
        if identity.anonymous:
            return None
        person = self.credential.person or Approver(identity.principal, identity.roles, identity.may_call)
        return replace(person, identities=self.people.get(person.id, frozenset()))

    @property
    def forwarded(self) -> HopProof:
        """What another gateway needs to authorize the request: the caller, and how its credential can be revoked."""
        issued = self.credential.identity.claims.get("iat")
        return HopProof(self.caller, self.credential.digest, int(issued) if isinstance(issued, (int, float)) else None)


_ANONYMOUS: Final = Credential(Identity())
_NO_CALLER: Final = Caller(scope="")
_NO_PEOPLE: Final[Mapping[str, frozenset[str]]] = {}
_CacheKey = tuple[Credential, Access, str, bool, str]
"""All inputs of a decision, except the plan and the configured credentials, which are the same for all entries."""


class Authorizer:
    def __init__(self, gateway: AccessServices, credentials: Credentials, arrivals: Arrivals, guard: Guard) -> None:
        self._gateway = gateway
        self._attempts = FailedAttempts(MAX_FAILURES, WITHIN_S)
        self._denials = gateway.denials
        self._plan = gateway.plan
        self.adopt(credentials, arrivals, guard)

    def adopt(self, credentials: Credentials, arrivals: Arrivals, guard: Guard) -> None:
        """Apply a configuration from the next request on."""
        self.credentials = credentials
        self.arrivals = arrivals
        self.guard = guard
        self.resources = ProtectedResources(self._gateway, credentials)
        self._cached: tuple[Plan, dict[_CacheKey, Caller]] = (self._plan.value, {})

    async def authorize(self, proof: Proof, access: Access, scope: str = "", *, anonymous: bool = False) -> Authorized:
        """Authorize a request. Raises AccessRefused.

        `scope` is the scope in the request, for class `call`; if empty, that of the credential or the default one.
        `anonymous`: the route also serves callers without a credential.
        """
        try:
            return self.admit(proof, access, scope, anonymous=anonymous)
        except NotVerifiedYet as unverified:
            shown, peer = unverified, proof.address(self.arrivals)
            credential = await self._tried(lambda: self.credentials.verify(shown, peer), proof)
        except NeedsLookup as needed:
            if needed.is_guess:
                look_up = needed.look_up
                credential = await self._tried(lambda: look_up(self.credentials), proof)
            else:
                credential = await self._looked_up(needed)
        return self._decided(credential, proof, access, scope, anonymous=anonymous)

    def admit(self, proof: Proof, access: Access, scope: str = "", *, anonymous: bool = False) -> Authorized:
        """As `authorize`, without waiting. Raises NotVerifiedYet or NeedsLookup if `authorize` must be awaited."""
        if access is Access.PUBLIC:
            return Authorized(
                proof=proof,
                access=access,
                scope="",
                anonymous=anonymous,
                credential=_ANONYMOUS,
                caller=_NO_CALLER,
                people=_NO_PEOPLE,
            )
        try:
            credential = proof.resolve(self.credentials, self.arrivals)
        except CredentialRefused as refused:
            raise self._not_authenticated(refused, proof) from None
        return self._decided(credential, proof, access, scope, anonymous=anonymous)

    async def permits(self, proof: Proof, access: Access) -> bool:
        """Return whether the proof gives this access, for replies that contain more for those who have it.

        A wrong credential counts as a failed attempt; a missing permission is not recorded, because nothing is denied.
        """
        try:
            credential = (await self.authorize(proof, Access.LOGIN)).credential
        except AccessRefused:
            return False
        return self._decide(credential, proof, access, "", False)[1] is None

    def again_now(self, authorized: Authorized) -> Authorized:
        """Authorize an earlier request again, for a response that stays open. Does not count as an attempt.

        Raises AccessRefused, or NotVerifiedYet or NeedsLookup if `again` must be awaited.
        """
        try:
            self.credentials.refuse_recalled(authorized.credential.identity)
            credential = authorized.proof.resolve(self.credentials, self.arrivals)
        except CredentialRefused as refused:
            raise AccessRefused(refused.reason, text_of(refused.reason, why=str(refused))) from None
        return self._decided_again(authorized, credential)

    async def again(self, authorized: Authorized) -> Authorized:
        """As `again_now`, with waiting. Raises AccessRefused."""
        found: Awaitable[Credential]
        try:
            return self.again_now(authorized)
        except NotVerifiedYet as unverified:
            peer = authorized.proof.address(self.arrivals)
            found = self.credentials.verify(unverified, peer)
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
        people = self._plan.value.governing.people
        return replace(authorized, credential=credential, caller=caller, people=people)

    # Authentication

    async def _looked_up(self, needed: NeedsLookup) -> Credential:
        try:
            return await needed.look_up(self.credentials)
        except CredentialRefused as refused:
            raise AccessRefused(refused.reason, text_of(refused.reason, why=str(refused))) from None

    async def _tried(self, find: Callable[[], Awaitable[Credential]], proof: Proof) -> Credential:
        """Verify a new credential. The attempt counts before anything is awaited."""
        address = proof.address(self.arrivals)
        try:
            begun = await self._attempts.begin(address)
        except TooManyAttempts as too_many:
            raise _too_many(too_many) from None
        with begun as attempt:
            try:
                found = await find()
            except IssuerFailed as fault:
                # It counts: otherwise a token that makes its issuer fail could be sent without a limit.
                raise _unverifiable(fault) from None
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
            called = caller.scope if access is Access.CALL else ""
            people = self._plan.value.governing.people
            return Authorized(
                proof=proof,
                access=access,
                scope=called,
                anonymous=anonymous,
                credential=credential,
                caller=caller,
                people=people,
            )
        identity = credential.identity
        if refusal is AccessRefusal.NO_CREDENTIAL and proof.shows_credential:
            # An open gateway serves calls with any token as anonymous. On other routes an unknown token is rejected.
            raise self._not_authenticated(CredentialRefused(AccessRefusal.UNKNOWN_CREDENTIAL, "it is not known"), proof)
        if not identity.anonymous:
            self._denials.access_refused(identity.principal, caller.scope, access.value, refusal.value)
        raise AccessRefused(refusal, text_of(refusal, access), identity=identity)

    def _decide(
        self, credential: Credential, proof: Proof, access: Access, scope: str, anonymous: bool
    ) -> tuple[Caller, AccessRefusal | None]:
        """Decide, and cache positive decisions until plan or configuration change. The credential was checked before."""
        plan, cached = self._cached
        if plan is not self._plan.value:
            cached = {}
            self._cached = (self._plan.value, cached)
        identity = credential.identity
        address = proof.address(self.arrivals) if identity.anonymous else ""
        question = (credential, access, scope, anonymous, address)
        caller = cached.get(question)
        if caller is not None:
            return caller, None
        target = self._target(scope, identity, proof) if access is Access.CALL else None
        names = self._plan.value.governing.people.get(identity.principal, frozenset())
        refusal = decide(access, identity, target, self.resources.of_gateway(), anonymous=anonymous, names=names)
        if isinstance(proof, HopProof):
            return proof.caller, refusal
        name = target.name if target is not None else ""
        caller = Caller(identity.principal, identity.roles, name, address=address, facts=identity.facts)
        if refusal is None and isinstance(proof, HttpProof):
            if len(cached) >= MAX_CACHED:
                cached.clear()
            cached[question] = caller
        return caller, refusal

    def _target(self, requested: str, identity: Identity, proof: Proof) -> TargetScope:
        name = requested or identity.scope or self._gateway.default_scope
        handed_over = self._gateway.temporary_scopes.find(name)
        # The forwarding gateway has checked the requirement against claims, which are not forwarded.
        forwarded = isinstance(proof, HopProof)
        return TargetScope(
            name=name,
            exists=self._gateway.has_scope(name),
            resource=self.resources.of_scope(name),
            requirement=NO_REQUIREMENT if forwarded else self.credentials.requirement(name),
            handed_over_by=handed_over.created_by if handed_over is not None else None,
        )


def _too_many(too_many: TooManyAttempts) -> AccessRefused:
    reason = AccessRefusal.TOO_MANY_ATTEMPTS
    return AccessRefused(reason, text_of(reason), retry_after_s=too_many.retry_after_s)


def _unverifiable(fault: IssuerUnavailable) -> AccessRefused:
    log.warning("token could not be verified", why=str(fault))
    reason = AccessRefusal.UNVERIFIABLE
    return AccessRefused(reason, text_of(reason), retry_after_s=UNVERIFIABLE_S)


_TEXTS: Final = {
    AccessRefusal.NO_CREDENTIAL: (
        "Authentication required: send `Authorization: Bearer TOKEN`. The operator of this gateway can issue a token."
    ),
    AccessRefusal.OTHER_AUDIENCE: "The token was issued for another resource. Get one for this address.",
    AccessRefusal.TOO_MANY_ATTEMPTS: "Too many invalid tokens from your address. Wait, then send a valid one.",
    AccessRefusal.UNVERIFIABLE: (
        "The token cannot be verified because its issuer is unreachable. Nothing was executed; retry in a few seconds."
    ),
    AccessRefusal.MAY_NOT_CALL: "This token may decide on approvals, but it may not call tools.",
    AccessRefusal.NO_SUCH_SCOPE: "There is no such scope.",
    AccessRefusal.LACKS_OAUTH_SCOPE: "The token lacks a required OAuth scope. Request a token that has it.",
    AccessRefusal.LACKS_GROUP: "The token lacks a required group.",
    AccessRefusal.LACKS_CLAIM: "The token lacks a required claim.",
}


def text_of(reason: AccessRefusal, access: Access | None = None, why: str = "") -> str:
    """Return the error text for the caller. It contains nothing of the credential."""
    if reason is AccessRefusal.LACKS_PERMISSION and access is not None:
        return f"Permission denied: this needs a role that may {access.value}."
    return _TEXTS.get(reason) or f"The token is not accepted: {why or reason.value.replace('_', ' ')}."
