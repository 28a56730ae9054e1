"""Runs `taskgate ARGUMENTS...`, whose gateway never finishes closing, as if a disk or a server did not answer."""

from __future__ import annotations

import asyncio

from taskgate.cli.main import main
from taskgate.lifecycle.lifecycle import Lifecycle


async def never(_life: Lifecycle) -> None:
    await asyncio.sleep(3600)


if __name__ == "__main__":
    Lifecycle.close = never  # type: ignore[assignment]
    main()
