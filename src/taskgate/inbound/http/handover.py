"""Give a caller's connection to the worker that holds its session, instead of forwarding each of its requests.

`taskgate serve --workers N`: chance decides which worker accepts a connection, and a client uses several for one session of MCP
2025. A forwarded request is read, checked and answered by two processes, which costs more than twice as much. So the first request
for a session of another worker takes its connection along: the open socket goes to that worker through a Unix socket (SCM_RIGHTS),
with the request, and everything after it is answered where the session is.

What cannot move is forwarded as before: connections of TLS (their keys are in this process), of trusted proxies (which send other
sessions through the same connection), with another request behind the first one, and those that have moved before.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Final

from taskgate.inbound.http.asgi import Headers
from taskgate.telemetry.logs import log

MOST_BYTES: Final = 64 * 1024
"""A longer request is forwarded: it would not fit into one datagram everywhere."""
_FRAMING: Final = frozenset({b"content-length", b"transfer-encoding", b"expect", b"trailer"})

Take = Callable[[socket.socket, bytes], None]


class WorkerSockets:
    """One worker's side: a datagram socket in the private folder of all workers, under the worker's name."""

    def __init__(self, folder: Path, owner: str) -> None:
        self._folder = folder
        self._path = folder / f"{owner}.connections"
        self._sending = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._sending.setblocking(False)
        self._receiving: socket.socket | None = None
        self._take: Take | None = None

    def open(self, take: Take) -> None:
        """From now on `take` gets the connections that other workers give, each with the bytes of a request."""
        self._take = take
        self._receiving = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._receiving.setblocking(False)
        self._receiving.bind(str(self._path))
        asyncio.get_running_loop().add_reader(self._receiving.fileno(), self._receive)

    def give(self, owner: str, descriptor: int, request: bytes) -> bool:
        """False: there is no such worker here, or it has too much to do. Then nothing was given."""
        # Not `socket.send_fds`: in Python 3.11 it ignores the address.
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [descriptor]))]
        try:
            self._sending.sendmsg([request], rights, 0, str(self._folder / f"{owner}.connections"))
        except OSError:
            return False
        return True

    def _receive(self) -> None:
        """Everything that has come; each is on its own, so one that cannot be taken costs no other."""
        assert self._receiving is not None
        while True:
            try:
                request, descriptors, _flags, _from = socket.recv_fds(self._receiving, MOST_BYTES, 4)
            except BlockingIOError:
                return
            for descriptor in descriptors:
                self._took(descriptor, request)

    def _took(self, descriptor: int, request: bytes) -> None:
        try:
            given = socket.socket(fileno=descriptor)
        except OSError as problem:
            log.warning("a connection from another worker could not be taken", why=str(problem))
            return
        assert self._take is not None
        self._take(given, request)

    def close(self) -> None:
        """Take what was given before the name was gone, and nothing after it."""
        with contextlib.suppress(OSError):
            self._path.unlink()
        if self._receiving is not None:
            self._receive()
            asyncio.get_running_loop().remove_reader(self._receiving.fileno())
            self._receiving.close()
            self._receiving = None
        self._sending.close()


def request_bytes(method: bytes, url: bytes, headers: Headers, body: bytes) -> bytes | None:
    """The request as a caller would send it; None if it is too long to be given away."""
    lines = b"".join([b"%b: %b\r\n" % header for header in headers if header[0] not in _FRAMING])
    length = b"content-length: %d\r\n" % len(body) if body else b""
    whole = b"%b %b HTTP/1.1\r\n%b%b\r\n%b" % (method, url, lines, length, body)
    return whole if len(whole) <= MOST_BYTES else None
