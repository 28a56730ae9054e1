"""Scopes that an operator creates at run time, each for a limited time: one task of a scheduler, one scope.

A scope is given as the flat map of strings that schedulers keep with a task (`core.scoping.task_config`). It is served at its
own URL to the bearer of its own token, is stored, expires by itself, and is subject to the same registry, rules and budgets as
the scopes of the configuration file. Only `Reload` puts it into the plan.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from taskgate import clock
from taskgate.core.audit.chain import AuditEntry
from taskgate.core.errors import CallerError
from taskgate.core.scoping.scope import HelperTools, ScopePolicy
from taskgate.core.scoping.task_config import TaskConfigError, scope_from_task_config
from taskgate.gateway.events import EventHub, TemporaryScopesChanged
from taskgate.gateway.methods.session_ends import SessionEnds
from taskgate.gateway.plan import Plan
from taskgate.ports.store import Store
from taskgate.shown_fields import repr_without
from taskgate.store.operations.scopes import ForgetScope, KeepScope, KeptScope, KeptScopes
from taskgate.telemetry.damaged_rows import decoded
from taskgate.telemetry.logs import log

MAX_SCOPES: Final = 1000
MIN_MS: Final = 1000
MAX_MS: Final = 7 * 24 * 3600 * 1000
MAX_LABEL: Final = 200
MAX_CONFIG_BYTES: Final = 64 * 1024
NAME_PREFIX: Final = "tmp-"
TOKEN_PREFIX: Final = "tgs_"
"""By this prefix the transport recognizes the token of an expired scope, and does not treat its bearer as a caller without a
token.
"""


class TemporaryScope(msgspec.Struct, frozen=True):
    """One scope as it was created. Only the digest of its token is stored."""

    name: str
    label: str
    config: dict[str, str]
    token_sha256: str
    created_by: str
    created_ms: int
    expires_ms: int

    __repr__ = repr_without("token_sha256")


class IssuedScope(msgspec.Struct, frozen=True):
    """A new scope and its token, which is returned only once."""

    scope: TemporaryScope
    token: str

    __repr__ = repr_without("token")


class TemporaryScopes:
    def __init__(self, store: Store, session_ends: SessionEnds, events: EventHub) -> None:
        self._store = store
        self._session_ends = session_ends
        self._events = events
        self._scopes: dict[str, TemporaryScope] = {}
        self._by_token: dict[str, TemporaryScope] = {}
        self._expiries = clock.Expiries[str]()
        self._opening = 0

    async def start(self) -> None:
        """Serve the stored scopes after a restart, and end those that have expired."""
        for kept in await self._store.ask(KeptScopes()):
            if (scope := decoded("temporary_scopes", kept.name, kept.body, TemporaryScope)) is not None:
                self._put(scope)
        await self.end_expired()
        if self._scopes:
            self._events.publish(TemporaryScopesChanged(frozenset()))

    async def synchronize(self) -> None:
        """Another gateway has created or ended scopes: serve the stored ones."""
        kept = {row.name: row.body for row in await self._store.ask(KeptScopes())}
        new = [name for name in kept if name not in self._scopes]
        gone = [scope for name, scope in self._scopes.items() if name not in kept]
        for name in new:
            if (scope := decoded("temporary_scopes", name, kept[name], TemporaryScope)) is not None:
                self._put(scope)
        for scope in gone:
            await self._remove(scope, "another gateway ended it")
        if new:
            self._events.publish(TemporaryScopesChanged(frozenset()))

    async def hand_over(
        self, plan: Plan, config: Mapping[str, str], lifetime_ms: int, *, label: str, by: str
    ) -> IssuedScope:
        """Create a scope. Raises TaskConfigError for an invalid map, CallerError for anything else that is not allowed."""
        if len(self._scopes) + self._opening >= MAX_SCOPES:
            raise CallerError("overloaded", f"{MAX_SCOPES} temporary scopes are open; end some first.")
        if not MIN_MS <= lifetime_ms <= MAX_MS:
            raise CallerError("invalid_params", f"lifetime_ms must be from {MIN_MS} to {MAX_MS} (7 days).")
        if len(label) > MAX_LABEL or len(msgspec.json.encode(config)) > MAX_CONFIG_BYTES:
            raise CallerError("invalid_params", "The label or the map is too long.")
        name = NAME_PREFIX + secrets.token_hex(10)
        policy = scope_from_task_config(config, name, plan.profiles)
        if not policy.enabled:
            raise TaskConfigError(['mcp.enabled is not "true", so this task uses no MCP and needs no scope.'])
        token, now = TOKEN_PREFIX + secrets.token_urlsafe(32), self._store.now_ms()
        digest = hashlib.sha256(token.encode("ascii")).hexdigest()
        scope = TemporaryScope(
            name=name,
            label=label,
            config=dict(config),
            token_sha256=digest,
            created_by=by,
            created_ms=now,
            expires_ms=now + lifetime_ms,
        )
        self._opening += 1
        try:
            await self._store.do(
                KeepScope(KeptScope(name, scope.expires_ms, msgspec.json.encode(scope)), _opened(scope))
            )
        finally:
            self._opening -= 1
        self._put(scope)
        self._events.publish(TemporaryScopesChanged(frozenset()))
        log.info("temporary scope created", scope=name, label=label, by=by, expires_ms=scope.expires_ms)
        return IssuedScope(scope, token)

    async def end(self, name: str, by: str) -> bool:
        """End a scope, its token and its sessions. Return whether it existed."""
        scope = self._scopes.get(name)
        if scope is None:
            return False
        await self._end(scope, f"deleted by {by}", by)
        return True

    async def end_expired(self) -> None:
        """Called once a second."""
        for scope in [scope for scope in self._scopes.values() if self._is_over(scope)]:
            await self._end(scope, "it has expired", "")

    async def _end(self, scope: TemporaryScope, why: str, by: str) -> None:
        """Delete the scope from the store first: otherwise it would be served again after a restart."""
        ended = AuditEntry(0, "scope_ended", by, scope.name, kind="scope", decision="ended", reason=why)
        await self._store.do(ForgetScope(scope.name, ended))
        await self._remove(scope, why)

    async def _remove(self, scope: TemporaryScope, why: str) -> None:
        if self._scopes.pop(scope.name, None) is None:
            return
        del self._by_token[scope.token_sha256]
        self._expiries.forget(scope.name)
        self._events.publish(TemporaryScopesChanged(frozenset({scope.name})))
        await self._session_ends.end_scope(scope.name)
        log.info("temporary scope ended", scope=scope.name, label=scope.label, why=why)

    def _put(self, scope: TemporaryScope) -> None:
        self._scopes[scope.name] = self._by_token[scope.token_sha256] = scope
        self._is_over(scope)

    def _is_over(self, scope: TemporaryScope) -> bool:
        """Whether it has expired, by the store's clock or the monotonic one."""
        return self._expiries.passed(scope.name, (scope.expires_ms - self._store.now_ms()) / 1000)

    def scope_of_token(self, digest: str) -> str | None:
        """The only scope that the bearer of this token may use."""
        scope = self._by_token.get(digest)
        return scope.name if scope is not None and not self._is_over(scope) else None

    def all(self) -> tuple[TemporaryScope, ...]:
        return tuple(self._scopes.values())

    def find(self, name: str) -> TemporaryScope | None:
        return self._scopes.get(name)

    def merged(self, plan: Plan) -> Plan:
        """The plan with these scopes, read with its current profiles."""
        if not self._scopes:
            return plan
        policies = {name: self._policy(plan, scope) for name, scope in self._scopes.items()}
        return replace(plan, scopes={**plan.scopes, **policies}, temporary_scopes=frozenset(policies))

    def _policy(self, plan: Plan, scope: TemporaryScope) -> ScopePolicy:
        try:
            return scope_from_task_config(scope.config, scope.name, plan.profiles)
        except TaskConfigError as problem:
            # A reload removed its profile: an empty scope is the safe choice.
            log.warning("temporary scope shows nothing", scope=scope.name, label=scope.label, why=problem.message)
            return ScopePolicy(scope.name, enabled=False, helper_tools=HelperTools.NEVER)


def _opened(scope: TemporaryScope) -> AuditEntry:
    details = {"label": scope.label, "expires_ms": scope.expires_ms, "config": scope.config}
    reason = msgspec.json.encode(details).decode("utf-8")
    return AuditEntry(
        0, "scope_handed_over", scope.created_by, scope.name, kind="scope", decision="served", reason=reason
    )
