"""Servers that a caller brought along while the gateway runs. They live until they are removed or the gateway ends.

Whether callers may do so is the operator's setting: off over HTTP unless switched on, on over standard streams, where the caller
and the operator are one. A program is started for a caller on standard streams only, and never by a shell. A guest passes the
same gates as any server of the scope it was added to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from taskgate.core.errors import CallerError, TaskgateError
from taskgate.core.patterns import PatternSet
from taskgate.core.peer_url import check_peer_url
from taskgate.core.scoping.registry import Registry, RegistryRecord, TransportKind
from taskgate.gateway.plan import Plan
from taskgate.ports.upstream import Upstream

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
class Guest:
    scope: str
    record: RegistryRecord
    upstream: Upstream


class Guests:
    def __init__(self, make: Callable[[NewServer], Upstream], *, local: bool) -> None:
        """`local`: the only caller is the one who started this gateway."""
        self._make = make
        self._local = local
        self._guests: dict[str, Guest] = {}

    def allowed(self, plan: Plan) -> bool:
        mode = plan.add_server or ("session" if self._local else "off")
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
        if new.url is not None and not self._local:
            check_peer_url(new.url)
        if new.name in plan.registry.records:
            raise CallerError("invalid_params", f"There is a server {new.name[:80]!r} already; choose another name.")
        if len(self._guests) >= MAX_GUESTS:
            raise CallerError("invalid_params", f"There are {MAX_GUESTS} added servers already; remove some.")

    async def add(self, plan: Plan, scope: str, new: NewServer) -> None:
        """Connect to it, and keep it if that works."""
        kind = TransportKind.STDIO if new.command is not None else TransportKind.HTTP
        record = RegistryRecord(new.name, kind, new.name, PatternSet.of(("*",)))
        problems = Registry.build([*plan.registry.records.values(), record]).problems
        bad = next((problem for problem in problems if problem.server == new.name), None)
        if bad is not None:
            raise CallerError("invalid_params", f"The name {new.name[:80]!r} cannot be used: {bad.message}")
        upstream = self._make(new)
        try:
            async with asyncio.timeout(CONNECT_S):
                await upstream.listening_link()
        except (TaskgateError, TimeoutError) as problem:
            await upstream.close()
            why = problem.message if isinstance(problem, TaskgateError) else "it took too long"
            raise CallerError("invalid_params", f"The server was not added: {why}") from None
        self._guests[new.name] = Guest(scope, record, upstream)

    async def remove(self, plan: Plan, name: str) -> None:
        if not self.allowed(plan):
            raise CallerError(
                "invalid_params", "Servers cannot be removed here. The operator can allow it with facade.add_server."
            )
        guest = self._guests.pop(name, None)
        if guest is None:
            raise CallerError("invalid_params", f"{name[:80]!r} was not added by add_server, so it stays.")
        await guest.upstream.close()

    def merged(self, plan: Plan, upstreams: Mapping[str, Upstream]) -> tuple[Plan, Mapping[str, Upstream]]:
        """A plan with the guests in it; one whose name the operator has taken meanwhile stays out."""
        guests = {name: guest for name, guest in self._guests.items() if name not in plan.registry.records}
        if not guests:
            return plan, upstreams
        records = [*plan.registry.records.values(), *(guest.record for guest in guests.values())]
        scopes = dict(plan.scopes)
        for name, guest in guests.items():
            scope = scopes.get(guest.scope)
            if scope is not None:
                ceiling = (*scope.allowed_servers, name) if scope.allowed_servers is not None else None
                scopes[guest.scope] = replace(
                    scope, default_servers=(*scope.default_servers, name), allowed_servers=ceiling
                )
        merged = replace(plan, registry=plan.registry.replaced_by(records), scopes=scopes)
        return merged, {**upstreams, **{name: guest.upstream for name, guest in guests.items()}}

    async def close(self) -> None:
        await asyncio.gather(*(guest.upstream.close() for guest in self._guests.values()), return_exceptions=True)
