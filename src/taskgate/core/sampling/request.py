"""A sampling request as values: messages, tools and preferences.

`read_request` builds these from `sampling/createMessage`; providers translate them into the format of their vendor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

Role = Literal["user", "assistant"]


class Text(msgspec.Struct, frozen=True):
    text: str


class Image(msgspec.Struct, frozen=True):
    data: str
    mime_type: str


class Audio(msgspec.Struct, frozen=True):
    data: str
    mime_type: str


class ToolUse(msgspec.Struct, frozen=True):
    """The model requests a tool."""

    id: str
    name: str
    input: Mapping[str, Any]


class ToolResult(msgspec.Struct, frozen=True):
    """The result of the tool."""

    tool_use_id: str
    content: tuple[Text | Image | Audio, ...]
    is_error: bool = False


Block = Text | Image | Audio | ToolUse | ToolResult


class SamplingMessage(msgspec.Struct, frozen=True):
    role: Role
    content: tuple[Block, ...]


class Tool(msgspec.Struct, frozen=True):
    """A tool that the model may request. The server runs it, not the gateway."""

    name: str
    description: str
    input_schema: Mapping[str, Any]


class Preferences(msgspec.Struct, frozen=True):
    """The server's preferences: hints in order, and three priorities from 0 to 1."""

    hints: tuple[str, ...] = ()
    cost: float = 0.0
    speed: float = 0.0
    intelligence: float = 0.0


class SamplingRequest(msgspec.Struct, frozen=True):
    """One request to a model."""

    messages: tuple[SamplingMessage, ...]
    max_tokens: int
    system: str = ""
    temperature: float | None = None
    stop_sequences: tuple[str, ...] = ()
    tools: tuple[Tool, ...] = ()
    tool_choice: Literal["auto", "required", "none"] = "auto"
    preferences: Preferences = Preferences()

    def needs(self, kind: type[Block]) -> bool:
        """Whether the conversation has a block of this type, also inside tool results."""
        return any(
            isinstance(block, kind)
            or (isinstance(block, ToolResult) and any(isinstance(i, kind) for i in block.content))
            for message in self.messages
            for block in message.content
        )
