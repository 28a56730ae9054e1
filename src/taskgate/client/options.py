"""The settings of one session: timeouts, limits and callbacks. Durations are in seconds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from taskgate import __version__
from taskgate.client.errors import Question
from taskgate.client.results import Progress, TaskUpdate

Answer = Mapping[str, Any] | Awaitable[Mapping[str, Any]]
Answerer = Callable[[Question], Answer]
OnProgress = Callable[[Progress], None]
OnNotification = Callable[[str, Mapping[str, Any]], Any]
Roots = Sequence[str | Mapping[str, Any]] | Callable[[], Sequence[str | Mapping[str, Any]]]


class Generation(StrEnum):
    """The protocol generations of MCP: stateful (2025-11-25 and older) and stateless (2026-07-28)."""

    STATEFUL = "stateful"
    STATELESS = "stateless"


class Options(msgspec.Struct, frozen=True):
    """The settings of one session. `docs/client.md` describes each of them."""

    generation: Generation | None = None
    elicitation: Answerer | None = None
    sampling: Answerer | None = None
    sampling_tools: bool = False
    roots: Roots | None = None
    answer_by_hand: bool = False
    tasks: bool = True
    keep_session: bool = False
    on_notification: OnNotification | None = None
    on_expiry: Callable[[TaskUpdate], Any] | None = None
    client_name: str = "taskgate-client"
    client_version: str = __version__
    connect_timeout: float = 10.0
    probe_timeout: float = 5.0
    request_timeout: float = 60.0
    call_timeout: float = 600.0
    task_timeout: float = 86_400.0
    question_timeout: float = 600.0
    give_up_after: float = 120.0
    expiry_grace: float = 5.0
    expiry_warning: float = 30.0
    default_poll_interval: float = 5.0
    max_reply_bytes: int = 64 * 1024 * 1024
    max_connections: int = 100
    max_rounds: int = 10
    max_pages: int = 1000
    max_hosted_tasks: int = 100
    poll_concurrency: int = 32
    meta: Mapping[str, Any] = msgspec.field(default_factory=dict)
