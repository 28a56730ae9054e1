"""A small interpreter for tests of what is durable around scripts: its snapshot is the code and the outcomes so far, and a step
runs the code again from the start, with the same outcomes in the same order.
"""

from __future__ import annotations

import ast
import asyncio
import json
import types
from collections.abc import Mapping
from functools import cache
from typing import Any

from taskgate.ports.script_interpreter import (
    Availability,
    CallKind,
    CallOutcome,
    Failed,
    FailureReason,
    Finished,
    PendingCall,
    Progress,
    Raised,
    Returned,
    ScriptLimits,
    ScriptProgram,
    Step,
    StepFacts,
    StepOutput,
    Suspended,
)

SPINS = 30


class ScriptError(Exception):
    def __init__(self, raised: Raised) -> None:
        super().__init__(raised.message)
        self.raised = raised


class _Space:
    def __init__(self, functions: dict[str, Any]) -> None:
        self.__dict__.update(functions)


class _World:
    """What one execution of the code sees and does."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state
        self.calls: list[PendingCall] = []
        self.futures: dict[int, asyncio.Future[Any]] = {}
        self.printed: list[str] = []
        self.progress: list[Progress] = []

    def call(self, kind: CallKind, tool: str, positional: tuple[Any, ...], keywords: dict[str, Any], line: int) -> Any:
        number = len(self.calls)
        body = json.dumps(list(positional)).encode(), json.dumps(keywords).encode()
        self.calls.append(PendingCall(number, kind, tool, *body, line))
        future = self.futures[number] = asyncio.get_running_loop().create_future()
        return future

    def names(self) -> dict[str, Any]:
        import sys

        def function(kind: CallKind, tool: str) -> Any:
            async def called(*positional: Any, **keywords: Any) -> Any:
                frame, line = sys._getframe(1), 0
                while frame is not None:
                    if frame.f_code.co_filename == "script":
                        line = frame.f_lineno
                        break
                    frame = frame.f_back  # type: ignore[assignment]
                return await self.call(kind, tool, positional, keywords, line)

            return called

        spaces: dict[str, dict[str, Any]] = {}
        for namespace, name, tool in self.state["tools"]:
            spaces.setdefault(namespace, {})[name] = function(CallKind.TOOL, tool)

        async def call_tool(tool: str, **keywords: Any) -> Any:
            return await function(CallKind.TOOL, tool)(**keywords)

        def progress(done: float, total: float | None = None, text: str = "") -> None:
            self.progress.append(Progress(done, total, text))

        return {
            **{name: _Space(functions) for name, functions in spaces.items()},
            "asyncio": asyncio,
            "call_tool": call_tool,
            "ask": function(CallKind.ASK, ""),
            "sleep": function(CallKind.SLEEP, ""),
            "progress": progress,
            "print": lambda *values: self.printed.append(" ".join(map(str, values)) + "\n"),
            "inputs": json.loads(self.state["inputs"]),
            "tool_error": lambda error: error.raised,
        }


async def _idle() -> None:
    for _ in range(SPINS):
        await asyncio.sleep(0)


@cache
def _compiled(source: str) -> types.CodeType:
    """The code, whose last expression is stored as `__value__`. Cached: CPython 3.11 sometimes fails to parse (SystemError)."""
    tree = ast.parse(source)
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        tree.body[-1] = ast.copy_location(
            ast.Assign([ast.Name("__value__", ast.Store())], tree.body[-1].value), tree.body[-1]
        )
        ast.fix_missing_locations(tree)
    compiled: types.CodeType = compile(tree, "script", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    return compiled


async def _execute(state: dict[str, Any]) -> Step:
    world = _World(state)
    code = _compiled(state["code"])
    names: dict[str, Any] = world.names()

    async def body() -> Any:
        running = types.FunctionType(code, names)()
        if running is not None:
            await running
        return names.get("__value__")

    main = asyncio.ensure_future(body())
    seen, heard = 0, (0, 0)
    for batch in [{}, *state["batches"]]:
        seen, heard = len(world.calls), (len(world.printed), len(world.progress))
        for number, outcome in batch.items():
            future = world.futures[int(number)]
            if "value" in outcome:
                future.set_result(json.loads(outcome["value"]))
            else:
                future.set_exception(ScriptError(Raised(*outcome["raised"])))
        await _idle()
    output = StepOutput("".join(world.printed[heard[0] :]), progress=tuple(world.progress[heard[1] :]))
    pending = tuple(number for number, future in world.futures.items() if not future.done())
    if main.done():
        error = main.exception()
        if error is None:
            return Finished(json.dumps(main.result()).encode(), pending, output)
        kind = error.raised.type if isinstance(error, ScriptError) else type(error).__name__
        return Failed(FailureReason.SCRIPT, kind, str(error), 0, output)
    main.cancel()
    await asyncio.gather(main, return_exceptions=True)
    return Suspended(json.dumps(state).encode(), tuple(world.calls[seen:]), pending, output)


class ReplayInterpreter:
    version = "replay-1"

    def availability(self) -> Availability:
        return Availability(True)

    async def start(self, program: ScriptProgram, limits: ScriptLimits, facts: StepFacts) -> Step:
        tools = [(tool.namespace, tool.function, tool.tool) for tool in program.tools]
        return await _execute({"code": program.code, "inputs": program.inputs.decode(), "tools": tools, "batches": []})

    async def resume(
        self, snapshot: bytes, outcomes: Mapping[int, CallOutcome], limits: ScriptLimits, facts: StepFacts
    ) -> Step:
        state = json.loads(snapshot)
        batch = {
            str(number): {"value": outcome.value.decode()}
            if isinstance(outcome, Returned)
            else {"raised": [outcome.type, outcome.message, outcome.executed]}
            for number, outcome in outcomes.items()
        }
        return await _execute({**state, "batches": [*state["batches"], batch]})

    async def aclose(self) -> None:
        pass
