"""Requests to a worker and its replies, as bytes.

A frame is the length of its JSON and the length of its snapshot, four bytes each, big-endian, followed by both. Values of
scripts are embedded as they are and not decoded in the gateway.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from taskgate.core.raw_json import Raw
from taskgate.mcp.json_errors import UNDECODABLE
from taskgate.ports.script_interpreter import (
    CallKind,
    CallOutcome,
    Failed,
    FailureReason,
    Finished,
    PendingCall,
    PlacedReference,
    Progress,
    Referenced,
    Returned,
    ScriptLimits,
    ScriptProgram,
    Step,
    StepFacts,
    StepOutput,
    Suspended,
)

HEADER_BYTES: Final = 8
_encode: Final = msgspec.json.Encoder().encode


class BadReply(Exception):
    """The worker broke the protocol."""


def frame(body: bytes, snapshot: bytes = b"") -> bytes:
    """Return a frame."""
    return len(body).to_bytes(4, "big") + len(snapshot).to_bytes(4, "big") + body + snapshot


def lengths(header: bytes | bytearray) -> tuple[int, int]:
    """Return the lengths of the JSON and of the snapshot."""
    return int.from_bytes(header[:4], "big"), int.from_bytes(header[4:], "big")


def start_request(number: int, program: ScriptProgram, limits: ScriptLimits, facts: StepFacts) -> bytes:
    """Return the request of a first step."""
    return frame(
        _encode(
            {
                "op": "start",
                "code": program.code,
                "inputs": Raw(program.inputs),
                "tools": [[tool.namespace, tool.function, tool.tool] for tool in program.tools],
                **_common(number, limits, facts),
            }
        )
    )


def resume_request(
    number: int, snapshot: bytes, outcomes: Mapping[int, CallOutcome], limits: ScriptLimits, facts: StepFacts
) -> bytes:
    """Return the request of a later step."""
    settled = {str(call): _settled(outcome) for call, outcome in outcomes.items()}
    return frame(_encode({"op": "resume", "outcomes": settled, **_common(number, limits, facts)}), snapshot)


def _common(number: int, limits: ScriptLimits, facts: StepFacts) -> dict[str, object]:
    return {"number": number, "limits": limits, "now": facts.now, "seed": facts.seed.hex()}


def _settled(outcome: CallOutcome) -> dict[str, object]:
    if isinstance(outcome, Returned):
        return {"value": Raw(outcome.value)}
    if isinstance(outcome, Referenced):
        return {"reference": outcome.reference}
    return {"type": outcome.type, "message": outcome.message, "executed": outcome.executed}


_Reference = tuple[list[str | int], str]


class _Call(msgspec.Struct):
    id: int
    kind: CallKind
    tool: str
    positional: Raw
    keywords: Raw
    line: int
    offset: int = -1
    references: list[_Reference] = []


class _Reply(msgspec.Struct, kw_only=True):
    number: int
    step: str
    printed: str = ""
    cut: bool = False
    progress: list[tuple[float, float | None, str]] = []
    cpu: float = 0.0
    calls: list[_Call] = []
    pending: list[int] = []
    value: Raw = Raw(b"null")
    abandoned: list[int] = []
    references: list[_Reference] = []
    reason: FailureReason = FailureReason.WORKER
    error_type: str = ""
    message: str = ""
    line: int = 0


_decode: Final = msgspec.json.Decoder(_Reply).decode


def read_reply(number: int, body: bytes, snapshot: bytes) -> Step:
    """Return the step of a reply. Raises BadReply."""
    try:
        reply = _decode(body)
    except UNDECODABLE as error:
        raise BadReply(str(error)) from None
    if reply.number != number:
        raise BadReply(f"it answered request {reply.number} instead of {number}")
    output = StepOutput(reply.printed, reply.cut, tuple(Progress(*each) for each in reply.progress), reply.cpu)
    match reply.step:
        case "suspended":
            return Suspended(snapshot, tuple(map(_call, reply.calls)), tuple(reply.pending), output)
        case "finished":
            return Finished(bytes(reply.value), tuple(reply.abandoned), output, _references(reply.references))
        case "failed":
            return Failed(
                reason=reply.reason, error_type=reply.error_type, message=reply.message, line=reply.line, output=output
            )
    raise BadReply(f"it has the unknown step {reply.step!r}")


def _call(call: _Call) -> PendingCall:
    return PendingCall(
        id=call.id,
        kind=call.kind,
        tool=call.tool,
        positional=bytes(call.positional),
        keywords=bytes(call.keywords),
        line=call.line,
        offset=call.offset,
        references=_references(call.references),
    )


def _references(found: list[_Reference]) -> tuple[PlacedReference, ...]:
    return tuple(PlacedReference(tuple(path), reference) for path, reference in found)
