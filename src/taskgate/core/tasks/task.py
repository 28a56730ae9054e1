"""The durable record of a call: `Task` and the values it consists of."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from taskgate.core.errors import Executed
from taskgate.core.generations.generation import Generation
from taskgate.core.identity.caller import CredentialFacts
from taskgate.core.identity.conversation import ConversationKey
from taskgate.core.tasks.state import TaskState
from taskgate.core.tool_class import ToolClass

AWAITING_APPROVAL: Final = "Awaiting approval"
"""The status message of a task that waits for people."""


class RunOn(StrEnum):
    """What starts the run of a task. Anything but `ONCE_ALLOWED` matters only for tasks that waited for an approver."""

    ONCE_ALLOWED = "once_allowed"
    DEMAND = "demand"
    RESULT = "result"


class AttemptState(StrEnum):
    """What is known about one try to send a call."""

    DISPATCHING = "dispatching"
    VOID = "void"
    ANSWERED = "answered"


class Attempt(msgspec.Struct, frozen=True):
    """One try to send a call upstream. `VOID` means: proven not to have been executed; `ANSWERED`: the server had its say, with
    the result or with questions that begin another round.
    """

    number: int
    fence: int
    byte_hash: str
    upstream: str
    sent_at_ms: int
    state: AttemptState = AttemptState.DISPATCHING


class UpstreamHandle(msgspec.Struct, frozen=True):
    """The task an upstream made of our call, with everything needed to ask for it again after a restart."""

    upstream: str
    task_id: str
    session_id: str | None
    generation: Generation


class OutcomeKind(StrEnum):
    RESULT = "result"
    ERROR = "error"


class Outcome(msgspec.Struct, frozen=True):
    """How a task ended: the exact bytes of a result or of a JSON-RPC error object, here or in a file beside the store.

    `body` is None while the bytes live in the spill file named by `spill`; the store's `result_bytes` reads them.
    """

    kind: OutcomeKind
    body: bytes | None = None
    is_error: bool = False
    spill: str | None = None
    size: int = 0


class Task(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The durable record of one call. Most of its members mostly have their default, and are then not written down."""

    id: str
    # Who the task belongs to, for good: never a session.
    principal: str
    # Under which name lists and events are kept: the principal, or for anonymous callers their conversation.
    caller: str
    # Which of the principal's conversations asked for it, and is told of it while it lasts.
    conversation: str = ""
    # Under which name limits are kept: the principal, or for anonymous callers their address; empty means the same as `caller`.
    limited_as: str = ""
    scope: str
    # What its caller's token said; None for callers without a token of an issuer, and for tasks of older versions.
    facts: CredentialFacts | None = None
    # Where its client stands, if it matters to the server: only there may it run, also after a restart.
    place: str = ""
    server: str
    tool: str
    wire_name: str
    # The arguments exactly as they were judged and as they will be sent.
    arguments: bytes
    # The other members of the call's params, which travel with it.
    params_rest: bytes = b"{}"
    digest: str
    definition_digest: str = ""
    policy_revision: str = ""
    # Which set of servers and tools its caller had then: the revision of the scope's subset.
    scope_revision: str = ""
    tool_class: ToolClass = ToolClass.ONCE
    generation: Generation
    correlation_id: str = ""
    # Under which id callers of the vendor methods know it; None for every task that they did not make.
    vendor_id: str | None = None
    state: TaskState = TaskState.QUEUED
    run_on: RunOn = RunOn.ONCE_ALLOWED
    status_message: str | None = None
    progress: float | None = None
    progress_total: float | None = None
    created_ms: int = 0
    updated_ms: int = 0
    finished_ms: int | None = None
    ttl_ms: int
    # How long the result can be read from the end on, however short the ttl was.
    keep_result_ms: int = 300_000
    execution_budget_ms: int
    approval_deadline_ms: int | None = None
    execution_deadline_ms: int | None = None
    approval_id: str | None = None
    last_attempt: Attempt | None = None
    # Attempts that may have reached the tool, and those among them of the present round that got no answer.
    sends: int = 0
    unanswered_sends: int = 0
    upstream_handle: UpstreamHandle | None = None
    # An upstream's opaque `requestState`: with it a waiting question of a stateless upstream outlives our process.
    request_state: bytes | None = None
    question_keys: tuple[str, ...] = ()
    outcome: Outcome | None = None
    executed: Executed | None = None
    # Cancelled while the call was out: the upstream still has to be told, also by the next owner after a crash.
    cancel_owed: bool = False
    owner: str = ""
    fence: int = 0
    revision: int = 0

    @property
    def asked_in(self) -> ConversationKey:
        return ConversationKey(self.caller, self.conversation)

    @property
    def attempts(self) -> int:
        return self.last_attempt.number if self.last_attempt is not None else 0

    @property
    def may_have_been_sent(self) -> bool:
        """True from the moment an intent is written, unless every attempt is proven void."""
        return self.times_sent > 0

    @property
    def times_sent(self) -> int:
        """How many attempts may have reached the tool. Records of version 0.1.0 hold only the last attempt."""
        last = self.last_attempt
        if self.sends or last is None or last.state is AttemptState.VOID:
            return self.sends
        return last.number

    @property
    def times_unanswered(self) -> int:
        """How many of those belong to the present round and got no answer."""
        return self.unanswered_sends if self.sends else self.times_sent

    @property
    def between_rounds(self) -> bool:
        """The server has answered everything that was sent, and the next round has not been sent."""
        return self.last_attempt is not None and self.may_have_been_sent and self.times_unanswered == 0
