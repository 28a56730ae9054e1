"""Everybody else's turn between two steps of work on something large.

A look through fifteen megabytes, or a copy of them, takes some milliseconds. Steps of that size are not taken one after the other.
Nothing here knows what the bytes mean.
"""

from __future__ import annotations

from typing import Final

from taskgate import clock

LARGE_BYTES: Final = 256 * 1024
"""What is smaller is read in a few milliseconds at most, and in one go."""
_LOOK_BYTES: Final = 1 << 20


async def let_others_run() -> None:
    """Go on in the loop's next turn. Whoever works on less than `LARGE_BYTES` does not call this."""
    await clock.sleep(0)


async def contains(body: bytes, mark: bytes) -> bool:
    """`mark in body`, a megabyte at a time."""
    for begin in range(0, len(body), _LOOK_BYTES):
        if body.find(mark, begin, begin + _LOOK_BYTES + len(mark)) >= 0:
            return True
        await let_others_run()
    return False
