"""Runs commands of `taskgate` inside the test's own process: same output, same exit codes, without starting Python each time.

For tests that need many commands and do not test the process itself. That the program itself starts, reads its
environment and ends with these codes is shown by commands that run as processes (`programs.run_to_end`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from click.testing import CliRunner

from taskgate.cli.root import build_app


async def command(*words: str, env: Mapping[str, str] | None = None, within: float = 240.0) -> tuple[int, str, str]:
    """The exit code of a command and what it wrote to both outputs."""
    # Commands have an event loop of their own, so they get a thread of their own.
    running = asyncio.to_thread(CliRunner().invoke, build_app(), list(words), env=dict(env or {}))
    done = await asyncio.wait_for(running, within)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.stdout, done.stderr
