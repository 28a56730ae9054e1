"""A child process as a wire: each line is a message."""

from __future__ import annotations

from collections.abc import Callable

from taskgate.mcp.failures import ChildFailure
from taskgate.mcp.stdio.child import Child, ChildExit
from taskgate.mcp.stdio.process import ChildSpec
from taskgate.mcp.stdio.reaper import Reaper
from taskgate.upstreams.failures import unreachable
from taskgate.upstreams.intake import Intake
from taskgate.upstreams.secret_filter import SecretFilter
from taskgate.upstreams.stream_wire import StreamWire

STOP_GRACE_S = 2.0
AROUND_A_RESULT = 64 * 1024


class StdioWire(StreamWire):
    def __init__(self, server: str, intake: Intake, secret_filter: SecretFilter, hide: Callable[[str], str]) -> None:
        super().__init__(server, intake, secret_filter)
        self._hide = hide
        self._child: Child | None = None

    async def start(self, spec: ChildSpec, reaper: Reaper) -> None:
        try:
            self._child = await Child.start(
                spec,
                on_line=self.received,
                on_exit=self._exited,
                on_oversize=lambda line: self.refuse_oversize(line.begin, line.end),
                reaper=reaper,
                max_line_bytes=self._intake.max_bytes + AROUND_A_RESULT,
            )
        except ChildFailure as failure:
            raise unreachable(self.server, f"could not be started: {self._hide(failure.message)}") from None
        self._intake.wires.add(self)

    def adopt(self, max_bytes: int) -> None:
        if self._child is not None:
            self._child.set_max_line_bytes(max_bytes + AROUND_A_RESULT)

    def pause_reading(self) -> None:
        if self._child is not None:
            self._child.pause_reading()

    def resume_reading(self) -> None:
        if self._child is not None:
            self._child.resume_reading()

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.running

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None else None

    def stderr_tail(self) -> list[str]:
        """Return the last lines of its stderr, redacted: it may print variables and arguments."""
        return list(map(self.secret_filter.text, self._child.stderr_tail())) if self._child is not None else []

    async def _write(self, body: bytes) -> int:
        if self._child is None:
            raise unreachable(self.server, "is not running")
        if b"\n" in body:
            # A raw newline in JSON is white space between tokens; here it would end the message.
            body = body.replace(b"\r", b" ").replace(b"\n", b" ")
        try:
            return self._child.send(body)
        except ChildFailure as failure:
            raise unreachable(self.server, f"cannot be written to: {failure.message}") from None

    def _was_written(self, place: int | None) -> bool:
        return self._child is not None and place is not None and place <= self._child.lines_handed_over

    def _exited(self, ending: ChildExit) -> None:
        how = f"was terminated by signal {-ending.code}" if ending.code < 0 else f"exited with code {ending.code}"
        self.stream_ended(how, ending.lines_handed_over)

    async def close(self) -> None:
        if self._child is not None:
            await self._child.stop(STOP_GRACE_S)
