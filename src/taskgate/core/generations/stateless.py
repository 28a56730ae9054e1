"""The stateless generation (2026-07-28): the envelope of each request, the header checks, and the form of results.

The sections cited are those of the 2026-07-28 specification.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from taskgate.core import wire
from taskgate.core.errors import CallerError
from taskgate.core.generations.generation import NEWEST_STATELESS, STATELESS_REVISIONS
from taskgate.core.meta import META, insert_first, meta_of, with_meta
from taskgate.core.wire import Members, Raw
from taskgate.mcp.param_headers import decode_header_value

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
    """What a stateless request declares about its sender. Capabilities apply to this request only."""

    version: str
    capabilities: Mapping[str, Any]
    client_info: Mapping[str, Any] | None
    log_level: str | None
    accepts_tasks: bool
    """Whether the caller declared the tasks extension."""


def has_envelope(params: Any) -> bool:
    return type(params) is dict and META in params and VERSION in meta_of(params)


def read_envelope(params: Any, header: bytes | None = None) -> Envelope:
    """Parse and check the envelope (basic/index: required keys). Raises CallerError.

    A header with another revision than the body is reported as a mismatch even if the revision is unknown.
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
    accepts_tasks = type(extensions) is dict and extensions.get(TASKS_EXTENSION) == {}
    return Envelope(
        version=version,
        capabilities=capabilities,
        client_info=info if type(info) is dict else None,
        log_level=level if type(level) is str else None,
        accepts_tasks=accepts_tasks,
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
    """Return the required value of `Mcp-Name`, or None if the header does not apply."""
    key = _NAMED_BY.get(method)
    if key is None or type(params) is not dict:
        return None
    value = params.get(key)
    return value if type(value) is str else None


def check_headers(
    method: str, params: Any, version: str, headers: Mapping[bytes, bytes], *, is_request: bool = True
) -> None:
    """Compare the headers with the body (transports: a server that reads the body MUST compare). Raises CallerError."""
    key = _NAMED_BY.get(method)
    named = params.get(key) if key is not None and type(params) is dict else None
    if (
        is_request
        and headers.get(b"mcp-protocol-version") == version.encode("utf-8")
        and headers.get(b"mcp-method") == method.encode("utf-8")
        and (type(named) is not str or headers.get(b"mcp-name") == named.encode("utf-8"))
    ):
        # The spelling of nearly every client. Other spellings are compared one by one.
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


def add_envelope(
    members: Members, capabilities: Raw, client_info: Raw | None, log_level: str | None, version: str = NEWEST_STATELESS
) -> Members:
    """Add the envelope that a stateless server expects to params."""
    put = {VERSION: wire.raw(version), CAPABILITIES: capabilities}
    if client_info is not None:
        put[CLIENT_INFO] = client_info
    if log_level is not None:
        put[LOG_LEVEL] = wire.raw(log_level)
    return with_meta(members, put)


def remove_envelope(members: Members) -> Members:
    """Remove the envelope, for a server of the stateful generation."""
    return with_meta(members, {}, drop=ENVELOPE_KEYS)


def mark_complete(result: bytes | Raw) -> bytes:
    """Mark a result as complete, unless it has a `resultType`."""
    body = bytes(result)
    if b'"resultType"' in body and "resultType" in wire.members_of(body):
        return body
    return insert_first(body, b'"resultType":"complete"')


def cached_privately(result: bytes, ttl_ms: int = 0) -> bytes:
    """Add the cache fields that list-like results must have; private, because lists are filtered per caller."""
    members = wire.members_of(result)
    members.setdefault("resultType", Raw(b'"complete"'))
    members["ttlMs"] = members.get("ttlMs", wire.raw(ttl_ms))
    members["cacheScope"] = Raw(b'"private"')
    return wire.join(members)


def strip_result(result: bytes | Raw, method: str) -> bytes:
    """Convert a stateless result for a stateful caller; `serverInfo` is removed as well."""
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
    """Stateful callers reject structured content that is not an object: put it into a text block."""
    content = members.get("content")
    if content is None or bytes(content).replace(b" ", b"") == b"[]":
        text = {"type": "text", "text": bytes(structured).decode("utf-8")}
        members["content"] = wire.raw([text])


def input_required(requests: Mapping[str, Raw], state: str | None) -> bytes:
    """Build the result that returns questions to a stateless caller (MRTR)."""
    result: dict[str, Any] = {"resultType": "input_required"}
    if requests:
        result["inputRequests"] = dict(requests)
    if state is not None:
        result["requestState"] = state
    return wire.encode(result)
