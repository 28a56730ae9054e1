"""Scripts on the real interpreter: calls, values, errors and snapshots that another process continues."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace
from tests.scripts.driving import (
    FACTS,
    LIMITS,
    TOOLS,
    arguments,
    interpreter,
    program,
    resume,
    returned,
    start,
    to_the_end,
)

from taskgate.core.scripts.check_source import parse
from taskgate.core.scripts.names import PythonName
from taskgate.core.scripts.plan import plan_of
from taskgate.ports.script_interpreter import (
    CallKind,
    CallOutcome,
    Failed,
    FailureReason,
    Finished,
    PendingCall,
    Progress,
    Raised,
    StepFacts,
    Suspended,
)
from taskgate.scripts.monty_interpreter import MontyInterpreter


@pytest.fixture
async def run() -> AsyncIterator[MontyInterpreter]:
    made = interpreter(max_workers=1)
    yield made
    await made.aclose()


async def value_of(run: MontyInterpreter, code: str, inputs: Any = None) -> Any:
    step = await start(run, code, inputs=inputs)
    assert isinstance(step, Finished), step
    return json.loads(step.value)


async def failure_of(run: MontyInterpreter, code: str) -> Failed:
    step = await start(run, code)
    assert isinstance(step, Failed), step
    return step


async def test_last_line_is_the_result(run: MontyInterpreter) -> None:
    assert await value_of(run, "x = inputs['n'] + 1\n{'sum': x, 'names': ('a', 'é😀')}", {"n": 41}) == {
        "sum": 42,
        "names": ["a", "é😀"],
    }
    assert await value_of(run, "x = 1") is None


async def test_call_has_tool_arguments_and_line(run: MontyInterpreter) -> None:
    step = await start(run, "a = 1\n\nx = await files.read_file('é', name='b')\nx['n']")
    assert isinstance(step, Suspended)
    [call] = step.calls
    assert (call.kind, call.tool, call.line) == (CallKind.TOOL, "files__read_file", 3)
    assert arguments(call) == (["é"], {"name": "b"})
    assert step.pending == (call.id,)
    end = await resume(run, step, {call.id: returned({"n": 7})})
    assert isinstance(end, Finished)
    assert json.loads(end.value) == 7


@pytest.mark.parametrize(
    "code", ["await call_tool('files__read_file', name='a')", "await call_tool('files__read_file', {'name': 'a'})"]
)
async def test_tool_by_its_listed_name(run: MontyInterpreter, code: str) -> None:
    step = await start(run, code)
    assert isinstance(step, Suspended)
    assert step.calls[0].tool == "files__read_file"
    assert arguments(step.calls[0]) == ([], {"name": "a"})


async def test_five_parallel_calls_are_settled_in_another_order_in_another_process() -> None:
    code = "import asyncio\nawait asyncio.gather(*[files.read_file(name=i) for i in range(5)])"
    first = interpreter(max_workers=1)
    step = await start(first, code)
    assert isinstance(step, Suspended)
    by_number = {arguments(call)[1]["name"]: call.id for call in step.calls}
    pids = set(first.pool.worker_pids)
    await first.aclose()
    for number in (3, 0, 4, 2, 1):
        other = interpreter(max_workers=1)
        assert isinstance(step, Suspended)
        assert by_number[number] in step.pending
        step = await resume(other, step, {by_number[number]: returned(number * 10)})
        assert pids.isdisjoint(other.pool.worker_pids)
        pids |= set(other.pool.worker_pids)
        await other.aclose()
    assert isinstance(step, Finished)
    assert json.loads(step.value) == [0, 10, 20, 30, 40]


async def test_same_step_can_be_run_again(run: MontyInterpreter) -> None:
    step = await start(
        run, "x = await files.read_file(name='a')\nawait files.write_file(name='b', content=x, at=now(), key=random())"
    )
    assert isinstance(step, Suspended)
    outcomes: dict[int, CallOutcome] = {step.calls[0].id: returned("text")}
    once, again = await resume(run, step, outcomes), await resume(run, step, outcomes)
    assert isinstance(once, Suspended)
    assert isinstance(again, Suspended)
    assert once.calls == again.calls


async def test_each_step_continues_its_own_snapshot() -> None:
    """The state that a worker keeps is used for the snapshot that it returned last, and for no other."""
    run = interpreter(max_workers=1)
    code = "print('before')\na = await files.read_file(name='a')\nprint(a)\nb = await files.read_file(name=a)\nprint(b)\na + b"
    first = await start(run, code)
    assert isinstance(first, Suspended)
    seconds = [await resume(run, first, {first.pending[0]: returned(name)}) for name in "xy"]
    assert [step.output.printed for step in (first, *seconds)] == ["before\n", "x\n", "y\n"]
    ends = [
        await resume(run, step, {step.pending[0]: returned("1")}) for step in seconds if isinstance(step, Suspended)
    ]
    assert [json.loads(step.value) for step in ends if isinstance(step, Finished)] == ["x1", "y1"]
    assert [step.output.printed for step in ends] == ["1\n", "1\n"]
    await run.aclose()


async def test_new_limits_hold_for_a_step_that_follows_in_the_same_worker() -> None:
    run = interpreter(max_workers=1)
    code = "await files.read_file(name='a')\nwhile True:\n    pass"
    first = await start(run, code, replace(LIMITS, step_seconds=100, wall_seconds=10))
    step = await resume(run, first, {0: returned("x")}, replace(LIMITS, step_seconds=0.1))
    assert isinstance(step, Failed)
    assert (step.reason, step.error_type) == (FailureReason.LIMIT, "step_seconds")
    await run.aclose()


async def test_functions_without_a_call_are_counted_for_each_step_alone() -> None:
    run = interpreter(max_workers=1)
    code = (
        "for step in range(4):\n    for n in range(9000):\n        now()\n    await files.read_file(name='a')\n'ended'"
    )
    step, calls, _ = await to_the_end(run, code, lambda _: returned("x"), replace(LIMITS, step_seconds=60))
    assert isinstance(step, Finished), step
    assert len(calls) == 4
    await run.aclose()


async def test_failed_call_raises_with_its_fields(run: MontyInterpreter) -> None:
    code = """
try:
    await files.write_file(name="a")
except Exception as e:
    error = tool_error(e)
await files.read_file(name="b")
[error.type, error.executed, error.message]
"""

    def answer(call: PendingCall) -> CallOutcome:
        return (
            Raised("denied", "[x; executed=yes] not today", "no") if call.tool == "files__write_file" else returned(1)
        )

    end, _, _ = await to_the_end(run, code, answer)
    assert isinstance(end, Finished), end
    assert json.loads(end.value) == ["denied", "no", "[x; executed=yes] not today"]


async def test_other_exceptions_have_their_class_as_type(run: MontyInterpreter) -> None:
    assert await value_of(
        run, "try:\n    1 / 0\nexcept Exception as e:\n    error = tool_error(e)\n[error.type, error.executed]"
    ) == [
        "ZeroDivisionError",
        "no",
    ]


async def test_uncaught_failure_ends_the_script_at_its_line(run: MontyInterpreter) -> None:
    end, _, _ = await to_the_end(run, "x = 1\nawait files.read_file()", lambda _: Raised("denied", "no", "no"))
    assert isinstance(end, Failed)
    assert (end.reason, end.line) == (FailureReason.SCRIPT, 2)
    assert "denied" in end.message


async def test_map_tool_keeps_order_and_limit(run: MontyInterpreter) -> None:
    code = "x = 1\nawait map_tool('files__read_file', [{'name': n} for n in range(6)], limit=2)"
    step = await start(run, code)
    open_at_once = 0
    names: dict[int, int] = {}
    while isinstance(step, Suspended):
        assert all(call.line == 2 for call in step.calls)
        names |= {call.id: arguments(call)[1]["name"] for call in step.calls}
        open_at_once = max(open_at_once, len(step.pending))
        newest = step.pending[-1]
        step = await resume(run, step, {newest: returned(names[newest] * 2)})
    assert isinstance(step, Finished), step
    assert json.loads(step.value) == [0, 2, 4, 6, 8, 10]
    assert open_at_once == 2


async def test_map_tool_of_nothing(run: MontyInterpreter) -> None:
    assert await value_of(run, "await map_tool('files__read_file', [])") == []


async def test_ask_and_sleep_are_calls(run: MontyInterpreter) -> None:
    code = "import asyncio\na = await ask('Which?', {'type': 'string'})\nawait sleep(3)\nawait asyncio.sleep(4)\na"
    end, calls, _ = await to_the_end(run, code, lambda call: returned("blue" if call.kind is CallKind.ASK else None))
    assert isinstance(end, Finished)
    assert json.loads(end.value) == "blue"
    assert [(call.kind, arguments(call)[0]) for call in calls] == [
        (CallKind.ASK, ["Which?", {"type": "string"}]),
        (CallKind.SLEEP, [3]),
        (CallKind.SLEEP, [4.0]),
    ]


async def test_time_and_randomness_come_from_the_facts_of_the_step(run: MontyInterpreter) -> None:
    code = """
import datetime, time, random as r
clocks = [now(), time.time(), str(datetime.datetime.now()), str(datetime.date.today())]
clocks + [random(), random(), r.random()]
"""
    one, same = await value_of(run, code), await value_of(run, code)
    assert one == same
    assert one[:4] == [FACTS.now, FACTS.now, "2026-09-21 14:13:20.500000", "2026-09-21"]
    assert len(set(one[4:])) == 3
    assert all(0 <= number < 1 for number in one[4:])
    other = await run.start(program("random()"), LIMITS, StepFacts(FACTS.now, bytes([1]) * 32))
    assert isinstance(other, Finished)
    assert json.loads(other.value) not in one


async def test_print_and_progress_are_returned_with_their_step(run: MontyInterpreter) -> None:
    step = await start(run, "print('a', 1)\nprogress(1, 4, 'read')\nprogress(2)\nawait sleep(1)\nprint('b')")
    assert step.output.printed == "a 1\n"
    assert step.output.progress == (Progress(1, 4, "read"), Progress(2, None, ""))
    assert isinstance(step, Suspended)
    end = await resume(run, step, {step.pending[0]: returned(None)})
    assert end.output.printed == "b\n"
    assert end.output.cpu_seconds > 0


async def test_call_without_await_is_not_made(run: MontyInterpreter) -> None:
    failure = await failure_of(run, "x = 1\nfiles.read_file(name='a')\n3")
    assert (failure.error_type, failure.line, failure.reason) == ("MissingAwait", 2, FailureReason.SCRIPT)


async def test_calls_that_are_no_longer_awaited_are_reported(run: MontyInterpreter) -> None:
    step = await start(
        run,
        "import asyncio\ntry:\n    await asyncio.gather(files.read_file(), files.write_file())\nexcept Exception:\n    pass\n1",
    )
    assert isinstance(step, Suspended)
    read, write = sorted(step.pending)
    end = await resume(run, step, {write: Raised("denied", "no", "no")})
    assert isinstance(end, Finished)
    assert end.abandoned == (read,)


@pytest.mark.parametrize(
    "code",
    [
        "{1, 2}",
        "{1: 2}",
        "{(1, 2): 3}",
        "b'abc'",
        "float('nan')",
        "[float('inf')]",
        "-float('inf')",
        "1j",
        "print",
        "10 ** 5000",
        "x = []\nx.append(x)\nx",
        "x = {}\nx['a'] = [x]\nx",
        "x = []\nx.append((x,))\nx",
        "import datetime\ndatetime.datetime(2026, 1, 1)",
        "class A:\n    pass\nA()",
        "x = []\nfor i in range(100):\n    x = [x]\nx",
    ],
)
async def test_result_that_is_not_json_fails(run: MontyInterpreter, code: str) -> None:
    failure = await failure_of(run, code)
    assert (failure.reason, failure.error_type) == (FailureReason.SCRIPT, "ResultNotJson")


@pytest.mark.parametrize(
    "argument", ["{1, 2}", "{1: 2}", "float('nan')", "b'x'", "10 ** 5000", "print", "a", "[a]", "b"]
)
async def test_argument_that_is_not_json_raises_before_the_call(run: MontyInterpreter, argument: str) -> None:
    cyclic = "a = []\na.append(a)\nb = {}\nb['b'] = b\n"
    code = f"{cyclic}try:\n    await files.read_file({argument})\nexcept TypeError:\n    x = 'refused'\nx"
    assert await value_of(run, code) == "refused"


async def test_numbers_are_exact(run: MontyInterpreter) -> None:
    numbers = [2**63, -(2**200), 0.1, 1e-300, -0.0, 10**4000]
    code = "x = await files.read_file(inputs)\n[x, inputs]"
    step = await start(run, code, inputs={"n": numbers})
    assert isinstance(step, Suspended)
    assert arguments(step.calls[0])[0] == [{"n": numbers}]
    end = await resume(run, step, {step.pending[0]: returned(numbers)})
    assert isinstance(end, Finished)
    assert json.loads(end.value) == [numbers, {"n": numbers}]


async def test_error_of_syntax_has_its_line(run: MontyInterpreter) -> None:
    failure = await failure_of(run, "x = 1\ndef f(:\n")
    assert (failure.reason, failure.error_type, failure.line) == (FailureReason.SCRIPT, "SyntaxError", 2)


async def test_unknown_tool_is_an_attribute_error(run: MontyInterpreter) -> None:
    assert (await failure_of(run, "await files.delete()")).error_type == "AttributeError"
    assert (await failure_of(run, "await other.tool()")).error_type == "NameError"


async def test_unknown_function_is_not_a_call(run: MontyInterpreter) -> None:
    assert (await failure_of(run, "await secret_tool(1)")).error_type == "NameError"


async def test_script_cannot_name_a_tool_that_it_was_not_given(run: MontyInterpreter) -> None:
    failure = await failure_of(run, "await eval('files.secret()')")
    assert failure.error_type == "AttributeError"


PLANNED = tuple(PythonName(tool.namespace, tool.function, tool.tool) for tool in TOOLS)
TAKER = """class Taker:
    def __init__(self):
        self.taken = []
    def __radd__(self, other):
        self.taken.append(other)
        return 1
taker = Taker()
"""


@pytest.mark.parametrize(
    "code",
    [
        "await files.read_file('a')",
        "read = files.read_file\nawait read('a')",
        "await call_tool('files__read_file', path='a')",
        "call = [call_tool][0]\nawait call('files__read_file')",
        "await getattr(files, 'read_' + 'file')('a')  # read_file",
        "evaluate = [eval][0]\nawait evaluate('files.read_' + 'file')('a')  # read_file",
        "await locals()['fi' + 'les'].read_file('a')  # files",
        "await [locals][0]()['fi' + 'les'].read_file('a')  # files",
        TAKER + "files += taker\nawait taker.taken[0].read_file('a')",
        TAKER + "call_tool += taker\nawait taker.taken[0]('files__read_file')",
        "\uff46\uff49\uff4c\uff45\uff53.read_file\nawait \uff45\uff56\uff41\uff4c('files').read_file('a')",
    ],
)
async def test_script_that_reaches_a_tool_names_it_or_is_marked(run: MontyInterpreter, code: str) -> None:
    """Approvers decide by the plan."""
    step = await start(run, code)
    assert isinstance(step, Suspended), step
    assert [call.tool for call in step.calls] == ["files__read_file"]
    plan = plan_of(parse(code), PLANNED)
    assert plan.dynamic or [named.tool for named in plan.tools] == ["files__read_file"]


async def test_snapshot_of_an_ordinary_script_is_small(run: MontyInterpreter) -> None:
    code = """
import asyncio
found = []
for page in range(3):
    listed = await files.read_file(name=f"page-{page}")
    for entry in listed["entries"]:
        if entry["size"] > 100:
            found.append(entry["name"])
try:
    texts = await map_tool("files__read_file", [{"name": name} for name in found], limit=4)
except Exception as e:
    print(tool_error(e).type)
{"count": len(found), "texts": texts}
"""
    entries = [{"name": f"file-{number}.txt", "size": number * 10} for number in range(20)]
    step = await start(run, code)
    largest = 0
    while isinstance(step, Suspended):
        largest = max(largest, len(step.snapshot))
        pages = step.calls and "page" in str(arguments(step.calls[0]))
        step = await resume(run, step, {step.pending[0]: returned({"entries": entries} if pages else "text of a file")})
    assert isinstance(step, Finished), step
    assert 1000 < largest <= 12 * 1024


async def test_texts_that_look_like_cycles_are_texts(run: MontyInterpreter) -> None:
    assert await value_of(run, "['{...}', '[...', {'a': '[...]'}['a'] + '.']") == ["{...}", "[...", "[...]."]
    step = await start(run, "await files.read_file('[...]', a='{...}', b=['(...)'])")
    assert isinstance(step, Suspended)
    assert arguments(step.calls[0]) == (["[...]"], {"a": "{...}", "b": ["(...)"]})


@pytest.mark.parametrize(
    "code", ["raise SystemExit", "raise SystemExit(3)", "raise ValueError(1, 2)", "raise KeyboardInterrupt"]
)
async def test_every_exception_of_a_script_is_its_error(run: MontyInterpreter, code: str) -> None:
    assert (await failure_of(run, code)).reason is FailureReason.SCRIPT
    step = await start(run, f"await files.read_file()\n{code}")
    failed = await resume(run, step, {step.pending[0]: returned(1)}) if isinstance(step, Suspended) else step
    assert isinstance(failed, Failed)
    assert failed.reason is FailureReason.SCRIPT
