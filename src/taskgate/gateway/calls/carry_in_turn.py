"""Carry what is not a tool call to a server: at once, or in its turn where that server takes only so many at a time.

Readings, prompts and completions stand in the same line as tool calls (which have more to do when they wait: see `call_tool`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskgate.gateway.requests.caller_keys import fair_key
from taskgate.gateway.requests.request import Request
from taskgate.ports.upstream import Upstream, UpstreamCall

if TYPE_CHECKING:
    from taskgate.gateway.calls.context import Context


async def carry_in_turn(context: Context, request: Request, upstream: Upstream, call: UpstreamCall) -> bytes:
    line = context.budgets.lines.get(upstream.id) if context.budgets.lines else None
    if line is None:
        return await context.relay.carry(request, upstream, call)
    async with line.slot(fair_key(request), call.timeout_s):
        return await context.relay.carry(request, upstream, call)
