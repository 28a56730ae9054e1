"""Hand over a caller's connection to the worker that holds its session, instead of forwarding each of its requests.

With `taskgate serve --workers N`, any worker may accept a connection, and a client uses several connections for one session of MCP
2025-11-25. A forwarded request is read, checked and answered by two processes, which costs more than twice as much. So the first
request for a session of another worker moves its connection: the socket is sent to that worker through a Unix socket (SCM_RIGHTS)
together with the request, and all later requests are answered by the worker that holds the session.

These connections are forwarded instead: TLS (the keys are in this process), trusted proxies (they multiplex sessions),
connections with a pipelined request, and connections that have moved before.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Final

from taskgate import operating_system
from taskgate.inbound.http.asgi import Headers
from taskgate.telemetry.logs import log

MAX_REQUEST_BYTES: Final = 64 * 1024
"""A longer request is forwarded: it might not fit into one datagram."""
_FRAMING: Final = frozenset({b"content-length", b"transfer-encoding", b"expect", b"trailer"})

Take = Callable[[socket.socket, bytes], None]


class WorkerSockets:
    """The datagram socket of one worker, in the private folder of all workers."""

    def __init__(self, folder: Path, owner: str) -> None:
        self._folder = folder
        self._path = folder / f"{owner}.connections"
        self._sending = operating_system.unix_socket(socket.SOCK_DGRAM)
        self._sending.setblocking(False)
        self._receiving: socket.socket | None = None
        self._take: Take | None = None

    def open(self, take: Take) -> None:
        """Start receiving: `take` is called with each connection and the bytes of its request."""
        self._take = take
        self._receiving = operating_system.unix_socket(socket.SOCK_DGRAM)
        self._receiving.setblocking(False)
        self._receiving.bind(str(self._path))
        asyncio.get_running_loop().add_reader(self._receiving.fileno(), self._receive)

    def give(self, owner: str, descriptor: int, request: bytes) -> bool:
        """Send a connection to another worker. Return False if it does not exist or its queue is full."""
        # Not `socket.send_fds`: in Python 3.11 it ignores the address.
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [descriptor]))]
        try:
            self._sending.sendmsg([request], rights, 0, str(self._folder / f"{owner}.connections"))
        except OSError:
            return False
        return True

    def _receive(self) -> None:
        """Receive all pending connections. A failure of one does not affect the others."""
        assert self._receiving is not None
        while True:
            try:
                request, descriptors, _flags, _from = socket.recv_fds(self._receiving, MAX_REQUEST_BYTES, 4)
            except BlockingIOError:
                return
            for descriptor in descriptors:
                self._took(descriptor, request)

    def _took(self, descriptor: int, request: bytes) -> None:
        try:
            given = socket.socket(fileno=descriptor)
        except OSError as problem:
            log.warning("connection from another worker could not be opened", why=str(problem))
            return
        assert self._take is not None
        self._take(given, request)

    def close(self) -> None:
        """Remove the socket, and receive the connections sent before that."""
        with contextlib.suppress(OSError):
            self._path.unlink()
        if self._receiving is not None:
            self._receive()
            asyncio.get_running_loop().remove_reader(self._receiving.fileno())
            self._receiving.close()
            self._receiving = None
        self._sending.close()


def request_bytes(method: bytes, url: bytes, headers: Headers, body: bytes) -> bytes | None:
    """Return the request as a caller would send it, or None if it is too long to hand over."""
    lines = b"".join([b"%b: %b\r\n" % header for header in headers if header[0] not in _FRAMING])
    length = b"content-length: %d\r\n" % len(body) if body else b""
    whole = b"%b %b HTTP/1.1\r\n%b%b\r\n%b" % (method, url, lines, length, body)
    return whole if len(whole) <= MAX_REQUEST_BYTES else None
