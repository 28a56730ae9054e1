"""Servers that a caller brought along while the gateway runs, and the record of who gets what."""

from __future__ import annotations

import asyncio
import difflib
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from taskgate.core import wire
from taskgate.core.audit.chain import AuditEntry
from taskgate.core.errors import CallerError, TaskgateError
from taskgate.core.patterns import PatternSet
from taskgate.core.scoping.registry import Registry, RegistryRecord, TransportKind
from taskgate.core.scoping.subset import Reason, Subset
from taskgate.core.text.peer_url import check_peer_url
from taskgate.gateway.plan import Plan
from taskgate.mcp.addresses import is_public_address
from taskgate.ports.store import KeptServer, ServerStore, Store
from taskgate.ports.upstream import Upstream
from taskgate.telemetry.logs import log
from taskgate.telemetry.metrics import Metrics

# Servers that a caller brought along while the gateway runs. They live until they are removed or the gateway ends;
# where several gateways share a store, those with an address are rows in it, seen by all of them until they are
# removed.
#
# Off unless the operator switches it on (`facade.add_server`: `session` for callers on standard streams only, `on` for
# all), and then a governed call like any other. A program is started for a caller on standard streams only, and never
# by a shell; an address must be a public https one, and is connected to only where it leads to the open internet. It
# passes the same gates as any server of the scope it was added to.

MAX_GUESTS: Final = 20
CONNECT_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class NewServer:
    """What a caller says about a server: an address, or a program to start."""

    name: str
    url: str | None = None
    command: str | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DynamicServer:
    scope: str
    record: RegistryRecord
    upstream: Upstream


def _refuse_inner(host: str) -> None:
    """Numbers are judged here, for a clear answer; names when they are resolved, by the connection itself."""
    number = host.strip("[]")
    if number == "localhost" or (
        (number.replace(".", "").isdigit() or ":" in number) and not is_public_address(number)
    ):
        raise CallerError(
            "invalid_params", "The address leads into this machine or a private network; servers there are not added."
        )


class DynamicServers:
    def __init__(self, make: Callable[[NewServer], Upstream], shared: ServerStore | None, *, local: bool) -> None:
        """`local`: the only caller is the one who started this gateway. `shared`: where other gateways see them."""
        self._shared = shared
        self._make = make
        self._local = local
        self._dynamic_servers: dict[str, DynamicServer] = {}
        self._adding: set[str] = set()
        self._known_to_all: set[str] = set()

    def allowed(self, plan: Plan) -> bool:
        mode = plan.add_server or "off"
        return mode == "on" or (mode == "session" and self._local)

    def check(self, plan: Plan, new: NewServer) -> None:
        """May this server be added? Raises with what to do if not."""
        if not self.allowed(plan):
            raise CallerError(
                "invalid_params", "Servers cannot be added here. The operator can allow it with facade.add_server."
            )
        if (new.url is None) == (new.command is None):
            raise CallerError("invalid_params", "Give either url (an address) or command (a program to start).")
        if new.command is not None and not self._local:
            raise CallerError("invalid_params", "Programs are started for local callers only; give a url.")
        if new.url is not None:
            _refuse_inner(check_peer_url(new.url).ascii_host)
        if new.name in plan.registry.records or new.name in self._adding:
            raise CallerError("invalid_params", f"There is a server {new.name[:80]!r} already; choose another name.")
        if len(self._dynamic_servers) + len(self._adding) >= MAX_GUESTS:
            raise CallerError("invalid_params", f"There are {MAX_GUESTS} added servers already; remove some.")

    async def add(self, plan: Plan, scope: str, new: NewServer) -> None:
        """Connect to it, and keep it if that works."""
        kind = TransportKind.STDIO if new.command is not None else TransportKind.HTTP
        record = RegistryRecord(new.name, kind, new.name, PatternSet.of(("*",)))
        problems = Registry.build([*plan.registry.records.values(), record]).problems
        bad = next((problem for problem in problems if problem.server == new.name), None)
        if bad is not None:
            raise CallerError("invalid_params", f"The name {new.name[:80]!r} cannot be used: {bad.message}")
        try:
            upstream = self._make(new)
        except ValueError as problem:
            raise CallerError("invalid_params", f"The server was not added: {problem}.") from None
        self._adding.add(new.name)
        try:
            async with asyncio.timeout(CONNECT_S):
                await upstream.listening_link()
        except BaseException as problem:
            await upstream.close()
            if not isinstance(problem, TaskgateError | TimeoutError):
                raise
            why = problem.message if isinstance(problem, TaskgateError) else "it took too long"
            raise CallerError("invalid_params", f"The server was not added: {why}") from None
        finally:
            self._adding.discard(new.name)
        await self._keep(DynamicServer(scope, record, upstream), new)

    async def _keep(self, server: DynamicServer, new: NewServer) -> None:
        """A program belongs to the caller at this gateway; an address is everybody's."""
        if self._shared is not None and new.command is None:
            kept = KeptServer(new.name, server.scope, msgspec.json.encode(new))
            try:
                is_new = await self._shared.keep_server(kept)
            except BaseException:
                await server.upstream.close()
                raise
            if not is_new:
                await server.upstream.close()
                raise CallerError(
                    "invalid_params", f"There is a server {new.name[:80]!r} already; choose another name."
                )
        self._dynamic_servers[new.name] = server
        if new.command is None:
            self._known_to_all.add(new.name)

    async def synchronize(self) -> frozenset[str]:
        """Other gateways have added or removed servers: the names of those that are new or gone here."""
        assert self._shared is not None
        kept = {row.name: row for row in await self._shared.kept_servers()}
        gone = [name for name in self._known_to_all if name not in kept]
        for name in gone:
            self._known_to_all.discard(name)
            await self._dynamic_servers.pop(name).upstream.close()
        new = [row for name, row in kept.items() if name not in self._dynamic_servers and name not in self._adding]
        for row in new:
            said = msgspec.json.decode(row.body, type=NewServer)
            record = RegistryRecord(row.name, TransportKind.HTTP, row.name, PatternSet.of(("*",)))
            self._dynamic_servers[row.name] = DynamicServer(row.scope, record, self._make(said))
            self._known_to_all.add(row.name)
        return frozenset(gone) | {row.name for row in new}

    def check_removal(self, plan: Plan, name: str) -> None:
        """May this server be removed? Raises with what to do if not."""
        if not self.allowed(plan):
            raise CallerError(
                "invalid_params", "Servers cannot be removed here. The operator can allow it with facade.add_server."
            )
        if name not in self._dynamic_servers:
            raise CallerError("invalid_params", f"{name[:80]!r} was not added by add_server, so it stays.")

    async def remove(self, plan: Plan, name: str) -> None:
        self.check_removal(plan, name)
        if self._shared is not None and name in self._known_to_all:
            await self._shared.forget_server(name)
        self._known_to_all.discard(name)
        await self._dynamic_servers.pop(name).upstream.close()

    def merged(self, plan: Plan, upstreams: Mapping[str, Upstream]) -> tuple[Plan, Mapping[str, Upstream]]:
        """A plan with the dynamic servers in it; one whose name the operator has taken meanwhile stays out."""
        dynamic_servers = {
            name: server for name, server in self._dynamic_servers.items() if name not in plan.registry.records
        }
        if not dynamic_servers:
            return plan, upstreams
        records = [*plan.registry.records.values(), *(server.record for server in dynamic_servers.values())]
        scopes = dict(plan.scopes)
        for name, server in dynamic_servers.items():
            scope = scopes.get(server.scope)
            if scope is not None:
                ceiling = (*scope.allowed_servers, name) if scope.allowed_servers is not None else None
                scopes[server.scope] = replace(
                    scope, default_servers=(*scope.default_servers, name), allowed_servers=ceiling
                )
        merged = replace(plan, registry=plan.registry.replaced_by(records), scopes=scopes)
        return merged, {**upstreams, **{name: server.upstream for name, server in dynamic_servers.items()}}

    async def close(self) -> None:
        await asyncio.gather(
            *(server.upstream.close() for server in self._dynamic_servers.values()), return_exceptions=True
        )


# Putting on record who gets what: every effective set of servers and of tools once, in log, metrics and audit trail.

MOST_TOLD: Final = 100
MOST_TOOLS_TOLD: Final = 1000
MOST_SCOPES_TOLD: Final = 1000


class ScopeRecord:
    def __init__(self, store: Store, metrics: Metrics) -> None:
        self._store = store
        self._metrics = metrics
        self._scopes_told = 0
        self._tools_told: set[str] = set()

    def start_over(self) -> None:
        """After a reload every set is worth telling again."""
        self._scopes_told = 0
        self._tools_told.clear()

    def composed(self, subset: Subset) -> None:
        """Someone's set of servers was worked out: once for each scope, wish and revision."""
        for line in subset.log:
            self._metrics.denied_reason.add(line.subject, line.reason.value)
        self._scopes_told += 1
        if self._scopes_told > MOST_SCOPES_TOLD:
            # Callers can make up wishes for ever; the record of them ends here until the next reload.
            return
        facts = facts_of(subset)
        reason = wire.encode({"servers": facts["servers"], "excluded": facts["excluded"]}).decode("utf-8")
        self._store.record(
            AuditEntry(0, "scope", scope=subset.scope, kind="scope", policy_revision=subset.revision, reason=reason)
        )
        if subset.servers:
            log.info("scope in effect", **facts)
        else:
            log.warning("scope is empty: its callers see no tools", **facts)

    def shown(self, subset: Subset, tools: Mapping[str, list[str]], excluded: Mapping[str, str]) -> None:
        """Someone's set of tools was worked out, from what the servers list now. One status for each server, all at once.

        `tools` has each server that could be listed; `excluded` the reason for each of their tools that is left out.
        """
        for server in subset.servers:
            self._metrics.injection.add(server, "success" if server in tools else "failed")
        for line in subset.log:
            if line.reason not in (Reason.NOT_REQUESTED, Reason.NOT_SELECTED):
                self._metrics.injection.add(line.subject, "denied")
        body = wire.encode({"tools": _first(tools), "excluded": dict(list(excluded.items())[:MOST_TOOLS_TOLD])})
        whole = wire.encode([subset.scope, subset.revision, tools, excluded])
        digest = hashlib.sha256(whole).hexdigest()
        if digest in self._tools_told or len(self._tools_told) >= MOST_SCOPES_TOLD:
            return
        self._tools_told.add(digest)
        self._store.record(
            AuditEntry(
                0,
                "scope_tools",
                scope=subset.scope,
                kind="scope",
                policy_revision=subset.revision,
                arguments_digest=f"sha256:{digest}",
                decision=f"{sum(map(len, tools.values()))} tools, {len(excluded)} left out",
                reason=body.decode("utf-8"),
            )
        )


def _first(tools: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """As many names as a row may hold; the digest is that of all of them."""
    left, found = MOST_TOOLS_TOLD, {}
    for server, names in tools.items():
        found[server] = names[:left]
        left -= len(found[server])
    return found


def scope_hint(plan: Plan, asked: str) -> str:
    """For operators: what is wrong with the name of a scope."""
    if asked in plan.disabled_scopes:
        return f"The scope {asked!r} is switched off."
    near = difflib.get_close_matches(asked, plan.scopes, n=1)
    told = f"Did you mean {near[0]!r}?" if near else f"There are: {', '.join(sorted(plan.scopes)) or 'none'}."
    return f"There is no scope {asked[:80]!r} for this token. {told}"


def facts_of(subset: Subset) -> dict[str, Any]:
    """The effective set, as log lines and the audit tell it."""
    facts: dict[str, Any] = {"scope": subset.scope, "revision": subset.revision, "servers": list(subset.servers)}
    facts["excluded"] = {line.subject: line.reason.value for line in subset.log[:MOST_TOLD]}
    if len(subset.log) > MOST_TOLD:
        facts["excluded_in_all"] = len(subset.log)
    return facts
