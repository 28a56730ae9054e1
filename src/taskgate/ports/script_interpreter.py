"""Run a script step by step, with its whole state as bytes between two steps.

A step runs the script until it ends or until everything in it waits for calls. The interpreter keeps no state between steps that
anything depends on: the next one is started from the snapshot, in any process that has the same `version`. A snapshot is only
valid as it was returned. Verify it with `core/scripts/snapshot_seal.py` before `resume`: the interpreter loads changed bytes
without noticing.

Nothing outside the interpreter has happened when a step returns. A step that is lost (its worker was killed, the gateway ended)
can therefore be run again from the same snapshot with the same outcomes, as long as the calls that it returned were not accepted.
`now()` and `random()` inside the script are computed from `StepFacts`; their values stay in the snapshot, so they need no
suspension and no record.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Protocol

import msgspec


class ScriptTool(msgspec.Struct, frozen=True):
    """A tool as a script calls it: `await NAMESPACE.FUNCTION(...)`, or `await FUNCTION(...)` if `namespace` is empty."""

    namespace: str
    function: str
    tool: str
    """The name in `tools/list` of the scope."""


class ScriptProgram(msgspec.Struct, frozen=True):
    """A script to start."""

    code: str
    inputs: bytes = b"{}"
    """A JSON object; the script reads it as `inputs`."""
    tools: tuple[ScriptTool, ...] = ()
    """What the names in the code may refer to. A later step does not check them again: each call is checked when it is made."""


class ScriptLimits(msgspec.Struct, frozen=True):
    """What one script may use. A snapshot carries the limits of its start; `step_seconds`, `wall_seconds`, `snapshot_bytes`,
    `output_bytes` and `parallel_calls` are applied again in each step, a higher `wall_seconds` to later scripts only.
    """

    memory_bytes: int = 64 * 1024 * 1024
    step_seconds: float = 5.0
    """CPU time between two suspensions."""
    wall_seconds: float = 60.0
    """Real time between two suspensions, for a machine that is too busy to give the script its CPU time."""
    snapshot_bytes: int = 4 * 1024 * 1024
    output_bytes: int = 256 * 1024
    """Maximum output of a step. More is cut, and the step continues."""
    result_bytes: int = 4 * 1024 * 1024
    """Maximum size of the final value, and of the arguments of the calls of one step."""
    recursion: int = 200
    parallel_calls: int = 50
    """Calls that may be open at once. One more raises in the script, and is not made."""


class StepFacts(msgspec.Struct, frozen=True):
    """What `now()` and `random()` are computed from in one step."""

    now: float
    """Seconds since 1970."""
    seed: bytes
    """32 unpredictable bytes, new for each step."""


class PlacedReference(msgspec.Struct, frozen=True):
    """A reference to a result in a value of a script, where the value itself has null."""

    path: tuple[str | int, ...]
    """Names of members and places in arrays, from the outside."""
    reference: str


class CallKind(StrEnum):
    """What a script waits for."""

    TOOL = "tool"
    ASK = "ask"
    SLEEP = "sleep"


class PendingCall(msgspec.Struct, frozen=True):
    """A call that a script made in this step. Bind its arguments with `core/scripts/bind_arguments.py`."""

    id: int
    """Unique in its script, ascending."""
    kind: CallKind
    tool: str
    """Empty unless `kind` is `TOOL`."""
    positional: bytes
    """A JSON array."""
    keywords: bytes
    """A JSON object."""
    line: int
    """Line number in the code, from 1; 0 if unknown."""
    offset: int = -1
    """Where the call begins in the code, in bytes of UTF-8; -1 if unknown."""
    references: tuple[PlacedReference, ...] = ()
    """References in the array of `positional` and `keywords`."""


class Progress(msgspec.Struct, frozen=True):
    """A `progress(done, total, text)` of the script."""

    done: float
    total: float | None
    text: str


class StepOutput(msgspec.Struct, frozen=True):
    """What a step produced besides its outcome."""

    printed: str = ""
    printed_cut: bool = False
    """It printed more than `output_bytes`."""
    progress: tuple[Progress, ...] = ()
    """The newest reports, at most 100."""
    cpu_seconds: float = 0.0


class Suspended(msgspec.Struct, frozen=True):
    """The script waits. Resume it as soon as one of `pending` has an outcome."""

    snapshot: bytes
    calls: tuple[PendingCall, ...]
    """The new ones. Accept them in the transaction that stores the snapshot."""
    pending: tuple[int, ...]
    """Every call without an outcome at this snapshot, the new ones included. `resume` takes all outcomes known for them."""
    output: StepOutput


class Finished(msgspec.Struct, frozen=True):
    """The script ended with a value."""

    value: bytes
    """JSON: the value of the expression on the last line, otherwise null."""
    abandoned: tuple[int, ...]
    """Accepted calls that the script no longer waits for."""
    output: StepOutput
    references: tuple[PlacedReference, ...] = ()
    """In `value`."""


class FailureReason(StrEnum):
    """What ended a script."""

    SCRIPT = "script"
    """It raised, or returned what is not JSON."""
    LIMIT = "limit"
    """It exceeded a limit."""
    WORKER = "worker"
    """Its worker ended, hung or violated the protocol. The same step may be run once more."""
    INTERPRETER = "interpreter"
    """The snapshot cannot be loaded, or the interpreter failed."""


class Failed(msgspec.Struct, frozen=True):
    """The script ended with an error. No new call of this step was made."""

    reason: FailureReason
    error_type: str
    """The name of the exception, or of the limit."""
    message: str
    line: int
    """0 if unknown."""
    output: StepOutput


Step = Suspended | Finished | Failed


class Returned(msgspec.Struct, frozen=True):
    """A call that succeeded, with its value as JSON."""

    value: bytes


class Referenced(msgspec.Struct, frozen=True):
    """A call that succeeded, with a result that the script only passes on. It gets the reference in its place."""

    reference: str


class Raised(msgspec.Struct, frozen=True):
    """A call that failed. The script catches it with `except Exception as e`, and `tool_error(e)` has these fields."""

    type: str
    """An error type of docs/errors.md, such as `denied` or `outcome_unknown`."""
    message: str
    executed: str
    """`yes`, `no` or `unknown`."""


CallOutcome = Returned | Referenced | Raised


class Availability(msgspec.Struct, frozen=True):
    """Whether scripts can run here."""

    available: bool
    reason: str = ""
    """What to install if the interpreter is not available."""


class ScriptInterpreter(Protocol):
    """Runs steps of scripts, each in another process."""

    @property
    def version(self) -> str:
        """The version that a snapshot is bound to. A snapshot of another version is never loaded. Empty if the interpreter is not
        available.
        """
        ...

    @property
    def parallel_steps(self) -> int:
        """How many steps run at the same time. Further ones wait in the order in which they come."""
        ...

    def availability(self) -> Availability:
        """Whether the interpreter is installed. Starts nothing."""
        ...

    async def start(self, program: ScriptProgram, limits: ScriptLimits, facts: StepFacts) -> Step:
        """Run a script until it waits or ends. Errors of the script are returned as `Failed`, not raised."""
        ...

    async def resume(
        self, snapshot: bytes, outcomes: Mapping[int, CallOutcome], limits: ScriptLimits, facts: StepFacts
    ) -> Step:
        """Continue a script. `outcomes` are those known of `Suspended.pending`, at least one."""
        ...

    async def aclose(self) -> None:
        """End all workers. Running steps fail with `FailureReason.WORKER`."""
        ...
