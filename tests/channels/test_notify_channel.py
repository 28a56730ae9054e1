"""Notifications through apprise: they report that a call waits for approval, and nothing more."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from tests.channels.card_factory import DecisionRecorder, a_card, decided

from taskgate.channels.notify import NotifyChannel
from taskgate.core.governance.script_plan import Meets, PlannedScript, PlannedTool, ScriptOrigin, plan_summary
from taskgate.ports.approval_channel import Delivered, NotDelivered


@asynccontextmanager
async def listener(take: Callable[[web.Request], Awaitable[web.Response]]) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/hook", take)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"json://127.0.0.1:{runner.addresses[0][1]}/hook"
    finally:
        await runner.cleanup()


async def test_a_notification_names_caller_and_tool_without_the_arguments() -> None:
    got: list[dict[str, Any]] = []

    async def take(request: web.Request) -> web.Response:
        got.append(await request.json())
        return web.Response()

    async with listener(take) as url:
        channel = NotifyChannel([url])
        await channel.start(DecisionRecorder())
        assert await channel.announce(a_card(tool="pay\nnow", server="r\u0435ports")) == Delivered("ap_1")
        assert await channel.announce(a_card(url=None)) == Delivered("ap_1")
        assert await channel.update(decided(), "ap_1") == Delivered("ap_1")
        await channel.resume(a_card(), "ap_1")
        await channel.close()
    assert len(got) == 2
    assert '"agent" requests approval to call "pay\\nnow" on "r\\u0435ports"' in got[0]["message"]
    assert "https://gate.test/approvals/ap_1" in got[0]["message"]
    assert "taskgate approvals show ap_1" in got[1]["message"]
    assert "500" not in json.dumps(got)


async def test_an_address_that_fails_is_reported() -> None:
    async def refuse(request: web.Request) -> web.Response:
        return web.Response(status=500)

    async with listener(refuse) as url:
        assert await NotifyChannel([url]).announce(a_card()) == NotDelivered(
            "at least one address could not be notified", permanent=False
        )


async def test_an_unresponsive_address_times_out() -> None:
    release = asyncio.Event()

    async def stall(request: web.Request) -> web.Response:
        await release.wait()
        return web.Response()

    async with listener(stall) as url:
        reported = await NotifyChannel([url], deadline_s=0.2).announce(a_card())
        release.set()
    assert reported == NotDelivered("the notification timed out", permanent=False)


async def test_a_notification_without_an_address_is_a_permanent_error() -> None:
    reported = await NotifyChannel([]).announce(a_card())
    assert isinstance(reported, NotDelivered)


def test_an_unknown_address_is_an_error_that_does_not_show_it() -> None:
    with pytest.raises(ValueError, match=r"notify.urls\[0\]") as caught:
        NotifyChannel(["nonsense-s3cr3t"])
    assert "s3cr3t" not in str(caught.value)


async def test_notification_about_a_script_has_a_summary_of_its_plan_without_code() -> None:
    got: list[dict[str, Any]] = []

    async def take(request: web.Request) -> web.Response:
        got.append(await request.json())
        return web.Response()

    plan = PlannedScript((PlannedTool("shop__buy", Meets.DENIED, (1,)),))
    async with listener(take) as url:
        channel = NotifyChannel([url])
        assert await channel.announce(a_card({"code": "secret()"}, script="secret()", plan=plan)) == Delivered("ap_1")
        assert await channel.announce(a_card(from_script=ScriptOrigin("tg_1", 4))) == Delivered("ap_1")
    sent, call = got
    assert ScriptOrigin("tg_1", 4).in_words() in call["message"]
    assert plan_summary(plan) in sent["message"]
    assert "secret" not in sent["message"]
