"""The endpoints of a gateway for clients of the same user: the socket for bridges, or standard input and output.

`Lifecycle` opens one of them next to HTTP and drains both together. A gateway that a bridge started exits after a while without
bridges, sessions and open tasks; one that a person started does not.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from msgspec.structs import replace

from taskgate import clock
from taskgate.access.authorize import AccessRefused
from taskgate.access.proof import LocalProof
from taskgate.assembly.app import App
from taskgate.bridge.gateway_files import GatewayFiles
from taskgate.bridge.starter import READY_VARIABLE
from taskgate.config.load import LoadedConfig, load_again
from taskgate.config.problems import ConfigError
from taskgate.core.errors import CallerError, TaskgateError
from taskgate.core.identity.access import Access, AccessRefusal
from taskgate.core.identity.caller import Caller
from taskgate.core.scoping.session_request import SessionRequest
from taskgate.inbound.local_address import ON_DEMAND, LocalAddress
from taskgate.inbound.local_endpoint import Client, LocalEndpoint
from taskgate.inbound.peer_user import local_principal
from taskgate.inbound.stdio import StdioEndpoint
from taskgate.operating_system import own_user
from taskgate.store.operations.task_queries import OpenTasks
from taskgate.telemetry.logs import log

CHECK_EVERY_S: Final = 1.0
SHUTDOWN_S: Final = 30.0
"""How long processes started for a client are kept after it has disconnected: it may be restarting."""


def files_of(loaded: LoadedConfig) -> GatewayFiles:
    return GatewayFiles(str(loaded.state_dir), str(loaded.path) if loaded.path is not None else None)


class ExtraEndpoint(Protocol):
    """An endpoint for clients of the same user, besides HTTP, as `Lifecycle` uses it."""

    def open(self, url: str) -> None:
        """Accept callers. `url` is the address of the console."""
        ...

    async def drain(self, within_s: float, skip_waiting: asyncio.Event) -> None:
        """Let open requests finish; accept no new callers."""
        ...

    def lost(self) -> str | None:
        """Why another gateway could claim this one's address while it runs; None if none can."""
        ...

    async def close(self) -> None: ...

    def release(self) -> None:
        """Allow another gateway to start in this one's place. Called last, after the store was closed."""
        ...


OpenExtraEndpoint = Callable[[App, Callable[[], None]], ExtraEndpoint]
"""Creates the endpoint of a gateway; it may call the second argument to stop the gateway."""


class NoExtraEndpoint:
    """No endpoint for local clients: HTTP only."""

    def __init__(self, app: App, stop: Callable[[], None]) -> None:
        del app, stop

    def open(self, url: str) -> None:
        del url

    async def drain(self, within_s: float, skip_waiting: asyncio.Event) -> None:
        del within_s, skip_waiting

    def lost(self) -> None:
        return None

    async def close(self) -> None:
        return

    def release(self) -> None:
        return


class OwnStreams:
    """Standard input and output of this process; the gateway stops when they are closed."""

    def __init__(self, scope: str | None, app: App, stop: Callable[[], None]) -> None:
        caller = local_caller(app, LocalProof(local_principal(own_user()), proved=True), scope)
        self._endpoint = StdioEndpoint(app.gateway.transports, caller, SessionRequest(), app.intake.reader)
        self._stop = stop
        self._serving: asyncio.Task[None] | None = None

    def open(self, url: str) -> None:
        del url
        self._serving = asyncio.get_running_loop().create_task(self._endpoint.serve())
        self._serving.add_done_callback(lambda _: self._stop())

    async def drain(self, within_s: float, skip_waiting: asyncio.Event) -> None:
        await self._endpoint.drain(within_s, skip_waiting)
        await self.close()

    def lost(self) -> None:
        return None

    async def close(self) -> None:
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.gather(self._serving, return_exceptions=True)

    def release(self) -> None:
        return


def local_caller(app: App, proof: LocalProof, requested: str | None) -> Caller:
    """Return this user as a caller in the requested scope, or in the default one. Raises CallerError."""
    try:
        return app.authorizer.admit(proof, Access.CALL, requested or "").caller
    except AccessRefused as refused:
        text = refused.text
        if refused.reason is AccessRefusal.NO_SUCH_SCOPE:
            path = app.loaded.path
            file = str(path) if path is not None else "none, the bundled demo"
            hint = app.gateway.transports.scope_hint(requested or app.gateway.transports.default_scope)
            text = f"{hint} (configuration: {file})"
        raise CallerError("scope_refused", text) from None


class LocalGateway:
    """The endpoint for bridges. It stops a gateway that a bridge started when it is no longer in use."""

    def __init__(self, address: LocalAddress, app: App, stop: Callable[[], None]) -> None:
        self._app = app
        self._address = address
        self._stop = stop
        listening = address.bind(os.environ)
        self.endpoint = LocalEndpoint(
            app.gateway.transports,
            app.intake.reader,
            listening,
            address.key,
            self._caller,
            authorizer=app.authorizer,
            stop_for_replacement=stop,
            busy=self._has_work,
        )
        self._watching: asyncio.Task[None] | None = None

    def open(self, url: str) -> None:
        self.endpoint.open()
        self._address.publish(url)
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def drain(self, within_s: float, skip_waiting: asyncio.Event) -> None:
        self._address.withdraw()
        await self.endpoint.drain(within_s, skip_waiting)

    def lost(self) -> str | None:
        return self._address.lost()

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self.endpoint.close()
        self._address.withdraw()

    def release(self) -> None:
        self._address.release()

    async def _caller(self, client: Client) -> Caller:
        """Return the caller of a bridge, in the scope that it requested."""
        gained = self._app.places.gained(client.variables)
        if gained:
            await self._serve_skipped(gained)
        caller = local_caller(self._app, client.proof, client.scope)
        place = await self._app.places.enter(client.folder, client.variables)
        return replace(caller, place=place)

    async def _serve_skipped(self, variables: Mapping[str, str]) -> None:
        """Serve servers that were skipped because environment variables were missing, once a client provides them."""
        if self._app.loaded.path is None:
            return
        try:
            loaded = await asyncio.to_thread(load_again, self._app.loaded, {**os.environ, **variables})
            self._app.reload(loaded)
        except (ConfigError, TaskgateError) as problem:
            log.warning("environment variables of a client could not be applied", problem=str(problem))
            return
        os.environ.update(variables)
        log.info("servers with missing environment variables are served now", variables=sorted(variables))

    async def _has_work(self) -> bool:
        """Return whether there are open tasks."""
        return await self._app.store.ask(OpenTasks()) > 0

    async def _watch(self) -> None:
        """Stop processes of clients that have disconnected, and the gateway itself when it is idle."""
        quiet_since = left_since = clock.monotonic()
        present: frozenset[str] = frozenset()
        while True:
            await clock.sleep(CHECK_EVERY_S)
            now = clock.monotonic()
            here = self.endpoint.places
            if not present <= here:
                left_since = now
            present = here
            if await self._is_needed():
                quiet_since = now
            if now - left_since >= SHUTDOWN_S and not await self._has_work():
                left_since = math.inf
                await self._end_absent(here)
            if self._address.kind == ON_DEMAND and now - quiet_since >= self._end_after_s():
                log.info("gateway is idle and stops; the next bridge starts it again")
                self._stop()
                return

    def _end_after_s(self) -> float:
        return self._app.loaded.root.local.end_after

    async def _is_needed(self) -> bool:
        return bool(len(self.endpoint) or len(self._app.gateway.lifecycle.sessions)) or await self._has_work()

    async def _end_absent(self, present: frozenset[str]) -> None:
        await asyncio.gather(*(server.keep_places(present) for server in self._app.servers.values()))


def report_to_starter(text: str) -> None:
    """Report to the bridge that started this gateway, if any, that it is `ready`, or `failed CODE WHY`."""
    given = os.environ.pop(READY_VARIABLE, "")
    if given.isdigit():
        with os.fdopen(int(given), "w", encoding="utf-8", errors="replace") as pipe:
            pipe.write(text.replace("\n", " ") + "\n")
