"""Read a call that repeats an earlier one of the same caller, except for its id and its arguments.

A caller writes all its calls of one tool alike: method, name and `_meta` are the same bytes again. They were parsed strictly
once, and another number as the id or another object as the arguments does not change what the bytes around them mean. So
these bytes are compared, and only the arguments are parsed. All other calls are left to `MessageReader.read`, which has the
same outcome for those that are read here.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from taskgate.core import wire
from taskgate.core.wire import COUNTED_BYTES, REQUEST, Members, Message, MessageReader, Raw
from taskgate.mcp.json_errors import UNDECODABLE

MAX_KEPT_BYTES: Final = 2048
"""Maximum size of a call whose form is kept: every connection may keep some."""
MAX_KEPT_VALUES: Final = 64
"""Maximum number of values in it besides those in the arguments: decoded, they take many times the memory of their bytes."""
MAX_FORMS: Final = 4
MAX_DIGITS: Final = 15

MAX_CREDIT: Final = 64
"""A call that repeats a form adds one, and any other message takes one. Noting a form takes as long as reading some calls in
full, so a caller who seldom repeats a call pays for few forms."""
NOTED_FROM: Final = 32
COST_OF_NOTING: Final = 8
PAUSE: Final = 1000
"""So many calls are not compared after the credit is used up."""
_ZERO: Final = ord("0")
_HOLE: Final = Raw(b"\0")
"""JSON contains no zero byte."""


class _Form(msgspec.Struct, frozen=True, eq=False):
    """The bytes of a call before, between and after its id and its arguments, and what they mean."""

    before: bytes
    between: bytes
    after: bytes
    begin: int
    gap: int
    end: int
    """How long these three are."""
    levels: int
    """How deeply the arguments are nested at most, by the number of brackets in these three."""
    is_id_first: bool
    params_before: int
    """How many bytes of the params are before the arguments."""
    params_after: int
    method: str
    params: dict[str, Any]
    """Without the values of the arguments, as the members."""
    members: Members

    @classmethod
    def of(cls, body: bytes, message: Message) -> _Form | None:
        """Return the form of a message that was read from these bytes; None unless it is a call with a number as the id and with
        arguments, encoded without spaces."""
        params = message.params
        if type(params) is not dict or type(params.get("arguments")) is not dict or not (message.id or b"").isdigit():
            return None
        whole = wire.members_of(body)
        members = {name: member.copy() for name, member in wire.members_of(whole["params"]).items()}
        around = wire.join({**members, "arguments": _HOLE})
        parts = wire.join({**whole, "id": _HOLE, "params": Raw(around)}).split(bytes(_HOLE))
        names = list(whole)
        is_id_first = names.index("id") < names.index("params")
        values = (message.id or b"", bytes(members["arguments"]))
        first, second = values if is_id_first else values[::-1]
        before, between, after = parts
        if b"".join((before, first, between, second, after)) != body:
            return None
        levels = sum(part.count(b"{") + part.count(b"[") for part in parts)
        if levels + sum(part.count(b",") for part in parts) > MAX_KEPT_VALUES:
            return None
        hole = around.index(bytes(_HOLE))
        return cls(
            before=before,
            between=between,
            after=after,
            begin=len(before),
            gap=len(between),
            end=len(after),
            levels=levels,
            is_id_first=is_id_first,
            params_before=hole,
            params_after=len(around) - hole - len(_HOLE),
            method=message.method,
            params={**params, "arguments": None},
            members={**members, "arguments": _HOLE},
        )

    def values_in(self, body: bytes) -> tuple[bytes, int, int] | None:
        """Return the id of a call and where its arguments begin and end; None if the call has another form."""
        begin, end = self.begin, len(body) - self.end
        # A slice is compared faster than `startswith` is called.
        if end < begin or body[:begin] != self.before or body[end:] != self.after:
            return None
        if self.is_id_first:
            at = body.find(b",", begin, begin + MAX_DIGITS + 1)
            message_id, begin = body[begin:at], at + self.gap
            if body[at:begin] != self.between:
                return None
        else:
            at = body.rfind(b":", begin, end) + 1
            message_id, end = body[at:end], at - self.gap
            if end < begin or body[end:at] != self.between:
                return None
        if not message_id.isdigit() or message_id[0] == _ZERO or len(message_id) > MAX_DIGITS:
            return None
        return message_id, begin, end


class RepeatedCalls:
    """The forms of the last calls of one caller, who writes each again and again."""

    __slots__ = ("_credit", "_forms")

    def __init__(self) -> None:
        self._forms: tuple[_Form, ...] = ()
        self._credit = MAX_CREDIT
        """Below zero during a pause."""

    def read(self, body: bytes, reader: MessageReader) -> Message:
        """Parse one message as `MessageReader.read` does, faster if it repeats a call."""
        for form in self._forms:
            values = form.values_in(body)
            if values is not None:
                break
        else:
            return self._read_new(body, reader)
        message_id, begin, end = values
        arguments = body[begin:end]
        value = _usual_value(arguments, reader.max_depth - form.levels)
        if value is None or len(body) > reader.max_nodes:
            self._pay(1)
            return reader.read(body)
        if self._credit < MAX_CREDIT:
            self._credit += 1
        raw_params = Raw(body[begin - form.params_before : end + form.params_after])
        params, members = {**form.params, "arguments": value}, {**form.members, "arguments": Raw(arguments)}
        return Message(
            kind=REQUEST,
            id=message_id,
            method=form.method,
            params=params,
            raw_params=raw_params,
            raw_result=None,
            raw_error=None,
            result=None,
            form=form,
            members=members,
        )

    def _read_new(self, body: bytes, reader: MessageReader) -> Message:
        """Parse a message of no known form, and keep its form."""
        message = reader.read(body)
        if self._credit < 0:
            self._credit += 1
            if self._credit == 0:
                self._credit = MAX_CREDIT
            return message
        cost = 1
        if self._credit >= NOTED_FROM and len(body) <= MAX_KEPT_BYTES:
            form = _Form.of(body, message)
            if form is not None:
                self._forms = (form, *self._forms[: MAX_FORMS - 1])
                cost = COST_OF_NOTING
        self._pay(cost)
        return message

    def _pay(self, cost: int) -> None:
        self._credit -= cost
        if self._credit <= 0:
            self._forms, self._credit = (), -PAUSE


def _usual_value(arguments: bytes, max_depth: int) -> dict[str, Any] | None:
    """Return the arguments; None if they are invalid, long, possibly deep, or not encoded as nearly all peers encode them."""
    if len(arguments) > COUNTED_BYTES:
        return None
    try:
        value = wire.parse_checked(arguments)
        if type(value) is not dict or wire.encode(value) != arguments:
            return None
    except UNDECODABLE:
        return None
    if len(arguments) >= 2 * max_depth and wire.has_more_brackets(arguments, max_depth):
        return None
    return value
