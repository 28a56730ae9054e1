"""How an exchange over HTTP or with a child process fails, and which addresses lead into this machine or its network."""

from __future__ import annotations

import ipaddress
from enum import StrEnum


class Executed(StrEnum):
    """What is known about the effect of a call that did not end well."""

    NO = "no"
    MAYBE = "maybe"
    YES = "yes"


class Stage(StrEnum):
    """How far the exchange had come."""

    RESOLVE = "resolve"
    CONNECT = "connect"
    TLS = "tls"
    POOL_FULL = "pool_full"
    WRITE = "write"
    AWAIT_HEAD = "await_head"
    READ_BODY = "read_body"
    DEADLINE = "deadline"
    TOO_LARGE = "too_large"
    MALFORMED = "malformed"


class HttpFailure(Exception):
    """An exchange without a usable reply. `status` is known once a head has come; `partial` begins its body.

    `message` is for who may know addresses, `reason` for everybody else: a few fixed words, or none.
    """

    def __init__(
        self,
        stage: Stage,
        message: str,
        executed: Executed,
        *,
        status: int | None = None,
        partial: bytes = b"",
        reason: str = "",
    ) -> None:
        super().__init__(message)
        self.stage = stage
        self.message = message
        self.executed = executed
        self.status = status
        self.partial = partial
        self.reason = reason

    def __repr__(self) -> str:
        return (
            f"HttpFailure({self.stage.value}, {self.message!r}, executed={self.executed.value}, status={self.status})"
        )


class ChildProblem(StrEnum):
    """Why a child could not be started or a line not be sent."""

    NOT_FOUND = "not_found"
    NOT_STARTED = "not_started"
    GONE = "gone"
    BUFFER_FULL = "buffer_full"


class ChildFailure(Exception):
    """Raised by `Child.start` and `Child.send`; `executed` is always NO."""

    executed = Executed.NO

    def __init__(self, problem: ChildProblem, message: str) -> None:
        super().__init__(message)
        self.problem = problem
        self.message = message


# Which numbers lead to the open internet, and which into this machine or a network behind it.
#
# Judged at the very moment of connecting, so a name that changes its mind gains nothing.

# IPv4 addresses written as IPv6 ones: translated by a router (NAT64), or the old "compatible" form.
_TRANSLATED = (
    ipaddress.IPv6Network("64:ff9b::/96"),
    ipaddress.IPv6Network("64:ff9b:1::/48"),
    ipaddress.IPv6Network("::/96"),
)


def is_public_address(address: str) -> bool:
    """Whether a number leads to the open internet, and not into this machine or a network behind it.

    An IPv4 address inside an IPv6 one (mapped, translated, tunnelled) is judged as the IPv4 address it leads to.
    """
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address):
        if found.scope_id is not None:
            return False
        inner = [found.ipv4_mapped, found.sixtofour, *(found.teredo or ())]
        if any(found in network for network in _TRANSLATED):
            inner.append(ipaddress.IPv4Address(int(found) & 0xFFFFFFFF))
        if any(each is not None and not _is_global(each) for each in inner):
            return False
        if found.ipv4_mapped is not None:
            return True
    return _is_global(found)


def _is_global(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    return address.is_global and not address.is_multicast and not address.is_reserved
