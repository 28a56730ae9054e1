"""Who stands at `/mcp`, and whether they may come in: host, origin, token, scope. The same for every HTTP method."""

from __future__ import annotations

from collections import OrderedDict
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote, unquote

from taskgate import clock
from taskgate.core import wire
from taskgate.core.errors import CallerError, GatewayFault, TaskgateError
from taskgate.core.generations import STATEFUL_REVISIONS, Generation, unsupported_version
from taskgate.core.identity import NO_REQUIREMENT, Caller, Identity, Requirement, TokenRefused
from taskgate.gateway.gateway import Gateway
from taskgate.gateway.plan import Plan
from taskgate.gateway.requests.replies import CallerReply
from taskgate.gateway.requests.sessions import Session
from taskgate.inbound.http.arrival import Arrival, Arrivals, Guard, Headers
from taskgate.inbound.identity import CallerIdentifier, NotVerifiedYet, TokenNeeded, WrongToken
from taskgate.ports.credentials import IssuerUnavailable
from taskgate.telemetry.logs import log

# Slows whoever tries tokens: after many wrong ones from an address, unknown ones from there wait.
#
# Credentials that are known already are not held up, so nobody can lock others out who work from the same address.

MOST_FAILURES: Final = 60
WITHIN_S: Final = 60.0
MOST_ADDRESSES: Final = 10_000


class FailedCredentials:
    def __init__(self) -> None:
        self._counted: OrderedDict[str, tuple[int, float]] = OrderedDict()
        """How many in the present minute of an address, and when that minute ends."""

    def count(self, address: str) -> None:
        failures, ends = self._counted.pop(address, (0, 0.0))
        now = clock.monotonic()
        self._counted[address] = (failures + 1, ends) if now < ends else (1, now + WITHIN_S)
        if len(self._counted) > MOST_ADDRESSES:
            self._counted.popitem(last=False)

    def wait_s(self, address: str) -> int:
        """How long this address has to wait, in whole seconds; 0 if it need not."""
        failures, ends = self._counted.get(address, (0, 0.0))
        left = ends - clock.monotonic()
        return max(1, round(left)) if failures >= MOST_FAILURES and left > 0 else 0


# Each scope as an OAuth resource: its identifier, its metadata (RFC 9728), and the challenge that leads a client to
# them.
#
# The identifier is the scope's address, `/mcp` for the default one. A token is good for the resource it was issued for
# and for no other, so a token of one scope does not open the next.

WELL_KNOWN: Final = "/.well-known/oauth-protected-resource"


class ProtectedResources:
    def __init__(self, gateway: Gateway, caller_identifier: CallerIdentifier) -> None:
        self._gateway = gateway
        self._doorkeeper = caller_identifier

    def of_scope(self, scope: str) -> str:
        return f"{self._gateway.address.base().rstrip('/')}{self._path(scope)}"

    def challenge(self, path: bytes, error: str = "") -> tuple[bytes, bytes]:
        """The header that says what is missing and where a client finds out how to get it."""
        said = ['realm="taskgate"']
        if error:
            said.append(f'error="{error}"')
        if self._doorkeeper.issuers:
            scope = scope_in(path) or self._gateway.default_scope
            wanted = self._doorkeeper.requirement(scope).oauth_scopes
            if wanted:
                said.append(f'scope="{" ".join(sorted(wanted))}"')
            said.append(f'resource_metadata="{self._metadata_url(scope)}"')
        return b"www-authenticate", f"Bearer {', '.join(said)}".encode("latin-1", "replace")

    def metadata(self, path: str) -> bytes | None:
        """The document at an address below the well-known one; None where there is none.

        Names of scopes that do not exist are answered like those that do: the document must not tell which there are.
        """
        rest = path.removeprefix(WELL_KNOWN)
        if not self._doorkeeper.issuers or not path.startswith(WELL_KNOWN):
            return None
        if rest not in ("", "/", "/mcp") and not rest.startswith("/mcp/"):
            return None
        scope = scope_in(rest.encode("latin-1", "replace")) if rest.startswith("/mcp") else ""
        scope = scope or self._gateway.default_scope
        document: dict[str, Any] = {
            "resource": self.of_scope(scope),
            "resource_name": "Taskgate",
            "authorization_servers": list(self._doorkeeper.issuers),
            "bearer_methods_supported": ["header"],
        }
        wanted = self._doorkeeper.requirement(scope).oauth_scopes
        if wanted:
            document["scopes_supported"] = sorted(wanted)
        return wire.encode(document)

    def _path(self, scope: str) -> str:
        return "/mcp" if scope == self._gateway.default_scope else f"/mcp/{quote(scope, safe='')}"

    def _metadata_url(self, scope: str) -> str:
        return f"{self._gateway.address.base().rstrip('/')}{WELL_KNOWN}{self._path(scope)}"


@lru_cache(maxsize=1024)
def scope_in(path: bytes) -> str:
    """The scope that an address names; empty for `/mcp` and `/mcp/v1`."""
    asked = unquote(path[len(b"/mcp") :].decode("latin-1")).strip("/")
    return "" if asked == "v1" else asked


class HttpRefused(Exception):
    """Not this way: an HTTP status, a JSON-RPC error, and perhaps a header."""

    def __init__(self, status: int, body: bytes, headers: Headers | None = None) -> None:
        super().__init__(status)
        self.status = status
        self.body = body
        self.headers = headers or []


class Entrance:
    def __init__(self, gateway: Gateway, guard: Guard, caller_identifier: CallerIdentifier, arrivals: Arrivals) -> None:
        self.gateway = gateway
        self.arrivals = arrivals
        self.guard = guard
        self.caller_identifier = caller_identifier
        self.resources = ProtectedResources(gateway, caller_identifier)
        self._failures = FailedCredentials()
        self._plan = gateway.plan
        self._sessions = gateway.sessions
        self._shared = gateway.shared_sessions
        self._admitted: tuple[Plan, dict[_Known, Caller]] = (self._plan.value, {})

    def adopt(self, guard: Guard, caller_identifier: CallerIdentifier, arrivals: Arrivals) -> None:
        self.guard, self.caller_identifier, self.arrivals = guard, caller_identifier, arrivals
        self.resources = ProtectedResources(self.gateway, caller_identifier)
        self._admitted = (self._plan.value, {})

    def admit(self, path: bytes, headers: dict[bytes, bytes], arrival: Arrival, every_header: Headers) -> Caller:
        """The caller, in the scope that it asks for or that its token binds it to. Raises HttpRefused.

        Who came without a credential was let in for what is in the key below and nothing else, and is let in again under the same
        configuration. A credential is looked at every time.
        """
        if b"authorization" in headers or arrival.by_proxy:
            return self._admit(path, headers, arrival, every_header)
        plan, known = self._admitted
        if plan is not self._plan.value:
            known = {}
            self._admitted = (self._plan.value, known)
        key = (
            path,
            headers.get(b"host"),
            headers.get(b"origin"),
            arrival.on_loopback,
            arrival.address,
            arrival.certificate,
        )
        caller = known.get(key)
        if caller is None:
            caller = self._admit(path, headers, arrival, every_header)
            if len(known) >= _MOST_KNOWN:
                known.clear()
            known[key] = caller
        return caller

    def _admit(self, path: bytes, headers: dict[bytes, bytes], arrival: Arrival, every_header: Headers) -> Caller:
        status = self.guard.refuses(headers, arrival.on_loopback)
        if status is not None:
            raise self.refused(status, "This Host or Origin is not allowed here. See allowed_hosts.")
        identity = self._identity(headers.get(b"authorization"), path, arrival, every_header)
        asked = scope_in(path) or identity.scope or self.gateway.default_scope
        # A scope bound to a token cannot be left by an address.
        if identity.scope is not None and asked != identity.scope:
            raise self._not_here(asked, identity, path)
        if asked != identity.scope and not identity.is_operator and self.gateway.is_temporary(asked):
            raise self._not_here(asked, identity, path)
        if not self.gateway.has_scope(asked):
            raise self.refused(404, self._nothing_here(asked, identity))
        if identity.audiences is not None and self.resources.of_scope(asked) not in identity.audiences:
            raise self._wrong_token(path, "it was issued for another resource")
        requirement = self.caller_identifier.requirement(asked)
        if requirement is not NO_REQUIREMENT:
            self._require(requirement, identity, path)
        address = self.arrivals.caller_address(arrival, every_header) if identity.anonymous else ""
        return _caller(identity, asked, address)

    async def admit_unverified(
        self,
        unverified: NotVerifiedYet,
        path: bytes,
        headers: dict[bytes, bytes],
        arrival: Arrival,
        every_header: Headers,
    ) -> Caller:
        """The caller behind a credential that was seen for the first time: an issuer may have given it. Raises HttpRefused."""
        address = self.arrivals.caller_address(arrival, every_header)
        self._slow_down(address)
        try:
            await self.caller_identifier.verify(unverified.credential)
            return self.admit(path, headers, arrival, every_header)
        except TokenRefused as fault:
            self._failures.count(address)
            log.info("a token was refused", why=str(fault), address=address)
            raise self._wrong_token(path, str(fault)) from None
        except (IssuerUnavailable, NotVerifiedYet) as fault:
            log.warning("a token could not be checked", why=str(fault))
            text = "Your token cannot be checked now, because its issuer cannot be reached. Nothing was executed."
            raise self.refused(503, text, [(b"retry-after", b"5")]) from None

    def _not_here(self, asked: str, identity: Identity, path: bytes) -> HttpRefused:
        if identity.anonymous:
            return self._token_needed(path)
        return self.refused(404, self._nothing_here(asked, identity))

    def _slow_down(self, address: str) -> None:
        wait_s = self._failures.wait_s(address)
        if wait_s:
            text = "Too many wrong tokens came from your address. Wait, then send a good one."
            raise self.refused(429, text, [(b"retry-after", b"%d" % wait_s)])

    def _identity(self, authorization: bytes | None, path: bytes, arrival: Arrival, every_header: Headers) -> Identity:
        try:
            names = self.arrivals.certificate_names(arrival, every_header) if authorization is None else ()
            identity = self.caller_identifier.identify(authorization, names)
        except TokenNeeded:
            raise self._token_needed(path) from None
        except WrongToken:
            address = self.arrivals.caller_address(arrival, every_header)
            self._slow_down(address)
            self._failures.count(address)
            raise self._wrong_token(path, "it is not known") from None
        if not identity.may_call:
            raise self.refused(403, "This token may decide on approvals, but it may not call.")
        return identity

    def _require(self, requirement: Requirement, identity: Identity, path: bytes) -> None:
        if requirement.missing_oauth_scopes(identity):
            text = "Your token lacks a scope that is needed here; get one that has it."
            raise self.refused(403, text, [self.resources.challenge(path, "insufficient_scope")])
        missing = requirement.unmet(identity)
        if missing is not None:
            raise self.refused(403, f"Your token lacks {missing} that is needed here.")

    def _token_needed(self, path: bytes) -> HttpRefused:
        text = "A token is needed here: send `Authorization: Bearer TOKEN`. Whoever runs this gateway can give you one."
        return self.refused(401, text, [self.resources.challenge(path)])

    def _wrong_token(self, path: bytes, why: str) -> HttpRefused:
        challenge = self.resources.challenge(path, "invalid_token")
        return self.refused(401, f"The bearer token is not accepted: {why}.", [challenge])

    def _nothing_here(self, asked: str, identity: Identity) -> str:
        """Which scopes there are is told only to an operator; everyone else gets one and the same sentence."""
        text = "There is nothing at this address."
        return f"{text} {self.gateway.scope_hint(asked)}" if identity.is_operator else text

    def session(self, headers: dict[bytes, bytes], caller: Caller, message_id: bytes | None = None) -> Session | None:
        """The session that a request names; None if it is not here, or perhaps not ours any more. Raises HttpRefused."""
        version = headers.get(b"mcp-protocol-version")
        if version is not None and version not in _STATEFUL:
            raise self.failed(unsupported_version(version.decode("latin-1")), message_id, status=400)
        session_id = headers.get(b"mcp-session-id")
        if session_id is None:
            problem = CallerError("not_initialized", "Begin with initialize, then send the Mcp-Session-Id header.")
            raise self.failed(problem, message_id, status=400)
        if self._shared is not None and not self._shared.certain:
            return None
        return self._sessions.find(session_id.decode("latin-1"), caller, clock.monotonic())

    def unknown_session(self, message_id: bytes | None = None) -> HttpRefused:
        problem = CallerError("not_initialized", "This session is not known (any more); begin with initialize.")
        return self.failed(problem, message_id, status=404)

    def refused(self, status: int, text: str, headers: Headers | None = None) -> HttpRefused:
        fault = GatewayFault("invalid_request", text)
        return HttpRefused(status, self.gateway.failure(fault, None, Generation.STATEFUL).body, headers)

    def failed(
        self,
        problem: TaskgateError,
        message_id: bytes | None = None,
        generation: Generation = Generation.STATEFUL,
        status: int | None = None,
    ) -> HttpRefused:
        reply = self.gateway.failure(problem, message_id, generation)
        return HttpRefused(status or reply.status, reply.body, retry_after(reply))


_Known = tuple[bytes, bytes | None, bytes | None, bool, str, tuple[str, ...]]
"""Path, Host, Origin, whether it came from this machine, the address that it is counted under, and its certificate's names."""
_MOST_KNOWN = 1024
_STATEFUL = frozenset(revision.encode("ascii") for revision in STATEFUL_REVISIONS)


@lru_cache(maxsize=4096)
def _caller(identity: Identity, scope: str, address: str) -> Caller:
    return Caller(identity.principal, identity.roles, scope, address=address, facts=identity.facts)


def retry_after(reply: CallerReply) -> Headers:
    return [(b"retry-after", b"%d" % max(1, round(reply.retry_after_s)))] if reply.retry_after_s is not None else []
