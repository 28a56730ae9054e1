"""Names that the Python examples use: a session, a task, a user who answers."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

from taskgate.client import accept, connect


async def given(name: str, url: str, stack: AsyncExitStack, known: dict[str, Any]) -> Any:
    """The object that an example uses under this name."""
    match name:
        case "url":
            return url
        case "session":
            return await stack.enter_async_context(connect(url))
        case "handle":
            session: Any = known.get("session") or await stack.enter_async_context(connect(url))
            return await session.call_tool_as_task("demo__slow_report", {"seconds": 0.2})
        case "question_handle":
            session = await stack.enter_async_context(connect(url))
            return await session.call_tool_as_task("demo__greet", {})
        case "agrees" | "prompt" | "ask_my_model":
            return {"agrees": _agrees, "prompt": _prompt, "ask_my_model": _ask_my_model}[name]
        case "accept":
            return accept
        case "messages":
            return []
        case "message":
            call = {"name": "demo__list_files", "arguments": "{}"}
            return {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": call}]}
    raise AssertionError(f"nothing is known as {name}")


async def _agrees(_url: str) -> bool:
    return True


async def _prompt(_message: str) -> str:
    return "Ann"


async def _ask_my_model(_question: Any) -> dict[str, Any]:
    return {"role": "assistant", "model": "none", "content": {"type": "text", "text": "yes"}}
