"""A request of ours that is on its way to a server, and the wire that carries it.

Wires know bytes and which messages belong to which request; links know what the messages mean. A wire hands every message that is
not the awaited response to its receiver, together with the flight it came in on if the transport can tell.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from taskgate.core.errors import Executed, UpstreamError
from taskgate.core.wire import Message
from taskgate.ports.upstream import UpstreamRequest


class Flight(msgspec.Struct):
    number: int
    timeout_s: float
    request: UpstreamRequest | None = None


class Receiver(Protocol):
    """The link, as its wire sees it."""

    def incoming(self, message: Message, flight: Flight | None) -> None: ...

    def lost(self, reason: UpstreamError) -> None: ...


class Wire(Protocol):
    session_id: str | None

    def attach(self, receiver: Receiver) -> None: ...

    def settle(self, version: str) -> None:
        """The revision is agreed; HTTP repeats it in a header from now on."""
        ...

    def begin_again(self) -> None:
        """A new handshake comes: what the last one agreed on is forgotten."""
        ...

    async def request(self, flight: Flight, body: bytes, headers: tuple[tuple[bytes, bytes], ...] = ()) -> Message: ...

    async def send(self, body: bytes) -> None: ...

    def listen(self) -> None:
        """Start hearing what the server says outside any request, where that needs a stream of its own."""
        ...

    async def close(self) -> None: ...


class SessionGone(UpstreamError):
    """The server no longer knows our session: nothing was executed, a new handshake may cure it."""

    def __init__(self, server: str) -> None:
        super().__init__("upstream_unreachable", f"The server {server} no longer knows the session.")


def unreachable(server: str, why: str, executed: Executed = Executed.NO) -> UpstreamError:
    advice = {
        Executed.NO: "The call was not executed; it is safe to try again.",
        Executed.MAYBE: "The call may or may not have taken effect; check before trying again.",
        Executed.YES: "The call was executed.",
    }[executed]
    return UpstreamError("upstream_unreachable", f"The server {server} {why}. {advice}", executed=executed)


def timed_out(server: str, seconds: float) -> UpstreamError:
    return UpstreamError(
        "upstream_timeout",
        f"The server {server} did not answer within {seconds:g} s. The call may or may not have taken effect.",
        executed=Executed.MAYBE,
    )


def broke_protocol(server: str, why: str) -> UpstreamError:
    return UpstreamError(
        "upstream_protocol",
        f"The server {server} {why}. The call may or may not have taken effect.",
        executed=Executed.MAYBE,
    )


def too_large(server: str, limit: int) -> UpstreamError:
    return UpstreamError(
        "result_too_large",
        f"The server {server} answered with more than {limit} bytes. The call was executed; ask for less at a time.",
        executed=Executed.YES,
    )
