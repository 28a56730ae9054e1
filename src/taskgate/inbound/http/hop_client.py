"""Send signed requests to other gateways on the same store, and fail them when the target's lease expires.

A gateway that is paused or disconnected sends nothing, so the end of its lease is what ends a request to it.
"""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import Any, Final

import msgspec

from taskgate import clock
from taskgate.access.authorize import Authorized
from taskgate.core.errors import Executed
from taskgate.gateway.methods.shared_sessions import SharedSessions
from taskgate.inbound.http.asgi import Headers
from taskgate.inbound.http.hop import HOP, HopSigner, forwarded_headers
from taskgate.mcp.failures import HttpFailure, Stage
from taskgate.mcp.http.client import HttpClient
from taskgate.mcp.http.reader import HttpReply, OnChunk, OnHead
from taskgate.mcp.http.target import Origin, PreparedTarget

_LEASE_CHECK_S: Final = 0.25
_MIB: Final = 1024 * 1024


class _Hop(msgspec.Struct, eq=False):
    """One exchange with another gateway, and the task that waits for it."""

    home: str
    work: asyncio.Task[Any]
    home_crashed: bool = False
    sent: bool = False

    def sending(self) -> None:
        self.sent = True

    def give_up(self) -> None:
        if not self.home_crashed:
            self.home_crashed = True
            self.work.cancel()


class HopClient:
    def __init__(self, shared: SharedSessions, signer: HopSigner, max_result_bytes: int) -> None:
        self._rows = shared.rows
        self._signer = signer
        self._http = HttpClient(
            connect_timeout_s=2.0,
            idle_s=60.0,
            max_connections_per_origin=16_384,
            max_response_bytes=max_result_bytes + _MIB,
        )
        self._open: set[_Hop] = set()
        self._watching: asyncio.Task[None] | None = None

    async def exchange(
        self,
        home: str,
        method: bytes,
        url: bytes,
        every_header: Headers,
        body: bytes,
        *,
        authorized: Authorized,
        on_head: OnHead | None = None,
        on_chunk: OnChunk | None = None,
    ) -> HttpReply:
        """Send one request to another gateway. Raises HttpFailure, also if that gateway's lease expires meanwhile."""
        origin = origin_at(self._rows.address_of(home))
        headers = forwarded_headers(every_header)
        signature = self._signer.sign(method, url, headers, body, home=home, proof=authorized.forwarded)
        lines = b"".join([b"%b: %b\r\n" % header for header in headers])
        request = b"%b %b HTTP/1.1\r\nhost: %b\r\ncontent-length: %d\r\n%b%b: %b\r\n\r\n%b" % (
            (method, url, home.encode("ascii"), len(body), lines, HOP, signature, body)
        )
        work = asyncio.current_task()
        assert work is not None
        hop = _Hop(home, work)
        self._open.add(hop)
        self._watch()
        try:
            target = PreparedTarget(origin, request)
            return await self._http.exchange(
                target, method, deadline_s=None, on_head=on_head, on_chunk=on_chunk, on_sending=hop.sending
            )
        except asyncio.CancelledError:
            if not hop.home_crashed or work.uncancel() > 0:
                raise
            stage, executed = (Stage.AWAIT_HEAD, Executed.MAYBE) if hop.sent else (Stage.CONNECT, Executed.NO)
            raise HttpFailure(stage, "the lease of the other gateway expired", executed) from None
        finally:
            self._open.discard(hop)

    def _watch(self) -> None:
        if self._watching is None or self._watching.done():
            self._watching = asyncio.get_running_loop().create_task(self._watch_leases())

    async def _watch_leases(self) -> None:
        while self._open:
            for hop in [hop for hop in self._open if not self._rows.is_alive(hop.home)]:
                hop.give_up()
            await clock.sleep(_LEASE_CHECK_S)

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self._http.close()


@lru_cache(maxsize=256)
def origin_at(address: str) -> Origin:
    """Parse `listen.internal` of another gateway, as published in its lease: host:port or the path of a Unix socket."""
    if address.startswith("/"):
        return Origin(False, address, 0)
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise HttpFailure(Stage.RESOLVE, "the other gateway has no internal address", Executed.NO)
    return Origin(False, host.strip("[]"), int(port))
