"""What a task asks: its own questions and, of a script, those of its calls. The caller of a script knows its task only."""

from __future__ import annotations

from typing import Final

from taskgate.core.ids import is_task_id
from taskgate.core.tasks.state import TaskState
from taskgate.core.tasks.task import Task
from taskgate.ports.store import Store
from taskgate.ports.store_answers import TaskQuestion
from taskgate.store.operations.scripts import AskingCalls
from taskgate.store.operations.task_queries import FindTask, QuestionsOf

_BETWEEN: Final = "/"
"""Between the id of a call and the key of its question."""


async def open_questions(store: Store, task: Task) -> dict[tuple[str, str], TaskQuestion]:
    """The open questions, by the id of the task that asks and their key."""
    asking: tuple[str, ...] = (task.id,) if task.state is TaskState.INPUT_REQUIRED else ()
    if task.script and not task.state.is_terminal:
        asking += await store.ask(AskingCalls(task.id))
    return {(task_id, one.key): one for task_id in asking for one in await store.ask(QuestionsOf(task_id))}


def shown_key(task: Task, asking: str, key: str) -> str:
    """The key under which a caller of the task sees the question."""
    return key if asking == task.id else f"{asking}{_BETWEEN}{key}"


async def question_named(store: Store, task: Task, shown: str) -> tuple[str, str]:
    """The task that asks the question with this key, and the question's own key."""
    call, between, key = shown.partition(_BETWEEN)
    if task.script and between and is_task_id(call):
        found = await store.ask(FindTask(call))
        if found is not None and found.parent == task.id:
            return call, key
    return task.id, shown
