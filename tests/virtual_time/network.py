"""Connections in memory: real bytes between real protocols, in order, without a socket.

Each end has a receive buffer of limited size, as a kernel has; a writer that fills it is paused. `close` delivers what was
written and then an end of file; `abort` drops what did not fit into the buffer; `reset` breaks the connection as a crashed machine
would. Nothing here waits: bytes arrive in the next iteration of the event loop.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import ipaddress
import itertools
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tests.virtual_time.loop import Process, VirtualLoop

Address = tuple[str, int]
RECEIVE_BYTES: Final = 256 * 1024
READS_IN_A_TURN: Final = 32
"""As many times does uvloop read the same socket in one turn, as long as its protocol does not pause."""
_HIGH_WATER: Final = 64 * 1024


class Network:
    """The listeners by address, and all connections."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._listeners: dict[Address, Listener] = {}
        self.names: dict[str, str] = {"localhost": "127.0.0.1"}
        self._ports = itertools.count(40_000)
        self._silent: set[Address] = set()
        self.ends: list[End] = []
        self._check_ended_above = 100
        self.receive_bytes = RECEIVE_BYTES
        self.on_connect: Callable[[Address], None] = lambda _address: None
        """Called with the address at every attempt to connect, whether or not there is a listener."""

    def name(self, host: str, address: str) -> None:
        self.names[host] = address

    def resolve(self, host: Any, port: Any) -> list[Any]:
        host = host.decode() if isinstance(host, bytes) else str(host)
        found = self.names.get(host)
        if found is None:
            try:
                found = str(ipaddress.ip_address(host))
            except ValueError:
                raise socket.gaierror(socket.EAI_NONAME, "Name or service not known") from None
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (found, int(port or 0)))]

    def stop_answering(self, address: Address) -> None:
        """Connections to this address get no answer at all, as behind a firewall."""
        self._silent.add(address)

    def resume_answering(self, address: Address) -> None:
        self._silent.discard(address)

    def listen(self, factory: Callable[[], Any], address: Address) -> Listener:
        host, port = address
        address = (host, port or next(self._ports))
        if address in self._listeners:
            raise OSError(errno.EADDRINUSE, f"{address} is in use")
        listener = self._listeners[address] = Listener(self, factory, address)
        return listener

    def stop_listening(self, address: Address) -> None:
        self._listeners.pop(address, None)

    async def connect(self, factory: Callable[[], Any], host: Any, port: Any) -> tuple[End, Any]:
        address = self.resolve(host, port)[0][4]
        self.on_connect(address)
        if address in self._silent:
            await self._loop.create_future()
        listener = self._listeners.get(address) or self._listeners.get(("0.0.0.0", address[1]))
        if listener is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"Connect call failed {address}")
        ours: Address = ("127.0.0.1", next(self._ports))
        near = End(self._loop, contextvars.copy_context(), ours, address, self.receive_bytes)
        far = End(self._loop, listener.context, address, ours, self.receive_bytes)
        near.peer, far.peer = far, near
        self._remember(near, far)
        self._loop.call_soon(far.open, listener.factory, context=far.context)
        protocol = factory()
        near.use(protocol)
        return near, protocol

    def _remember(self, *ends: End) -> None:
        """Drop ended connections, but not at every new one: a test may have thousands."""
        self.ends += ends
        if len(self.ends) > self._check_ended_above:
            self.ends = [end for end in self.ends if not end.is_over]
            self._check_ended_above = 2 * len(self.ends) + 100

    def close(self) -> None:
        for end in self.ends:
            end.forget()

    def cut_off(self, process: Process) -> None:
        """The process has ended: its peers read the end of the stream."""
        from tests.virtual_time.loop import PROCESS

        for address, listener in list(self._listeners.items()):
            if listener.context.get(PROCESS) is process:
                del self._listeners[address]
        for end in self.ends:
            if end.context.get(PROCESS) is process:
                end.abort()


class Listener(asyncio.AbstractServer):
    def __init__(self, network: Network, factory: Callable[[], Any], address: Address) -> None:
        self._network = network
        self.factory = factory
        self.address = address
        self.context = contextvars.copy_context()
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def sockets(self) -> tuple[Any, ...]:
        return () if self._closed.done() else (_Address(self.address, None),)

    def close(self) -> None:
        self._network.stop_listening(self.address)
        if not self._closed.done():
            self._closed.set_result(None)

    async def wait_closed(self) -> None:
        await asyncio.shield(self._closed)

    def is_serving(self) -> bool:
        return not self._closed.done()

    async def start_serving(self) -> None: ...

    async def serve_forever(self) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.close()

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()


class End(asyncio.Transport):
    """One end of a connection, as a transport."""

    peer: End

    def __init__(
        self, loop: VirtualLoop, context: contextvars.Context, name: Address, peer_name: Address, receive_bytes: int
    ) -> None:
        super().__init__()
        self._loop = loop
        self.context = context.copy()
        self._names = {"sockname": name, "peername": peer_name}
        self._receive_space = receive_bytes
        self._protocol: Any = None
        self._received = bytearray()
        self._unsent = bytearray()
        self._high, self._low = _HIGH_WATER, _HIGH_WATER // 4
        self._socket: _Address | None = None
        self._reading = True
        self._delivering = False
        self._paused_writing = False
        self._eof_requested = self._eof_sent = False
        self._eof_received = self._eof_delivered = False
        self._closing = False
        self.is_over = False

    def open(self, factory: Callable[[], Any]) -> None:
        self.use(factory())

    def use(self, protocol: Any) -> None:
        self._protocol = protocol
        protocol.connection_made(self)
        self._look()

    # What a protocol does with its transport

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "socket":
            if self._socket is None:
                self._socket = _Address(self._names["sockname"], self._names["peername"])
                self._show_readable()
            return self._socket
        return self._names.get(name, default)

    def write(self, data: Any) -> None:
        if self._eof_requested:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self._closing or not data:
            return
        if self.peer.is_over:
            self._end(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))
            return
        self._unsent += data
        self._send()
        if not self._paused_writing and len(self._unsent) > self._high:
            self._paused_writing = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        self._eof_requested = True
        self._send()

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._reading = False
            self._send()

    def abort(self) -> None:
        self._unsent.clear()
        self._end(None)

    def reset(self) -> None:
        """Break: the other end loses what it has not read yet."""
        self.peer._received.clear()
        self.peer._end(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))
        self.abort()

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._closing:
            self._reading = True
            self._look()

    def is_reading(self) -> bool:
        return self._reading

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = _HIGH_WATER if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol

    # Transfer of bytes

    def _send(self) -> None:
        """Move as much as fits into the buffer of the other end."""
        space = self.peer._receive_space - len(self.peer._received)
        if space > 0 and self._unsent:
            self.peer._received += self._unsent[:space]
            del self._unsent[:space]
            self.peer._look()
        if self._unsent:
            return
        if (self._eof_requested or self._closing) and not self._eof_sent:
            self._eof_sent = self.peer._eof_received = True
            self.peer._look()
        if self._closing:
            self._end(None)

    def _look(self) -> None:
        """Check whether there is something to read."""
        self._show_readable()
        if not self._delivering and self._protocol is not None and not self.is_over:
            self._delivering = True
            self._loop.call_soon(self._deliver, context=self.context)

    def _deliver(self) -> None:
        self._delivering = False
        for _ in range(READS_IN_A_TURN):
            if not (self._received and self._reading):
                break
            data = bytes(self._received)
            self._received.clear()
            self._show_readable()
            self._protocol.data_received(data)
            self._loop.call_soon(self.peer._resume_writer, context=self.peer.context)
            self.peer._send()
        if self._eof_received and not self._received and self._reading and not self._eof_delivered:
            self._eof_delivered = True
            if not self._protocol.eof_received():
                self.close()

    def _resume_writer(self) -> None:
        if self.is_over:
            return
        self._send()
        if self._paused_writing and len(self._unsent) <= self._low:
            self._paused_writing = False
            self._protocol.resume_writing()

    def _end(self, problem: Exception | None) -> None:
        if self.is_over:
            return
        self.is_over = self._closing = True
        self._reading = False
        if not self._eof_sent:
            self._eof_sent = self.peer._eof_received = True
            self.peer._look()
        self._loop.call_soon(self._lost, problem, context=self.context)
        if self._socket is not None:
            self._loop.call_soon(self._socket.close)

    def forget(self) -> None:
        if self._socket is not None:
            self._socket.close()

    def _lost(self, problem: Exception | None) -> None:
        # As in asyncio, a lost transport keeps no protocol.
        protocol, self._protocol = self._protocol, None
        if protocol is not None:
            protocol.connection_lost(problem)

    def _show_readable(self) -> None:
        if self._socket is not None:
            self._socket.show(bool(self._received) or self._eof_received)


class _Address:
    """Replaces the socket of a connection: its names, and a descriptor that is readable when bytes are there."""

    family, type = socket.AF_INET, socket.SOCK_STREAM

    def __init__(self, name: Address, peer_name: Address | None) -> None:
        self._name, self._peer_name = name, peer_name
        self._descriptor: int | None = None
        self._readable = False

    def getsockname(self) -> Address:
        return self._name

    def getpeername(self) -> Address | None:
        return self._peer_name

    def setsockopt(self, *_: Any) -> None: ...

    def fileno(self) -> int:
        if self._descriptor is None:
            self._descriptor = os.eventfd(1 if self._readable else 0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        return self._descriptor

    def show(self, readable: bool) -> None:
        if readable is not self._readable and self._descriptor is not None:
            if readable:
                os.eventfd_write(self._descriptor, 1)
            else:
                os.eventfd_read(self._descriptor)
        self._readable = readable

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
            self._readable = False
