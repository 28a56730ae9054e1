"""A failed call is freed when it is answered, and does not wait for the garbage collector, which rarely runs under load."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from tests.virtual_time import Call, Failure, Gateway, Upstream, virtual_time

from taskgate.core.errors import UpstreamError
from taskgate.ports.upstream_call import UpstreamCall
from taskgate.ports.upstream_replies import RelayedError


class _Disconnecting(Upstream):
    def __init__(self, generation: str) -> None:
        super().__init__(generation)
        self.on("tools/call", self._fail)

    async def _fail(self, call: Call) -> Any:
        if call.params["name"] == "good":
            return {"content": []}
        self.disconnect()
        return await call.sleep(1)


class _Refusing(Upstream):
    """Offers a tool that it does not have."""

    def __init__(self, generation: str) -> None:
        super().__init__(generation)
        self.on("tools/call", self._refuse)

    async def _refuse(self, call: Call) -> Any:
        raise Failure(-32602, f"{call.params['name']} is not known here")


@virtual_time
@pytest.mark.parametrize("generation", ["2025", "2026"])
@pytest.mark.parametrize("server", [_Disconnecting, _Refusing])
async def test_a_failed_call_leaves_no_cycle(generation: str, server: type[Upstream]) -> None:
    upstream = server(generation)
    for name in ("good", "broken"):
        upstream.tool(name)(_never)
    async with Gateway({}, {"s": upstream}) as gate:
        caller = await gate.caller(generation)
        await caller.call("s__broken")
        gc.collect()
        gc.disable()
        before = _kept()
        try:
            for _ in range(3):
                # Leaves an idle connection, over which the next call is sent.
                await caller.call("s__good")
                reply = await caller.call("s__broken")
                assert "error" in reply.last or reply.last["result"]["isError"]
            del reply
            await gate.advance(5)
            assert _kept() <= before + 1
        finally:
            gc.enable()


def _kept() -> int:
    """How many objects of failed calls exist: a link may know its last call."""
    kinds = [type(each) for each in gc.get_objects()]
    return sum(issubclass(kind, UpstreamCall | UpstreamError | RelayedError) for kind in kinds)


async def _never(call: Call) -> str:
    raise NotImplementedError
