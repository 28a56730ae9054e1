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
"""The status message of a task that waits for an approval."""


class RunOn(StrEnum):
    """What starts the run of a task. Values other than `ONCE_ALLOWED` matter only for tasks that waited for an approval."""

    ONCE_ALLOWED = "once_allowed"
    DEMAND = "demand"
    RESULT = "result"


class AttemptState(StrEnum):
    """What is known about an attempt to send a call."""

    DISPATCHING = "dispatching"
    VOID = "void"
    ANSWERED = "answered"


class Attempt(msgspec.Struct, frozen=True, omit_defaults=True):
    """One attempt to send a call to a server.

    `VOID`: proven not to have been executed. `ANSWERED`: the server returned a result, or questions that start another
    round. `ended_ms` is None while it is open, and if the gateway stopped before its end was stored; `why` is the error
    type of a failed attempt.
    """

    number: int
    fence: int
    byte_hash: str
    upstream: str
    sent_at_ms: int
    state: AttemptState = AttemptState.DISPATCHING
    ended_ms: int | None = None
    why: str = ""


class ProgressStep(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a server reported about its progress, and when."""

    at_ms: int
    progress: float
    total: float | None = None
    message: str = ""


class UpstreamHandle(msgspec.Struct, frozen=True):
    """The task that a server created for a call, with everything needed to poll it after a restart."""

    upstream: str
    task_id: str
    session_id: str | None
    generation: Generation


class OutcomeKind(StrEnum):
    RESULT = "result"
    ERROR = "error"


class Outcome(msgspec.Struct, frozen=True):
    """How a task ended: the exact bytes of a result or of a JSON-RPC error object.

    `body` is None if the bytes are in the spill file named by `spill`; `result_bytes` of the store reads them.
    """

    kind: OutcomeKind
    body: bytes | None = None
    is_error: bool = False
    spill: str | None = None
    size: int = 0


class Task(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The durable record of one call. Members that have their default value are not stored."""

    id: str
    # The owner of the task: never a session.
    principal: str
    # Key of lists and events: the principal, or the conversation of an anonymous caller.
    caller: str
    # The conversation of the principal that made the call and gets its events while it is open.
    conversation: str = ""
    # Key of limits: the principal, or the address of an anonymous caller; empty means the same as `caller`.
    limited_as: str = ""
    scope: str
    # Facts from the caller's token; None for callers without a token of an issuer, and for tasks of older versions.
    facts: CredentialFacts | None = None
    # Whether the call is a script, which the gateway runs itself.
    script: bool = False
    # For a call that a script made: the task of the script, and the line of the call in its source.
    parent: str = ""
    script_line: int = 0
    # For a call that a script made: the digest of the source.
    script_digest: str = ""
    # For a script that others resume: the newest script that has begun of the chain that starts with this one.
    newest_of_chain: str = ""
    # The local directory of the client, if it matters to the server: the task may run only there, also after a restart.
    place: str = ""
    server: str
    tool: str
    wire_name: str
    # The exact bytes of the arguments that were evaluated and will be sent.
    arguments: bytes
    # The other members of the params of the call, which are sent with it.
    params_rest: bytes = b"{}"
    digest: str
    definition_digest: str = ""
    policy_revision: str = ""
    # Revision of the subset of servers and tools that the caller had at that time.
    scope_revision: str = ""
    tool_class: ToolClass = ToolClass.ONCE
    generation: Generation
    # The name in the `clientInfo` of the client; empty in records of older versions.
    client: str = ""
    # The task that this one repeats, for a person who ran it again.
    rerun_of: str = ""
    # Whether a question was asked: by the server, or by the gateway for an account.
    asked: bool = False
    correlation_id: str = ""
    # The id that callers of the vendor methods use; None for tasks that they did not create.
    vendor_id: str | None = None
    state: TaskState = TaskState.QUEUED
    run_on: RunOn = RunOn.ONCE_ALLOWED
    status_message: str | None = None
    progress: float | None = None
    progress_total: float | None = None
    # Some of the reports so far, for the timeline: `with_progress` in `core.tasks.progress` bounds their number.
    progress_steps: tuple[ProgressStep, ...] = ()
    created_ms: int = 0
    updated_ms: int = 0
    finished_ms: int | None = None
    ttl_ms: int
    # Time for which the result can be read after the end, even if the ttl is shorter.
    keep_result_ms: int = 300_000
    execution_budget_ms: int
    approval_deadline_ms: int | None = None
    execution_deadline_ms: int | None = None
    approval_id: str | None = None
    last_attempt: Attempt | None = None
    # Attempts that may have reached the tool, and how many of those in the current round have no response.
    sends: int = 0
    unanswered_sends: int = 0
    upstream_handle: UpstreamHandle | None = None
    # The opaque `requestState` of a stateless server: with it, a pending question survives a restart of the gateway.
    request_state: bytes | None = None
    question_keys: tuple[str, ...] = ()
    outcome: Outcome | None = None
    executed: Executed | None = None
    # Cancelled while the call was in flight: the server must still be notified, also by the next owner after a crash.
    # Stored as `cancel_owed`, its name in earlier versions.
    cancel_unsent: bool = msgspec.field(default=False, name="cancel_owed")
    owner: str = ""
    fence: int = 0
    revision: int = 0

    @property
    def conversation_key(self) -> ConversationKey:
        """The conversation that made the call."""
        return ConversationKey(self.caller, self.conversation)

    @property
    def attempts(self) -> int:
        return self.last_attempt.number if self.last_attempt is not None else 0

    @property
    def may_have_been_sent(self) -> bool:
        """True as soon as an intent to send is stored, unless every attempt is proven void."""
        return self.times_sent > 0

    @property
    def times_sent(self) -> int:
        """Number of attempts that may have reached the tool. Records of version 0.1.0 have only the last attempt."""
        last = self.last_attempt
        if self.sends or last is None or last.state is AttemptState.VOID:
            return self.sends
        return last.number

    @property
    def times_unanswered(self) -> int:
        """Number of those attempts that belong to the current round and have no response."""
        return self.unanswered_sends if self.sends else self.times_sent

    @property
    def between_rounds(self) -> bool:
        """Whether the server has answered everything that was sent, and the next round has not been sent."""
        return self.last_attempt is not None and self.may_have_been_sent and self.times_unanswered == 0
