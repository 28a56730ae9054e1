"""JSON-RPC messages: parse bytes into a `Message`, and build the bytes of messages.

Parsing is strict, because two parsers that read one message differently are a security hole: duplicate keys, NaN, lone
surrogates, and documents that are too deep or too large are rejected. Relaying is opaque: a message keeps the exact
bytes of its params, result and error, so unknown members pass unchanged. This module is independent of MCP.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Final, NoReturn

import msgspec

from taskgate.core.errors import CallerError
from taskgate.core.raw_json import Raw as Raw
from taskgate.mcp.json_errors import UNDECODABLE

Members = dict[str, Raw]

MAX_DEPTH: Final = 64
MAX_NODES: Final = 100_000
MAX_BATCH: Final = 100
"""Limit on the messages of one JSON-RPC batch, which are all started at once."""
COUNTED_BYTES: Final = 1024
LONG_BYTES: Final = 4096
LONG_STRING: Final = 256
MAX_STRINGS: Final = 128
LARGE_BYTES: Final = 256 * 1024
"""Larger messages are read in slices."""
DEEPEST: Final = 256
"""Greater than every configurable limit: an accepted message, and what the gateway wraps around it, can always be
parsed again.
"""

_OPENINGS: Final = (b"{", b"[")
_surrogate_escape = re.compile(rb"\\u[dD][89a-fA-F]")
_members = msgspec.json.Decoder(dict[str, Raw]).decode
_elements = msgspec.json.Decoder(list[Raw]).decode
_quickly = msgspec.json.Decoder().decode
encode: Final = msgspec.json.Encoder().encode
parse_checked: Final[Callable[[bytes], Any]] = _quickly
"""Decode a document that was checked before and has no number that would be rounded."""


class Kind(Enum):
    REQUEST = "request"
    NOTIFICATION = "notification"
    RESPONSE = "response"


REQUEST: Final = Kind.REQUEST
RESPONSE: Final = Kind.RESPONSE
"""For code on the path of every call (see `generation.STATELESS`)."""


class Message(msgspec.Struct):
    """One JSON-RPC message. `params` and `result` are decoded for decisions; the `raw_*` fields are relayed.

    The result of a large message is not decoded: it is None.
    """

    kind: Kind
    id: bytes | None = None
    method: str = ""
    params: Any = None
    raw_params: Raw | None = None
    raw_result: Raw | None = None
    raw_error: Raw | None = None
    result: Any = None


class MalformedJson(CallerError):
    """The bytes are not acceptable JSON."""

    def __init__(self, reason: str) -> None:
        super().__init__("parse_error", f"The message is not acceptable JSON: {reason}.")
        self.reason = reason


class BeyondLimits(MalformedJson):
    """The bytes are JSON, but nested deeper or with more values than a message may have."""

    def __init__(self, *, depth: int | None = None, nodes: int | None = None) -> None:
        if depth is not None:
            super().__init__(f"it is nested deeper than {depth} levels (limits.json_depth)")
        else:
            super().__init__(f"it holds more than {nodes} values (limits.json_nodes)")


class InvalidMessage(CallerError):
    """The bytes are JSON, but not a JSON-RPC 2.0 message."""

    def __init__(self, reason: str, message_id: bytes | None = None) -> None:
        super().__init__("invalid_request", f"This is not a JSON-RPC 2.0 message: {reason}.")
        self.message_id = message_id


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise MalformedJson(f"the key {twice[:80]!r} appears twice in one object")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise MalformedJson(f"{name} is not a JSON number")


_strict_decode = json.JSONDecoder(object_pairs_hook=_unique_pairs, parse_constant=_refuse_constant).decode


def parse_strictly(body: bytes, max_depth: int = DEEPEST, max_nodes: int = sys.maxsize) -> Any:
    """Decode a document, rejecting everything that two parsers might read differently.

    Limits apply to messages from peers (see `MessageReader`). Parts of an accepted message are parsed without limits.

    A document that re-encodes to the same bytes has no duplicate key and nothing else that is ambiguous. Most documents
    are like that, and this check takes a tenth of the time.
    """
    try:
        value = _quickly(body)
        if not _encodes_alike(value, body):
            value = _slowly(body, max_depth)
    except UNDECODABLE:
        value = _slowly(body, max_depth)
    check_limits(value, body, max_depth, max_nodes)
    return value


def check_limits(value: Any, body: bytes, max_depth: int, max_nodes: int = sys.maxsize) -> None:
    """Raise BeyondLimits if a value that was decoded from these bytes is nested too deeply or has too many values."""
    size = len(body)
    if size <= COUNTED_BYTES:
        deep = has_more_brackets(body, max_depth)
    else:
        deep = has_more(body, _OPENINGS, max_depth)
    if deep or size > max_nodes:
        _refuse_oversize(value, max_depth, max_nodes)


def is_encoded_alike(body: bytes) -> bool:
    """Whether `parse_strictly` accepts a document, whatever its depth, without examining it a second time."""
    try:
        return _encodes_alike(_quickly(body), body)
    except UNDECODABLE:
        return False


def _encodes_alike(value: Any, body: bytes) -> bool:
    """Whether the value, decoded from these bytes, encodes to them again.

    Encoding a long string takes as long as decoding it, and it can differ only by its escapes. So the long strings are cut out of
    a large document, and what is left is decoded, encoded and compared.
    """
    if len(body) >= LONG_BYTES:
        rest = _without_long_strings(body)
        if rest is not None:
            return encode(_quickly(rest)) == rest
    return encode(value) == body


def _without_long_strings(body: bytes) -> bytes | None:
    """Return a valid document with its long strings replaced by empty ones; None if it has escapes, which can be written in more
    than one way, or many strings.

    Long keys become equal, so the result may not be encoded alike although the document is. The opposite cannot happen.
    """
    if b"\\" in body:
        return None
    parts: list[bytes] = []
    find, begin, at = body.find, 0, body.find(b'"')
    for _ in range(MAX_STRINGS):
        if at < 0:
            parts.append(body[begin:])
            return b"".join(parts)
        end = find(b'"', at + 1)
        if end - at > LONG_STRING:
            parts.append(body[begin : at + 1])
            begin = end
        at = find(b'"', end + 1)
    return None


def has_more(body: bytes, characters: Sequence[bytes], limit: int) -> bool:
    """Whether these characters appear more than `limit` times, including those in strings. Searching long text is
    faster than counting, and stops at the limit.
    """
    found = 0
    for character in characters:
        at = body.find(character)
        while at >= 0 and found <= limit:
            found += 1
            at = body.find(character, at + 1)
    return found > limit


def _slowly(body: bytes, max_depth: int) -> Any:
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as problem:
        raise MalformedJson(f"byte {problem.start} is not UTF-8") from None
    try:
        value = _strict_decode(text)
    except json.JSONDecodeError as problem:
        raise MalformedJson(f"{problem.msg} at character {problem.pos}") from None
    except RecursionError:
        raise BeyondLimits(depth=max_depth) from None
    except ValueError:
        raise MalformedJson("a number has too many digits") from None
    if _surrogate_escape.search(body) is not None:
        _refuse_lone_surrogates(value)
    return value


def _refuse_lone_surrogates(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise MalformedJson("a string holds half of a surrogate pair") from None


def _refuse_oversize(value: Any, max_depth: int, max_nodes: int) -> None:
    nodes = 0
    level = [value]
    for _ in range(max_depth + 1):
        nodes += len(level)
        if nodes > max_nodes:
            raise BeyondLimits(nodes=max_nodes)
        deeper: list[Any] = []
        for item in level:
            if type(item) is dict:
                deeper.extend(item.values())
            elif type(item) is list:
                deeper.extend(item)
        if not deeper:
            return
        level = deeper
    raise BeyondLimits(depth=max_depth)


class MessageReader(msgspec.Struct, eq=False):
    """Parses messages from peers, within limits. All transports share one instance, so a reload changes the limits
    everywhere.
    """

    max_depth: int = MAX_DEPTH
    max_nodes: int = MAX_NODES

    def adopt(self, max_depth: int, max_nodes: int) -> None:
        self.max_depth, self.max_nodes = max_depth, max_nodes

    def read(self, body: bytes) -> Message:
        """Parse one message. For batches use `read_batch`."""
        message = _usual_request(body, self.max_depth) if len(body) <= COUNTED_BYTES <= self.max_nodes else None
        return message or _message(parse_strictly(body, self.max_depth, self.max_nodes), body)

    def read_simple_response(self, body: bytes, expected_id: bytes) -> Message | None:
        """Return the response in a short body, or in one that is long only because of a few strings. Return None for anything
        else, valid or not."""
        size = len(body)
        if size < LARGE_BYTES and self.max_nodes >= COUNTED_BYTES:
            message = _usual_response(body, expected_id, self.max_depth)
            if message is not None:
                return message
        return self.read_response(body) if size <= COUNTED_BYTES else None

    def read_response(self, body: bytes) -> Message | None:
        """Return the response in a body, or None if the body is anything else."""
        try:
            message = _message(parse_strictly(body, self.max_depth, self.max_nodes), body)
        except CallerError:
            return None
        return message if message.kind is RESPONSE else None

    def read_batch(self, body: bytes) -> list[Message]:
        """Parse a JSON-RPC batch, which only the 2025-03-26 revision has."""
        values = parse_strictly(body, self.max_depth, self.max_nodes)
        if type(values) is not list:
            raise InvalidMessage("a batch is an array")
        check_batch(values)
        return [_message(value, bytes(raw)) for value, raw in zip(values, _elements(body), strict=True)]


def check_batch(values: Sequence[object]) -> None:
    """Raise InvalidMessage if a batch is empty or exceeds the limit."""
    if not values:
        raise InvalidMessage("a batch may not be empty")
    if len(values) > MAX_BATCH:
        raise InvalidMessage(f"a batch may hold at most {MAX_BATCH} messages")


def checked_message(body: bytes) -> Message:
    """Parse a message that was checked before."""
    return _message(parse_strictly(body), body)


def undecoded_response(members: Members) -> Message:
    """Return the response with these members, which were checked before. Its result is copied, not decoded."""
    message = checked_message(encode({**members, "result": None}))
    return msgspec.structs.replace(message, raw_result=members["result"].copy())


def is_batch(body: bytes) -> bool:
    return body.lstrip(b" \t\r\n")[:1] == b"["


def _usual_response(body: bytes, message_id: bytes, max_depth: int) -> Message | None:
    """Return a response with this id and a result, if it is written as nearly all peers write it, and is short apart from a few
    long strings. Return None for any other document, valid or not; it is parsed in full.

    All of it but its result is compared with the expected bytes, so only the result must be parsed.
    """
    before, after = b'{"jsonrpc":"2.0","id":' + message_id + b',"result":', b"}"
    begin = len(before)
    if body[:begin] != before:
        before, after = b'{"result":', b',"jsonrpc":"2.0","id":' + message_id + b"}"
        begin = len(before)
        if body[:begin] != before:
            return None
    end = len(body) - len(after)
    if end < begin or body[end:] != after:
        return None
    try:
        if len(body) <= COUNTED_BYTES:
            result = body[begin:end]
            value = _quickly(result)
            if encode(value) != result:
                return None
            if len(result) >= 2 * max_depth and has_more_brackets(body, max_depth):
                return None
            raw_result = Raw(result)
        elif _is_usual_but_long(body, max_depth):
            # A view: the body stays in memory as long as its result anyway.
            raw_result = Raw(memoryview(body)[begin:end])
            value = _quickly(raw_result)
        else:
            return None
    except UNDECODABLE:
        return None
    return Message(
        kind=RESPONSE,
        id=message_id,
        method="",
        params=None,
        raw_params=None,
        raw_result=raw_result,
        raw_error=None,
        result=value,
    )


def _is_usual_but_long(body: bytes, max_depth: int) -> bool:
    """Whether a document without its long strings is short and encoded as usual."""
    rest = _without_long_strings(body)
    return (
        rest is not None
        and len(rest) <= COUNTED_BYTES
        and encode(_quickly(rest)) == rest
        and not has_more_brackets(rest, max_depth)
    )


def has_more_brackets(document: bytes, max_depth: int) -> bool:
    """Whether a short document may be nested deeper. Need not be called for one of up to twice as many bytes: a level takes two."""
    return document.count(b"{") + document.count(b"[") > max_depth


def _usual_request(body: bytes, max_depth: int) -> Message | None:
    """Return a short request with params in the form that nearly all peers write. Return None for any other document, valid or not;
    it is parsed in full.

    The same as `parse_strictly` and `_message`, in one step.
    """
    try:
        value = _quickly(body)
        if encode(value) != body or type(value) is not dict:
            return None
        # In a document that is encoded to the same bytes, the bytes of the id are its usual spelling.
        members = _members(body)
    except UNDECODABLE:
        return None
    get = value.get
    method, params = get("method"), get("params")
    if (
        len(value) != 4
        or get("jsonrpc") != "2.0"
        or type(get("id")) not in (int, str)
        or type(method) is not str
        or type(params) is not dict
    ):
        return None
    raw_params = members["params"]
    if len(raw_params) >= 2 * max_depth and has_more_brackets(body, max_depth):
        return None
    return Message(kind=REQUEST, id=bytes(members["id"]), method=method, params=params, raw_params=raw_params)


def _message(value: Any, body: bytes) -> Message:
    if type(value) is not dict:
        return message_of(value, {})
    if len(body) > COUNTED_BYTES:
        return message_of(value, _cut_out(value, body) or _members(body))
    return message_of(value, _members(body))


def _cut_out(value: dict[str, Any], body: bytes) -> Members | None:
    """Return the large member of a message that is written as usual, without parsing the body again; otherwise None.

    `value` is the decoded body, so its keys are known and none appears twice. If the body begins and ends with the bytes
    of all other members, then what is left between them is the large one.
    """
    message_id = value.get("id")
    if type(message_id) not in (str, int):
        return None
    rest = b'"jsonrpc":"2.0","id":' + encode(message_id)
    if len(value) == 3 and "result" in value:
        name, first = "result", b""
    elif len(value) == 4 and "params" in value and type(value.get("method")) is str:
        name, first = "params", b'"method":%b,' % encode(value["method"])
    else:
        return None
    key = b'"%b":' % name.encode("ascii")
    for head, tail in ((b"{" + rest + b"," + first + key, b"}"), (b"{" + first + key, b"," + rest + b"}")):
        begin, end = len(head), len(body) - len(tail)
        if (
            body.startswith(head)
            and body.endswith(tail)
            and not _is_space(body[begin])
            and not _is_space(body[end - 1])
        ):
            # A view: the body stays in memory as long as its members anyway.
            return {name: Raw(memoryview(body)[begin:end])}
    return None


def _is_space(byte: int) -> bool:
    return byte in b" \t\r\n"


def message_of(value: Any, members: Members) -> Message:
    """Return the message of a decoded document; `members` has the bytes of its members."""
    if type(value) is not dict:
        raise InvalidMessage("a message is an object")
    # An id may be echoed if it is a string or an integer. It is normalized to one spelling, whatever escapes the sender
    # used.
    message_id = encode(value["id"]) if type(value.get("id")) in (str, int) else None
    if value.get("jsonrpc") != "2.0":
        raise InvalidMessage('"jsonrpc" must be "2.0"', message_id)
    if "method" in value:
        return _call(value, members, message_id)
    if "result" in value or "error" in value:
        return _response(value, members, message_id)
    raise InvalidMessage("it has neither a method nor a result nor an error", message_id)


def _call(value: dict[str, Any], members: Members, message_id: bytes | None) -> Message:
    method = value["method"]
    if type(method) is not str:
        raise InvalidMessage("the method must be a string", message_id)
    if "result" in value or "error" in value:
        raise InvalidMessage("a request may not hold a result or an error", message_id)
    params = value.get("params")
    if params is not None and type(params) is not dict:
        raise InvalidMessage("params must be an object", message_id)
    if "id" not in value:
        return Message(kind=Kind.NOTIFICATION, id=None, method=method, params=params, raw_params=members.get("params"))
    if message_id is None:
        raise InvalidMessage("the id must be a string or an integer")
    return Message(kind=REQUEST, id=message_id, method=method, params=params, raw_params=members.get("params"))


def _response(value: dict[str, Any], members: Members, message_id: bytes | None) -> Message:
    if "result" in value and "error" in value:
        raise InvalidMessage("a response holds a result or an error, not both", message_id)
    if message_id is None and not (value.get("id") is None and "error" in value):
        raise InvalidMessage("the id of a response must be a string or an integer")
    if "error" in value and not _is_error_object(value["error"]):
        raise InvalidMessage("an error is an object with a number as code and a string as message", message_id)
    return Message(
        RESPONSE,
        message_id,
        result=value.get("result"),
        raw_result=members.get("result"),
        raw_error=members.get("error"),
    )


def _is_error_object(error: Any) -> bool:
    return type(error) is dict and type(error.get("code")) is int and type(error.get("message")) is str


members_of: Final[Callable[[bytes | Raw], Members]] = _members
"""The members of an object, in order, each with its exact bytes."""
elements_of: Final[Callable[[bytes | Raw], list[Raw]]] = _elements
"""The elements of an array, each with its exact bytes."""
join: Final[Callable[[Members], bytes]] = encode
"""The inverse of `members_of`: an unchanged member keeps its bytes."""


def raw(value: Any) -> Raw:
    """Encode a value as raw JSON, to be put beside relayed members."""
    return Raw(encode(value))


def success(message_id: bytes, result: bytes) -> bytes:
    return b"".join((b'{"jsonrpc":"2.0","id":', message_id, b',"result":', result, b"}"))


def failure(message_id: bytes | None, error: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":' + (message_id or b"null") + b',"error":' + error + b"}"


def request(message_id: bytes, method: bytes, params: bytes | None) -> bytes:
    head = b'{"jsonrpc":"2.0","id":' + message_id + b',"method":' + method
    return head + b"}" if params is None else head + b',"params":' + params + b"}"


def notification(method: str, params: bytes | None) -> bytes:
    head = b'{"jsonrpc":"2.0","method":' + encode(method)
    return head + b"}" if params is None else head + b',"params":' + params + b"}"
