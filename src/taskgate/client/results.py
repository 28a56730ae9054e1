"""Values that a server returns: tasks, tools, results, progress and listed entries."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from taskgate.client.errors import InvalidReply, Question

IMMEDIATE_RESPONSE = "io.modelcontextprotocol/model-immediate-response"
RELATED_TASK = "io.modelcontextprotocol/related-task"
PROGRESS_META = "taskgate/progress"
APPROVAL_META = "taskgate/approval"
RELATED_TASK_META = "io.modelcontextprotocol/related-task"


class TaskStatus(StrEnum):
    """The status of a task, in both generations. The last three values are terminal."""

    WORKING = "working"
    INPUT_REQUIRED = "input_required"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        return self in _TERMINAL


_TERMINAL = frozenset({TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED})
_STATUSES = {status.value: status for status in TaskStatus}


class TaskSupport(StrEnum):
    """Whether a tool can run as a task. The default of MCP is `forbidden`."""

    FORBIDDEN = "forbidden"
    OPTIONAL = "optional"
    REQUIRED = "required"


class Progress(msgspec.Struct, frozen=True):
    """One progress report for a call or a task."""

    progress: float
    total: float | None = None
    message: str | None = None
    approval: PendingApproval | None = None
    """The approval that the call waits for, if a Taskgate gateway holds it."""
    task_id: str | None = None
    """The task of a held call."""


class PendingApproval(msgspec.Struct, frozen=True):
    """The approval that a call at a Taskgate gateway waits for, and the page where an approver decides."""

    id: str
    url: str

    @classmethod
    def in_meta(cls, meta: Mapping[str, Any]) -> PendingApproval | None:
        given = meta.get(APPROVAL_META)
        if not isinstance(given, Mapping):
            return None
        approval_id, url = given.get("id"), given.get("url")
        return cls(approval_id, url) if isinstance(approval_id, str) and isinstance(url, str) else None


def read_progress(params: Mapping[str, Any]) -> Progress | None:
    """Read the params of a progress notification; None without a number."""
    progress, total, message = params.get("progress"), params.get("total"), params.get("message")
    if not isinstance(progress, int | float):
        return None
    known_total = total if isinstance(total, int | float) else None
    meta = params.get("_meta")
    meta = meta if isinstance(meta, Mapping) else {}
    related = meta.get(RELATED_TASK_META)
    task_id = _text(related.get("taskId")) if isinstance(related, Mapping) else None
    return Progress(
        progress=progress,
        total=known_total,
        message=_text(message),
        approval=PendingApproval.in_meta(meta),
        task_id=task_id,
    )


class Task(msgspec.Struct, frozen=True):
    """The state of a task at one time. `ttl` and `poll_interval` are in milliseconds, as on the wire."""

    task_id: str
    status: TaskStatus
    message: str | None = None
    created_at: str | None = None
    updated_at: str | None = None
    ttl: int | None = None
    poll_interval: int | None = None
    questions: Mapping[str, Question] = msgspec.field(default_factory=dict)
    result: Mapping[str, Any] | None = None
    error: Mapping[str, Any] | None = None
    raw: Mapping[str, Any] = msgspec.field(default_factory=dict)
    progress: Progress | None = None
    """Progress, if the server includes it in the task."""

    @classmethod
    def from_wire(cls, raw: Any, ttl_key: str, interval_key: str) -> Task:
        """Parse a task object. `ttl_key` and `interval_key` are the generation's names of the two durations. Raises
        InvalidReply.
        """
        if not isinstance(raw, dict):
            raise InvalidReply("the server described a task with something that is not an object")
        task_id, status = raw.get("taskId"), _STATUSES.get(_text(raw.get("status")) or "")
        if not isinstance(task_id, str) or not task_id:
            raise InvalidReply("the server described a task without a task id")
        if status is None:
            raise InvalidReply(f"the server gave task {task_id} the unknown status {raw.get('status')!r}")
        return cls(
            task_id=task_id,
            status=status,
            message=_text(raw.get("statusMessage")),
            created_at=_text(raw.get("createdAt")),
            updated_at=_text(raw.get("lastUpdatedAt")),
            ttl=_duration(raw.get(ttl_key)),
            poll_interval=_duration(raw.get(interval_key)),
            questions=_questions(task_id, raw.get("inputRequests")) if status is TaskStatus.INPUT_REQUIRED else {},
            result=raw.get("result") if isinstance(raw.get("result"), dict) else None,
            error=raw.get("error") if isinstance(raw.get("error"), dict) else None,
            raw=raw,
            progress=_progress(raw),
        )


def _progress(raw: Mapping[str, Any]) -> Progress | None:
    """Return the progress that a Taskgate gateway adds to `_meta`, because stateless tasks have no progress notifications."""
    meta = raw.get("_meta")
    reported = meta.get(PROGRESS_META) if isinstance(meta, dict) else None
    if not isinstance(reported, dict) or not isinstance(reported.get("progress"), int | float):
        return None
    total = reported.get("total")
    return Progress(
        reported["progress"], total if isinstance(total, int | float) else None, _text(raw.get("statusMessage"))
    )


class TaskUpdate(msgspec.Struct, frozen=True):
    """One change of a task, yielded by `TaskHandle.updates()`."""

    task_id: str
    status: TaskStatus
    message: str | None = None
    progress: float | None = None
    total: float | None = None
    questions: Mapping[str, Question] = msgspec.field(default_factory=dict)
    expires_in: float | None = None
    warning: str | None = None
    raw: Mapping[str, Any] = msgspec.field(default_factory=dict)


class ToolResult(msgspec.Struct, eq=False):
    """The result of a tool. `raw` is the unchanged result object of the server."""

    raw: dict[str, Any]

    @property
    def content(self) -> list[dict[str, Any]]:
        content = self.raw.get("content")
        return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []

    @property
    def structured_content(self) -> Any:
        return self.raw.get("structuredContent")

    @property
    def is_error(self) -> bool:
        return self.raw.get("isError") is True

    @property
    def meta(self) -> Mapping[str, Any]:
        meta = self.raw.get("_meta")
        return meta if isinstance(meta, dict) else {}

    @property
    def text(self) -> str:
        """All text blocks, joined by newlines."""
        blocks = (block.get("text") for block in self.content if block.get("type") == "text")
        return "\n".join(text for text in blocks if isinstance(text, str))

    def __repr__(self) -> str:
        return f"ToolResult({'error, ' if self.is_error else ''}{self.text[:60]!r})"


class Tool(msgspec.Struct, frozen=True):
    """One tool from `tools/list`."""

    name: str
    description: str
    input_schema: Mapping[str, Any]
    task_support: TaskSupport
    raw: Mapping[str, Any]

    @classmethod
    def from_wire(cls, raw: Any) -> Tool:
        if not isinstance(raw, dict) or not isinstance(raw.get("name"), str):
            raise InvalidReply("the server listed a tool without a name")
        schema = raw.get("inputSchema")
        return cls(
            name=raw["name"],
            description=str(raw.get("description") or ""),
            input_schema=schema if isinstance(schema, dict) else {},
            task_support=_support(raw),
            raw=raw,
        )

    @property
    def is_for_model(self) -> bool:
        """Whether the tool is for models; some tools of MCP Apps are only for their user interface (`_meta.ui.visibility`)."""
        meta = self.raw.get("_meta")
        ui = meta.get("ui") if isinstance(meta, Mapping) else None
        declared = ui.get("visibility") if isinstance(ui, Mapping) else None
        return "model" in declared if isinstance(declared, list) else True


class Listed(msgspec.Struct, frozen=True):
    """One prompt, resource or resource template. `raw` is the unchanged entry of the server."""

    name: str
    uri: str | None
    description: str
    raw: Mapping[str, Any]

    @classmethod
    def from_wire(cls, raw: Any) -> Listed:
        if not isinstance(raw, dict):
            raise InvalidReply("the server listed something that is not an object")
        uri = _text(raw.get("uri")) or _text(raw.get("uriTemplate"))
        return cls(str(raw.get("name") or uri or ""), uri, str(raw.get("description") or ""), raw)


def _support(raw: Mapping[str, Any]) -> TaskSupport:
    execution = raw.get("execution")
    value = execution.get("taskSupport") if isinstance(execution, dict) else None
    return TaskSupport(value) if value in ("optional", "required") else TaskSupport.FORBIDDEN


def _questions(task_id: str, raw: Any) -> dict[str, Question]:
    return read_questions(raw, task_id) if isinstance(raw, dict) else {}


def read_questions(raw: Mapping[str, Any], task_id: str | None = None) -> dict[str, Question]:
    """Parse the `inputRequests` of a result or a task. Raises InvalidReply for an entry that is not a request."""
    questions = {}
    for key, entry in raw.items():
        if not isinstance(entry, dict) or not isinstance(entry.get("method"), str):
            raise InvalidReply(f"the server's input request {key!r} has no method")
        params = entry.get("params")
        questions[key] = Question(key, entry["method"], params if isinstance(params, dict) else {}, task_id)
    return questions


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _duration(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        return None
    return int(min(value, 10**15))
