"""Servers that callers add at run time (`facade.add_server`).

They exist until they are removed or the gateway ends. If several gateways share a store, those with a URL are stored there and
available at all of them. A program is started only for a caller on stdio and never through a shell; a URL must be a public https
one. Each addition is a governed call, and an added server passes the same gates as any server of its scope.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from taskgate.core.errors import CallerError, TaskgateError
from taskgate.core.patterns import PatternSet
from taskgate.core.scoping.registry import Registry, RegistryRecord, TransportKind
from taskgate.core.text.peer_url import check_peer_url
from taskgate.gateway.plan import Plan
from taskgate.mcp.addresses import is_public_address
from taskgate.ports.store import Store
from taskgate.ports.upstream import Upstream
from taskgate.store.operations.servers import ForgetServer, KeepServer, KeptServer, KeptServers
from taskgate.telemetry.damaged_rows import left_out

MAX_ADDED: Final = 20
CONNECT_S: Final = 20.0


class NewServer(msgspec.Struct, frozen=True):
    """A server as the caller describes it: a URL, or a program to start."""

    name: str
    url: str | None = None
    command: str | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = msgspec.field(default_factory=dict)
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)


class DynamicServer(msgspec.Struct, frozen=True):
    scope: str
    record: RegistryRecord
    upstream: Upstream


def _refuse_private_address(host: str) -> None:
    """Refuse private IP addresses here, for a clear error; host names are checked when they are resolved."""
    number = host.strip("[]")
    if number == "localhost" or (
        (number.replace(".", "").isdigit() or ":" in number) and not is_public_address(number)
    ):
        raise CallerError(
            "invalid_params", "The address leads into this machine or a private network; servers there are not added."
        )


class DynamicServers:
    def __init__(self, make: Callable[[NewServer], Upstream], shared: Store | None, *, local: bool) -> None:
        """`local`: the process that started the gateway is its only caller. `shared`: rows that other gateways read."""
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
        """Check that this server may be added. Raises CallerError with the next step."""
        if not self.allowed(plan):
            raise CallerError(
                "invalid_params", "Servers cannot be added here. The operator can allow it with facade.add_server."
            )
        if (new.url is None) == (new.command is None):
            raise CallerError("invalid_params", "Give either url (an address) or command (a program to start).")
        if new.command is not None and not self._local:
            raise CallerError("invalid_params", "Programs are started for local callers only; give a url.")
        if new.url is not None:
            _refuse_private_address(check_peer_url(new.url).ascii_host)
        if new.name in plan.registry.records or new.name in self._adding:
            raise CallerError("invalid_params", f"There is a server {new.name[:80]!r} already; choose another name.")
        if len(self._dynamic_servers) + len(self._adding) >= MAX_ADDED:
            raise CallerError("invalid_params", f"There are {MAX_ADDED} added servers already; remove some.")

    async def add(self, plan: Plan, scope: str, new: NewServer) -> None:
        """Connect to the server, and keep it if that succeeds."""
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
        """Store a server with a URL for all gateways; a program stays at this gateway."""
        if self._shared is not None and new.command is None:
            kept = KeptServer(new.name, server.scope, msgspec.json.encode(new))
            try:
                is_new = await self._shared.do(KeepServer(kept))
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
        """Apply changes by other gateways. Return the names of added and removed servers."""
        assert self._shared is not None
        kept = {row.name: row for row in await self._shared.ask(KeptServers())}
        gone = [name for name in self._known_to_all if name not in kept]
        for name in gone:
            self._known_to_all.discard(name)
            await self._dynamic_servers.pop(name).upstream.close()
        new = [row for name, row in kept.items() if name not in self._dynamic_servers and name not in self._adding]
        for row in new:
            with left_out("dynamic_servers", row.name):
                upstream = self._make(msgspec.json.decode(row.body, type=NewServer))
                record = RegistryRecord(row.name, TransportKind.HTTP, row.name, PatternSet.of(("*",)))
                self._dynamic_servers[row.name] = DynamicServer(row.scope, record, upstream)
                self._known_to_all.add(row.name)
        return frozenset(gone) | {row.name for row in new if row.name in self._dynamic_servers}

    def check_removal(self, plan: Plan, name: str) -> None:
        """Check that this server may be removed. Raises CallerError with the next step."""
        if not self.allowed(plan):
            raise CallerError(
                "invalid_params", "Servers cannot be removed here. The operator can allow it with facade.add_server."
            )
        if name not in self._dynamic_servers:
            raise CallerError("invalid_params", f"{name[:80]!r} was not added by add_server, so it stays.")

    async def remove(self, plan: Plan, name: str) -> None:
        self.check_removal(plan, name)
        if self._shared is not None and name in self._known_to_all:
            await self._shared.do(ForgetServer(name))
        self._known_to_all.discard(name)
        await self._dynamic_servers.pop(name).upstream.close()

    def merged(self, plan: Plan, upstreams: Mapping[str, Upstream]) -> tuple[Plan, Mapping[str, Upstream]]:
        """Return the plan with the added servers. One whose name is configured meanwhile is left out."""
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
