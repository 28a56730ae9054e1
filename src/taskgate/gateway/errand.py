"""One thing to ask of one upstream: the method with the upstream's own names in it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from taskgate.core import wire
from taskgate.core.wire import Members, Raw
from taskgate.ports.upstream import Upstream


class Errand(msgspec.Struct):
    upstream: Upstream
    method: str
    params: Members
    name: str
    timeout_s: float
    headers: tuple[tuple[bytes, bytes], ...] = ()
    trace: tuple[tuple[bytes, bytes], ...] = ()

    def next_round(self, answers: Mapping[str, Raw], state: Raw | None) -> None:
        """The same call once more, with answers and the state that the server gave us to keep."""
        self.params = {**self.params, "inputResponses": Raw(wire.encode(dict(answers)))}
        if state is not None:
            self.params["requestState"] = state
        else:
            self.params.pop("requestState", None)

    def resume(self, params: Members) -> None:
        """The caller came back with answers of its own: these params go out instead."""
        self.params = params

    def follow_trace(self, params: Members, headers: tuple[tuple[bytes, bytes], ...]) -> None:
        """The call carries the trace context of the request it is made for."""
        self.params, self.trace = params, headers
