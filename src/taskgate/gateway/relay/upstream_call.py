"""One thing to ask of one upstream: the method with the upstream's own names in it."""

from __future__ import annotations

import msgspec

from taskgate.core.wire import Members
from taskgate.ports.upstream import Upstream


class Errand(msgspec.Struct):
    upstream: Upstream
    method: str
    params: Members
    name: str
    timeout_s: float
    headers: tuple[tuple[bytes, bytes], ...] = ()
    trace: tuple[tuple[bytes, bytes], ...] = ()

    def resume(self, params: Members) -> None:
        """The caller came back with answers of its own: these params go out instead."""
        self.params = params

    def follow_trace(self, params: Members, headers: tuple[tuple[bytes, bytes], ...]) -> None:
        """The call carries the trace context of the request it is made for."""
        self.params, self.trace = params, headers
