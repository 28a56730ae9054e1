"""The exceptions of the client, as one tree, and the question that one of them carries.

Each error states what happened and whether the tool may have run (`executed`). In an error about a task, `executed` is
about the task's call. Nothing here does I/O. The package raises these only: no `OSError` and no decoder's error reaches
the program.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from taskgate.mcp.failures import REFUSALS, Executed


class Question(msgspec.Struct, frozen=True):
    """A request of the server to the user of this client: an elicitation, a sampling request or the roots."""

    key: str
    method: str
    params: Mapping[str, Any]
    task_id: str | None = None

    @property
    def message(self) -> str:
        return str(self.params.get("message", ""))

    @property
    def is_url(self) -> bool:
        return self.params.get("mode") == "url"


class ClientError(Exception):
    """The root: catch this to catch everything the client raises on purpose."""

    executed: str = "maybe"
    """Whether the tool has run: `no` only where that is proven, `yes` only where the server stated it, else `maybe`."""
    stated: str | None = None
    """The `executed` that the server gave in its error; None if it gave none."""

    def call_was_sent_before(self) -> None:
        """Reset `executed` for an error about a call that an earlier request sent: this failure proves nothing about it."""
        if self.stated is None and self.executed == "no":
            self.executed = "maybe"

    def no_call_was_sent(self) -> None:
        """Set `executed` to `no`: the error occurred before the call was sent."""
        self.executed = "no"


def stated_executed(data: Any) -> str | None:
    """`executed` in the data of a JSON-RPC error, if it has one of the three values."""
    value = data.get("executed") if isinstance(data, dict) else None
    return value if isinstance(value, str) and value in _EXECUTED else None


_EXECUTED = frozenset(value.value for value in Executed)


class CannotConnect(ClientError):
    """No connection could be opened: wrong address, refused connection, a program that does not start."""

    executed = "no"


class ConnectionLost(ClientError):
    """The connection was lost before the response. `executed` is `no` only where that is proven."""

    def __init__(self, message: str, executed: str = "maybe") -> None:
        super().__init__(message)
        self.executed = executed


class DeadlineExceeded(ClientError, TimeoutError):
    """A wait reached its deadline. The server may still be working on it, unless `executed` is `no`."""

    def __init__(self, message: str, executed: str = "maybe") -> None:
        super().__init__(message)
        self.executed = executed


class SessionClosed(ClientError):
    """This program closed the session. `executed` is `no` if the request had not been sent by then."""

    def __init__(self, message: str, executed: str = "maybe") -> None:
        super().__init__(message)
        self.executed = executed


class HttpRefusal(ClientError):
    """The server answered with an HTTP status instead of a JSON-RPC reply."""

    def __init__(
        self, status: int, message: str, retry_after: float | None = None, *, stated: str | None = None
    ) -> None:
        """`stated`: the `executed` of a JSON-RPC error in the body, which overrides what the status proves."""
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after
        self.stated = stated
        self.executed = stated or ("no" if status in REFUSALS else "maybe")


class Unauthorized(HttpRefusal):
    """HTTP 401 or 403: the server requires other credentials, or denies this caller access."""


class LoginFailed(ClientError):
    """The server requires a login, and it was not completed; the call was not executed."""

    executed = "no"


class SessionExpired(HttpRefusal):
    """HTTP 404 for a session id: the server no longer has the session, and a new handshake is needed."""


class InvalidReply(ClientError):
    """The server sent something that MCP does not allow; whether the tool ran is not known."""


class ReplyTooLarge(InvalidReply):
    """A reply, an event or a line grew past the limit set in the options."""


class VersionUnsupported(ClientError):
    """Client and server share no protocol revision."""

    executed = "no"


class ServerError(ClientError):
    """A JSON-RPC error of the server, with its unchanged code, message and data.

    `executed` is `data.executed`. Most servers other than a Taskgate gateway give none: then it is `maybe`.
    """

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(f"{message} ({code})")
        self.code = code
        self.message = message
        self.data = data
        self.stated = stated_executed(data)
        self.executed = self.stated or "maybe"

    @property
    def error_type(self) -> str | None:
        """The stable name a Taskgate gateway puts in `data.error_type`, if there is one."""
        name = self.data.get("error_type") if isinstance(self.data, dict) else None
        return name if isinstance(name, str) else None


class TasksNotSupported(ClientError):
    """The server, or this tool, does not run calls as tasks; nothing was sent."""

    executed = "no"


class InputNeeded(ClientError):
    """The server asked questions and there is no callback for them. The call had started."""

    def __init__(self, questions: Mapping[str, Question], message: str = "the server asks for input") -> None:
        super().__init__(message)
        self.questions = questions


class Refused(ClientError):
    """Raise this from a callback if the user refuses to answer."""


class TaskError(ClientError):
    """An error about one task, named by `task_id`."""

    def __init__(self, task_id: str, message: str) -> None:
        super().__init__(message)
        self.task_id = task_id


class TaskFailed(TaskError):
    """The task ended as `failed` and the server gave no tool result for it."""


class TaskCancelled(TaskError):
    """The task ended as `cancelled`."""


class TaskNotFound(TaskError):
    """The server has no such task: a wrong id, another caller's task, or a deleted one."""


class TaskExpired(TaskNotFound):
    """The task's ttl expired and the server deleted it."""


class TaskVanished(TaskNotFound):
    """The server no longer has the task although its ttl has not expired."""


class ServerUnreachable(TaskError):
    """The task could not be polled for longer than `give_up_after`."""
