"""Slots for verifications in progress, shared fairly among the peers that sent the credentials."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

from taskgate.core.fair_queue import FairQueue, QueuePlace


class FairSlots:
    """A free slot goes to the waiting peer that holds the fewest, so a peer with many wrong tokens delays no other one's."""

    def __init__(self, slots: int) -> None:
        self._queue = FairQueue(slots)

    @asynccontextmanager
    async def of(self, peer: str) -> AsyncIterator[None]:
        """Wait for a slot and hold it. The attempts of a peer are limited before."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._queue.enter(peer, turn, limited=False) is QueuePlace.WAITS:
            try:
                await turn
            except asyncio.CancelledError:
                if not self._queue.abandon(peer, turn):
                    self._leave(peer)
                raise
        try:
            yield
        finally:
            self._leave(peer)

    def _leave(self, peer: str) -> None:
        for turn in self._queue.leave(peer):
            following = cast("asyncio.Future[None]", turn)
            if not following.done():
                following.set_result(None)
