"""Sessions of the console: signed cookies, one-time login codes, and the token that protects forms.

A cookie names a session, which is a row of the store: it is valid at every gateway on the store, and ends when the row is
deleted. The roles of a person are looked up on each request; a session ends if they are not those of the login.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Callable
from typing import Any, Final

import msgspec

from taskgate import clock
from taskgate.access.credentials import CredentialRefused, Credentials
from taskgate.access.proof import SessionLookup
from taskgate.core.audit.chain import AuditEntry
from taskgate.core.governance.approver import Approver
from taskgate.core.identity.identity import Identity, claim_at, tenant_of
from taskgate.gateway.events import CredentialsChanged, EventHub
from taskgate.mcp.json_errors import UNDECODABLE
from taskgate.ports.caller_credentials import Credential, PendingLogin
from taskgate.ports.store import Store
from taskgate.store.operations.identity_records import (
    CONSOLE_SESSION,
    LOGIN_CODE,
    FindIdentityRecord,
    ForgetIdentityRecord,
    ForgetIdentityRecordsOf,
    IdentityRecord,
    KeepIdentityRecord,
)

SESSION_S: Final = 12 * 3600
CODE_S: Final = 15 * 60
_PLAIN: Final = "taskgate_session"
_SECURE: Final = "__Host-taskgate_session"
LOGIN_COOKIE: Final = "taskgate_login"
"""Kept during a login at the provider. The browser returns from another site, so it cannot be Strict."""
LOGIN_WITHIN_S: Final = 600
CONNECT_COOKIE: Final = "taskgate_connecting"
"""The session of a person who connects an account. It is Lax, because the browser returns from the server's login."""
CONNECT_WITHIN_S: Final = 900

ByName = Callable[[str], Approver | None]


class _Session(msgspec.Struct, array_like=True):
    user: str
    expires: int
    nonce: str

    @property
    def row(self) -> str:
        """The name of the row; a reader of the store cannot derive the cookie from it."""
        return _fingerprint(self.nonce)


class LoginFacts(msgspec.Struct, frozen=True):
    """Facts about the credential of the login, stored with the session. New fields need a default."""

    until_ms: int | None = None
    """Expiry of the credential by the store's clock; the session ends with it."""
    oauth_scopes: list[str] = []
    claims: dict[str, Any] = {}
    """The claims that scopes require, by path."""
    audiences: list[str] | None = None
    """The resources that the credential was issued for; None: for the gateway as a whole."""


NO_FACTS: Final = LoginFacts()


class _Kept(msgspec.Struct, frozen=True):
    roles: list[str]
    at: int | None
    facts: LoginFacts = NO_FACTS


class Login:
    def __init__(
        self,
        secret: bytes,
        approver_named: ByName,
        secure: Callable[[], bool],
        store: Store,
        events: EventHub,
    ) -> None:
        self._store = store
        self._events = events
        self._key = hmac.new(secret, b"taskgate pages", hashlib.sha256).digest()
        self._approver_named = approver_named
        self._secure = secure

    @property
    def cookie_name(self) -> str:
        return _SECURE if self._secure() else _PLAIN

    def facts_of(self, credential: Credential, credentials: Credentials) -> LoginFacts:
        """The facts that a session with this credential stores."""
        identity, expiry = credential.identity, credential.expiry
        paths = credentials.required_claims
        found = {path: claim_at(identity.claims, path) for path in paths}
        left_s = None if expiry is None else expiry.wall - clock.wall()
        return LoginFacts(
            None if left_s is None else self._store.now_ms() + int(left_s * 1000),
            sorted(identity.oauth_scopes),
            {path: value for path, value in found.items() if value is not None},
            None if identity.audiences is None else sorted(identity.audiences),
        )

    async def new_code(self, user: str, facts: LoginFacts) -> str:
        """A code for one login within 15 minutes, at any gateway on the store."""
        code, kept = self._code_for(user, facts)
        await self._store.do(KeepIdentityRecord(kept))
        return code

    def printed_code(self, user: str) -> str:
        """A code for the terminal; it is stored in the background."""
        code, kept = self._code_for(user, NO_FACTS)
        self._store.defer(KeepIdentityRecord(kept))
        return code

    def _code_for(self, user: str, facts: LoginFacts) -> tuple[str, IdentityRecord]:
        code, until_ms = secrets.token_urlsafe(24), self._store.now_ms() + CODE_S * 1000
        return code, IdentityRecord(
            kind=LOGIN_CODE,
            name=_fingerprint(code),
            principal=user,
            expires_ms=until_ms,
            body=msgspec.json.encode(facts),
        )

    async def redeem(self, code: str, credentials: Credentials) -> Credential | None:
        """The credential of a code. Of two requests with one code, only the one that deletes the record succeeds."""
        name = _fingerprint(code)
        known = await self._store.ask(FindIdentityRecord(LOGIN_CODE, name))
        if known is None or not await self._store.do(ForgetIdentityRecord(LOGIN_CODE, name)):
            return None
        user = self._approver_named(known.principal)
        if user is None or self._store.now_ms() > known.expires_ms:
            return None
        facts = msgspec.json.decode(known.body, type=LoginFacts) if known.body else NO_FACTS
        until = None if facts.until_ms is None else self._expiry(facts.until_ms)
        return _credential(user, facts, credentials, until)

    async def begin(self, user: Approver, authenticated_at: int | None, facts: LoginFacts) -> bytes:
        """The cookie header of a new session of a person who authenticated at that time."""
        now_ms = self._store.now_ms()
        until_ms = min(now_ms + SESSION_S * 1000, facts.until_ms or now_ms + SESSION_S * 1000)
        session = _Session(user.id, until_ms // 1000, secrets.token_urlsafe(16))
        body = msgspec.json.encode(_Kept(sorted(user.roles), authenticated_at, facts))
        kept = IdentityRecord(
            kind=CONSOLE_SESSION, name=session.row, principal=user.id, expires_ms=session.expires * 1000, body=body
        )
        await self._store.do(KeepIdentityRecord(kept, AuditEntry(0, "logged_in", user.id, kind="session")))
        payload = msgspec.json.encode(session)
        value = _b64(payload) + "." + _b64(self._sign(b"session", payload))
        return self._header(value, SESSION_S)

    async def end(self, cookie: str | None, *, everywhere: bool = False) -> bytes:
        """End the session, also for copies of its cookie; the returned header deletes the cookie."""
        session = self._session(cookie)
        if session is not None:
            entry = AuditEntry(0, "logged_out", session.user, kind="session", reason="everywhere" if everywhere else "")
            if everywhere:
                await self._store.do(ForgetIdentityRecordsOf(CONSOLE_SESSION, session.user, entry))
            else:
                await self._store.do(ForgetIdentityRecord(CONSOLE_SESSION, session.row, entry))
            self._events.publish(CredentialsChanged())
        return self._header("", 0)

    def pending_cookie(self, pending: PendingLogin) -> bytes:
        """The cookie of a login in progress, with the store's time: another gateway may finish it."""
        payload = msgspec.json.encode(msgspec.structs.replace(pending, at=self._store.now_ms() // 1000))
        value = _b64(payload) + "." + _b64(self._sign(b"login", payload))
        return self._login_header(value, LOGIN_WITHIN_S)

    def pending(self, cookie: str | None) -> PendingLogin | None:
        """The login in progress of this browser, unless it has expired."""
        payload = self._payload(cookie, b"login")
        if payload is None:
            return None
        try:
            pending = msgspec.json.decode(payload, type=PendingLogin)
        except UNDECODABLE:
            return None
        return pending if self._store.now_ms() // 1000 < pending.at + LOGIN_WITHIN_S else None

    def no_pending_cookie(self) -> bytes:
        return self._login_header("", 0)

    def _login_header(self, value: str, seconds: int) -> bytes:
        secure = "; Secure" if self._secure() else ""
        text = f"{LOGIN_COOKIE}={value}; Path=/login; Max-Age={seconds}; HttpOnly; SameSite=Lax{secure}"
        return text.encode("ascii")

    def _header(self, value: str, seconds: int) -> bytes:
        secure = "; Secure" if self._secure() else ""
        text = f"{self.cookie_name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"
        return text.encode("ascii")

    def connect_cookie(self, cookie: str | None) -> tuple[bytes, bytes] | None:
        """A header that lets `connecting` recognize the session of this cookie, on `/oauth` only and for a quarter of an hour."""
        session = self._session(cookie)
        if session is None:
            return None
        expires = min(session.expires, self._store.now_ms() // 1000 + CONNECT_WITHIN_S)
        payload = msgspec.json.encode(msgspec.structs.replace(session, expires=expires))
        value = _b64(payload) + "." + _b64(self._sign(b"connect", payload))
        secure = "; Secure" if self._secure() else ""
        text = f"{CONNECT_COOKIE}={value}; Path=/oauth; Max-Age={CONNECT_WITHIN_S}; HttpOnly; SameSite=Lax{secure}"
        return b"set-cookie", text.encode("ascii")

    @property
    def connecting(self) -> SessionLookup:
        """Sessions by the cookies of `connect_cookie`."""
        return _Connecting(self)

    async def session(self, cookie: str, credentials: Credentials) -> Credential | None:
        """The credential of a session cookie, if it is valid and the person's roles have not changed."""
        return await self.credential(self._session(cookie), credentials)

    async def connecting_session(self, cookie: str, credentials: Credentials) -> Credential | None:
        """The same for a cookie from `connect_cookie`, while the session that it was made from lasts."""
        return await self.credential(self._session(cookie, b"connect"), credentials)

    async def credential(self, session: _Session | None, credentials: Credentials) -> Credential | None:
        now_ms = self._store.now_ms()
        if session is None or session.expires * 1000 <= now_ms:
            return None
        row = await self._store.ask(FindIdentityRecord(CONSOLE_SESSION, session.row))
        if row is None or row.principal != session.user:
            return None
        user, kept = self._approver_named(session.user), msgspec.json.decode(row.body, type=_Kept)
        if user is None or sorted(user.roles) != kept.roles:
            await self._store.do(ForgetIdentityRecord(CONSOLE_SESSION, session.row))
            return None
        person = msgspec.structs.replace(user, logged_in=True, authenticated_at=kept.at)
        try:
            return _credential(person, kept.facts, credentials, self._expiry(session.expires * 1000))
        except CredentialRefused:
            return None

    def _expiry(self, at_ms: int) -> clock.Expiry:
        """An expiry by the store's clock."""
        return clock.Expiry(clock.wall() + (at_ms - self._store.now_ms()) / 1000)

    def _session(self, cookie: str | None, purpose: bytes = b"session") -> _Session | None:
        payload = self._payload(cookie, purpose)
        if payload is None:
            return None
        try:
            return msgspec.json.decode(payload, type=_Session)
        except UNDECODABLE:
            return None

    def form_token(self, cookie: str | None) -> str:
        """The token that a form must contain; only pages of ours have it."""
        return _b64(self._sign(b"form", (cookie or "").encode("ascii", "replace")))

    def is_valid_form(self, cookie: str | None, token: str | None) -> bool:
        return token is not None and hmac.compare_digest(self.form_token(cookie).encode(), token.encode())

    def _payload(self, cookie: str | None, purpose: bytes) -> bytes | None:
        body, dot, signature = (cookie or "").partition(".")
        if not dot:
            return None
        try:
            payload, given = _unb64(body), _unb64(signature)
        except (binascii.Error, ValueError):
            return None
        return payload if hmac.compare_digest(given, self._sign(purpose, payload)) else None

    def _sign(self, purpose: bytes, payload: bytes) -> bytes:
        return hmac.new(self._key, purpose + b"\0" + payload, hashlib.sha256).digest()


class _Connecting(msgspec.Struct, eq=False):
    """The login of a person who connects an account, by its own cookie."""

    _login: Login

    async def session(self, cookie: str, credentials: Credentials) -> Credential | None:
        return await self._login.connecting_session(cookie, credentials)


def _credential(
    person: Approver, facts: LoginFacts, credentials: Credentials, expiry: clock.Expiry | None
) -> Credential:
    """A login as a credential. A token of the configuration counts as it is now: what it is bound to, may do, and when it ends.

    Raises CredentialRefused where that token is no longer valid.
    """
    token = credentials.of_principal(person.id)
    if token is None:
        identity = Identity(
            person.id,
            person.roles,
            tenant=tenant_of(person.id),
            audiences=None if facts.audiences is None else frozenset(facts.audiences),
            oauth_scopes=frozenset(facts.oauth_scopes),
            claims=facts.claims,
        )
        return Credential(identity, expiry, person=person)
    ends = [each for each in (expiry, token.expiry) if each is not None]
    return Credential(token.identity, min(ends, key=lambda each: each.wall, default=None), person=person)


def _fingerprint(code: str) -> str:
    return hashlib.sha256(code.encode("utf-8", "replace")).hexdigest()


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode("ascii").rstrip("=")


def _unb64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
