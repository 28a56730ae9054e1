# ruff: noqa: T201
"""A small agent: a model, the tools of an MCP server, and a loop between them. No vendor SDK.

python examples/agent_loop.py "What is 2 + 3?" -- python -m taskgate.demo.files python examples/agent_loop.py "Tidy
up my files" --url http://127.0.0.1:7467/mcp

It uses any endpoint with OpenAI-style chat completions: set MODEL_URL (for example
http://127.0.0.1:11434/v1/chat/completions for a local model), MODEL_NAME and, if needed, MODEL_KEY. Without
MODEL_URL a scripted stand-in replaces the model: it calls the first tool once, with empty arguments, and then repeats
the result. Calls that the server turns into tasks are waited for.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import urllib.request
from typing import Any

from taskgate.client import Question, Session, accept, connect, decline, openai_tools

MAX_TURNS = 10


async def run_agent(session: Session, request: str) -> str:
    """Let the model call tools until it answers in words."""
    tools = await session.list_tools()
    messages: list[dict[str, Any]] = [{"role": "user", "content": request}]
    for _ in range(MAX_TURNS):
        message = await asyncio.to_thread(ask_model, messages, openai_tools.definitions(tools))
        messages.append(message)
        if not message.get("tool_calls"):
            return str(message.get("content") or "")
        messages += await openai_tools.dispatch(session, message["tool_calls"], tools)
    return "The model did not come to an answer."


def ask_model(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> dict[str, Any]:
    url = os.environ.get("MODEL_URL")
    if url is None:
        return scripted_model(messages, tools)
    body = json.dumps({"model": os.environ.get("MODEL_NAME", "default"), "messages": messages, "tools": tools})
    headers = {"content-type": "application/json", "authorization": f"Bearer {os.environ.get('MODEL_KEY', 'none')}"}
    request = urllib.request.Request(url, body.encode(), headers)
    with urllib.request.urlopen(request, timeout=120) as reply:
        message: dict[str, Any] = json.load(reply)["choices"][0]["message"]
        return message


def scripted_model(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> dict[str, Any]:
    last = messages[-1]
    if last["role"] == "tool" or not tools:
        return {"role": "assistant", "content": f"The result: {last['content']}"}
    call = {"id": "call-1", "type": "function", "function": {"name": tools[0]["function"]["name"], "arguments": "{}"}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


async def ask_user(question: Question) -> dict[str, Any]:
    """The server asks something: show it, and take one line per field."""
    print(f"\n{question.message}")
    if question.is_url:
        print(question.params.get("url"))
        return accept() if (await asyncio.to_thread(input, "Open it? [y/N] ")).lower() == "y" else decline()
    fields = question.params.get("requestedSchema", {}).get("properties", {})
    return accept({name: await asyncio.to_thread(input, f"{name}: ") for name in fields})


async def main() -> None:
    arguments = sys.argv[1:]
    target: str | list[str]
    if "--" in arguments:
        split = arguments.index("--")
        request, target = " ".join(arguments[:split]), arguments[split + 1 :]
    elif "--url" in arguments:
        split = arguments.index("--url")
        request, target = " ".join(arguments[:split]), arguments[split + 1]
    else:
        raise SystemExit(__doc__)
    async with connect(target, elicitation=ask_user) as session:
        print(await run_agent(session, request))


if __name__ == "__main__":
    asyncio.run(main())
