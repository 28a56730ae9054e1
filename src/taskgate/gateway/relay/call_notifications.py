"""Pass on what a server sends during a call: notifications and changes of its response stream."""

from __future__ import annotations

from taskgate.core import wire
from taskgate.core.wire import Raw
from taskgate.gateway.requests.request import Request
from taskgate.ports.outlet import ResumableOutlet
from taskgate.ports.upstream_call import StreamNotice


def on_stream_change(request: Request, notice: StreamNotice, retry_ms: int | None) -> None:
    """Make the caller's stream resumable if the server's stream is."""
    outlet = request.delivery.outlet
    if request.session is None or request.delivery.answered or not isinstance(outlet, ResumableOutlet):
        return
    if notice is StreamNotice.PRIMED:
        outlet.prime(retry_ms)
    else:
        outlet.pause()


def on_notification(request: Request, method: str, params: Raw | None) -> None:
    """Pass a notification of a call on to its caller, with the caller's own progress token."""
    if request.delivery.promoted_task is not None:
        request.delivery.promoted_task.on_notification(method, params)
        return
    if method == "notifications/progress":
        if params is not None:
            request.delivery.report_progress(params, request.progress_token)
        return
    if method == "notifications/message" and not request.delivery.accepts_log(_level_of(params)):
        return
    request.delivery.notify(method, params)


def _level_of(params: Raw | None) -> str:
    value = wire.parse_strictly(bytes(params)) if params is not None else {}
    level = value.get("level") if type(value) is dict else None
    return level if type(level) is str else "info"
