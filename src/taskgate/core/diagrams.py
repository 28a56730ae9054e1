"""Mermaid diagrams that explain the gateway to its callers. State diagrams are generated from the tables that the code runs on."""

from __future__ import annotations

from typing import Any, Final

from taskgate.core.questions.endings import mermaid
from taskgate.core.questions.question import ELICIT, SAMPLE
from taskgate.core.tasks.projections_tools import states_shown_as
from taskgate.core.tasks.state import MOVES, TaskState, TransitionKind

_WORDS: Final = {
    TransitionKind.RESULT_RECEIVED: "Final server returns result",
    TransitionKind.ERROR_RECEIVED: "Final server returns error",
    TransitionKind.CONTACT_LOST: "Final server disconnects",
    TransitionKind.CANCELLED: "Client calls cancel_task",
    TransitionKind.APPROVAL_DENIED: "Approver denies",
    TransitionKind.APPROVAL_EXPIRED: "Not approved in time",
    TransitionKind.REFUSED: "Policy denies",
}
_ORDER: Final = ("completed", "failed", "cancelled", "expired")

_LIFECYCLE: Final = """stateDiagram-v2
    [*] --> in_flight : execute_tool called

    in_flight --> returned_result : Completes within timeout
    in_flight --> promoted_to_task : Timeout expires

    returned_result --> [*] : Result returned to client (no task created)

    promoted_to_task --> task_working : Task created

    state task_working {
        [*] --> waiting
        waiting --> completed : Result received
        waiting --> failed : Error received
    }"""

_ENTITIES: Final = """flowchart TB
    subgraph "Original Client"
        OC[Client Tools]
    end

    subgraph "MCP Proxy"
        Tasks[(Proxy Tasks)]
        Elicit[(Pending Elicitations)]
        Sampling[(Pending Sampling)]
        Notif[(Buffered Notifications)]
        Logs[(Buffered Logs)]
    end

    subgraph "Final Servers"
        FS1[Server 1]
        FS2[Server 2]
    end

    OC -->|execute_tool| Tasks
    OC -->|respond_to_elicitation| Elicit
    OC -->|respond_to_sampling| Sampling
    OC -->|await_activity| Tasks & Elicit & Sampling & Notif
    OC -->|get_logs| Logs

    FS1 -->|elicitation/create| Elicit
    FS1 -->|sampling/createMessage| Sampling
    FS1 -->|notifications/*| Notif
    FS1 -->|notifications/message| Logs
    FS2 -->|elicitation/create| Elicit
    FS2 -->|sampling/createMessage| Sampling"""


def diagrams() -> list[dict[str, Any]]:
    """Return the diagrams, each with name and description."""
    return [
        {
            "name": "proxy_task_states",
            "description": "State machine for proxy tasks created when tool calls exceed timeout",
            "mermaid": _task_states(),
        },
        {
            "name": "pending_elicitation_states",
            "description": "State machine for elicitation requests from final servers awaiting client response",
            "mermaid": mermaid(ELICIT),
        },
        {
            "name": "pending_sampling_states",
            "description": "State machine for sampling requests from final servers awaiting LLM completion",
            "mermaid": mermaid(SAMPLE),
        },
        {
            "name": "tool_call_lifecycle",
            "description": "Flow showing how tool calls are promoted to tasks on timeout",
            "mermaid": _LIFECYCLE,
        },
        {
            "name": "entity_relationships",
            "description": "Overview of all proxy entities and how they interact",
            "mermaid": _ENTITIES,
        },
    ]


def _task_states() -> str:
    """The task states as the own tools show them: everything before the end is `working`."""
    lines = ["stateDiagram-v2", "    [*] --> working : execute_tool timeout expires", ""]
    for word in _ORDER:
        lines += [f"    working --> {word} : {cause}" for cause in dict.fromkeys(_causes(word))]
    lines += ["", *(f"    {word} --> [*] : Cleaned up after retention period" for word in _ORDER)]
    return "\n".join(lines)


def _causes(word: str) -> list[str]:
    shown = states_shown_as(word)
    if word == "failed":
        shown -= {TaskState.COMPLETED}
    found = [kind for moves in MOVES.values() for kind, after in moves.items() if after in shown]
    return [_WORDS[kind] for kind in found]
