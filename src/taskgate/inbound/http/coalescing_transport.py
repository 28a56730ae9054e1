"""Send the head and the body of a response in one system call."""

from __future__ import annotations

from typing import Any


class CoalescingTransport:
    """A transport that holds the head of a response until its body is written, so that both are sent in one system call.

    The system call is the most expensive part of a small response. A head whose body does not follow at once (an event
    stream) is sent in the next iteration of the event loop.
    """

    __slots__ = ("_head", "_loop", "_transport")

    def __init__(self, transport: Any, loop: Any) -> None:
        self._transport = transport
        self._loop = loop
        self._head: bytes | None = None

    def write(self, data: bytes) -> None:
        if self._head is not None:
            data, self._head = self._head + data, None
        elif data.startswith(b"HTTP/1.1 "):
            self._head = data
            self._loop.call_soon(self._flush)
            return
        self._transport.write(data)

    def _flush(self) -> None:
        if self._head is not None and not self._transport.is_closing():
            head, self._head = self._head, None
            self._transport.write(head)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
