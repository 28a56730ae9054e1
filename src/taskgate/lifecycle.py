"""Start the gateway, run it, apply configuration changes, and shut down without losing an accepted request.

The HTTP server runs in this event loop. SIGTERM and SIGINT drain: no new connection, requests under way may end, then the
upstreams are closed. SIGHUP and a changed file reload; a bad file changes nothing.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Final

from taskgate import clock
from taskgate.access.open_responses import ReplyInProgress
from taskgate.assembly.app import App
from taskgate.assembly.console_configuration import ConsoleConfiguration
from taskgate.assembly.exposure import check_exposure, warn_of_exposure
from taskgate.assembly.identity import ConfiguredLogin
from taskgate.assembly.listener import listener_tls
from taskgate.config.load import LoadedConfig, load
from taskgate.config.problems import ConfigError
from taskgate.config.truncation import refuse_truncated
from taskgate.core.errors import Executed, GatewayFault, TaskgateError
from taskgate.core.identity.caller import OPERATOR
from taskgate.core.readiness import judge_readiness
from taskgate.dashboard.site import Dashboard
from taskgate.file_watching import changed_files
from taskgate.garbage_collection import GarbageCollector
from taskgate.gateway.retention import Retention
from taskgate.inbound.gateway_secrets import passphrase_fits
from taskgate.inbound.http.connection import CallerConnection, drop_slow, replies_in_progress
from taskgate.inbound.http.handover import WorkerSockets
from taskgate.inbound.http.hop import HopVerifier
from taskgate.inbound.http.internal_listener import InternalListener
from taskgate.inbound.http.mcp_endpoint import McpEndpoint
from taskgate.inbound.http.open_connections import OpenConnections
from taskgate.inbound.http.site import Site
from taskgate.inbound.http.uvicorn_server import UvicornServer, server_settings
from taskgate.local_gateway import OpenSide, Side
from taskgate.telemetry.logs import log

HOUSEKEEPING_S: Final = 1.0
STATE_CHECK_S: Final = 0.5
REAP_EVERY: Final = 30
RETIRE_AFTER_S: Final = 30.0
CHANGE_CHECKS: Final = 10
CHANGE_CHECK_S: Final = 0.1


class StateLost(GatewayFault):
    """The files of this gateway were removed or replaced while it ran."""

    def __init__(self, why: str) -> None:
        text = f"The gateway ended because its files are gone: {why}. What was not answered may have been executed."
        super().__init__("store_unavailable", text, executed=Executed.MAYBE)


class Lifecycle:
    def __init__(
        self,
        app: App,
        host: str,
        open_side: OpenSide,
        workers: Path | None = None,
        *,
        when_lost: Callable[[], None],
    ) -> None:
        """`host` is the address that will be listened on; `open_side` makes the transport that there is besides HTTP; `workers` is
        the private folder of several gateways that accept connections from one socket; `when_lost` is called when the gateway
        must end because its files are gone.

        Raises ConfigError where strangers would be served unasked.
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
        self._tls = listener_tls(app.loaded.root)
        self.ready = False
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._when_lost = when_lost
        self._lost: str | None = None
        """Why the gateway must end at once; None while its files exist."""
        self._reload_wanted = asyncio.Event()
        self._watch_anew = asyncio.Event()
        self._watching: tuple[frozenset[str], frozenset[str]] | None = None
        report(app.loaded)
        self._server: UvicornServer | None = None
        self._collector: GarbageCollector | None = None
        self._side: Side = open_side(app, self.stop)

    async def serve(self, port: int | socket.socket, announce: Callable[[str, int], None]) -> None:
        """Serve until told to stop, on this port or on a socket that is bound already.

        `announce` is called once, with the address, when callers may come.
        """
        host = self._host
        warn_of_exposure(self.app.loaded.root, host)
        listening = port if isinstance(port, socket.socket) else bind(host, port)
        dashboard = self._dashboard(host, listening.getsockname()[1])
        self.site = Site(self.endpoint, self._state, self.app.metrics.exposition, dashboard)
        self._server = UvicornServer(
            server_settings(self.site, self._connection(), self._tls.context if self._tls else None)
        )
        self._catch_signals()
        work = (
            self._housekeeping(),
            self._watch_files(),
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
            self._side.open(_address(host, listening.getsockname()[1], self._tls is not None))
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
        verifier = HopVerifier(app.hop_key, shared.rows.owner, shared.rows.now_ms)
        return InternalListener(self.endpoint, verifier, app.internal)

    def _replies_in_progress(self) -> list[ReplyInProgress]:
        assert self._server is not None
        public = replies_in_progress(self._server.server_state.connections)
        internal = self._internal.replies_in_progress() if self._internal is not None else ()
        return [*public, *internal, *self.dashboard.api.calls.in_progress]

    def _connection(self) -> Callable[..., CallerConnection]:
        """Makes the protocol object of each new connection."""
        endpoint = self.endpoint
        return partial(
            CallerConnection, endpoint.posts.answer, endpoint.gateway.plan, endpoint.arrive, OpenConnections()
        )

    def _dashboard(self, host: str, port: int) -> Dashboard:
        self.app.gateway.lifecycle.address.listening_at(_address(host, port, self._tls is not None))
        self.dashboard = Dashboard(
            self.app.gateway.console,
            self.app.keys.secret,
            self.app.authorizer,
            self.app.responses,
            fits=partial(passphrase_fits, self.app.keys.passphrase) if self.app.keys.passphrase else None,
            provider=lambda: self._login.by(self.app.loaded.root),
            configuration=ConsoleConfiguration(lambda: self.app, self.reload),
        )
        return self.dashboard

    def login_url(self) -> str:
        """Return a single-use link that logs the operator into the console."""
        operator = self.app.plan.governing.approvers[OPERATOR]
        return self.dashboard.login_links.printed(operator)

    def stop(self) -> None:
        """Drain and end. A second call ends without waiting for requests in progress."""
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    async def _drain(self, serving: asyncio.Task[None]) -> None:
        """Let accepted requests finish; end long-lived streams with their final result."""
        self.ready = False
        assert self._server is not None
        if self._workers is not None:
            self._workers.close()
        self.app.gateway.lifecycle.drain()
        self.dashboard.live.end_all()
        if self.endpoint.forwarder is not None:
            self.endpoint.forwarder.end_streams()
        drain_s = self.app.plan.limits.drain_timeout_s if self._lost is None else 0.0
        self._server.stop(drain_s)
        began = clock.monotonic()
        handing_over = asyncio.create_task(self._hand_over())
        await self._side.drain(drain_s, self._hurry)
        await serving
        if self._internal is not None:
            await self._internal.close(max(1.0, began + drain_s - clock.monotonic()))
        handing_over.cancel()
        await asyncio.gather(handing_over, return_exceptions=True)
        if self._internal is not None and self.app.gateway.lifecycle.shared_sessions is not None:
            await self.app.gateway.lifecycle.shared_sessions.release_all()
        await _settle_tasks(self.app, began + drain_s - clock.monotonic(), self._hurry)

    async def _hand_over(self) -> None:
        """Hand the sessions to other gateways on the store now, instead of after the lease has expired."""
        if self._internal is not None and self.app.gateway.lifecycle.shared_sessions is not None:
            await self.app.gateway.lifecycle.shared_sessions.hand_over()

    async def close(self) -> None:
        await self._side.close()
        if self.endpoint.forwarder is not None:
            await self.endpoint.forwarder.close()
        if self._server is not None:
            await self.dashboard.api.calls.close()
        await self.app.responses.close()
        await self.app.gateway.lifecycle.close()
        await asyncio.gather(*(server.close() for server in self.app.servers.values()), return_exceptions=True)
        await self.app.close_retired()
        await self.app.http.close()
        await self.app.close_identity()
        await self._login.close()
        await self.app.outbound.close()
        await self.app.reaper.close()
        await self.app.close_store()
        log.report_left_out(last=True)
        self._side.release()

    def _catch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.stop)
        loop.add_signal_handler(signal.SIGINT, self.stop)
        loop.add_signal_handler(signal.SIGHUP, self._reload_wanted.set)

    def _state(self) -> dict[str, object]:
        servers = {name: server.status().state.value for name, server in self.app.servers.items()}
        lost = self._lost_files()
        trouble = lost or self.app.store.trouble
        sessions = len(self.app.gateway.lifecycle.sessions)
        catalogs = {name: self.app.gateway.lifecycle.catalogs.report(name) for name in servers}
        readiness = judge_readiness(
            serving=self.ready and lost is None,
            store_away=trouble is not None,
            shared=self.app.store.wakeups is not None,
            passthrough=self.app.plan.features.degraded_passthrough,
        )
        return {
            "ready": readiness.ready,
            "degraded": readiness.degraded,
            "store": trouble,
            "servers": servers,
            "catalogs": catalogs,
            "sessions": sessions,
            **self.app.replicas.report(),
        }

    async def _housekeeping(self) -> None:
        """Once a second: drop slow connections. Twice a minute: end idle sessions."""
        rounds = 0
        while True:
            await clock.sleep(HOUSEKEEPING_S)
            rounds += 1
            if self._server is not None:
                drop_slow(self._server.server_state.connections, clock.monotonic(), self.endpoint.limits())
            self.app.replicas.tend()
            if self._collector is not None:
                self._collector.tend()
            if self._tls is not None:
                self._tls.refresh()
            if self._internal is not None:
                self._internal.drop_slow(clock.monotonic(), self.endpoint.limits())
            await run_housekeeping(self.app, rounds)

    async def _run_retention(self) -> None:
        """Delete expired records until shutdown."""
        app = self.app
        retention = Retention(
            (app.gateway.lifecycle.tasks.sweep, app.forget_audit, app.gateway.lifecycle.call_log.forget_old),
            app.store.sweep_leftovers,
            lambda: app.loaded.root.tasks.sweep_interval_ms / 1000,
        )
        await retention.run()

    async def _watch_state(self) -> None:
        """End the gateway when its files are removed: its writes would be lost, and a second gateway could start."""
        loop = asyncio.get_running_loop()
        gone = loop.create_future()

        # A timer alone: waking a task twice a second would keep an idle gateway twice as busy.
        def look() -> None:
            if gone.done():
                return
            self._lost = self._lost_files()
            if self._lost is None:
                loop.call_later(STATE_CHECK_S, look)
            else:
                gone.set_result(None)

        loop.call_later(STATE_CHECK_S, look)
        await gone  # Cancelled at the end of the gateway: then `look` does not go on.
        log.error("the files of this gateway were removed; it ends now", why=self._lost)
        self.ready = False
        self._when_lost()
        self._hurry.set()
        self._stop.set()

    def _lost_files(self) -> str | None:
        state = self.app.state
        return self.app.store.lost or (state.lost() if state is not None else None) or self._side.lost()

    async def _watch_files(self) -> None:
        watching = asyncio.create_task(self._watch_for_changes())
        try:
            while True:
                await self._reload_wanted.wait()
                self._reload_wanted.clear()
                await self.reload()
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _watch_for_changes(self) -> None:
        while True:
            self._watch_anew.clear()
            if self._watching is not None:
                # For what was written before the new watch, which begins before the loop's next turn and so before the reload.
                self._reload_wanted.set()
            self._watching = wanted, folders = _watched(self.app.loaded)
            if not folders:
                await self._watch_anew.wait()
                continue
            async with aclosing(changed_files(folders, self._watch_anew)) as changes:
                async for changed in changes:
                    if any(path in wanted or str(Path(path).parent) in wanted for path in changed):
                        self._reload_wanted.set()

    async def _wait_until_written(self, path: Path) -> None:
        """Wait until the file is unchanged between two checks, for one second at most."""
        seen: tuple[int, int] | None = None
        for _ in range(CHANGE_CHECKS):
            try:
                found = await asyncio.to_thread(path.stat)
            except OSError:
                return
            if seen == (found.st_size, found.st_mtime_ns):
                return
            seen = (found.st_size, found.st_mtime_ns)
            await clock.sleep(CHANGE_CHECK_S)

    async def reload(self) -> str | None:
        """Apply the changed configuration. Return the problem if the old one stays in force."""
        path = self.app.loaded.path
        if path is None:
            return "There is no configuration file to read again."
        hide = self.app.loaded.secret_values
        try:
            for file in (path, *map(Path, self.app.loaded.beside)):
                await self._wait_until_written(file)
            loaded = await asyncio.to_thread(load, path)
            hide = loaded.secret_values
            refuse_truncated(self.app.loaded, loaded)
            check_exposure(loaded.root, self._host)
            self.app.reload(loaded)
        except (ConfigError, TaskgateError, ValueError) as error:
            problems = hide.text(str(error))
            log.error("configuration not reloaded; the old one stays in force", problems=problems)
            return problems
        log.info("configuration reloaded", revision=self.app.plan.revision, registry=self.app.plan.registry.revision)
        report(loaded)
        warn_of_exposure(loaded.root, self._host)
        if _watched(loaded) != self._watching:
            self._watch_anew.set()
        asyncio.get_running_loop().call_later(RETIRE_AFTER_S, self._retire)
        return None

    def _retire(self) -> None:
        self._retiring = asyncio.get_running_loop().create_task(self.app.close_retired())


def report(loaded: LoadedConfig) -> None:
    """Log the configuration's warnings and skipped servers."""
    for warning in loaded.warnings:
        log.warning("configuration", problem=str(warning))
    for gone in loaded.left_out:
        log.warning("server left out", server=gone.server, reason=gone.reason, detail=gone.detail)


def _watched(loaded: LoadedConfig) -> tuple[frozenset[str], frozenset[str]]:
    """The files and folders a configuration depends on, and the folders to watch for news of them."""
    folders = {path if path.is_dir() else path.parent for path in loaded.watch}
    return frozenset(map(str, loaded.watch)), frozenset(str(folder) for folder in folders if folder.is_dir())


def _address(host: str, port: int, tls: bool) -> str:
    """Return the URL of the listener for this machine."""
    shown = "127.0.0.1" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    return f"{'https' if tls else 'http'}://{shown}:{port}"


def bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind((host, port))
    listening.set_inheritable(True)
    return listening


async def _settle_tasks(app: App, left_s: float, hurry: asyncio.Event) -> None:
    """Wait for running tasks for the rest of the drain timeout, unless the operator stops the gateway again."""
    settling = asyncio.create_task(app.gateway.lifecycle.tasks.runs.settle(max(0.0, left_s)))
    hurried = asyncio.create_task(hurry.wait())
    await asyncio.wait({settling, hurried}, return_when=asyncio.FIRST_COMPLETED)
    for waited in (settling, hurried):
        waited.cancel()
    await asyncio.gather(settling, hurried, return_exceptions=True)


async def run_housekeeping(app: App, rounds: int) -> None:
    """Run one round of housekeeping. A failing store must not end the loop."""
    gateway = app.gateway.lifecycle
    try:
        log.report_left_out()
        gateway.flush_call_log()
        await app.audit.tend()
        await gateway.refresh()
        if rounds % REAP_EVERY == 0:
            await gateway.reap()
    except Exception as fault:  # one round of a background loop: without the next ones tasks would never expire
        log.error("housekeeping failed; it is retried", exc_info=fault)
