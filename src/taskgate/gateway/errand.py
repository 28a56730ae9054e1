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
