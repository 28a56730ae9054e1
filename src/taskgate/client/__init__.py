"""An MCP client with task support: `async with connect(url_or_command) as session: await session.call_tool(...)`.

Works with any MCP server, stateful (2025-11-25 and older) or stateless (2026-07-28), and imports nothing of the gateway.
`taskgate.client.sync` is the blocking version for scripts without asyncio, `taskgate.client.openai_tools` is for agent loops.
"""

from taskgate.client.connect import connect
from taskgate.client.errors import (
    CannotConnect,
    ClientError,
    ConnectionLost,
    DeadlineExceeded,
    HttpRefusal,
    InputNeeded,
    InvalidReply,
    LoginFailed,
    Question,
    Refused,
    ReplyTooLarge,
    ServerError,
    ServerUnreachable,
    SessionClosed,
    SessionExpired,
    TaskCancelled,
    TaskError,
    TaskExpired,
    TaskFailed,
    TaskNotFound,
    TasksNotSupported,
    TaskVanished,
    Unauthorized,
    VersionUnsupported,
)
from taskgate.client.gathering import gather
from taskgate.client.options import Generation, Options
from taskgate.client.questions import accept, cancel, decline
from taskgate.client.results import (
    Listed,
    PendingApproval,
    Progress,
    Task,
    TaskStatus,
    TaskSupport,
    TaskUpdate,
    Tool,
    ToolResult,
)
from taskgate.client.session import Session
from taskgate.client.task_handle import TaskHandle

__all__ = [
    "CannotConnect",
    "ClientError",
    "ConnectionLost",
    "DeadlineExceeded",
    "Generation",
    "HttpRefusal",
    "InputNeeded",
    "InvalidReply",
    "Listed",
    "LoginFailed",
    "Options",
    "PendingApproval",
    "Progress",
    "Question",
    "Refused",
    "ReplyTooLarge",
    "ServerError",
    "ServerUnreachable",
    "Session",
    "SessionClosed",
    "SessionExpired",
    "Task",
    "TaskCancelled",
    "TaskError",
    "TaskExpired",
    "TaskFailed",
    "TaskHandle",
    "TaskNotFound",
    "TaskStatus",
    "TaskSupport",
    "TaskUpdate",
    "TaskVanished",
    "TasksNotSupported",
    "Tool",
    "ToolResult",
    "Unauthorized",
    "VersionUnsupported",
    "accept",
    "cancel",
    "connect",
    "decline",
    "gather",
]
