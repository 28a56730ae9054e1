"""What the record of a task proves about its call, for errors about the task.

`executed` in such an error is about the task's call. `no` is proven by a record that has ended without any attempt that
could have reached the tool: never sent, or every attempt void. As long as a task is open it can be sent at any moment,
also between the look at its record and the arrival of the error, so its record proves nothing that would last.
"""

from __future__ import annotations

from typing import TypeVar

from taskgate.core.errors import Executed, TaskgateError
from taskgate.core.tasks.task import Task

AnyError = TypeVar("AnyError", bound=TaskgateError)


def executed_of(task: Task) -> Executed:
    if task.executed is None:
        return Executed.MAYBE  # still open
    if task.executed is Executed.NO and task.may_have_been_sent:
        return Executed.MAYBE  # written by a version that took a later refusal for proof
    return task.executed


def about(task: Task, error: AnyError) -> AnyError:
    """The error, stating what the task's record proves."""
    error.is_proven_by_record(executed_of(task), task.id)
    return error
