"""Structured logs on standard error: readable lines on a terminal, JSON lines elsewhere.

Forty lines of our own instead of a logging library, because the one we would use brings a terminal toolkit along: a tenth of the
start-up time and of the memory of an idle gateway. Writing a log line may never fail a request: if standard error
cannot be written, the line is lost.

Lines that one statement writes over and over are rate-limited, those of each server separately: the first 50 are written, then one
a second, with the number of lines left out (`not_logged`). Lines of level `debug` are not limited.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import threading
import traceback
from collections.abc import Callable, Hashable
from datetime import UTC, datetime
from types import FrameType
from typing import Any, Final

from taskgate import clock
from taskgate.core.repeated_lines import RepeatedLines, SuppressedLines
from taskgate.core.text.plain_text import visible

LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}
KEPT_HIDING: Final = 8
_COLOURS: Final = {"debug": "\x1b[2m", "info": "\x1b[32m", "warning": "\x1b[33m", "error": "\x1b[31m"}


class Log:
    """Used as `log.info("event", server=..., why=...)` throughout the gateway."""

    def __init__(self) -> None:
        self.minimum = LEVELS["info"]
        self.as_text = False
        self._hiding: tuple[Callable[[str], str], ...] = ()
        self.repeated = RepeatedLines()
        self._counting = threading.RLock()
        """Collecting garbage may log while a line is being counted."""

    def hide(self, hidden: Callable[[str], str]) -> None:
        """Remove the secrets of the current configuration from every line: `hidden` returns a text without them."""
        self._hiding = (hidden,)

    def hide_also(self, hidden: Callable[[str], str]) -> None:
        """After a reload: replaced secrets may still be valid elsewhere, so they stay hidden for some more reloads."""
        self._hiding = (hidden, *self._hiding)[:KEPT_HIDING]

    def without_secrets(self, text: str) -> str:
        for hidden in self._hiding:
            text = hidden(text)
        return text

    def writes(self, level: str) -> bool:
        """Return whether lines of this level are written, for lines that are many and take time to compose."""
        return LEVELS[level] >= self.minimum

    def debug(self, event: str, **facts: Any) -> None:
        self._write("debug", event, facts)

    def info(self, event: str, **facts: Any) -> None:
        self._write_limited("info", event, facts)

    def warning(self, event: str, **facts: Any) -> None:
        self._write_limited("warning", event, facts)

    def error(self, event: str, exc_info: BaseException | None = None, **facts: Any) -> None:
        self._write_limited("error", event, facts, exc_info)

    def report_suppressed(self, *, last: bool = False) -> None:
        """Write how many lines were left out by statements that write no more. Called once a second, and at the end."""
        with self._counting:
            reports = self.repeated.all_reports() if last else self.repeated.reports(clock.monotonic())
        for suppressed in reports:
            self._write(suppressed.level, "lines were not logged", _report(suppressed))

    def passes(self, source: Hashable, level: str, event: str) -> int | None:
        """Return how many lines of this source were omitted before this one; None if this one is omitted too."""
        with self._counting:
            return self.repeated.passes(source, level, event, clock.monotonic())

    def write_from(self, minimum: int, *, as_text: bool) -> None:
        self.minimum, self.as_text = minimum, as_text

    def _write_limited(
        self, level: str, event: str, facts: dict[str, Any], exc_info: BaseException | None = None
    ) -> None:
        if LEVELS[level] < self.minimum:
            return
        not_logged = self.passes((*_statement(sys._getframe(2)), facts.get("server")), level, event)
        if not_logged is None:
            return
        if not_logged:
            facts["not_logged"] = not_logged
        if exc_info is not None:
            facts["exception"] = "".join(traceback.format_exception(exc_info)).rstrip()
        self._write(level, event, facts)

    def _write(self, level: str, event: str, facts: dict[str, Any]) -> None:
        if LEVELS[level] < self.minimum:
            return
        now = datetime.now(UTC)
        if self._hiding:
            event = self.without_secrets(event)
            facts = {name: _without_secrets(fact, self.without_secrets) for name, fact in facts.items()}
        line = _readable(level, event, facts, now) if self.as_text else _json(level, event, facts, now)
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(line + "\n")
            sys.stderr.flush()


def _statement(frame: FrameType) -> tuple[Hashable, ...]:
    """Identify the statement that logs. Its text cannot: it may contain names that peers chose."""
    return frame.f_code, frame.f_lineno


def _report(suppressed: SuppressedLines) -> dict[str, Any]:
    return {"line": suppressed.event, "not_logged": suppressed.lines}


def _without_secrets(fact: Any, hidden: Callable[[str], str]) -> Any:
    if fact is None or isinstance(fact, bool | int | float):
        return fact
    if isinstance(fact, list | tuple | set | frozenset):
        return [_without_secrets(item, hidden) for item in fact]
    if isinstance(fact, dict):
        return {key: _without_secrets(item, hidden) for key, item in fact.items()}
    return hidden(str(fact))


def _json(level: str, event: str, facts: dict[str, Any], now: datetime) -> str:
    stamp = now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return json.dumps({**facts, "event": event, "level": level, "timestamp": stamp}, default=str)


def _readable(level: str, event: str, facts: dict[str, Any], now: datetime) -> str:
    """Format a line for a terminal, with local time."""
    trace = facts.pop("exception", None)
    # Values come from anywhere: none of them may move the cursor, begin a line or turn text around.
    shown = " ".join(f"\x1b[36m{name}\x1b[0m={visible(str(value), keep='')}" for name, value in facts.items())
    text = visible(event, keep="")
    line = f"\x1b[2m{now.astimezone():%H:%M:%S}\x1b[0m {_COLOURS[level]}{level:<7}\x1b[0m {text:<32} {shown}".rstrip()
    return f"{line}\n{visible(trace)}" if trace else line


log: Final = Log()


class _LibraryLines(logging.Formatter):
    """Libraries and the event loop log errors with their tracebacks, whose texts may quote the configuration."""

    def format(self, record: logging.LogRecord) -> str:
        return log.without_secrets(super().format(record))


class _LibraryLimit(logging.Filter):
    """Lines of libraries are rate-limited like our own."""

    def filter(self, record: logging.LogRecord) -> bool:
        level = "error" if record.levelno >= logging.ERROR else "warning"
        return log.passes((record.pathname, record.lineno), level, f"a line of {record.name}") is not None


def set_up(level: str = "info", form: str = "auto") -> None:
    """Once per process, before anything is logged."""
    log.write_from(LEVELS[level], as_text=form == "text" or (form == "auto" and sys.stderr.isatty()))
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_LibraryLines("%(levelname)s %(name)s %(message)s"))
    handler.addFilter(_LibraryLimit())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
