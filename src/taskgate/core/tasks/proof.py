"""What the record of a task proves about its call, for errors about the task.

`executed` in such an error refers to the call of the task. `no` is proven by a record that has ended without any
attempt that could have reached the tool: never sent, or every attempt void. An open task can be sent at any time, also
after its record was read and before the error is returned, so its record proves nothing.
"""

from __future__ import annotations

from typing import TypeVar

from taskgate.core.errors import Executed, TaskgateError
from taskgate.core.tasks.task import Task

AnyError = TypeVar("AnyError", bound=TaskgateError)


def executed_of(task: Task) -> Executed:
    """Return what the record proves."""
    if task.executed is None:
        return Executed.MAYBE  # still open
    if task.executed is Executed.NO and task.may_have_been_sent:
        return Executed.MAYBE  # an older version stored a later refusal as proof
    return task.executed


def about(task: Task, error: AnyError) -> AnyError:
    """Return the error with the `executed` that the record of the task proves."""
    error.is_proven_by_record(executed_of(task), task.id)
    return error
