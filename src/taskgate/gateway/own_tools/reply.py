"""What one of our own tools answers, before it is put on the wire: text blocks that hold JSON, or a server's own result."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from taskgate.core import wire
from taskgate.core.generations import Generation
from taskgate.core.generations.stateless_2026 import complete
from taskgate.core.wire import Members, Raw


@dataclass(frozen=True, slots=True)
class ToolReply:
    """Blocks of content, and whatever else a relayed result carried beside them."""

    blocks: tuple[Raw, ...]
    is_error: bool = False
    rest: Members = field(default_factory=dict)

    def with_blocks(self, more: Iterable[Raw]) -> ToolReply:
        return ToolReply((*self.blocks, *more), self.is_error, self.rest)

    def encoded(self, generation: Generation) -> bytes:
        result = {"content": list(self.blocks), "isError": self.is_error, **self.rest}
        body = wire.encode(result)
        return complete(body) if generation is Generation.STATELESS else body


def json_block(value: Any) -> Raw:
    """A text block that holds JSON, for callers that read nothing but text."""
    return text_block(wire.encode(value).decode("utf-8"))


def text_block(text: str) -> Raw:
    return wire.raw({"type": "text", "text": text})


def saying(*parts: Any, is_error: bool = False) -> ToolReply:
    """Sentences stay sentences; everything else becomes JSON."""
    blocks = tuple(text_block(part) if isinstance(part, str) else json_block(part) for part in parts)
    return ToolReply(blocks, is_error)


def refused(text: str) -> ToolReply:
    return saying(text, is_error=True)


def relayed(result: bytes) -> ToolReply:
    """A server's own result: its blocks keep their bytes, and so does everything beside them."""
    members = wire.members_of(result)
    content = members.pop("content", None)
    is_error = bytes(members.pop("isError", Raw(b"false"))) == b"true"
    members.pop("resultType", None)
    blocks = tuple(wire.elements_of(content)) if content is not None and bytes(content)[:1] == b"[" else ()
    return ToolReply(blocks, is_error, members)
