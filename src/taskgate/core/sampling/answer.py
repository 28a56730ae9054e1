"""A model's answer, and the result of `sampling/createMessage` built from it."""

from __future__ import annotations

from typing import Any

import msgspec

from taskgate.core.sampling.request import Text, ToolUse
from taskgate.core.settings.providers import Model

END_TURN, MAX_TOKENS, STOP_SEQUENCE, TOOL_USE = "endTurn", "maxTokens", "stopSequence", "toolUse"


class SamplingAnswer(msgspec.Struct, frozen=True):
    """The answer of a provider. `model` is the vendor's own name of the model."""

    content: tuple[Text | ToolUse, ...]
    model: str
    stop_reason: str
    tokens_in: int
    tokens_out: int


def as_result(answer: SamplingAnswer, model: Model) -> dict[str, Any]:
    """Build the result for the server, with the cost in `_meta`."""
    blocks = [_block(block) for block in answer.content] or [{"type": "text", "text": ""}]
    cost = price(model, answer.tokens_in, answer.tokens_out)
    return {
        "role": "assistant",
        "content": blocks[0] if len(blocks) == 1 else blocks,
        "model": answer.model,
        "stopReason": answer.stop_reason,
        "_meta": {"tokensUsed": answer.tokens_in + answer.tokens_out, "cost": round(cost, 9)},
    }


def _block(block: Text | ToolUse) -> dict[str, Any]:
    if isinstance(block, Text):
        return {"type": "text", "text": block.text}
    return {"type": "tool_use", "id": block.id, "name": block.name, "input": dict(block.input)}


def price(model: Model, tokens_in: int, tokens_out: int) -> float:
    """Return the price of this many tokens."""
    return (tokens_in * model.input_price + tokens_out * model.output_price) / 1_000_000
