"""How a question in an inbox can end. The inbox uses this table, and the diagrams are drawn from it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

from taskgate.core.questions.question import ELICIT, SAMPLE


class Ending(StrEnum):
    ACCEPTED = "accepted"
    COMPLETED = "completed"
    DECLINED = "declined"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    REJECTED = "rejected"


class EndingEffect(msgspec.Struct, frozen=True):
    """The cause of an ending, and what the server receives."""

    cause: str
    response: str
    """What the server receives."""


_ENDS_FOR_ALL: Final = {
    Ending.EXPIRED: EndingEffect("Timeout reached (default 10 min)", "Error sent to final server"),
    Ending.REJECTED: EndingEffect("Final server disconnects, or the call ends", "Error (server gone)"),
}
ENDINGS: Final[Mapping[str, Mapping[Ending, EndingEffect]]] = {
    ELICIT: {
        Ending.ACCEPTED: EndingEffect(
            "Client calls respond_to_elicitation(action: accept)", "Response sent to final server"
        ),
        Ending.DECLINED: EndingEffect(
            "Client calls respond_to_elicitation(action: decline)", "Response sent to final server"
        ),
        Ending.CANCELLED: EndingEffect(
            "Client calls respond_to_elicitation(action: cancel)", "Response sent to final server"
        ),
        **_ENDS_FOR_ALL,
    },
    SAMPLE: {
        Ending.COMPLETED: EndingEffect("Client calls respond_to_sampling", "Response sent to final server"),
        Ending.CANCELLED: EndingEffect("Client calls cancel_sampling_request", "Error sent to final server"),
        **_ENDS_FOR_ALL,
    },
}
BY_ACTION: Final = {"accept": Ending.ACCEPTED, "decline": Ending.DECLINED, "cancel": Ending.CANCELLED}


def mermaid(method: str) -> str:
    lines = ["stateDiagram-v2", f"    [*] --> pending : Final server sends {method}", ""]
    lines += [f"    pending --> {ending} : {effect.cause}" for ending, effect in ENDINGS[method].items()]
    lines += ["", *(f"    {ending} --> [*] : {effect.response}" for ending, effect in ENDINGS[method].items())]
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
