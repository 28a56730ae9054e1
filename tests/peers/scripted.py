"""What the Python SDKs of both lines have in common when they play a script: the person who answers, and the operations that
are spelled the same. Each client names the module with its SDK's types, and adds its own operations.
"""

from __future__ import annotations

import asyncio
import json
import re
from types import ModuleType
from typing import Any

from script import ROOT, SUPPORTED_PROTOCOLS, Notebook


def dump(result: Any) -> Any:
    return result.model_dump(by_alias=True, mode="json", exclude_none=True)


class Operations:
    """One method per operation of a script; `client` is the object that the SDK uses for calls."""

    def __init__(self, client: Any, types: ModuleType, notebook: Notebook) -> None:
        self.client, self.types, self.notebook = client, types, notebook

    async def resources(self) -> list[str]:
        return [str(resource.uri) for resource in (await self.client.list_resources()).resources]

    async def prompts(self) -> list[str]:
        return [prompt.name for prompt in (await self.client.list_prompts()).prompts]

    async def call(self, name: str, arguments: dict[str, Any], progress: bool = False) -> Any:
        async def note(done: float, total: float | None, message: str | None) -> None:
            self.notebook.progress.append([done, total, message])

        return dump(await self.client.call_tool(name, arguments, progress_callback=note if progress else None))

    async def followed(self, name: str, arguments: dict[str, Any]) -> Any:
        """A call that takes longer than its reply is held: the notice names a task, whose result a helper tool returns."""
        notice = dump(await self.client.call_tool(name, arguments))
        task_id = re.search(r"tg_[0-9A-Z]{26}", json.dumps(notice))
        if task_id is None:
            return {"notice": False, "result": notice}
        while True:
            given = {"task_id": task_id.group()}
            state = json.dumps(dump(await self.client.call_tool("get_task", given)))
            if re.search(r"completed|failed|cancelled", state):
                return {"notice": True, "result": dump(await self.client.call_tool("get_task_result", given))}
            await asyncio.sleep(0.2)

    async def together(self, calls: list[dict[str, Any]]) -> list[Any]:
        """Several calls at the same time; their results in the order in which they are given."""
        return await asyncio.gather(*(self.call(**call) for call in calls))

    async def prompt(self, name: str, arguments: dict[str, str]) -> Any:
        return dump(await self.client.get_prompt(name, arguments))

    async def complete(self, prompt: str, argument: str, value: str) -> Any:
        reference = self.types.PromptReference(type="ref/prompt", name=prompt)
        return dump(await self.client.complete(reference, {"name": argument, "value": value}))

    async def notice(self, method: str) -> str:
        return await self.notebook.wait_for(method)


class Person:
    """Answers the server's questions."""

    def __init__(self, types: ModuleType, notebook: Notebook) -> None:
        self.types, self.notebook = types, notebook

    def callbacks(self, *, alone: bool = False) -> dict[str, Any]:
        """Under the names that both SDKs give them. `alone`: without those that answer questions."""
        answering = {
            "sampling_callback": self.sample,
            "elicitation_callback": self.elicit,
            "list_roots_callback": self.roots,
        }
        return {**({} if alone else answering), "logging_callback": self.log, "message_handler": self.message}

    async def elicit(self, context: Any, params: Any) -> Any:
        if params.mode == "url":
            self.notebook.questions.append(["url", params.message, str(params.url)])
            return self.types.ElicitResult(action="accept")
        self.notebook.questions.append(["form", params.message])
        return self.types.ElicitResult(action="accept", content={"name": self.notebook.next_name()})

    async def sample(self, context: Any, params: Any) -> Any:
        self.notebook.questions.append(["sampling", params.messages[0].content.text])
        spoken = self.types.TextContent(type="text", text=SUPPORTED_PROTOCOLS)
        return self.types.CreateMessageResult(role="assistant", content=spoken, model="none")

    async def roots(self, context: Any) -> Any:
        self.notebook.questions.append(["roots"])
        return self.types.ListRootsResult.model_validate({"roots": [{"uri": ROOT}]})

    async def log(self, params: Any) -> None:
        self.notebook.logs.append([params.level, params.data])

    async def message(self, message: Any) -> None:
        """A notification; the older SDK wraps it once more."""
        if method := getattr(getattr(message, "root", message), "method", None):
            self.notebook.notice(method)
