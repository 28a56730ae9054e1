"""What every client must be able to do with a typed tool: the scenes of the matrix.

A scene uses a running client and a setup, and returns what it observed. It fails with an `AssertionError` that names the
reply. What a client cannot do by itself is shown by doing it directly, without a gateway; then the scene uses the
alternative that Taskgate offers.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass

from tests.clients.client import Reply, RunningClient, running_client
from tests.clients.client_setup import Setup
from tests.clients.matrix import Client

from taskgate.core.catalog.own_tools import Family
from taskgate.gateway.own_tools.table import TOOLS

TASK_ID = re.compile(r"tg_[0-9A-Za-z]{20,40}")
REQUEST_ID = re.compile(r"""request_id\W+([A-Za-z0-9_-]{6,60})""")


@dataclass(frozen=True, slots=True)
class Play:
    """One client and its setup; the server identifies all calls of a scene by the key."""

    client: Client
    setup: Setup
    key: str
    controls: bool
    """Whether what the client can do is first shown without a gateway."""

    over_stdio: bool = False
    """Whether the client starts `taskgate stdio`, which joins it to the running gateway, in place of opening a URL."""

    def open(self, url: str) -> AbstractAsyncContextManager[RunningClient]:
        if not self.over_stdio:
            return running_client(self.client.command(url=url))
        gateway = self.setup.hasty if url == self.setup.hasty.url else self.setup.patient
        return running_client(self.client.command(server=gateway.stdio_command()))


Scene = Callable[[Play], Awaitable[str]]


def handle_in(reply: Reply) -> str:
    """The task id that a reader of the reply finds."""
    assert reply.error is None, f"the client threw the reply away: {reply.error[:600]}"
    found = TASK_ID.search(reply.text)
    assert found, f"no task id is readable in {reply.text[:600]}"
    return found.group()


async def result_of(client: RunningClient, task_id: str, label: str) -> None:
    """The result, fetched with the handle, with as many polls as needed."""
    async with asyncio.timeout(120):
        while True:
            reply = await client.call("get_task_result", task_id=task_id)
            assert reply.error is None, f"get_task_result failed: {reply.error[:600]}"
            if label in reply.text:
                return
            assert "still" in reply.text, f"wanted {label!r} in {reply.text[:600]}"


async def promoted(play: Play) -> str:
    """A call that takes long is answered with a handle, and its result is fetched with it."""
    async with play.open(play.setup.hasty.url) as client:
        await client.tools()
        task_id = handle_in(await client.call("report", key=play.key))
        await client.call("release", key=play.key)
        await result_of(client, task_id, "reported")
    assert play.setup.happened(play.key) == ["began", "finished"]
    return "yes"


async def held(play: Play) -> str:
    """A call that requires approval is answered with a handle; after approval it runs, and its result is fetched."""
    async with play.open(play.setup.hasty.url) as client:
        await client.tools()
        task_id = handle_in(await client.call("pay", key=play.key))
        assert play.setup.happened(play.key) == []
        await play.setup.approve(play.key)
        await result_of(client, task_id, "paid")
    assert play.setup.happened(play.key) == ["paid"]
    return "yes"


async def asked(play: Play) -> str:
    """A question of the server reaches the client's handler; a client without one answers with tools."""
    why = await asked_directly(play) if play.controls else ""
    if not play.client.can_be_asked:
        return await asked_in_the_inbox(play, why)
    async with play.open(play.setup.patient.url) as client:
        await client.tools()
        reply = await client.call("paint", key=play.key)
    assert reply.error is None, f"the client threw the reply away: {reply.error[:600]}"
    assert "blue" in reply.text, f"wanted the answer in {reply.text[:600]}"
    assert reply.questions == ("Which colour?",), f"wanted one question, saw {reply.questions}"
    assert play.setup.happened(play.key) == ["painted blue"]
    return "yes, by its handler"


async def asked_directly(play: Play) -> str:
    async with play.open(play.setup.direct) as client:
        await client.tools()
        reply = await client.call("paint", key=f"{play.key}-direct")
    assert ("blue" in reply.text) == play.client.can_be_asked, f"directly, without a gateway: {reply}"
    return reply.error or reply.text


async def asked_in_the_inbox(play: Play, why: str) -> str:
    """The reply reports an open question; the task returns it to every client that has the task's id."""
    async with play.open(f"{play.setup.hasty.url}/both") as client:
        await client.tools()
        task_id = handle_in(await client.call("paint", key=play.key))
        shown = await client.call("get_task", task_id=task_id)
        question = REQUEST_ID.search(shown.text)
        assert question, f"no question to answer in {shown.error or shown.text[:900]}"
        answer = {"request_id": question.group(1), "action": "accept", "content": {"colour": "blue"}}
        reply = await client.call("respond_to_elicitation", **answer, task_id=task_id)
        assert reply.error is None, f"the answer was not taken: {reply.error[:300]}"
        await result_of(client, task_id, "blue")
    assert play.setup.happened(play.key) == ["painted blue"]
    return f"yes, with tools (directly: {' '.join(why.split())[:160]})"


async def cancelled(play: Play) -> str:
    """A cancelled call is cancelled at the server as it is directly; cancelling by the handle always works."""
    if play.controls:
        await given_up(play, play.setup.direct, f"{play.key}-direct")
    await given_up(play, play.setup.patient.url, play.key)
    await cancelled_by_handle(play, f"{play.key}-handle")
    if play.client.sends_cancellation:
        return "yes"
    return "yes, by the handle (the client sends no notification when it abandons a call, without the gateway either)"


async def given_up(play: Play, url: str, key: str) -> None:
    """One of two calls is abandoned, which the server sees if the client sends a cancellation; the other one continues."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(play.open(url))
        another = client if play.client.side_by_side else await stack.enter_async_context(play.open(url))
        await client.tools()
        await another.tools()
        first, second = client.start("report", key=key), another.start("report", key=f"{key}-other")
        await play.setup.until(key, "began")
        await play.setup.until(f"{key}-other", "began")
        client.cancel(first)
        reply = await client.reply_to(first)
        assert reply.cancelled or reply.error, f"the call was given up, and answered with {reply.text[:300]}"
        if play.client.sends_cancellation:
            await play.setup.until(key, "cancelled")
        await client.call("release", key=f"{key}-other")
        other = await another.reply_to(second)
        assert "reported" in other.text, f"the other call was disturbed: {other.error or other.text[:300]}"
        received = "cancelled" in play.setup.happened(key)
        assert received == play.client.sends_cancellation, f"the server noted {play.setup.happened(key)}"
    assert play.setup.happened(f"{key}-other") == ["began", "finished"]


async def cancelled_by_handle(play: Play, key: str) -> None:
    async with play.open(play.setup.hasty.url) as client:
        await client.tools()
        task_id = handle_in(await client.call("report", key=key))
        other_id = handle_in(await client.call("report", key=f"{key}-other"))
        reply = await client.call("cancel_task", task_id=task_id)
        assert reply.error is None, f"cancel_task failed: {reply.error[:300]}"
        await play.setup.until(key, "cancelled")
        await client.call("release", key=f"{key}-other")
        await result_of(client, other_id, "reported")
    assert play.setup.happened(key) == ["began", "cancelled"]


OWN_TOOLS = {name for name, tool in TOOLS.items() if tool.face.family in (Family.HELPER, Family.FACADE)}
NOT_OFFERED = {"add_server", "remove_server", "reconnect_server"}
"""Off unless the operator switches them on."""


async def listed(play: Play) -> str:
    """The library makes a tool of its own kind of every tool of the gateway; one schema that it cannot convert often loses all."""
    async with running_client(play.client.command(url=f"{play.setup.hasty.url}/both")) as client:
        reply = await client.tools()
    assert reply.error is None, f"the list was thrown away: {reply.error[:600]}"
    missing = OWN_TOOLS - NOT_OFFERED - set(reply.value) - play.client.cannot_have
    assert not missing, f"the library has no tools {sorted(missing)}"
    return f"yes, {len(reply.value)} tools"


async def typed(play: Play) -> str:
    """What the library makes of a typed result is the same directly and through the gateway."""
    seen = []
    for url in (play.setup.direct, play.setup.patient.url):
        async with running_client(play.client.command(url=url)) as client:
            await client.tools()
            seen.append([await client.call(tool, key=play.key) for tool in ("release", "counts", "sizes", "closed")])
    for direct, through in zip(*seen, strict=True):
        assert direct.error is None, f"directly: {direct.error[:600]}"
        assert through == direct, f"directly {direct}, through the gateway {through}"
    return "yes"


SCENES: dict[str, Scene] = {
    "listed": listed,
    "typed": typed,
    "promoted": promoted,
    "held": held,
    "asked": asked,
    "cancelled": cancelled,
}
