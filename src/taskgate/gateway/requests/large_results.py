"""Looking at large results, and editing them, without decoding them whole and with everybody else's turn in between."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable

from taskgate.core.strict_scan import Hollow, StrictScan
from taskgate.core.wire import DEEPEST
from taskgate.turns import LARGE_BYTES, let_others_run


async def edited(result: bytes, edit: Callable[[bytes], bytes]) -> bytes:
    """An object with its members edited. `edit` may not look into `content` or other large members, which may be stand-ins."""
    if len(result) < LARGE_BYTES:
        return edit(result)
    hollow = await hollow_out(result)
    filled = hollow.refill(edit(hollow.small))
    await let_others_run()
    return filled


async def looked_at(result: bytes) -> bytes:
    """The same object, small, for whoever wants to know about its small members."""
    return result if len(result) < LARGE_BYTES else (await hollow_out(result)).small


async def hollow_out(result: bytes) -> Hollow:
    scan = StrictScan(result, DEEPEST, sys.maxsize)
    while not scan.step():
        await let_others_run()
    return scan.hollow(secrets.token_hex(16))
