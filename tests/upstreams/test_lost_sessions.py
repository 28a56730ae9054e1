"""A server that lost its sessions, as after a restart, while many calls of one link are on their way to it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.virtual_time import Gateway, Upstream, virtual_time
from tests.virtual_time.upstream_http import HttpReply

CALLS = 40
HANDSHAKE_S = 0.2


class Restarting(Upstream):
    """Strict about sessions, as the official servers are: a message without one gets 400, and one in a session that it does not
    know 404, or 400 too. A handshake takes some time, and so does each kind of refusal.
    """

    def __init__(self, status: int) -> None:
        super().__init__("2025")
        self._unknown = status
        self._refused_after_s = _delays()
        self.on("initialize", self._shake_hands)

    async def _shake_hands(self, call: Any) -> Any:
        await asyncio.sleep(HANDSHAKE_S)
        return self._initialized(call)

    def _request(self, method: str, headers: dict[str, str], body: bytes, reply: HttpReply) -> None:
        session = headers.get("mcp-session-id", "")
        if session and session not in self.sessions:
            asyncio.get_running_loop().call_later(next(self._refused_after_s), reply.send, self._unknown)
        elif not session and b'"initialize"' not in body:
            reply.send(400)
        else:
            super()._request(method, headers, body, reply)


def _delays() -> Iterator[float]:
    """Before, during and after the new handshake."""
    while True:
        for hundredths in range(0, 60, 3):
            yield hundredths / 100


@pytest.mark.parametrize("status", [404, 400])
@pytest.mark.parametrize(("generation", "as_task"), [("2025", False), ("2025", True), ("2026", False)])
@virtual_time
async def test_every_call_is_executed_once_in_the_new_session(generation: str, as_task: bool, status: int) -> None:
    """A call may notice the loss before the new handshake has begun, during it, or after it."""
    shop = Restarting(status)
    async with Gateway({}, {"shop": shop}) as gate:
        caller = await gate.caller(generation)
        assert (await caller.call("shop__echo")).text == "{}"
        handshakes = shop.methods["initialize"]
        shop.forget_sessions()

        async def one(number: int) -> str:
            # Half of them are sent in the session that is lost, the others while the new one is made.
            await asyncio.sleep(0 if number % 2 else number / 200)
            if not as_task:
                return (await caller.call("shop__echo", {"number": number})).text
            task = (await caller.call("shop__echo", {"number": number}, task={"ttl": 60_000})).result["task"]
            return (await caller.request("tasks/result", {"taskId": task["taskId"]})).text

        texts = await asyncio.gather(*(one(number) for number in range(CALLS)))
        assert texts == [json.dumps({"number": number}) for number in range(CALLS)]
        assert shop.count("echo") == CALLS + 1
        assert shop.methods["initialize"] <= 2 * handshakes, "one new handshake of a link is enough for all its calls"
