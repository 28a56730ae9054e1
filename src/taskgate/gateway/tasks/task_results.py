"""Store what a server returned as the end of a task. `core.tasks.endings` has the endings without a reply."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from taskgate.core import wire
from taskgate.core.errors import Executed
from taskgate.core.tasks import endings
from taskgate.core.tasks.task import Task
from taskgate.core.tasks.transition import (
    ErrorReceived,
    ResultReceived,
)
from taskgate.core.wire import Raw
from taskgate.gateway.questions.url_elicitations import URL_REQUIRED, UrlElicitations
from taskgate.gateway.requests.large_results import first_text, summarized
from taskgate.gateway.tasks.followers import Followers
from taskgate.gateway.tasks.task_records import TaskRecords
from taskgate.ports.upstream_replies import ErrorReply, Reply


class TaskResults(msgspec.Struct, eq=False):
    """Store the reply of a server as the end of its task. Every reply is checked here."""

    records: TaskRecords
    followers: Followers
    urls: UrlElicitations
    truncate: Callable[[str, bytes], Awaitable[bytes]]
    """Truncates a result to the budget of its server."""
    check_output: Callable[[Task, bytes], Awaitable[bytes]]

    async def record(self, task_id: str, reply: Reply, *, urls_checked: bool = False, task: Task | None = None) -> None:
        """End the task with the reply. Its bytes are stored unchanged unless they may not be shown.

        `task`: its record, if the caller has read it already. The checks use only fields that never change.
        """
        if isinstance(reply, ErrorReply):
            ending = None if urls_checked else await self._ending_for_unsafe_url(task_id, reply)
            ending = ending or ErrorReceived(reply.raw, error_message(reply.raw), Executed.YES)
            await self.records.conclude(task_id, ending)
            return
        raw = reply.raw
        task = task or await self.records.current(task_id)
        if task is not None:
            raw = await self.check_output(task, raw)
        failed = is_error(await summarized(raw))
        await self.records.conclude(task_id, ResultReceived(raw, failed, await first_text(raw) if failed else None))

    async def _ending_for_unsafe_url(self, task_id: str, reply: ErrorReply) -> ErrorReceived | None:
        """What to store instead of an error that requires a URL which may not be shown."""
        task = await self.records.current(task_id) if reply.code == URL_REQUIRED else None
        if task is None:
            return None
        origin = self.followers.creator(task.id)
        problem = self.urls.unfit(task.principal, task.server, reply.raw, origin)
        return endings.by_error(task, problem) if problem is not None else None


def is_error(result: bytes) -> bool:
    if b'"isError"' not in result or b"true" not in result:
        return False
    return bytes(wire.members_of(result).get("isError", Raw(b"false"))) == b"true"


def error_message(raw: bytes) -> str:
    return str(wire.parse_strictly(raw).get("message", "The server answered with an error."))[:500]
