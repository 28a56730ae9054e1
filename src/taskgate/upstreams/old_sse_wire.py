"""The HTTP+SSE transport of 2024-11-05: one GET stream for all messages, and POST requests to a URL that the stream announces.

Supported towards servers only, because some still use it.
"""

from __future__ import annotations

import asyncio
from typing import Final
from urllib.parse import urljoin, urlsplit

from taskgate.mcp.failures import HttpFailure
from taskgate.mcp.http.client import HttpClient
from taskgate.mcp.http.target import Target
from taskgate.mcp.sse import SseEvent
from taskgate.upstreams.failures import unreachable
from taskgate.upstreams.intake import Intake
from taskgate.upstreams.secret_filter import SecretFilter
from taskgate.upstreams.stream_wire import StreamWire

_MAX_ADDRESS: Final = 2_048
"""Characters of the announced URL. Reading a longer one takes quadratic time, because Python normalizes the host."""


class OldSseWire(StreamWire):
    def __init__(
        self,
        server: str,
        client: HttpClient,
        url: str,
        headers: dict[str, str],
        intake: Intake,
        *,
        secret_filter: SecretFilter,
    ) -> None:
        super().__init__(server, intake, secret_filter)
        self._client = client
        self._url = url
        self._headers = headers
        self._post_target: asyncio.Future[Target] | None = None
        self._stream: asyncio.Task[None] | None = None

    async def start(self, timeout_s: float) -> None:
        """Open the stream and wait for the URL to post to. Raises CallFailed."""
        loop = asyncio.get_running_loop()
        self._post_target = loop.create_future()
        self._stream = loop.create_task(self._follow())
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(self._post_target)
        except TimeoutError:
            await self.close()
            raise unreachable(self.server, "announced no URL to post to") from None

    async def _follow(self) -> None:
        target = Target.parse(self._url, self._headers)
        try:
            reply = await self._client.exchange(
                target,
                b"GET",
                ((b"accept", b"text/event-stream"),),
                b"",
                deadline_s=None,
                on_event=self._on_event,
                long_lived=True,
            )
            why = "closed the event stream" if reply.status == 200 else f"returned HTTP {reply.status}"
        except HttpFailure:
            why = "broke the event stream"
        if self._post_target is not None and not self._post_target.done():
            self._post_target.set_exception(unreachable(self.server, why))
        self.stream_ended(why)

    def _on_event(self, event: SseEvent) -> bool:
        if event.event == "endpoint" and self._post_target is not None and not self._post_target.done():
            self._take_address(event.data.decode("utf-8", "replace"))
        elif event.event in ("message", "") and event.data:
            self.received(event.data)
        return False

    def _take_address(self, address: str) -> None:
        """Set the URL to post to. It must have the same origin, so that requests cannot be redirected elsewhere."""
        assert self._post_target is not None
        if len(address) > _MAX_ADDRESS:
            self._post_target.set_exception(unreachable(self.server, "announced a URL that is too long"))
            return
        url = urljoin(self._url, address)
        if urlsplit(url)[:2] != urlsplit(self._url)[:2]:
            self._post_target.set_exception(unreachable(self.server, "announced a URL of another origin"))
        else:
            self._post_target.set_result(Target.parse(url, self._headers))

    async def _write(self, body: bytes) -> int:
        assert self._post_target is not None
        target = await self._post_target
        try:
            reply = await self._client.exchange(
                target, b"POST", ((b"content-type", b"application/json"),), body, deadline_s=30
            )
        except HttpFailure as failure:
            raise unreachable(self.server, "broke the connection", failure.executed) from None
        if not reply.request_sent:
            raise unreachable(self.server, "replied before it had received the request")
        if reply.status >= 400:
            raise unreachable(self.server, f"rejected the request with HTTP {reply.status}")
        return 0

    async def close(self) -> None:
        if self._stream is not None:
            self._stream.cancel()
            await asyncio.gather(self._stream, return_exceptions=True)
        self.stream_ended("was closed")
