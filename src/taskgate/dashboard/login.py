"""Who is looking at the pages: signed session cookies, one-time login codes, and the token that guards every form.

A cookie only says who somebody is; what they may do is looked up each time, so a token that was taken out of the configuration
opens nothing any more. Cookies survive a restart, because the secret that signs them does.

Page sessions that were logged out before their time: a cookie is signed, so the only way to end one early is to remember it.

Kept in a file, because cookies outlive a restart. Bounded: an entry goes when its cookie would have ended by itself.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from taskgate import clock
from taskgate.core.caller import OPERATOR
from taskgate.core.governance.approval import Approver

MOST: Final = 10_000
FILE: Final = "ended-sessions"


class EndedSessions:
    def __init__(self, path: Path, wall: Callable[[], float]) -> None:
        self._path = path
        self._wall = wall
        self._ended: dict[str, int] = {}
        with contextlib.suppress(OSError, ValueError):
            known = json.loads(path.read_text("ascii"))
            self._ended = {str(nonce): int(until) for nonce, until in known.items()}

    def end(self, nonce: str, until: int) -> None:
        """From now on this session is over. Raises OSError if that cannot be kept."""
        now = self._wall()
        living = [(known, end) for known, end in self._ended.items() if end > now]
        self._ended = dict([*living, (nonce, until)][-MOST:])
        partial = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        partial.write_text(json.dumps(self._ended), "ascii")
        partial.replace(self._path)

    def __contains__(self, nonce: str) -> bool:
        return nonce in self._ended


SESSION_S: Final = 12 * 3600
CODE_S: Final = 15 * 60
MAX_CODES: Final = 100
_PLAIN: Final = "taskgate_session"
_SECURE: Final = "__Host-taskgate_session"

ByName = Callable[[str], Approver | None]
Fits = Callable[[str], bool]
TRIES: Final = 5
TRIES_S: Final = 60.0


class _Session(msgspec.Struct, array_like=True):
    who: str
    expires: int
    nonce: str


class Login:
    def __init__(self, secret: bytes, approver_named: ByName, secure: Callable[[], bool], ended: EndedSessions) -> None:
        self._ended = ended
        self._key = hmac.new(secret, b"taskgate pages", hashlib.sha256).digest()
        self._approver_named = approver_named
        self._secure = secure
        self._codes: dict[str, tuple[str, float]] = {}

    @property
    def cookie_name(self) -> str:
        return _SECURE if self._secure() else _PLAIN

    def new_code(self, who: str) -> str:
        """A code that logs somebody in once, within a quarter of an hour."""
        now = clock.monotonic()
        self._codes = {code: known for code, known in self._codes.items() if known[1] > now}
        if len(self._codes) >= MAX_CODES:
            self._codes.clear()
        code = secrets.token_urlsafe(24)
        self._codes[_fingerprint(code)] = (who, now + CODE_S)
        return code

    def redeem(self, code: str) -> Approver | None:
        known = self._codes.pop(_fingerprint(code), None)
        if known is None or known[1] < clock.monotonic():
            return None
        return self._approver_named(known[0])

    def cookie_for(self, who: Approver) -> bytes:
        """The header that begins a session."""
        session = _Session(who.id, int(clock.wall()) + SESSION_S, secrets.token_urlsafe(16))
        payload = msgspec.json.encode(session)
        value = _b64(payload) + "." + _b64(self._sign(b"session", payload))
        return self._header(value, SESSION_S)

    def end(self, cookie: str | None) -> bytes:
        """The session is over, for whoever has a copy of its cookie too; the header makes the browser forget it."""
        session = self._session(cookie)
        if session is not None:
            self._ended.end(session.nonce, session.expires)
        return self._header("", 0)

    def _header(self, value: str, seconds: int) -> bytes:
        secure = "; Secure" if self._secure() else ""
        text = f"{self.cookie_name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"
        return text.encode("ascii")

    def who(self, cookie: str | None) -> Approver | None:
        """The person behind a cookie, if it is ours, fresh, and they may still decide."""
        session = self._session(cookie)
        if session is None or session.expires <= clock.wall() or session.nonce in self._ended:
            return None
        who = self._approver_named(session.who)
        return replace(who, logged_in=True) if who is not None else None

    def _session(self, cookie: str | None) -> _Session | None:
        payload = self._payload(cookie)
        if payload is None:
            return None
        try:
            return msgspec.json.decode(payload, type=_Session)
        except msgspec.DecodeError:
            return None

    def form_token(self, cookie: str | None) -> str:
        """What a form must repeat: only a page of ours can know it."""
        return _b64(self._sign(b"form", (cookie or "").encode("ascii", "replace")))

    def good_form(self, cookie: str | None, token: str | None) -> bool:
        return token is not None and hmac.compare_digest(self.form_token(cookie).encode(), token.encode())

    def _payload(self, cookie: str | None) -> bytes | None:
        body, dot, signature = (cookie or "").partition(".")
        if not dot:
            return None
        try:
            payload, given = _unb64(body), _unb64(signature)
        except (binascii.Error, ValueError):
            return None
        return payload if hmac.compare_digest(given, self._sign(b"session", payload)) else None

    def _sign(self, purpose: bytes, payload: bytes) -> bytes:
        return hmac.new(self._key, purpose + b"\0" + payload, hashlib.sha256).digest()


class Passphrase:
    """What the operator must know besides holding the token, if the operator wants that. Guessing is slowed down."""

    def __init__(self, fits: Fits | None) -> None:
        self._fits = fits
        self._failures: list[float] = []

    @property
    def is_set(self) -> bool:
        return self._fits is not None

    def needed_by(self, who: Approver) -> bool:
        return self.is_set and who.id == OPERATOR

    async def fits(self, given: str) -> bool:
        if self._fits is None:
            return True
        now = clock.monotonic()
        self._failures = [at for at in self._failures if now - at < TRIES_S]
        if len(self._failures) >= TRIES:
            return False
        # Stretching takes tens of milliseconds on purpose.
        if await asyncio.to_thread(self._fits, given[:1024]):
            return True
        self._failures.append(now)
        return False


def _fingerprint(code: str) -> str:
    return hashlib.sha256(code.encode("utf-8", "replace")).hexdigest()


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode("ascii").rstrip("=")


def _unb64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
