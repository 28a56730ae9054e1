"""Open questions of servers and scripts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import UNSET, Struct, UnsetType

from taskgate.replies.fields import Time, about


class QuestionRow(Struct, frozen=True, kw_only=True):
    """An open question."""

    kind: Annotated[str, about("`elicitation`, `sampling` or `roots`")]
    caller: Annotated[str, about("principal that it is for")]
    message: Annotated[str, about("message of the question; may be empty")]
    may_answer: Annotated[bool, about("whether you may answer")]
    request_id: Annotated[str, about("id of the question")]
    server: Annotated[str, about("name of the server")]
    timestamp: Annotated[Time, about("time of the question")]
    expires_at: Annotated[Time, about("deadline of the answer")]
    params: Annotated[Any, about("the question as the server sent it")]
    task_id: Annotated[str | UnsetType, about("task that it belongs to, if known")] = UNSET
    undecided: Annotated[bool | UnsetType, about("true if the call that caused it is not known")] = UNSET
    page: Annotated[str | UnsetType, about("address of its page for people")] = UNSET
    secret_fields: Annotated[Sequence[str] | UnsetType, about("fields that seem to ask for a secret")] = UNSET
    warning: Annotated[str | UnsetType, about("warning for the person who answers")] = UNSET


class QuestionAnswered(Struct, frozen=True, kw_only=True):
    """The reply to an answer."""

    id: Annotated[str, about("id of the question")]
    message: Annotated[str, about("result as a sentence")]
