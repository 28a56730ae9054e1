"""The examples of docs/script-language.md run as printed, and its table of missing features is true."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.scripts.driving import FACTS, LIMITS, interpreter

from taskgate.core.scripts.check_source import check_source, parse
from taskgate.core.scripts.names import PythonName
from taskgate.ports.script_interpreter import (
    CallOutcome,
    Failed,
    Finished,
    PendingCall,
    Raised,
    Returned,
    ScriptProgram,
    ScriptTool,
    Suspended,
)

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "script-language.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)\n#> (.*?)\n```", PAGE, re.DOTALL)
MISSING = re.findall(
    r"^\| `(.+)` \| `(.+)` \|$", PAGE.partition("## What is missing")[2].partition("## Limits")[0], re.MULTILINE
)
CALLS = re.findall(
    r"^\| `(await .+?)` \|", PAGE.partition("## Calling tools")[2].partition("## Failed calls")[0], re.MULTILINE
)
TOOLS = (
    ScriptTool("files", "list_files", "files__list_files"),
    ScriptTool("files", "read_file", "files__read_file"),
    ScriptTool("tickets", "create", "tickets__create"),
)
NAMES = tuple(PythonName(tool.namespace, tool.function, tool.tool) for tool in TOOLS)


def answer(call: PendingCall) -> CallOutcome:
    arguments: dict[str, Any] = json.loads(call.keywords)
    if call.tool == "tickets__create":
        return Raised("policy_denied", "A rule denies it.", "no")
    if call.tool == "files__list_files":
        return Returned(json.dumps({"paths": ["a", "b", "c"]}).encode())
    path = arguments.get("path", "a")
    if path == "missing.txt":
        return Raised("tool_error", "There is no such file.", "yes")
    return Returned(json.dumps({"text": f"text of {path}" if "." in path else "12345678"}).encode())


async def outcome(code: str) -> Finished | Failed:
    run = interpreter(max_workers=1)
    try:
        step = await run.start(ScriptProgram(code, tools=TOOLS), LIMITS, FACTS)
        calls: dict[int, PendingCall] = {}
        while isinstance(step, Suspended):
            calls |= {call.id: call for call in step.calls}
            step = await run.resume(
                step.snapshot, {number: answer(calls[number]) for number in step.pending}, LIMITS, FACTS
            )
        return step
    finally:
        await run.aclose()


def test_page_has_examples() -> None:
    assert len(EXAMPLES) == PAGE.count("```python") == 4
    assert len(MISSING) == 13
    assert len(CALLS) == 5


@pytest.mark.parametrize(("code", "expected"), EXAMPLES)
async def test_example_has_the_printed_result(code: str, expected: str) -> None:
    assert check_source(parse(code), NAMES) == ()
    step = await outcome(code)
    assert isinstance(step, Finished), step
    assert json.loads(step.value) == json.loads(expected)


@pytest.mark.parametrize("code", CALLS)
async def test_way_to_call_a_tool_works(code: str) -> None:
    step = await outcome(f"import asyncio\n{code}")
    assert isinstance(step, Finished), step


@pytest.mark.parametrize(("missing", "instead"), MISSING)
async def test_missing_feature_is_refused_and_its_replacement_accepted(missing: str, instead: str) -> None:
    assert check_source(parse(missing), NAMES)
    assert check_source(parse(instead), NAMES) == ()
    assert isinstance(await outcome(missing), Failed)
    step = await outcome(instead)
    assert isinstance(step, Finished) or step.error_type == "ValueError"
