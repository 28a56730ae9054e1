"""Authorize requests to `/mcp`: Host and Origin, the credential, and the scope in the path. The same for every HTTP method."""

from __future__ import annotations

from taskgate import clock
from taskgate.access.arrival import Arrival
from taskgate.access.authorize import AccessRefused, Authorized, Authorizer
from taskgate.access.guard import is_near
from taskgate.access.proof import HttpProof
from taskgate.access.resources import scope_in
from taskgate.core.errors import CallerError, GatewayFault, TaskgateError
from taskgate.core.generations.generation import STATEFUL_REVISIONS, Generation
from taskgate.core.generations.stateless import unsupported_version
from taskgate.core.identity.access import Access, AccessRefusal
from taskgate.core.identity.caller import Caller
from taskgate.gateway.plan import Plan
from taskgate.gateway.requests.replies import CallerReply
from taskgate.gateway.requests.session import Session
from taskgate.gateway.services.transports import TransportServices
from taskgate.inbound.http.asgi import Headers
from taskgate.inbound.http.post_head import PostHead


class HttpRefused(Exception):
    """A rejected request: an HTTP status, a JSON-RPC error, and optional headers."""

    def __init__(self, status: int, body: bytes, headers: Headers | None = None) -> None:
        super().__init__(status)
        self.status = status
        self.body = body
        self.headers = headers or []


class McpAccess:
    def __init__(self, gateway: TransportServices, authorizer: Authorizer) -> None:
        self.gateway = gateway
        self.authorizer = authorizer
        self._plan = gateway.plan
        self._sessions = gateway.sessions.table
        self._shared = gateway.sessions.shared
        self._admitted: tuple[Plan, dict[_CacheKey, Authorized]] = (self._plan.value, {})

    def admit(self, head: PostHead, arrival: Arrival) -> Authorized:
        """Authorize a request without waiting. Raises HttpRefused, or NotVerifiedYet if `authorize` must be awaited.

        For a request without a credential the result depends only on the key below and the configuration, so it is
        kept. A credential is checked every time.
        """
        headers = head.headers
        if b"authorization" in headers or arrival.by_proxy or arrival.certificate_expiry is not None:
            return self._admit(head.path, headers, arrival, head.every_header)
        plan, known = self._admitted
        if plan is not self._plan.value:
            plan, known = self._admitted = (self._plan.value, {})
        key = (
            head.path,
            headers.get(b"host"),
            headers.get(b"origin"),
            is_near(headers, arrival.on_loopback),
            arrival.address,
            arrival.certificate,
        )
        authorized = known.get(key)
        if authorized is None:
            authorized = self._admit(head.path, headers, arrival, head.every_header)
            if len(known) >= _MAX_CACHED:
                known.clear()
            known[key] = authorized
        return authorized

    def _admit(self, path: bytes, headers: dict[bytes, bytes], arrival: Arrival, every_header: Headers) -> Authorized:
        self._check_guard(headers, arrival)
        proof = HttpProof(arrival, headers.get(b"authorization"), every_header)
        scope = scope_in(path)
        try:
            return self.authorizer.admit(proof, Access.CALL, scope, anonymous=True)
        except AccessRefused as refused:
            raise self.not_authorized(refused, scope) from None

    async def authorize(
        self, path: bytes, headers: dict[bytes, bytes], arrival: Arrival, every_header: Headers
    ) -> Authorized:
        """Authorize a request whose credential must be verified first. Raises HttpRefused."""
        self._check_guard(headers, arrival)
        proof = HttpProof(arrival, headers.get(b"authorization"), every_header)
        scope = scope_in(path)
        try:
            return await self.authorizer.authorize(proof, Access.CALL, scope, anonymous=True)
        except AccessRefused as refused:
            raise self.not_authorized(refused, scope) from None

    def _check_guard(self, headers: dict[bytes, bytes], arrival: Arrival) -> None:
        status = self.authorizer.guard.refuses(headers, arrival.on_loopback)
        if status is not None:
            raise self.refused(status, "This Host or Origin is not allowed. See allowed_hosts in the configuration.")

    def not_authorized(self, refused: AccessRefused, scope: str) -> HttpRefused:
        headers: Headers = []
        if refused.retry_after_s is not None:
            headers.append((b"retry-after", b"%d" % refused.retry_after_s))
        if refused.status == 401:
            error = "" if refused.reason is AccessRefusal.NO_CREDENTIAL else "invalid_token"
            headers.append(self.authorizer.resources.challenge(scope, error))
        elif refused.reason is AccessRefusal.LACKS_OAUTH_SCOPE:
            headers.append(self.authorizer.resources.challenge(scope, "insufficient_scope"))
        return self.refused(refused.status, self._text(refused, scope), headers)

    def _text(self, refused: AccessRefused, scope: str) -> str:
        """Return the error text. Only operators see which scopes exist."""
        if refused.reason is not AccessRefusal.NO_SUCH_SCOPE:
            return refused.text
        identity, text = refused.identity, "There is nothing at this address."
        if identity is None or not identity.is_operator:
            return text
        return f"{text} {self.gateway.scope_hint(scope or identity.scope or self.gateway.default_scope)}"

    def session(self, headers: dict[bytes, bytes], caller: Caller, message_id: bytes | None = None) -> Session | None:
        """Return the session that a request names, or None if this gateway may not hold it. Raises HttpRefused."""
        version = headers.get(b"mcp-protocol-version")
        if version is not None and version not in _STATEFUL:
            raise self.failed(unsupported_version(version.decode("latin-1")), message_id, status=400)
        session_id = headers.get(b"mcp-session-id")
        if session_id is None:
            problem = CallerError(
                "not_initialized", "Send initialize first, then the Mcp-Session-Id header with every request."
            )
            raise self.failed(problem, message_id, status=400)
        if self._shared is not None and not self._shared.certain:
            return None
        return self._sessions.find(session_id.decode("latin-1"), caller, clock.monotonic())

    def unknown_session(self, message_id: bytes | None = None) -> HttpRefused:
        problem = CallerError("not_initialized", "Unknown or ended session; send initialize to start a new one.")
        return self.failed(problem, message_id, status=404)

    def refused(self, status: int, text: str, headers: Headers | None = None) -> HttpRefused:
        fault = GatewayFault("invalid_request", text)
        return HttpRefused(status, self.gateway.requests.failure(fault, None, Generation.STATEFUL).body, headers)

    def failed(
        self,
        problem: TaskgateError,
        message_id: bytes | None = None,
        generation: Generation = Generation.STATEFUL,
        status: int | None = None,
    ) -> HttpRefused:
        reply = self.gateway.requests.failure(problem, message_id, generation)
        return HttpRefused(status or reply.status, reply.body, retry_after(reply))


_CacheKey = tuple[bytes, bytes | None, bytes | None, bool, str, tuple[str, ...]]
"""Path, Host, Origin, whether the caller is on this machine, its address for rate limits, and its certificate's names."""
_MAX_CACHED = 1024
_STATEFUL = frozenset(revision.encode("ascii") for revision in STATEFUL_REVISIONS)


def retry_after(reply: CallerReply) -> Headers:
    return [(b"retry-after", b"%d" % max(1, round(reply.retry_after_s)))] if reply.retry_after_s is not None else []
