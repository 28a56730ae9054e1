"""Everything that can go wrong for a user of the client, as one tree of exceptions, and the question that one of them carries.

Each error says what happened and, where a call was under way, whether the tool may have run (`executed`). Nothing
here talks to a server. Everybody in the package raises these; nobody lets an `OSError` or a decoder's error reach
the caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Question:
    """Something the server wants from the user of this client: an elicitation, a sampling request or the roots."""

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

    executed = "no"


class CannotConnect(ClientError):
    """No conversation could be opened: wrong address, refused connection, a program that does not start."""


class ConnectionLost(ClientError):
    """The line broke while an answer was outstanding. `executed` is `no` only where that is certain."""

    def __init__(self, message: str, executed: str = "maybe") -> None:
        super().__init__(message)
        self.executed = executed


class DeadlineExceeded(ClientError, TimeoutError):
    """A wait reached its deadline. The server may still be working on it, unless `executed` is `no`."""

    def __init__(self, message: str, executed: str = "maybe") -> None:
        super().__init__(message)
        self.executed = executed


class SessionClosed(ClientError):
    """The session was closed by this program while, or before, something was asked of it."""


class HttpRefusal(ClientError):
    """The server answered with an HTTP status instead of a JSON-RPC reply."""

    def __init__(self, status: int, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after
        self.executed = "maybe" if status >= 500 and status != 503 else "no"


class Unauthorized(HttpRefusal):
    """HTTP 401 or 403: the server wants other credentials, or does not let this caller in."""


class LoginFailed(ClientError):
    """The server wants a login and it did not come about; nothing was executed."""


class SessionExpired(HttpRefusal):
    """HTTP 404 for a session id: the server forgot the session and a new handshake is needed."""


class InvalidReply(ClientError):
    """The server sent something that MCP does not allow; what it really did is not known."""

    executed = "maybe"


class ReplyTooLarge(InvalidReply):
    """A reply, an event or a line grew past the limit set in the options."""


class VersionUnsupported(ClientError):
    """Client and server share no protocol revision."""


class ServerError(ClientError):
    """A JSON-RPC error: the server's own answer, with its code, text and data as they came."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(f"{message} ({code})")
        self.code = code
        self.message = message
        self.data = data

    @property
    def error_type(self) -> str | None:
        """The stable name a Taskgate gateway puts in `data.error_type`, if there is one."""
        name = self.data.get("error_type") if isinstance(self.data, dict) else None
        return name if isinstance(name, str) else None


class TasksNotSupported(ClientError):
    """The server, or this tool, does not run calls as tasks."""


class InputNeeded(ClientError):
    """The server asked questions and no callback was given to answer them."""

    def __init__(self, questions: Mapping[str, Question], message: str = "the server asks for input") -> None:
        super().__init__(message)
        self.questions = questions


class Refused(ClientError):
    """Raise this from a callback to tell the server that the user does not want to answer."""


class TaskError(ClientError):
    """Something about one task; `task_id` says which."""

    executed = "maybe"

    def __init__(self, task_id: str, message: str) -> None:
        super().__init__(message)
        self.task_id = task_id


class TaskFailed(TaskError):
    """The task ended as `failed` and the server gave no tool result for it."""


class TaskCancelled(TaskError):
    """The task ended as `cancelled`."""


class TaskNotFound(TaskError):
    """The server does not know the task: a wrong id, another caller's, or one that is gone."""


class TaskExpired(TaskNotFound):
    """The task's time to live ran out and the server no longer knows it."""


class TaskVanished(TaskNotFound):
    """The server no longer knows the task although its time to live had not run out."""


class ServerUnreachable(TaskError):
    """The server could not be asked about the task for longer than `give_up_after`."""
