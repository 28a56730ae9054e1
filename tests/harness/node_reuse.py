"""Node programs that tests run often are run in a process that has already done their imports (`node_reuse.mjs`).

Half a second of processor time is what most of these programs take to load their modules. Each run is a fresh module with its own
arguments and environment. These are started without reuse: tests marked `fresh_interpreter`, and everything with
TASKGATE_TEST_FORK=0.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from tests.harness.absent import HOME
from tests.harness.forking import FORKING
from tests.harness.programs import START_DEADLINE, die_with_parent, run_to_end

RUNNER: Final = Path(__file__).with_name("node_reuse.mjs")
# A reply contains everything that a program wrote.
MAX_BYTES = 64 << 20


class Again:
    """The process that runs one program, one run at a time."""

    def __init__(self, program: Path) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="node-"))
        self._place = self._folder / "s"
        self._log: IO[bytes] = (self._folder / "log").open("w+b")
        self._process = subprocess.Popen(
            [HOME / "node", RUNNER, self._place, program],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )

    async def run(self, words: Sequence[str], environment: Mapping[str, str]) -> tuple[int, str, str]:
        """As `run_to_end`; a process that ended without an answer is what it wrote and code 1."""
        reader, writer = await self._connected()
        try:
            writer.write(json.dumps({"words": list(words), "environment": dict(environment)}).encode() + b"\n")
            answer = await reader.read()
        except OSError:
            answer = b""
        finally:
            writer.close()
        if not answer:
            while self.alive:
                await asyncio.sleep(0.01)
            return 1, "", self.wrote()
        data = json.loads(answer)
        return data["code"], data["out"], data["err"]

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        async with asyncio.timeout(START_DEADLINE):
            while True:
                with suppress(OSError):
                    return await asyncio.open_unix_connection(self._place, limit=MAX_BYTES)
                if not self.alive:
                    raise RuntimeError(f"the process for Node programs ended:\n{self.wrote()}")
                await asyncio.sleep(0.02)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def wrote(self) -> str:
        return (self._folder / "log").read_text(errors="replace")[-4000:]

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()
        shutil.rmtree(self._folder, ignore_errors=True)


class NodeAgain:
    """The processes of this pytest process: for each program, as many as were needed at once."""

    def __init__(self) -> None:
        self._idle: dict[Path, list[Again]] = {}

    async def run(
        self,
        program: Path,
        words: Sequence[str | Path],
        env: Mapping[str, str] | None = None,
        within: float = 240.0,
    ) -> tuple[int, str, str]:
        """The exit code of the program and what it wrote to both outputs."""
        if not FORKING.installed or not FORKING.active:
            return await run_to_end([HOME / "node", program, *words], env, within)
        taken = self._taken(program)
        try:
            async with asyncio.timeout(within):
                found = await taken.run([str(each) for each in words], {**os.environ, **(env or {})})
        except TimeoutError:
            found = -1, "", f"{taken.wrote()}\nended after {within} s"
            taken.end()
            return found
        except BaseException:
            taken.end()
            raise
        self._idle[program].append(taken)
        return found

    def _taken(self, program: Path) -> Again:
        idle = self._idle.setdefault(program, [])
        while idle:
            if (found := idle.pop()).alive:
                return found
            found.end()
        return Again(program)

    def close(self) -> None:
        for each in self._idle.values():
            for process in each:
                process.end()
        self._idle.clear()


NODE_AGAIN: Final = NodeAgain()
