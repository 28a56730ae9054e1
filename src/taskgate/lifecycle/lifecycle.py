"""Start the gateway, run it, and shut down without losing an accepted request.

The HTTP server runs in this event loop. SIGTERM and SIGINT drain: no new connections are accepted, requests in progress may finish,
then the upstreams are closed. SIGHUP reloads the configuration (`reloading`).
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from taskgate import clock
from taskgate.access.open_responses import ReplyInProgress
from taskgate.assembly.app import App
from taskgate.assembly.exposure import check_exposure, warn_of_exposure
from taskgate.assembly.identity import ConfiguredLogin
from taskgate.assembly.listener import listener_tls
from taskgate.core.identity.caller import OPERATOR
from taskgate.core.readiness import readiness_of
from taskgate.garbage_collection import GarbageCollector
from taskgate.gateway.retention import Retention
from taskgate.inbound.gateway_secrets import passphrase_matches
from taskgate.inbound.http.connection import CallerConnection, drop_slow, replies_in_progress
from taskgate.inbound.http.handover import WorkerSockets
from taskgate.inbound.http.hop import HopVerifier
from taskgate.inbound.http.internal_listener import InternalListener
from taskgate.inbound.http.loop_lag import LoopLag
from taskgate.inbound.http.mcp_endpoint import McpEndpoint
from taskgate.inbound.http.open_connections import OpenConnections
from taskgate.inbound.http.site import Site
from taskgate.inbound.http.uvicorn_server import UvicornServer, server_settings
from taskgate.lifecycle.housekeeping import HOUSEKEEPING_S, run_housekeeping
from taskgate.lifecycle.late_console import LateConsole
from taskgate.lifecycle.listening import bind, local_url
from taskgate.lifecycle.lost_files import StateLost, wait_until_lost
from taskgate.lifecycle.reloading import Reloader, log_warnings
from taskgate.local_gateway import ExtraEndpoint, OpenExtraEndpoint
from taskgate.operating_system import limitations, on_signals
from taskgate.store.operations.upkeep import sweep_leftovers
from taskgate.telemetry.logs import log

if TYPE_CHECKING:
    from taskgate.dashboard.site import Dashboard

_LATE_REQUESTS_S: Final = 0.3
"""How long requests are still answered that other gateways sent before they knew of the shutdown."""


class Lifecycle:
    def __init__(
        self,
        app: App,
        host: str,
        open_side: OpenExtraEndpoint,
        workers: Path | None = None,
        *,
        when_lost: Callable[[], None],
    ) -> None:
        """`host` is the address to listen on; `open_side` creates the transport besides HTTP; `workers` is the private folder of
        several gateways that accept connections from one socket; `when_lost` is called when the gateway must end because its files
        are gone.

        Raises ConfigError if the gateway would be reachable from other machines without authentication.
        """
        check_exposure(app.loaded.root, host)
        self._host = host
        self.app = app
        self._workers = WorkerSockets(workers, app.store.ownership.owner) if workers is not None else None
        self.endpoint = McpEndpoint(
            app.gateway.transports,
            app.authorizer,
            app.responses,
            app.intake.reader,
            hop_key=app.hop_key,
            workers=self._workers,
        )
        self._internal = self._internal_listener()
        self._login = ConfiguredLogin(app.outbound)
        self._console = LateConsole(self._new_dashboard)
        self._tls = listener_tls(app.loaded.root)
        self.ready = False
        self._stop = asyncio.Event()
        self._skip_drain = asyncio.Event()
        self._when_lost = when_lost
        self._lost: str | None = None
        """Why the gateway must end at once; None while its files exist."""
        self._reloader = Reloader(app, host)
        log_warnings(app.loaded)
        self._server: UvicornServer | None = None
        self._collector: GarbageCollector | None = None
        self._side: ExtraEndpoint = open_side(app, self.stop)

    async def serve(self, port: int | socket.socket, announce: Callable[[str, int], None]) -> None:
        """Serve until `stop` is called, on this port or on a bound socket.

        `announce` is called once, with the address, when the gateway accepts connections.
        """
        host = self._host
        warn_of_exposure(self.app.loaded.root, host)
        listening = port if isinstance(port, socket.socket) else bind(host, port)
        address = local_url(host, listening.getsockname()[1], self._tls is not None)
        self.app.gateway.lifecycle.address.listening_at(address)
        self.site = Site(
            mcp=self.endpoint,
            ready=self._state,
            metrics=self.app.metrics.exposition,
            hides_names=self._hides_names,
            pages=self._console,
        )
        self._server = UvicornServer(
            server_settings(self.site, self._connection(), self._tls.context if self._tls else None)
        )
        self._catch_signals()
        work = (
            self._housekeeping(),
            self._reloader.run(),
            self._run_retention(),
            self._watch_state(),
            self.app.responses.run(self._replies_in_progress),
        )
        chores = [asyncio.create_task(chore) for chore in work]
        self.app.open_channels()
        await self.app.audit.start()
        await self.app.gateway.lifecycle.start()
        await self.app.gateway.lifecycle.recover()
        self.app.gateway.lifecycle.others.start()
        serving = asyncio.create_task(self._server.serve(sockets=[listening]))
        try:
            await self._server.opened.wait()
            chores.append(asyncio.create_task(self.app.gateway.lifecycle.tasks.recovery.resume_taken_over()))
            if self._internal is not None:
                self._internal.start()
            if self._workers is not None:
                self._workers.open(self._server.adopt)
            self._collector = GarbageCollector()
            self.ready = True
            self._side.open(address)
            announce(host, listening.getsockname()[1])
            stopped = asyncio.create_task(self._stop.wait())
            await asyncio.wait({serving, stopped}, return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
            await self._drain(serving)
        finally:
            for chore in chores:
                chore.cancel()
            await asyncio.gather(*chores, return_exceptions=True)
            await self.close()
        if self._lost is not None:
            raise StateLost(self._lost)

    def _internal_listener(self) -> InternalListener | None:
        """Return the listener for other gateways on the same store, if it is configured."""
        app, shared = self.app, self.app.gateway.lifecycle.shared_sessions
        if app.internal is None or app.hop_key is None or shared is None:
            return None
        verifier = HopVerifier(app.hop_key, shared.rows.ownership.owner, shared.rows.now_ms)
        return InternalListener(self.endpoint, verifier, app.internal)

    def _replies_in_progress(self) -> list[ReplyInProgress]:
        assert self._server is not None
        public = replies_in_progress(self._server.server_state.connections)
        internal = self._internal.replies_in_progress() if self._internal is not None else ()
        return [*public, *internal, *self._console.replies_in_progress]

    def _connection(self) -> Callable[..., CallerConnection]:
        """Return the factory of the protocol objects of new connections."""
        endpoint = self.endpoint
        return partial(
            CallerConnection,
            endpoint.posts.answer,
            endpoint.gateway.plan,
            endpoint.arrive,
            OpenConnections(),
            LoopLag(),
        )

    @property
    def dashboard(self) -> Dashboard:
        """The console and the JSON API, which are loaded now if no request has needed them."""
        return self._console.dashboard

    def _new_dashboard(self) -> Dashboard:
        from taskgate.assembly.console_configuration import ConsoleConfiguration
        from taskgate.dashboard.site import Dashboard

        return Dashboard(
            self.app.gateway.console,
            self.app.keys.secret,
            self.app.authorizer,
            self.app.responses,
            fits=partial(passphrase_matches, self.app.keys.passphrase) if self.app.keys.passphrase else None,
            provider=lambda: self._login.by(self.app.loaded.root),
            configuration=ConsoleConfiguration(lambda: self.app, self.reload),
        )

    async def reload(self) -> str | None:
        """Apply the changed configuration. Return the problem if the old one stays in force."""
        return await self._reloader.reload()

    def login_url(self) -> str:
        """Return a single-use link that logs the operator into the console."""
        operator = self.app.plan.governing.approvers[OPERATOR]
        return self.dashboard.login_links.printed(operator)

    def stop(self) -> None:
        """Drain and end. A second call ends without waiting for requests in progress."""
        if self._stop.is_set():
            self._skip_drain.set()
        self._stop.set()

    async def _drain(self, serving: asyncio.Task[None]) -> None:
        """Let accepted requests finish; end long-lived streams with their final result."""
        self.ready = False
        assert self._server is not None
        if self._workers is not None:
            self._workers.close()
        self.app.gateway.lifecycle.drain()
        self._console.end_streams()
        if self.endpoint.forwarder is not None:
            self.endpoint.forwarder.end_streams()
        drain_s = self.app.plan.limits.drain_timeout if self._lost is None else 0.0
        self._server.stop(drain_s)
        began = clock.monotonic()
        handing_over = asyncio.create_task(self._hand_over())
        await self._side.drain(drain_s, self._skip_drain)
        await serving
        await self._close_internal(handing_over, began + drain_s)
        await _settle_tasks(self.app, began + drain_s - clock.monotonic(), self._skip_drain)

    async def _close_internal(self, handing_over: asyncio.Task[None], until: float) -> None:
        """Release the remaining sessions, and close the internal address when other gateways know that. A request that one of them
        has sent before gets the reply that the session is not here; after the end it would be lost."""
        internal, shared = self._internal, self.app.gateway.lifecycle.shared_sessions
        if internal is not None:
            await internal.refuse(max(1.0, until - clock.monotonic()))
        handing_over.cancel()
        await asyncio.gather(handing_over, return_exceptions=True)
        if internal is None:
            return
        if shared is not None:
            await shared.release_all()
            if self._lost is None and not self._skip_drain.is_set():
                await clock.sleep(_LATE_REQUESTS_S)
        await internal.close(1.0)

    async def _hand_over(self) -> None:
        """Hand the sessions to other gateways on the store now, instead of after the lease has expired."""
        if self._internal is not None and self.app.gateway.lifecycle.shared_sessions is not None:
            await self.app.gateway.lifecycle.shared_sessions.hand_over()

    async def close(self) -> None:
        await self._side.close()
        if self.endpoint.forwarder is not None:
            await self.endpoint.forwarder.close()
        await self._console.close()
        await self.app.responses.close()
        await self.app.gateway.lifecycle.close()
        await asyncio.gather(*(server.close() for server in self.app.servers.values()), return_exceptions=True)
        await self.app.close_retired()
        await self.app.gateway.lifecycle.close_tracing()
        await self.app.http.close()
        await self.app.close_identity()
        await self._login.close()
        await self.app.outbound.close()
        await self.app.reaper.close()
        await self.app.close_store()
        log.report_suppressed(last=True)
        self._side.release()

    def _catch_signals(self) -> None:
        handlers = {"SIGTERM": self.stop, "SIGINT": self.stop, "SIGHUP": self._reloader.request}
        on_signals(asyncio.get_running_loop(), handlers)
        for sentence in limitations():
            log.warning("limited on this system", why=sentence)

    def _hides_names(self) -> bool:
        names = self.app.loaded.root.telemetry.names
        return names == "see" or (names is None and self.app.authorizer.credentials.requires_identity)

    def _state(self, *, names: bool) -> dict[str, object]:
        """Return the content of `/ready`. Without `names` nothing in it identifies a server, a gateway or the store."""
        servers = {name: server.status().state.value for name, server in self.app.servers.items()}
        lost = self._lost_files()
        problem = lost or self.app.store.problem
        sessions = len(self.app.gateway.lifecycle.sessions)
        readiness = readiness_of(
            serving=self.ready and lost is None,
            store_unavailable=problem is not None,
            shared=self.app.store.wakeups is not None,
            passthrough=self.app.plan.features.degraded_passthrough,
        )
        common = {
            "ready": readiness.ready,
            "degraded": readiness.degraded,
            "sessions": sessions,
            "server_states": Counter(servers.values()),
        }
        replicas = self.app.replicas.report()
        if not names:
            replicas.pop("replicas", None)
            return {**common, "store": None if problem is None else "unavailable", **replicas}
        catalogs = {name: self.app.gateway.lifecycle.catalogs.report(name) for name in servers}
        return {**common, "store": problem, "servers": servers, "catalogs": catalogs, **replicas}

    async def _housekeeping(self) -> None:
        """Once a second: drop slow connections. Twice a minute: end idle sessions."""
        rounds = 0
        while True:
            await clock.sleep(HOUSEKEEPING_S)
            rounds += 1
            if self._server is not None:
                drop_slow(self._server.server_state.connections, clock.monotonic(), self.endpoint.limits())
            self.app.replicas.maintain()
            if self._collector is not None:
                self._collector.maintain()
            if self._tls is not None:
                self._tls.refresh()
            if self._internal is not None:
                self._internal.drop_slow(clock.monotonic(), self.endpoint.limits())
            await run_housekeeping(self.app, rounds)

    async def _run_retention(self) -> None:
        """Delete expired records until shutdown."""
        app = self.app
        retention = Retention(
            (
                app.gateway.lifecycle.tasks.sweep,
                app.forget_audit,
                app.gateway.lifecycle.upkeep.forget_old,
            ),
            partial(sweep_leftovers, app.store),
            lambda: app.loaded.root.tasks.sweep_interval_ms / 1000,
            lambda: app.store.state.deletion.spent_s,
        )
        await retention.run()

    async def _watch_state(self) -> None:
        """End the gateway when its files are removed: its writes would be lost, and a second gateway could start."""
        self._lost = await wait_until_lost(self._lost_files)
        log.error("the files of this gateway were removed; it ends now", why=self._lost)
        self.ready = False
        self._when_lost()
        self._skip_drain.set()
        self._stop.set()

    def _lost_files(self) -> str | None:
        state = self.app.state
        return self.app.store.lost or (state.lost() if state is not None else None) or self._side.lost()


async def _settle_tasks(app: App, left_s: float, skip_waiting: asyncio.Event) -> None:
    """Wait for running tasks for the rest of the drain timeout, unless the operator stops the gateway again."""
    settling = asyncio.create_task(app.gateway.lifecycle.tasks.runs.settle(max(0.0, left_s)))
    skipped_waiting = asyncio.create_task(skip_waiting.wait())
    await asyncio.wait({settling, skipped_waiting}, return_when=asyncio.FIRST_COMPLETED)
    for waited in (settling, skipped_waiting):
        waited.cancel()
    await asyncio.gather(settling, skipped_waiting, return_exceptions=True)
