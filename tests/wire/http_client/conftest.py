"""Run the tests of the HTTP client on both event loops."""

from __future__ import annotations

import asyncio

import pytest
import uvloop


@pytest.fixture(params=[asyncio.DefaultEventLoopPolicy, uvloop.EventLoopPolicy], ids=["asyncio", "uvloop"])
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    policy = request.param()
    assert isinstance(policy, asyncio.AbstractEventLoopPolicy)
    return policy
