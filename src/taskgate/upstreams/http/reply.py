"""What an HTTP peer answered: the head, and the head with its body. Plain values without meaning."""

from __future__ import annotations

import msgspec


class HttpHead(msgspec.Struct, frozen=True):
    """Status and headers. Names are lower case; in `headers` the first value of a name wins, `header_list` has all."""

    status: int
    headers: dict[bytes, bytes]
    header_list: list[tuple[bytes, bytes]]


class HttpReply(msgspec.Struct, frozen=True):
    """A finished exchange. For an event stream `body` is empty and `stopped` says that the reader had heard enough.

    `request_sent` is False when the peer answered before the whole request had left, so it cannot have executed it.
    """

    status: int
    headers: dict[bytes, bytes]
    header_list: list[tuple[bytes, bytes]]
    body: bytes
    stopped: bool
    request_sent: bool
