"""The two generations of MCP and the revisions in each.

*Stateful* is 2025-11-25 and older: a handshake opens a session, and the server may send requests. *Stateless* is 2026-07-28:
every request carries an envelope, there is no session, and questions travel inside results. Everything that differs between
them lives here; everything else speaks of calls, questions and tasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple

import msgspec

from taskgate.core import wire
from taskgate.core.errors import CallerError, Executed, TaskgateError
from taskgate.core.wire import META, Members, Raw, insert_first, meta_of, with_meta
from taskgate.mcp.param_headers import decode_header_value


class Generation(Enum):
    STATEFUL = "stateful"
    STATELESS = "stateless"

    # Links are looked up by it in every call, and members are single objects.
    __hash__ = object.__hash__

    @property
    def other(self) -> Generation:
        return Generation.STATELESS if self is Generation.STATEFUL else Generation.STATEFUL


NEWEST_STATEFUL: Final = "2025-11-25"
STATEFUL_REVISIONS: Final = (NEWEST_STATEFUL, "2025-06-18", "2025-03-26")
OLD_STDIO_REVISION: Final = "2024-11-05"
NEWEST_STATELESS: Final = "2026-07-28"
STATELESS_REVISIONS: Final = (NEWEST_STATELESS,)

IMMEDIATE_RESPONSE: Final = "io.modelcontextprotocol/model-immediate-response"
"""Under which key of `_meta` a task handle has a text for the model."""
RELATED_TASK: Final = "io.modelcontextprotocol/related-task"
TASK_NEWS: Final = frozenset({"notifications/tasks/status", "notifications/tasks"})
"""What a server tells about its own tasks, in either generation."""
PROGRESS_TOKEN: Final = "progressToken"


def generation_of(revision: str) -> Generation | None:
    """The generation a revision belongs to, or None for one that we do not speak."""
    if revision in STATELESS_REVISIONS:
        return Generation.STATELESS
    if revision in STATEFUL_REVISIONS or revision == OLD_STDIO_REVISION:
        return Generation.STATEFUL
    return None


# The 2025-11-25 generation and its elders: the handshake, and which methods a session may use.
#
# Pure translation only; sessions themselves live in the gateway.


@dataclass(frozen=True, slots=True)
class Opening:
    """What a caller says of itself in `initialize`."""

    version: str
    capabilities: Mapping[str, Any]
    client_info: Mapping[str, Any]


def read_opening(params: Any, old_stdio: bool = False) -> Opening:
    """Check `initialize` and settle on a revision: the asked one if we speak it, else our newest (lifecycle)."""
    if type(params) is not dict or type(params.get("protocolVersion")) is not str:
        raise CallerError("invalid_params", 'initialize needs "protocolVersion", "capabilities" and "clientInfo".')
    asked = params["protocolVersion"]
    known = (*STATEFUL_REVISIONS, OLD_STDIO_REVISION) if old_stdio else STATEFUL_REVISIONS
    capabilities, info = params.get("capabilities"), params.get("clientInfo")
    return Opening(
        asked if asked in known else NEWEST_STATEFUL,
        capabilities if type(capabilities) is dict else {},
        info if type(info) is dict else {},
    )


def speaks_tasks(version: str) -> bool:
    """Tasks, URL elicitation and sampling tools exist only in the newest revision of this generation."""
    return version == NEWEST_STATEFUL


def declares_tasks(capabilities: Mapping[str, Any]) -> bool:
    """A caller is task-aware when it declared any `tasks` capability."""
    return isinstance(capabilities.get("tasks"), Mapping)


# The 2026-07-28 generation: the envelope on each request, its header checks, and its shape of results.
#
# Pure translation only. Sections cited are those of the 2026-07-28 specification.

VERSION: Final = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES: Final = "io.modelcontextprotocol/clientCapabilities"
CLIENT_INFO: Final = "io.modelcontextprotocol/clientInfo"
LOG_LEVEL: Final = "io.modelcontextprotocol/logLevel"
SERVER_INFO: Final = "io.modelcontextprotocol/serverInfo"
SUBSCRIPTION: Final = "io.modelcontextprotocol/subscriptionId"
TASKS_EXTENSION: Final = "io.modelcontextprotocol/tasks"
ENVELOPE_KEYS: Final = (VERSION, CAPABILITIES, CLIENT_INFO, LOG_LEVEL)

CACHEABLE: Final = frozenset(
    {
        "server/discover",
        "tools/list",
        "prompts/list",
        "resources/list",
        "resources/templates/list",
        "resources/read",
        "skills/list",
        "skills/get",
        "resources/directory/read",
    }
)
_NAMED_BY: Final = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}


class Envelope(msgspec.Struct, frozen=True):
    """What a stateless request says about its sender. Capabilities hold for this request only."""

    version: str
    capabilities: Mapping[str, Any]
    client_info: Mapping[str, Any] | None
    log_level: str | None
    wants_tasks: bool
    """The caller declared the tasks extension."""


def has_envelope(params: Any) -> bool:
    return type(params) is dict and META in params and VERSION in meta_of(params)


def read_envelope(params: Any, header: bytes | None = None) -> Envelope:
    """Read and check the envelope, or say what is missing (basic/index: required keys).

    A header that names another revision than the body is a mismatch before it is an unknown revision.
    """
    meta = params.get(META) if type(params) is dict else None
    version = meta.get(VERSION) if type(meta) is dict else None
    if type(meta) is not dict or type(version) is not str:
        raise CallerError("invalid_envelope", f'Every request needs "_meta" with "{VERSION}".')
    if header is not None and header != version.encode("utf-8"):
        _must_match("MCP-Protocol-Version", header, version)
    if version not in STATELESS_REVISIONS:
        raise unsupported_version(version)
    capabilities = meta.get(CAPABILITIES)
    if type(capabilities) is not dict:
        raise CallerError("invalid_envelope", f'Every request needs "_meta" with "{CAPABILITIES}"; {{}} is fine.')
    info, level = meta.get(CLIENT_INFO), meta.get(LOG_LEVEL)
    extensions = capabilities.get("extensions")
    wants_tasks = type(extensions) is dict and extensions.get(TASKS_EXTENSION) == {}
    return Envelope(
        version,
        capabilities,
        info if type(info) is dict else None,
        level if type(level) is str else None,
        wants_tasks,
    )


def unsupported_version(requested: str) -> CallerError:
    return CallerError(
        "unsupported_version",
        f"Protocol version {requested[:40]!r} is not supported.",
        data={"supported": list(STATELESS_REVISIONS), "requested": requested},
    )


def missing_capability(required: Mapping[str, Any], why: str) -> CallerError:
    return CallerError("missing_capability", why, data={"requiredCapabilities": dict(required)})


def name_header(method: str, params: Any) -> str | None:
    """What `Mcp-Name` must say for this request, or None where the header does not apply."""
    key = _NAMED_BY.get(method)
    if key is None or type(params) is not dict:
        return None
    value = params.get(key)
    return value if type(value) is str else None


def check_headers(
    method: str, params: Any, version: str, headers: Mapping[bytes, bytes], *, is_request: bool = True
) -> None:
    """Headers must repeat what the body says (transports: a server that reads the body MUST compare)."""
    key = _NAMED_BY.get(method)
    named = params.get(key) if key is not None and type(params) is dict else None
    if (
        is_request
        and headers.get(b"mcp-protocol-version") == version.encode("utf-8")
        and headers.get(b"mcp-method") == method.encode("utf-8")
        and (type(named) is not str or headers.get(b"mcp-name") == named.encode("utf-8"))
    ):
        # As nearly every client writes them. What is written in another way is looked at one by one.
        return
    _must_match("MCP-Protocol-Version", headers.get(b"mcp-protocol-version"), version)
    if not is_request:
        return
    _must_match("Mcp-Method", headers.get(b"mcp-method"), method)
    name = name_header(method, params)
    if name is not None:
        _must_match("Mcp-Name", headers.get(b"mcp-name"), name)


def _must_match(header: str, seen: bytes | None, expected: str) -> None:
    if seen is None:
        raise CallerError("header_mismatch", f"The header {header} is missing.")
    if seen == expected.encode("utf-8"):
        return
    if not seen.isascii() or decode_header_value(seen.decode("ascii").strip(" \t")) != expected:
        raise CallerError("header_mismatch", f"The header {header} does not match the message body.")


def stamp(
    members: Members, capabilities: Raw, client_info: Raw | None, log_level: str | None, version: str = NEWEST_STATELESS
) -> Members:
    """Give params the envelope that a stateless upstream expects."""
    put = {VERSION: wire.raw(version), CAPABILITIES: capabilities}
    if client_info is not None:
        put[CLIENT_INFO] = client_info
    if log_level is not None:
        put[LOG_LEVEL] = wire.raw(log_level)
    return with_meta(members, put)


def unstamp(members: Members) -> Members:
    """Take the envelope away again, for an upstream of the stateful generation."""
    return with_meta(members, {}, drop=ENVELOPE_KEYS)


def complete(result: bytes | Raw) -> bytes:
    """Mark a result as complete, unless it says already what it is."""
    body = bytes(result)
    if b'"resultType"' in body and "resultType" in wire.members_of(body):
        return body
    return insert_first(body, b'"resultType":"complete"')


def cached_privately(result: bytes, ttl_ms: int = 0) -> bytes:
    """Add the cache fields that list-like results must carry; private, because our lists are filtered per caller."""
    members = wire.members_of(result)
    members.setdefault("resultType", Raw(b'"complete"'))
    members["ttlMs"] = members.get("ttlMs", wire.raw(ttl_ms))
    members["cacheScope"] = Raw(b'"private"')
    return wire.join(members)


def strip_result(result: bytes | Raw, method: str) -> bytes:
    """A stateless result as a stateful caller expects it: also without the stamp by which the server names itself."""
    members = wire.members_of(result)
    members.pop("resultType", None)
    if META in members and SERVER_INFO.encode() in bytes(members[META]):
        members = with_meta(members, {}, drop=(SERVER_INFO,))
    if method in CACHEABLE:
        members.pop("ttlMs", None)
        members.pop("cacheScope", None)
    structured = members.get("structuredContent")
    if structured is not None and bytes(structured)[:1] != b"{":
        _put_into_text(members, members.pop("structuredContent"))
    return wire.join(members)


def _put_into_text(members: Members, structured: Raw) -> None:
    """Stateful callers know structured content that is an object, and refuse a result with any other: they are told in a text."""
    content = members.get("content")
    if content is None or bytes(content).replace(b" ", b"") == b"[]":
        text = {"type": "text", "text": bytes(structured).decode("utf-8")}
        members["content"] = wire.raw([text])


def input_required(requests: Mapping[str, Raw], state: str | None) -> bytes:
    """The result that hands questions to a stateless caller (MRTR)."""
    result: dict[str, Any] = {"resultType": "input_required"}
    if requests:
        result["inputRequests"] = dict(requests)
    if state is not None:
        result["requestState"] = state
    return wire.encode(result)


# Which number an error of ours bears on the wire, per generation.
#
# The stable name is `error_type`; numbers follow the negotiated revision. 2026-07-28 reserves -32020 to -32099 for
# itself, so our own kinds use general numbers there and keep an older number, if they had one, as `legacy_code` in the
# data.


class Code(NamedTuple):
    stateful: int
    stateless: int
    legacy: int | None = None
    status: int = 200
    """The HTTP status where the whole answer is this error (stateless only, and overload in both)."""


CODES: Final[dict[str, Code]] = {
    "parse_error": Code(-32700, -32700, status=400),
    "invalid_request": Code(-32600, -32600, status=400),
    "method_not_found": Code(-32601, -32601, status=404),
    "invalid_params": Code(-32602, -32602),
    "invalid_envelope": Code(-32602, -32602, status=400),
    "invalid_cursor": Code(-32602, -32602),
    "unknown_resource": Code(-32002, -32602),
    "unknown_skill": Code(-32602, -32602),
    "content_mismatch": Code(-32603, -32603),
    "unknown_prompt": Code(-32602, -32602),
    "header_mismatch": Code(-32600, -32020, status=400),
    "missing_capability": Code(-32600, -32021, status=400),
    "unsupported_version": Code(-32602, -32022, status=400),
    "not_initialized": Code(-32600, -32600, status=400),
    "task_required": Code(-32601, -32601, -32009),
    "task_forbidden": Code(-32601, -32601, -32010),
    "unknown_tool": Code(-32602, -32602, -32015),
    "scope_refused": Code(-32602, -32602),
    "not_allowed": Code(-32602, -32602),
    "bad_scope_request": Code(-32602, -32602, status=400),
    "bad_pattern": Code(-32602, -32602, status=400),
    "policy_denied": Code(-32003, -32602, -32003),
    "approval_rejected": Code(-32007, -32602, -32007),
    "approval_expired": Code(-32008, -32602, -32008),
    "approval_pending": Code(-32007, -32602, -32007),
    "policy_drift": Code(-32011, -32602, -32011),
    "request_drift": Code(-32012, -32602, -32012),
    "unknown_task": Code(-32602, -32602, -32081),
    "result_expired": Code(-32602, -32602, -32005),
    "result_not_ready": Code(-32602, -32602, -32089),
    "task_finished": Code(-32602, -32602, -32090),
    "unknown_server": Code(-32602, -32602),
    "idempotency_conflict": Code(-32602, -32602),
    "request_too_large": Code(-32600, -32600, status=413),
    "overloaded": Code(-32013, -32603, -32013, status=503),
    "rate_limited": Code(-32013, -32603, -32009, status=429),
    "gateway_unreachable": Code(-32000, -32603, -32000),
    "upstream_unreachable": Code(-32000, -32603, -32000),
    "upstream_timeout": Code(-32001, -32603, -32001),
    "upstream_protocol": Code(-32000, -32603, -32000),
    "result_too_large": Code(-32000, -32603, -32000),
    "outcome_unknown": Code(-32000, -32603, -32000),
    "input_refused": Code(-32602, -32602),
    "invalid_arguments": Code(-32602, -32602),
    "invalid_output": Code(-32603, -32603),
    "unusable_schema": Code(-32603, -32603),
    "unsafe_url": Code(-32602, -32602),
    "unknown_question": Code(-32602, -32602),
    "unknown_request": Code(-32602, -32602),
    "unknown_reference": Code(-32602, -32602, -32021),
    "invalid_uri": Code(-32602, -32602, -32022),
    "task_exists": Code(-32602, -32602, -32082),
    "unknown_elicitation": Code(-32602, -32602),
    "invalid_sampling_request": Code(-32602, -32602),
    "invalid_model_preferences": Code(-32602, -32602, -32048),
    "model_not_available": Code(-32603, -32603, -32049),
    "sampling_failed": Code(-32603, -32603, -32046),
    "sampling_timeout": Code(-32603, -32603, -32047),
    "sampling_rate_limited": Code(-32603, -32603, -32050),
    "sampling_budget_exceeded": Code(-32603, -32603, -32050),
    "sampling_refused": Code(-1, -1),
    "store_unavailable": Code(-32603, -32603, status=503),
    "shutting_down": Code(-32603, -32603, status=503),
    "credential_expired": Code(-32000, -32603),
    "credential_revoked": Code(-32000, -32603),
    "access_changed": Code(-32000, -32603),
    "internal": Code(-32603, -32603),
}
_UNKNOWN: Final = Code(-32603, -32603)
SEED_TASK_TYPES: Final = ("task_required", "task_forbidden")


def code_of(error_type: str) -> Code:
    return CODES.get(error_type, _UNKNOWN)


def error_data(error: TaskgateError, correlation_id: str, executed: Executed | None) -> dict[str, Any]:
    """The `data` member that every error of ours carries. Without `executed`, nothing is stated about the call."""
    data: dict[str, Any] = {"error_type": error.error_type}
    if error.gate is not None:
        data["gate"] = error.gate
    data["correlation_id"] = correlation_id
    if executed is not None:
        data["executed"] = executed.value
    legacy = code_of(error.error_type).legacy
    if legacy is not None:
        data["legacy_code"] = legacy
    data.update(error.data)
    return data


def error_object(
    error: TaskgateError,
    generation: Generation,
    correlation_id: str,
    executed: Executed | None,
    *,
    seed_task_codes: bool = False,
    legacy_numbers: bool = False,
) -> bytes:
    """The JSON-RPC error object for an error of ours. Older numbers, where asked for, are for stateful callers only."""
    data = error_data(error, correlation_id, executed)
    code = code_of(error.error_type)
    number = code.stateful if generation is Generation.STATEFUL else code.stateless
    if generation is Generation.STATEFUL and (
        legacy_numbers or (seed_task_codes and error.error_type in SEED_TASK_TYPES)
    ):
        number = data.get("legacy_code", number)
    return wire.encode({"code": number, "message": error.message, "data": data})
