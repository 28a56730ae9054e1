"""Delivery modes: how a call that does not finish at once is returned to its caller, and the texts for callers without tasks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from taskgate.core.generations.generation import Generation
from taskgate.core.patterns import Glob

KNOWN_TO_RESET: Final = ("claude-code*", "mcp-inspector*", "inspector-*", "goose*")
"""Clients that start their time-out anew with every progress message."""


class Form(Enum):
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
    """How long the reply is held; None where promotion is switched off."""
    beats: bool
    form: Form


def delivery(
    settings: DeliverySettings, generation: Generation, *, wants_tasks: bool, has_token: bool, client: str
) -> Delivery:
    """The delivery mode for one request that did not ask for a task itself."""
    if generation is Generation.STATELESS and wants_tasks:
        return Delivery(settings.grace_s, has_token, Form.HANDLE)
    if settings.promote_after_s <= 0:
        return Delivery(None, has_token, Form.SENTENCE)
    if has_token and resets_on_progress(client, settings.clients):
        return Delivery(max(settings.hold_s, settings.promote_after_s), True, Form.SENTENCE)
    return Delivery(settings.promote_after_s, has_token, Form.SENTENCE)


def resets_on_progress(client: str, more: tuple[str, ...] = ()) -> bool:
    return any(Glob.compile(pattern).matches(client.lower()) for pattern in (*KNOWN_TO_RESET, *more))


def promoted_text(
    tool: str, task_id: str, waited_s: float, helpers: bool, *, page: str | None = None, by_itself: bool = True
) -> str:
    """What a caller without tasks reads when its call became one.

    `page`: where people decide on it, if they must. `by_itself`: whether it then runs without being asked for.
    """
    after = f"`{tool}` is still running after {waited_s:g} s and goes on as task {task_id}. Nothing went wrong."
    if page is not None:
        after = f"No approver has decided within {waited_s:g} s. {held_text(tool, task_id, page, by_itself=by_itself)}"
    if helpers:
        return (
            f"{after} Call get_task_result with this task_id to wait for the result, get_task to look at it, or await_activity "
            "with task_ids to follow several tasks and what their servers ask."
        )
    return f"{after} A client that knows tasks gets its result with this task id (tasks/get, tasks/result)."


def held_text(tool: str, task_id: str, page: str, *, by_itself: bool) -> str:
    """What a caller reads about a call that waits for an approval."""
    then = "runs by itself once it is approved" if by_itself else "runs when you ask for it once it is approved"
    return (
        f"`{tool}` needs the approval of a person and was not run yet. An approver can decide at {page}. "
        f"The call waits as task {task_id} and {then}; do not call it again."
    )


APPROVAL: Final = "taskgate/approval"
"""Under which key of `_meta` the handle of a held call names the approval: its id, and the page where people decide."""
JOINED: Final = "taskgate/joined"
"""Under which key of `_meta` the reply of a call names the equal one that it joined."""
KEY_META: Final = "taskgate/idempotencyKey"
"""Under which key of `_meta` a caller gives an idempotency key."""


@dataclass(frozen=True, slots=True)
class JoinedCall:
    """A call that joined an equal one, which waits for an approval."""

    task_id: str
    key: str
    """An idempotency key with which the same call is a second one."""

    def shown(self) -> dict[str, Any]:
        return {"taskId": self.task_id, "secondWith": {KEY_META: self.key}}

    def sentence(self) -> str:
        return (
            f"An equal call of this conversation already waits for approval as task {self.task_id}, and this call joined it. To "
            f'make a second call, repeat it with _meta {{"{KEY_META}": "{self.key}"}}.'
        )
