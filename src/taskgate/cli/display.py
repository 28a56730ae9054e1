"""Show the progress of one call: a live line on a terminal, plain lines, or JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from taskgate import clock
from taskgate.cli import printing

if TYPE_CHECKING:
    from taskgate.client import Progress, TaskUpdate


_COLOURS = {
    "working": "cyan",
    "input_required": "yellow",
    "completed": "green",
    "failed": "red",
    "cancelled": "magenta",
}


class Display:
    """Shows the progress of one call."""

    def __init__(self, name: str, *, as_json: bool) -> None:
        self._name, self._as_json = printing.one_line(name), as_json
        self._begun = clock.monotonic()
        self._status, self._message = "working", ""
        self._progress: float | None = None
        self._total: float | None = None
        self._expires: float | None = None
        self._live: Any = None
        self._last = ""

    @contextmanager
    def shown(self) -> Iterator[Display]:
        if self._as_json or not sys.stderr.isatty():
            yield self
            return
        from rich.console import Console
        from rich.live import Live

        console = Console(stderr=True)
        with Live(console=console, get_renderable=self._line, refresh_per_second=10, transient=True) as self._live:
            yield self
        self._live = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the live line while a question uses the terminal."""
        live = self._live
        if live is not None:
            live.stop()
        try:
            yield
        finally:
            if live is not None:
                live.start()

    def progress(self, progress: Progress) -> None:
        self._progress, self._total = progress.progress, progress.total
        self._message = printing.one_line(progress.message or self._message)
        self._show("progress", progress=progress.progress, total=progress.total, message=progress.message)

    def update(self, update: TaskUpdate) -> None:
        # A status message arrives just before its progress; both are printed as one line.
        before = (self._status, self._progress)
        progress_follows = update.progress is not None and (str(update.status), update.progress) == before
        self._status, self._message = str(update.status), printing.one_line(update.message or "")
        self._progress, self._total, self._expires = update.progress, update.total, _moment(update.expires_in)
        if update.status.is_terminal:
            # The last reported progress is not the final one.
            self._progress = self._total = None
        if self._as_json or not progress_follows:
            self._show(
                "status",
                taskId=update.task_id,
                status=str(update.status),
                message=update.message,
                progress=update.progress,
                total=update.total,
                expires_in=update.expires_in,
                questions=[
                    {"key": q.key, "method": q.method, "params": dict(q.params)} for q in update.questions.values()
                ],
            )
        if update.warning and not self._as_json:
            printing.note(f"Warning: {printing.clean(update.warning)}")

    def _show(self, kind: str, **fields: Any) -> None:
        if self._as_json:
            printing.event(kind, **{name: value for name, value in fields.items() if value not in (None, [])})
        elif self._live is None:
            line = "  ".join(part for part in (self._status, self._share(), self._message) if part)
            if line != self._last:
                printing.note(f"{clock.monotonic() - self._begun:6.1f} s  {line}")
                self._last = line

    def _share(self) -> str:
        if self._progress is None:
            return ""
        return f"{self._progress / self._total:.0%}" if self._total else f"{self._progress:g}"

    def _line(self) -> Any:
        from rich.progress_bar import ProgressBar
        from rich.spinner import Spinner
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 1))
        cells: list[Any] = [
            Spinner("dots"),
            Text(self._name, "bold"),
            Text(self._status, _COLOURS.get(self._status, "")),
        ]
        if self._progress is not None and self._total:
            cells += [ProgressBar(self._total, self._progress, width=24), Text(self._share())]
        cells += [
            Text(self._message, overflow="ellipsis", no_wrap=True),
            Text(f"{clock.monotonic() - self._begun:.0f} s", "dim"),
        ]
        if self._expires is not None:
            cells.append(Text(f"kept {max(0, self._expires - clock.monotonic()):.0f} s more", "dim"))
        grid.add_row(*cells)
        return grid


def _moment(seconds: float | None) -> float | None:
    return None if seconds is None else clock.monotonic() + seconds
