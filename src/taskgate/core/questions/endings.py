"""How a question in an inbox can end. The inbox uses this table, and the diagrams are drawn from it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from taskgate.core.questions.question import ELICIT, SAMPLE


class Ending(StrEnum):
    ACCEPTED = "accepted"
    COMPLETED = "completed"
    DECLINED = "declined"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    REJECTED = "rejected"


class How(NamedTuple):
    cause: str
    told: str
    """What the server gets."""


_ENDS_FOR_ALL: Final = {
    Ending.EXPIRED: How("Timeout reached (default 10 min)", "Error sent to final server"),
    Ending.REJECTED: How("Final server disconnects, or the call ends", "Error (server gone)"),
}
ENDINGS: Final[Mapping[str, Mapping[Ending, How]]] = {
    ELICIT: {
        Ending.ACCEPTED: How("Client calls respond_to_elicitation(action: accept)", "Response sent to final server"),
        Ending.DECLINED: How("Client calls respond_to_elicitation(action: decline)", "Response sent to final server"),
        Ending.CANCELLED: How("Client calls respond_to_elicitation(action: cancel)", "Response sent to final server"),
        **_ENDS_FOR_ALL,
    },
    SAMPLE: {
        Ending.COMPLETED: How("Client calls respond_to_sampling", "Response sent to final server"),
        Ending.CANCELLED: How("Client calls cancel_sampling_request", "Error sent to final server"),
        **_ENDS_FOR_ALL,
    },
}
BY_ACTION: Final = {"accept": Ending.ACCEPTED, "decline": Ending.DECLINED, "cancel": Ending.CANCELLED}


def mermaid(method: str) -> str:
    lines = ["stateDiagram-v2", f"    [*] --> pending : Final server sends {method}", ""]
    lines += [f"    pending --> {ending} : {how.cause}" for ending, how in ENDINGS[method].items()]
    lines += ["", *(f"    {ending} --> [*] : {how.told}" for ending, how in ENDINGS[method].items())]
    if method == ELICIT:
        lines += [
            "",
            "    note right of pending",
            "        Elicitation blocks the final server's operation",
            "        until client responds. The client sees it via",
            "        await_activity or get_elicitations.",
            "    end note",
        ]
    return "\n".join(lines)
