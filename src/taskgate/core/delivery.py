"""Delivery modes: how a call that does not finish at once is returned to its caller, and the texts for callers without tasks."""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

from taskgate.core.generations.generation import Generation
from taskgate.core.globs import Glob
from taskgate.lazy_dataclass import dataclass

KNOWN_TO_RESET: Final = ("claude-code*", "mcp-inspector*", "inspector-*", "goose*")
"""Clients that restart their timeout with every progress notification."""


class ReplyForm(Enum):
    HANDLE = "handle"
    SENTENCE = "sentence"


@dataclass(frozen=True, slots=True)
class DeliverySettings:
    grace_s: float = 8.0
    promote_after_s: float = 45.0
    hold_s: float = 300.0
    heartbeat_s: float = 15.0
    clients: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Delivery:
    wait_s: float | None
    """How long the reply is held; None if promotion is disabled."""
    beats: bool
    form: ReplyForm


def delivery(
    settings: DeliverySettings, generation: Generation, *, wants_tasks: bool, has_token: bool, client: str
) -> Delivery:
    """Return the delivery mode of a request that did not itself request a task."""
    if generation is Generation.STATELESS and wants_tasks:
        return Delivery(settings.grace_s, has_token, ReplyForm.HANDLE)
    if settings.promote_after_s <= 0:
        return Delivery(None, has_token, ReplyForm.SENTENCE)
    if has_token and resets_on_progress(client, settings.clients):
        return Delivery(max(settings.hold_s, settings.promote_after_s), True, ReplyForm.SENTENCE)
    return Delivery(settings.promote_after_s, has_token, ReplyForm.SENTENCE)


def resets_on_progress(client: str, more: tuple[str, ...] = ()) -> bool:
    return any(Glob.compile(pattern).matches(client.lower()) for pattern in (*KNOWN_TO_RESET, *more))


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
            f"{after} Call get_task_result with this task_id to wait for the result, get_task to look at it, or await_activity "
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


APPROVAL: Final = "taskgate/approval"
"""Key of `_meta` in the handle of a held call: the id of the approval, and the page where an approver decides."""
JOINED: Final = "taskgate/joined"
"""Key of `_meta` in the reply of a call that joined an equal one: the task of that call."""
KEY_META: Final = "taskgate/idempotencyKey"
"""Key of `_meta` for an idempotency key from the caller."""
TASK_META: Final = "taskgate/task"
"""A stateless caller sets this key in `_meta` to true to get a task handle at once."""


@dataclass(frozen=True, slots=True)
class JoinedCall:
    """A call that joined an equal call, which waits for an approval."""

    task_id: str
    key: str
    """An idempotency key that makes the same call a second one."""

    def shown(self) -> dict[str, Any]:
        return {"taskId": self.task_id, "secondWith": {KEY_META: self.key}}

    def sentence(self) -> str:
        return (
            f"An equal call of this conversation already waits for approval as task {self.task_id}, and this call joined it. To "
            f'make a second call, repeat it with _meta {{"{KEY_META}": "{self.key}"}}.'
        )
