"""Texts for callers without tasks, whose call is promoted or held."""

from __future__ import annotations


def promoted_text(
    tool: str, task_id: str, waited_s: float, helpers: bool, *, page: str | None = None, by_itself: bool = True
) -> str:
    """Text for a caller without tasks whose call became a task.

    `page`: where an approver decides, if the call needs approval. `by_itself`: whether it then runs without a further
    request.
    """
    after = f"`{tool}` is still running after {waited_s:g} s and continues as task {task_id}. Nothing went wrong."
    if page is not None:
        after = f"No approver has decided within {waited_s:g} s. {held_text(tool, task_id, page, by_itself=by_itself)}"
    if helpers:
        return (
            f"{after} Call get_task_result with this task_id to wait for the result, get_task to read its state, or await_activity "
            "with task_ids to follow several tasks and what their servers ask."
        )
    return f"{after} A client that supports tasks gets the result with this task id (tasks/get, tasks/result)."


def held_text(tool: str, task_id: str, page: str, *, by_itself: bool) -> str:
    """Text for a caller whose call waits for an approval."""
    then = "runs by itself once it is approved" if by_itself else "runs when you request its result once it is approved"
    return (
        f"`{tool}` needs the approval of a person and was not run yet. An approver can decide at {page}. "
        f"The call waits as task {task_id} and {then}; do not call it again."
    )
