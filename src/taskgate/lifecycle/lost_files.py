"""Detects that the files of a running gateway were removed: its writes would be lost, and a second gateway could start."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from taskgate.core.errors import Executed, GatewayFault

STATE_CHECK_S: Final = 0.5


class StateLost(GatewayFault):
    """The files of this gateway were removed or replaced while it ran."""

    def __init__(self, why: str) -> None:
        text = f"The gateway ended because its files were removed: {why}. Calls without a reply may have been executed."
        super().__init__("store_unavailable", text, executed=Executed.MAYBE)


async def wait_until_lost(lost_files: Callable[[], str | None]) -> str:
    """Return why the files are lost, once they are."""
    loop = asyncio.get_running_loop()
    lost: asyncio.Future[str] = loop.create_future()

    # Only a timer: waking a task twice a second would double the work of an idle gateway.
    def check() -> None:
        if lost.done():
            return
        why = lost_files()
        if why is None:
            loop.call_later(STATE_CHECK_S, check)
        else:
            lost.set_result(why)

    loop.call_later(STATE_CHECK_S, check)
    return await lost  # Cancelled at the end of the gateway; then `check` does not continue.
