"""Structured logs on standard error: readable lines on a terminal, JSON lines elsewhere.

Forty lines of our own instead of a logging library, because the one we would use brings a terminal toolkit along: a tenth of the
start-up time and of the memory of an idle gateway. Writing a log line may never fail a request: a full disk is suffered in silence.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from taskgate.core.peer_input import visible

LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}
KEPT_HIDING: Final = 8
_COLOURS: Final = {"debug": "\x1b[2m", "info": "\x1b[32m", "warning": "\x1b[33m", "error": "\x1b[31m"}


class Log:
    """Called as `log.info("what happened", server=..., why=...)` from anywhere in the gateway and its rim."""

    def __init__(self) -> None:
        self.least = LEVELS["info"]
        self.as_text = False
        self._hiding: tuple[Callable[[str], str], ...] = ()

    def hide(self, hidden: Callable[[str], str]) -> None:
        """Keep the secrets of the configuration in force out of every line from now on: `hidden` gives a text without them."""
        self._hiding = (hidden,)

    def hide_also(self, hidden: Callable[[str], str]) -> None:
        """After a reload: what was replaced may still be good elsewhere, so it stays hidden for some reloads more."""
        self._hiding = (hidden, *self._hiding)[:KEPT_HIDING]

    def without_secrets(self, text: str) -> str:
        for hidden in self._hiding:
            text = hidden(text)
        return text

    def debug(self, event: str, **facts: Any) -> None:
        self._write("debug", event, facts)

    def info(self, event: str, **facts: Any) -> None:
        self._write("info", event, facts)

    def warning(self, event: str, **facts: Any) -> None:
        self._write("warning", event, facts)

    def error(self, event: str, exc_info: BaseException | None = None, **facts: Any) -> None:
        if exc_info is not None:
            facts["exception"] = "".join(traceback.format_exception(exc_info)).rstrip()
        self._write("error", event, facts)

    def write_from(self, least: int, *, as_text: bool) -> None:
        self.least, self.as_text = least, as_text

    def _write(self, level: str, event: str, facts: dict[str, Any]) -> None:
        if LEVELS[level] < self.least:
            return
        now = datetime.now(UTC)
        if self._hiding:
            event = self.without_secrets(event)
            facts = {name: _without_secrets(fact, self.without_secrets) for name, fact in facts.items()}
        line = _readable(level, event, facts, now) if self.as_text else _json(level, event, facts, now)
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(line + "\n")
            sys.stderr.flush()


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
    """For a person: the time is that of the clock on their wall."""
    trace = facts.pop("exception", None)
    # Values come from anywhere: none of them may move the cursor, begin a line or turn text around.
    shown = " ".join(f"\x1b[36m{name}\x1b[0m={visible(str(value), keep='')}" for name, value in facts.items())
    said = visible(event, keep="")
    line = f"\x1b[2m{now.astimezone():%H:%M:%S}\x1b[0m {_COLOURS[level]}{level:<7}\x1b[0m {said:<32} {shown}".rstrip()
    return f"{line}\n{visible(trace)}" if trace else line


log: Final = Log()


class _LibraryLines(logging.Formatter):
    """Libraries and the event loop log errors with their tracebacks, whose texts may quote the configuration."""

    def format(self, record: logging.LogRecord) -> str:
        return log.without_secrets(super().format(record))


def set_up(level: str = "info", form: str = "auto") -> None:
    """Once per process, before anything is logged."""
    log.write_from(LEVELS[level], as_text=form == "text" or (form == "auto" and sys.stderr.isatty()))
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_LibraryLines("%(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
