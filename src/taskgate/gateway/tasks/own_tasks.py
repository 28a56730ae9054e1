"""The tasks that one conversation can list: its own, and those of ended conversations of the same caller."""

from __future__ import annotations

from typing import Any, Final

from taskgate.core.identity.conversation import ConversationKey
from taskgate.core.tasks.task import Task
from taskgate.gateway.requests.open_conversations import OpenConversations
from taskgate.ports.store import Store
from taskgate.ports.store_answers import TaskPage
from taskgate.store.operations.task_queries import TasksPage

PAGES_AT_ONCE: Final = 20
"""A limit for callers with very many tasks in other conversations. The page may be short then, with a cursor."""


async def own_tasks(
    store: Store,
    conversations: OpenConversations,
    key: ConversationKey,
    *,
    after: str | None,
    limit: int,
    **filters: Any,
) -> TaskPage:
    found: list[Task] = []
    for _ in range(PAGES_AT_ONCE):
        page = await store.ask(TasksPage(key.caller, after=after, limit=limit, **filters))
        for task in page.tasks:
            if conversations.is_notified(key, task.conversation_key):
                found.append(task)
            if len(found) == limit:
                more = task is not page.tasks[-1] or page.after is not None
                return TaskPage(tuple(found), task.id if more else None)
        after = page.after
        if after is None:
            break
    return TaskPage(tuple(found), after)
