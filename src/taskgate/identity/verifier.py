"""Verifies what issuers vouch for: signed tokens, opaque tokens by asking the issuer, and logins of people."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import secrets
import warnings
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from taskgate import clock
from taskgate.core.identity.claims import ClaimRules, TokenExpired, TokenRefused, identity_in
from taskgate.core.identity.identity import Identity
from taskgate.identity.discovery import SigningKeys, issuer_metadata
from taskgate.identity.documents import Documents, IssuerRefused, NotStrict, may_be_fetched, strict_object
from taskgate.ports.credentials import Credential, IssuerUnavailable, LoginRefused, PendingLogin
from taskgate.turns import let_others_run

# Opaque tokens: the issuer is asked whether one is good (RFC 7662).

MAX_OPAQUE_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class Introspection:
    """How to ask, and for how long an answer is good: a token that is revoked meanwhile works until then."""

    url: str
    rules: ClaimRules
    client_id: str
    client_secret: str = field(repr=False)
    remember_s: float = 5.0


async def introspect(credential: bytes, asking: Introspection, documents: Documents) -> Credential:
    """Raises TokenRefused and IssuerUnavailable."""
    if len(credential) > MAX_OPAQUE_BYTES or not credential.isascii():
        raise TokenRefused("it is too long")
    form = {"token": credential.decode("ascii"), "token_type_hint": "access_token"}
    said = await documents.post_form(asking.url, asking.rules.issuer, form, (asking.client_id, asking.client_secret))
    if said.get("active") is not True:
        raise TokenRefused("it is not known, or not good any more")
    now = clock.wall()
    # An answer need not repeat who gives it, nor when the token ends; what it says is checked like a signed token's.
    claims = {"iss": asking.rules.issuer, "exp": int(now) + 3600, **said}
    identity, expires = identity_in(claims, asking.rules, now)
    return Credential(identity, clock.Expiry(expires), clock.Expiry(now + asking.remember_s))


# Signed tokens (JWT, RFC 7519; access tokens by RFC 9068): the claims of one whose signature is good.
#
# The algorithm is chosen by the configuration and never by the token; keys come only from the issuer's key set, never
# from the token's own header. What is inside is read strictly.

MAX_SIGNED_BYTES: Final = 16_384
_TYPES: Final = frozenset({"jwt", "at+jwt", "application/jwt", "application/at+jwt"})


@dataclass(frozen=True, slots=True)
class Issuer:
    """Somebody whose signed tokens are believed."""

    rules: ClaimRules
    algorithms: frozenset[str]
    keys: SigningKeys


@dataclass(frozen=True, slots=True)
class Unverified:
    """A token taken apart, before anything in it is believed."""

    text: str
    header: dict[str, Any]
    claims: dict[str, Any]

    @property
    def issuer(self) -> str:
        return str(self.claims.get("iss", ""))


def looks_signed(credential: bytes) -> bool:
    """Whether this can only be meant as a signed token: three parts, of which the first is a JSON object."""
    return credential.count(b".") == 2 and credential.startswith(b"eyJ")


def take_apart(credential: bytes) -> Unverified:
    """Raises TokenRefused."""
    if len(credential) > MAX_SIGNED_BYTES:
        raise TokenRefused("it is too long")
    parts = credential.split(b".")
    if len(parts) != 3 or not all(parts[:2]):
        raise TokenRefused("it is not a signed token")
    header, claims = _object(parts[0]), _object(parts[1])
    if "crit" in header or "b64" in header:
        raise TokenRefused("it demands extensions that are not supported here")
    if "cty" in header or "zip" in header or "enc" in header:
        raise TokenRefused("it is encrypted, compressed or holds another token")
    kind = header.get("typ", "JWT")
    if not isinstance(kind, str) or kind.lower() not in _TYPES:
        raise TokenRefused("it is not an access token")
    return Unverified(credential.decode("ascii"), header, claims)


async def check_signature(token: Unverified, issuer: Issuer) -> None:
    """Raises TokenRefused, and IssuerUnavailable where the issuer's keys cannot be had."""
    algorithm, key_id = token.header.get("alg"), token.header.get("kid")
    if algorithm not in issuer.algorithms or not isinstance(algorithm, str):
        raise TokenRefused("it is signed with an algorithm that is not accepted")
    if key_id is not None and (not isinstance(key_id, str) or len(key_id) > 256):
        raise TokenRefused("its key id is not one")
    for key in await issuer.keys.candidates(key_id, algorithm):
        if _fits(token.text, key, algorithm):
            return
        # A token that names no key is tried with each of them.
        await let_others_run()
    raise TokenRefused("its signature does not fit")


def _fits(text: str, key: Any, algorithm: str) -> bool:
    from joserfc import jws
    from joserfc.errors import JoseError

    try:
        with warnings.catch_warnings():
            # Most issuers still write EdDSA where RFC 9864 wants Ed25519; the operator has allowed it by name.
            warnings.simplefilter("ignore")
            jws.deserialize_compact(text, key, algorithms=[algorithm])
    except (JoseError, ValueError, TypeError):
        return False
    return True


def _object(part: bytes) -> dict[str, Any]:
    try:
        raw = base64.b64decode(part + b"=" * (-len(part) % 4), altchars=b"-_", validate=True)
        return strict_object(raw)
    except (binascii.Error, NotStrict):
        raise TokenRefused("it cannot be read") from None


MOST_REMEMBERED: Final = 20_000
AT_ONCE: Final = 8


class Verifier:
    def __init__(self, issuers: Iterable[Issuer], introspection: Introspection | None, documents: Documents) -> None:
        self._issuers = {issuer.rules.issuer: issuer for issuer in issuers}
        self._introspection = introspection
        self._documents = documents
        self._remembered: OrderedDict[bytes, Credential] = OrderedDict()
        self._expired: OrderedDict[bytes, None] = OrderedDict()
        self._under_way: dict[bytes, asyncio.Task[Credential]] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)

    @property
    def issuers(self) -> tuple[str, ...]:
        """Who gives out tokens for this gateway, for callers that look for one."""
        asked = () if self._introspection is None else (self._introspection.rules.issuer,)
        return tuple(dict.fromkeys((*self._issuers, *asked)))

    def remembered(self, credential: bytes) -> Credential | None:
        """A credential that was verified before, while that counts."""
        digest = hashlib.sha256(credential).digest()
        known = self._remembered.get(digest)
        if known is None:
            return None
        if _has_passed(known.expiry):
            self._forget_expired(digest)
            return None
        if _has_passed(known.fresh):
            del self._remembered[digest]
            return None
        return known

    def _forget_expired(self, digest: bytes) -> None:
        """It stays expired, also if the wall clock is set back."""
        del self._remembered[digest]
        self._expired[digest] = None
        if len(self._expired) > MOST_REMEMBERED:
            self._expired.popitem(last=False)

    async def verify(self, credential: bytes) -> Credential:
        """Raises TokenRefused, and IssuerUnavailable where it cannot be found out now."""
        digest = hashlib.sha256(credential).digest()
        if digest in self._expired:
            raise TokenExpired("it has expired")
        work = self._under_way.get(digest)
        if work is None:
            work = self._under_way[digest] = asyncio.create_task(self._verify(credential, digest))
            work.add_done_callback(lambda done: self._ended(digest, done))
        return await asyncio.shield(work)

    async def close(self) -> None:
        for work in list(self._under_way.values()):
            work.cancel()
        await asyncio.gather(*self._under_way.values(), return_exceptions=True)
        for issuer in self._issuers.values():
            await issuer.keys.close()

    def _ended(self, digest: bytes, work: asyncio.Task[Credential]) -> None:
        self._under_way.pop(digest, None)
        if not work.cancelled():
            work.exception()

    async def _verify(self, credential: bytes, digest: bytes) -> Credential:
        async with self._slots:
            verified = await self._asked(credential)
        self._remembered[digest] = verified
        if len(self._remembered) > MOST_REMEMBERED:
            self._remembered.popitem(last=False)
        return verified

    async def _asked(self, credential: bytes) -> Credential:
        if looks_signed(credential):
            token = take_apart(credential)
            issuer = self._issuers.get(token.issuer)
            if issuer is not None:
                # What cannot become good is refused before a key is looked for.
                identity_in(token.claims, issuer.rules, clock.wall())
                await check_signature(token, issuer)
                identity, expires = identity_in(token.claims, issuer.rules, clock.wall())
                return Credential(identity, clock.Expiry(expires))
        if self._introspection is None:
            raise TokenRefused("it was issued by somebody else" if looks_signed(credential) else "it is not known")
        return await introspect(credential, self._introspection, self._documents)


def _has_passed(expiry: clock.Expiry | None) -> bool:
    return expiry is not None and expiry.passed


# Logging a person in with an OpenID provider: authorization code with PKCE, state, nonce and the issuer in the answer
# (RFC 9207).
#
# What is under way is in the browser's own signed cookie, not here, so that any gateway can finish what another began.
# The code is exchanged at the provider; who somebody is stands in the signed ID token and nowhere else.

METADATA_GOOD_S: Final = 600.0
LONGEST_CODE: Final = 4096


class OidcLogin:
    def __init__(
        self, issuer: Issuer, client_id: str, client_secret: str | None, scopes: tuple[str, ...], documents: Documents
    ) -> None:
        self._issuer = issuer
        self._client_id = client_id
        self._client_secret = client_secret
        self._scopes = scopes
        self._documents = documents
        self._metadata: tuple[float, dict[str, Any]] | None = None

    async def begin(self, redirect_uri: str, back: str, *, fresh: bool) -> tuple[str, PendingLogin]:
        """Where to send the browser, and what it must bring back. Raises IssuerUnavailable."""
        metadata = await self._provider()
        endpoint = metadata.get("authorization_endpoint")
        if not isinstance(endpoint, str) or not may_be_fetched(endpoint, self._issuer.rules.issuer):
            raise IssuerUnavailable(f"{self._issuer.rules.issuer} names no safe authorization_endpoint")
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        pending = PendingLogin(state, nonce, verifier, back, fresh, int(clock.wall()))
        challenge = base64.urlsafe_b64encode(hashlib.sha256(pending.verifier.encode()).digest()).rstrip(b"=")
        asked = {
            "response_type": "code",
            "client_id": self._client_id,
            "redirect_uri": redirect_uri,
            "scope": " ".join(self._scopes),
            "state": pending.state,
            "nonce": pending.nonce,
            "code_challenge": challenge.decode("ascii"),
            "code_challenge_method": "S256",
        }
        if fresh:
            asked |= {"max_age": "0", "prompt": "login"}
        return f"{endpoint}{'&' if urlsplit(endpoint).query else '?'}{urlencode(asked)}", pending

    async def finish(self, pending: PendingLogin, answer: Mapping[str, str], redirect_uri: str) -> Identity:
        """The person who logged in. Raises LoginRefused and IssuerUnavailable."""
        code = await self._code(pending, answer)
        claims, identity = await self._identity(await self._exchange(code, pending, redirect_uri))
        if not _same(claims.get("nonce"), pending.nonce):
            raise LoginRefused("it answers another login")
        at = identity.authenticated_at
        if pending.fresh and (at is None or at < pending.at - self._issuer.rules.skew_s):
            raise LoginRefused("the provider did not ask for a fresh login")
        return identity

    async def close(self) -> None:
        await self._issuer.keys.close()

    async def _code(self, pending: PendingLogin, answer: Mapping[str, str]) -> str:
        if not _same(answer.get("state"), pending.state):
            raise LoginRefused("it answers another login")
        named = answer.get("iss")
        must_name = (await self._provider()).get("authorization_response_iss_parameter_supported") is True
        if (must_name or named is not None) and named != self._issuer.rules.issuer:
            raise LoginRefused("it comes from another provider")
        if "error" in answer:
            raise LoginRefused("the provider refused it")
        code = answer.get("code", "")
        if not code or len(code) > LONGEST_CODE:
            raise LoginRefused("it has no code")
        return code

    async def _exchange(self, code: str, pending: PendingLogin, redirect_uri: str) -> str:
        endpoint = (await self._provider()).get("token_endpoint")
        if not isinstance(endpoint, str):
            raise IssuerUnavailable(f"{self._issuer.rules.issuer} names no token_endpoint")
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": pending.verifier,
        }
        credentials = None
        if self._client_secret is None:
            form["client_id"] = self._client_id
        else:
            credentials = (quote(self._client_id, safe=""), quote(self._client_secret, safe=""))
        try:
            said = await self._documents.post_form(endpoint, self._issuer.rules.issuer, form, credentials)
        except IssuerRefused as refused:
            raise LoginRefused(f"the provider refused it: {refused.error[:60]}") from None
        token = said.get("id_token")
        if not isinstance(token, str):
            raise LoginRefused("the provider sent no ID token")
        return token

    async def _identity(self, id_token: str) -> tuple[dict[str, Any], Identity]:
        try:
            token = take_apart(id_token.encode("utf-8", "replace"))
            await check_signature(token, self._issuer)
            if token.claims.get("azp", self._client_id) != self._client_id:
                raise TokenRefused("it was issued for another client")
            return token.claims, identity_in(token.claims, self._issuer.rules, clock.wall())[0]
        except TokenRefused as refused:
            raise LoginRefused(f"the ID token is not accepted: {refused}") from None

    async def _provider(self) -> dict[str, Any]:
        if self._metadata is None or clock.monotonic() - self._metadata[0] > METADATA_GOOD_S:
            found = await issuer_metadata(self._issuer.rules.issuer, self._documents)
            self._metadata = (clock.monotonic(), found)
        return self._metadata[1]


def _same(given: object, wanted: str) -> bool:
    return isinstance(given, str) and hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode())
