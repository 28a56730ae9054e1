"""A fault of an upstream is reported to the affected caller only, with what is known about execution."""

from __future__ import annotations

import asyncio

import pytest
from tests.harness.gateway import Gateway
from tests.harness.raw_client import Answer, RawClient

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.virtual_time]


def verdict(answer: Answer) -> tuple[str, str]:
    """The error type and `executed`, of a result or of an error."""
    data = answer.result["_meta"]["taskgate/error"] if "result" in answer.reply else answer.error["data"]
    return data["error_type"], data["executed"]


@pytest.mark.parametrize("server", ["old", "new"])
@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("garbage", ("upstream_protocol", "maybe")),
        ("duplicate keys", ("upstream_protocol", "maybe")),
        ("deep", ("upstream_protocol", "maybe")),
        ("nothing", ("upstream_protocol", "maybe")),
        ("huge", ("result_too_large", "yes")),
    ],
)
async def test_an_invalid_response_is_an_error_result(
    gateway: Gateway, server: str, how: str, expected: tuple[str, str]
) -> None:
    """Bad input: garbage, duplicate keys, depth and results over the limit, from an upstream."""
    async with RawClient(gateway.url) as caller:
        broken, good = await asyncio.gather(
            caller.call(f"{server}__break", {"value": how}), caller.call(f"{server}__mirror", {"value": how})
        )
    assert verdict(broken) == expected
    assert broken.result["isError"] is True
    assert good.result["vendor/extra"] == how


@pytest.mark.parametrize("server", ["old", "new", "pipe"])
@pytest.mark.parametrize("how", ["twice", "foreign id"])
async def test_unmatched_and_duplicate_responses_are_dropped(gateway: Gateway, server: str, how: str) -> None:
    """Bad input: duplicate or foreign response ids."""
    async with RawClient(gateway.url) as caller:
        assert (await caller.call(f"{server}__break", {"value": how})).result["vendor/extra"] == how
        assert (await caller.call(f"{server}__mirror", {"value": 1})).result["vendor/extra"] == 1


async def test_a_message_over_the_limit_of_a_pipe_fails_only_its_call(gateway: Gateway) -> None:
    """Bad input: giant lines from a child."""
    async with RawClient(gateway.url) as caller:
        assert verdict(await caller.call("pipe__break", {"value": "huge"}))[1] in ("maybe", "yes")
        assert (await caller.call("pipe__mirror", {"value": 2})).result["vendor/extra"] == 2
