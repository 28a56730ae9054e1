"""Template filters for times, durations and text from callers and servers."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

from taskgate import clock
from taskgate.core.governance.card import show_line, show_name
from taskgate.core.tasks.state import TaskState
from taskgate.replies.tasks import TaskRow


def clear(text: object) -> str:
    """Text from callers and servers for one line: invisible and misleading characters are escaped."""
    return show_line(str(text))


def shown_name(text: object) -> str:
    """The name of a caller, tool or server, like `clear`. Spaces that are not seen are escaped as well."""
    return show_name(str(text))


def segment(text: object) -> str:
    """Text as one segment of a path, slashes included."""
    return quote(str(text), safe="")


def short_id(text: str) -> str:
    """The kind and the end of an id, for narrow columns; the address or a tooltip has the whole one."""
    kind, mark, rest = text.partition("_")
    return f"{kind}{mark}…{rest[-6:]}" if len(rest) > 12 else text


def moment(ms: float | str | None) -> str:
    """A time for the attribute `datetime`; the script shows it in the user's time zone."""
    if ms is None or isinstance(ms, str):
        return ms or ""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def ago(ms: float | str | None) -> str:
    if ms is None:
        return ""
    at = datetime.fromisoformat(ms).timestamp() if isinstance(ms, str) else ms / 1000
    past = clock.wall() - at
    return f"{span(past)} ago" if past >= 0 else f"in {span(-past)}"


_WAITS_FOR: Final = {
    TaskState.QUEUED: "Queued",
    TaskState.AWAITING_APPROVAL: "Waiting for approval",
    TaskState.APPROVED: "Approved; runs when the caller polls the task",
    TaskState.RUNNING: "Waiting for the server",
    TaskState.INPUT_REQUIRED: "Waiting for input",
}


def task_status(task: TaskRow) -> str:
    """The status message; empty if it only repeats the state, which is shown beside it."""
    message = clear(task.message or "")[:500] or _WAITS_FOR.get(task.state, "")
    return "" if message.lower() == task.state.value.replace("_", " ") else message


def span(seconds: float) -> str:
    if seconds < 60:
        return f"{max(0, int(seconds))} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min"
    if seconds < 86_400:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60)} min"
    return f"{int(seconds // 86_400)} day{'' if seconds < 172_800 else 's'}"
