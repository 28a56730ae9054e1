"""Delivery modes: how a call that does not finish at once is handed to this caller.

Chosen per request from what the caller declared: how long its reply is held, whether it hears that work goes on, and what it gets
when time is up. A caller that knows tasks gets a handle; everyone else gets an ordinary result that names the task and the tools
to follow it with.

Where somebody is sent after logging in: back to a page of ours, never anywhere else.

The wish comes out of an address that anybody may have written, so only what can be nothing but a path on this very site is taken.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

from taskgate.core.generations import Generation
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


def promoted_text(tool: str, task_id: str, waited_s: float, helpers: bool, for_people: bool = False) -> str:
    """What a caller without tasks reads when its call became one."""
    after = f"`{tool}` is still running after {waited_s:g} s and goes on as task {task_id}. Nothing went wrong."
    if for_people:
        after = (
            f"`{tool}` needs the approval of a person, which has not come within {waited_s:g} s. It was not run yet. "
            f"The call waits as task {task_id} and runs by itself once it is approved; do not call it again."
        )
    if helpers:
        return f"{after} Call get_task_result with this task_id to wait for the result, or get_task to look at it."
    return f"{after} Ask for it later with this task id."


MAX_PATH: Final = 512
# No second slash at the front (browsers read //host as another site), no backslash (some read it as a slash), nothing unseen.
_PATH: Final = re.compile(r"/(?:[A-Za-z0-9._~-][A-Za-z0-9._~/-]*)?(?:\?[A-Za-z0-9._~=&%:-]*)?")
_NOWHERE: Final = ("/login", "/logout")


def safe_return(wished: str | None) -> str | None:
    """The path to return to, or None if the wish is no path of ours."""
    if not wished or len(wished) > MAX_PATH or _PATH.fullmatch(wished) is None:
        return None
    return None if wished.partition("?")[0] in _NOWHERE else wished
