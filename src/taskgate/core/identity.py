"""Who is calling: what a verified credential says, which claims are believed, roles of people, and the caller itself."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple

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


# Who is calling, as far as any decision needs to know, and in which conversation: events, questions and lists are kept
# by it.
#
# A conversation is one client's talk with us: a session of the stateful generation, or what a stateless client calls
# itself in `_meta["taskgate/client"]`. A principal may hold several at once; what one of them caused is told to that
# one, and to the others only after it has ended. Callers without an identity have one conversation each, which is all
# that they are known by.

ANONYMOUS: Final = "anonymous"
OPERATOR: Final = "operator"
ANONYMOUS_LIMIT: Final = "address:"
"""How the limit key of every caller without an identity begins; no principal's name does."""


@dataclass(frozen=True, slots=True)
class CredentialFacts:
    """What an issuer's token said about its holder, for policies to judge by. Kept with a task, which is judged again later."""

    oauth_scopes: frozenset[str] = frozenset()
    client_id: str = ""
    authenticated_at: int | None = None
    """In seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Caller:
    """A principal with its roles, working in one scope."""

    principal: str = ANONYMOUS
    roles: frozenset[str] = frozenset()
    scope: str = "default"
    place: str = ""
    """Where its client stands on this machine, if that matters to servers; empty for everybody who is not behind a bridge."""
    address: str = ""
    """Of callers without an identity: where they come from, as far as limits tell them apart."""
    facts: CredentialFacts | None = None
    """None for whoever has no token of an issuer."""

    @property
    def anonymous(self) -> bool:
        return self.principal == ANONYMOUS

    @property
    def limit_key(self) -> str:
        """Under which name limits are kept: never by session or client name, which cost nothing to invent."""
        return f"{ANONYMOUS_LIMIT}{self.address}" if self.anonymous else self.principal


_BETWEEN: Final = "\x1f"
"""Stands in no principal's name, nor in that of a conversation."""
SESSION: Final = "session:"
"""How the name of a stateful session's conversation begins."""
EVERY: Final = "*"
"""What may concern any conversation of a caller."""


class ConversationKey(NamedTuple):
    caller: str
    """The principal, or for callers without an identity the conversation itself."""
    name: str = ""
    """Which of the principal's conversations; empty for the one of all its stateless calls that do not name their client."""

    @property
    def stream(self) -> str:
        """Under which name its events are stored."""
        return f"{self.caller}{_BETWEEN}{self.name}" if self.name else self.caller

    @property
    def session_id(self) -> str | None:
        return self.name.removeprefix(SESSION) if self.name.startswith(SESSION) else None


def conversation_of(stream: str) -> ConversationKey:
    caller, _, name = stream.partition(_BETWEEN)
    return ConversationKey(caller, name)


def streams_between(caller: str) -> tuple[str, str]:
    """The names of all streams of a caller's named conversations are greater than the first and less than the second."""
    return caller + _BETWEEN, caller + chr(ord(_BETWEEN) + 1)


# An identity: what a verified credential says about whoever holds it, and what a scope may require of it.

TENANT_MARK: Final = "/"


@dataclass(frozen=True, slots=True)
class Identity:
    """Whoever a request comes from. Nothing behind the entrance asks how somebody was identified."""

    principal: str = ANONYMOUS
    roles: frozenset[str] = frozenset()
    """Roles of a token and groups of an issuer alike; Cedar sees them as the caller's parents."""
    scope: str | None = None
    """The only scope that it opens."""
    may_call: bool = True
    tenant: str = ""
    audiences: frozenset[str] | None = None
    """The resources that the credential was issued for. None: for this gateway as a whole."""
    oauth_scopes: frozenset[str] = frozenset()
    client_id: str = ""
    authenticated_at: int | None = None
    """When the person behind it logged in, in seconds since 1970, if the issuer says so."""
    claims: Mapping[str, Any] = field(default_factory=dict, hash=False, compare=False)

    @property
    def anonymous(self) -> bool:
        return self.principal == ANONYMOUS

    @property
    def facts(self) -> CredentialFacts | None:
        """For policies, beside the roles; None for a credential that no issuer made."""
        if not self.claims:
            return None
        return CredentialFacts(self.oauth_scopes, self.client_id, self.authenticated_at)

    @property
    def is_operator(self) -> bool:
        return allows(self.roles, Permission.ACT)


NOBODY: Final = Identity()


def principal_name(tenant: str, name: str) -> str:
    """A principal's name begins with its tenant, so that every row that carries a principal keeps tenants apart."""
    return f"{tenant}{TENANT_MARK}{name}" if tenant else name


def tenant_of(principal: str) -> str:
    """The tenant that a principal belongs to; empty for those of no tenant.

    Issuers are addresses, whose first slash follows a colon; names of tokens and tenants hold neither.
    """
    before, mark, _ = principal.partition(TENANT_MARK)
    return before if mark and ":" not in before else ""


@dataclass(frozen=True, slots=True)
class Requirement:
    """What a scope requires of who uses it. Groups: any of them; OAuth scopes: all; claims: each with one of its values."""

    groups: frozenset[str] = frozenset()
    oauth_scopes: frozenset[str] = frozenset()
    claims: tuple[tuple[str, frozenset[str]], ...] = ()

    def missing_oauth_scopes(self, identity: Identity) -> bool:
        return not self.oauth_scopes <= identity.oauth_scopes

    def missing_group(self, identity: Identity) -> bool:
        return bool(self.groups) and not self.groups & identity.roles

    def missing_claim(self, identity: Identity) -> bool:
        return any(not _holds(claim_at(identity.claims, path), wanted) for path, wanted in self.claims)


NO_REQUIREMENT: Final = Requirement()


def claim_at(claims: Mapping[str, Any], path: str) -> Any:
    """The value of a claim by its name or, where there is no such name, by a path such as `realm_access.roles`."""
    if path in claims:
        return claims[path]
    value: Any = claims
    for part in path.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value


def _holds(value: Any, wanted: frozenset[str]) -> bool:
    found = value if isinstance(value, list) else [value]
    return any(_word(each) in wanted for each in found if isinstance(each, (str, int, bool)))


def _word(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# What the claims of a token must say before they are believed, and which identity they make.
#
# Only claims whose signature was verified, or that the issuer itself reported, come here. Every refusal names its
# reason in words that may be shown to whoever sent the token; none repeats a value out of it.

MAX_SUBJECT: Final = 255
MAX_WORDS: Final = 500
FAR_FUTURE: Final = 2**53
_TENANT: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?\Z", re.ASCII)


class TokenRefused(Exception):
    """A token that is not believed. The message says why."""


class TokenExpired(TokenRefused):
    """A token that was good and has expired."""


@dataclass(frozen=True, slots=True)
class ClaimRules:
    """What one issuer's tokens must hold, and where its facts stand."""

    issuer: str
    audiences: frozenset[str] | None = None
    """Accepted audiences; None: the resource of the scope that is asked for, and nothing else."""
    skew_s: int = 60
    required: tuple[tuple[str, frozenset[str]], ...] = ()
    groups: str = "groups"
    tenant: str | None = None
    scopes: str = "scope"
    roles: tuple[tuple[str, frozenset[str]], ...] = ()
    """Roles of this gateway, each with the groups that give it."""


def identity_in(claims: Mapping[str, Any], rules: ClaimRules, now: float) -> tuple[Identity, float]:
    """The identity, and until when it is good. Raises TokenRefused."""
    if claims.get("iss") != rules.issuer:
        raise TokenRefused("it was issued by somebody else")
    expires = _in_time(claims, rules.skew_s, now)
    audiences = _audiences(claims)
    if rules.audiences is not None:
        if not audiences & rules.audiences:
            raise TokenRefused("it was issued for another audience")
        audiences = frozenset()
    for path, wanted in rules.required:
        found = claim_at(claims, path)
        if not any(_as_word(each) in wanted for each in (found if isinstance(found, list) else [found])):
            raise TokenRefused("it lacks a claim that is required here")
    tenant = _tenant(claims, rules.tenant)
    client = claims.get("client_id", claims.get("azp"))
    return (
        Identity(
            principal_name(tenant, f"{rules.issuer}#{_subject(claims)}"),
            _roles(words_in(claim_at(claims, rules.groups)), rules.roles),
            tenant=tenant,
            audiences=None if rules.audiences is not None else audiences,
            oauth_scopes=frozenset(words_in(claim_at(claims, rules.scopes), split=True)),
            client_id=client if isinstance(client, str) else "",
            authenticated_at=_whole(claims.get("auth_time")),
            claims=claims,
        ),
        expires,
    )


def _roles(groups: tuple[str, ...], given: tuple[tuple[str, frozenset[str]], ...]) -> frozenset[str]:
    """Groups, and the roles that they give. A group that happens to be called like a role of ours gives none."""
    earned = {role for role, by in given if by & set(groups)}
    return frozenset(earned | {group for group in groups if group not in GATEWAY_ROLES})


def words_in(value: Any, *, split: bool = False) -> tuple[str, ...]:
    """The words of a claim that holds one or several. OAuth writes several into one text, with spaces between."""
    if isinstance(value, str):
        found = value.split() if split else [value]
    elif isinstance(value, list):
        found = [each for each in value if isinstance(each, str)]
    else:
        return ()
    if len(found) > MAX_WORDS:
        raise TokenRefused(f"one of its claims names more than {MAX_WORDS} things")
    return tuple(found)


def _in_time(claims: Mapping[str, Any], skew_s: int, now: float) -> float:
    expires = _whole(claims.get("exp"))
    if expires is None:
        raise TokenRefused("it does not say until when it is good")
    if now >= expires + skew_s:
        raise TokenExpired("it has expired")
    for name, fault in (("nbf", "it is not good yet"), ("iat", "it was issued in the future")):
        if name in claims:
            moment = _whole(claims[name])
            if moment is None:
                raise TokenRefused(f"its {name} is not a time")
            if moment > now + skew_s:
                raise TokenRefused(fault)
    return float(expires + skew_s)


def _audiences(claims: Mapping[str, Any]) -> frozenset[str]:
    value = claims.get("aud")
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not found or not all(isinstance(each, str) for each in found):
        raise TokenRefused("it does not say for whom it was issued")
    if len(found) > MAX_WORDS:
        raise TokenRefused("it was issued for too many audiences")
    return frozenset(found)


def _subject(claims: Mapping[str, Any]) -> str:
    subject = claims.get("sub")
    if not isinstance(subject, str) or not subject or len(subject) > MAX_SUBJECT or not subject.isprintable():
        raise TokenRefused("it does not name a subject")
    return subject


def _tenant(claims: Mapping[str, Any], path: str | None) -> str:
    """Where tenants are told apart a token without one belongs nowhere."""
    if path is None:
        return ""
    tenant = claim_at(claims, path)
    if not isinstance(tenant, str) or not _TENANT.match(tenant):
        raise TokenRefused("it does not name a tenant")
    return tenant


def _whole(value: Any) -> int | None:
    """A moment in whole seconds. Fractions are allowed by the standard; nonsense is None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return int(value) if 0 <= value < FAR_FUTURE else None


def _as_word(value: Any) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, (str, int)) else None
