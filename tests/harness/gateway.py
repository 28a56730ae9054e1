"""A real gateway process for tests: its own configuration file, state directory and port, ended by SIGTERM.

`running_gateway` gives the test a handle to stop, kill or restart it, and to change its file. Ending by SIGTERM
matters: coverage of the child is written on the way out. Used by the conversation, conformance and chaos tests and by
the benchmark.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from tests.harness.forking import FORKING
from tests.harness.programs import START_DEADLINE, Program, free_port, start, until_ready
from tests.harness.raw_client import RawClient


@dataclass(slots=True)
class Gateway:
    """A running `taskgate serve`, with the operations that tests need."""

    folder: Path
    port: int
    env: dict[str, str] = field(default_factory=dict)
    program: Program | None = None
    launcher: tuple[str, ...] = ("-m", "taskgate")
    """What Python runs: the product, or a program that starts it under other virtual_conditions."""

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.base}/mcp"

    @property
    def config(self) -> Path:
        return self.folder / "taskgate.yaml"

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def pid(self) -> int:
        assert self.program is not None
        return self.program.pid

    @property
    def log(self) -> str:
        return self.program.output(1_000_000) if self.program else ""

    def write(self, config: Mapping[str, Any] | str) -> None:
        self.config.write_text(config if isinstance(config, str) else yaml.safe_dump(dict(config), sort_keys=False))

    async def start(self) -> None:
        command: list[str | Path] = [sys.executable, *self.launcher, "serve", "-c", self.config]
        command += ["--host", "127.0.0.1", "--port", str(self.port)]
        env = {"TASKGATE_STATE_DIR": str(self.state), **self.env}
        self.program = await start(command, env, self.folder / "gateway.log")
        await until_ready(self.program, self.is_ready)

    def stdio_command(self, *more: str) -> list[str]:
        """The gateway on standard input and output, for a client that starts its server itself: the running one, by a bridge.
        With `--alone` it is a separate one. Clients start their children with a minimal environment, so the settings are in
        the command.
        """
        kept = {name: value for name, value in os.environ.items() if name.startswith(("PYTHONPATH", "COVERAGE_"))}
        variables = {"TASKGATE_STATE_DIR": str(self.state), **kept, **self.env}
        words = [f"{name}={value}" for name, value in variables.items()]
        words += FORKING.launched(Path(sys.executable))
        return ["env", *words, sys.executable, "-m", "taskgate", "stdio", "-c", str(self.config), *more]

    async def is_ready(self) -> bool:
        """Whether /ready answers 200; a raw request, without an HTTP library."""
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        try:
            writer.write(f"GET /ready HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nConnection: close\r\n\r\n".encode())
            return b" 200 " in await asyncio.wait_for(reader.readline(), 30)
        except (OSError, TimeoutError):
            return False
        finally:
            writer.close()

    async def until_listed(self, *scopes: str) -> None:
        """Wait until each of these scopes has tools: the program of a server may take longer to start than a client."""
        async with asyncio.timeout(START_DEADLINE):
            for scope in scopes or ("",):
                async with RawClient(f"{self.url}/{scope}" if scope else self.url, stateless=True) as caller:
                    while not (await caller.request("tools/list")).result["tools"]:
                        await asyncio.sleep(0.1)

    async def stop(self) -> int:
        """Drain and end; returns the exit code."""
        assert self.program is not None
        return await self.program.end(signal.SIGTERM, within=120)

    async def kill(self) -> None:
        """End without a chance to clean up; only the process itself, as a crash would."""
        assert self.program is not None
        os.kill(self.program.pid, signal.SIGKILL)
        await self.program.process.wait()

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def reload(self, config: Mapping[str, Any] | str) -> None:
        self.write(config)
        os.kill(self.pid, signal.SIGHUP)


@asynccontextmanager
async def running_gateway(
    config: Mapping[str, Any] | str,
    folder: Path | None = None,
    env: Mapping[str, str] | None = None,
    launcher: tuple[str, ...] = ("-m", "taskgate"),
) -> AsyncIterator[Gateway]:
    """A gateway on a free port, ready to serve `config`."""
    place = folder or Path(tempfile.mkdtemp(prefix="gateway-"))
    place.mkdir(parents=True, exist_ok=True)
    gateway = Gateway(place, free_port(), dict(env or {}), launcher=launcher)
    gateway.state.mkdir(exist_ok=True)
    gateway.write(config)
    try:
        await gateway.start()
        yield gateway
    finally:
        if gateway.program is not None and gateway.program.alive:
            await gateway.stop()
        elif gateway.program is not None:
            gateway.program.end_group(signal.SIGKILL)
