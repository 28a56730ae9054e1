"""Worker processes: none until needed, none left behind, and one that is killed, hangs or floods harms no other script."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.scripts.driving import FACTS, LIMITS, interpreter, program, resume, returned, start

from taskgate.ports.script_interpreter import Failed, FailureReason, Finished, ScriptLimits, Step, Suspended
from taskgate.scripts.frames import start_request
from taskgate.scripts.monty_interpreter import MontyInterpreter
from taskgate.scripts.worker_pool import Exchange, StepLost, WorkerPool
from taskgate.scripts.worker_process import WorkerCommand

TIMEOUT_S = 120
ENDLESS = "while True:\n    pass"
LONG_TIMEOUTS = replace(LIMITS, step_seconds=100, wall_seconds=200)


async def until(fact: Callable[[], object]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not fact():
            await asyncio.sleep(0.01)


def exists(pid: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def cpu_ticks(pid: int) -> int:
    return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))


def children(pid: int) -> list[int]:
    """The processes that the threads of a process have started. A thread may end meanwhile."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found += map(int, (task / "children").read_text().split())
    return found


def test_first_step_imports_nothing_slow(tmp_path: Path) -> None:
    """These modules would double the CPU time until the first step."""
    request = tmp_path / "request"
    request.write_bytes(start_request(1, program("await files.read_file(name='a')"), LIMITS, FACTS))
    arguments = interpreter().pool._command().arguments()
    (python, *options, boot), facts = arguments[:5], arguments[5:]
    listing = boot + "; print(*sys.modules, file=sys.stderr)"
    with request.open("rb") as requests:
        ran = subprocess.run(
            [python, *options, listing, *facts], stdin=requests, capture_output=True, timeout=TIMEOUT_S, check=True
        )
    assert b'"suspended"' in ran.stdout, ran.stdout
    assert not {"asyncio", "dataclasses", "inspect", "shutil", "typing"} & set(ran.stderr.decode().split())


async def test_no_process_until_first_use_and_none_when_idle() -> None:
    run = interpreter(max_workers=2, idle_s=0.05)
    assert run.version
    assert run.pool.worker_pids == []
    step = await start(run, "await sleep(1000)")
    assert isinstance(step, Suspended)
    await until(lambda: not run.pool.worker_pids)
    again = await run.resume(step.snapshot, {step.pending[0]: returned(None)}, LIMITS, FACTS)
    assert isinstance(again, Finished)
    await run.aclose()


async def test_ended_workers_leave_no_process() -> None:
    run = interpreter(max_workers=1)
    await start(run, "1")
    [worker] = run.pool.worker_pids
    processes = [worker, *children(worker)]
    assert len(processes) == 2
    await run.aclose()
    await until(lambda: not any(map(exists, processes)))


async def test_no_more_workers_than_allowed() -> None:
    run = interpreter(max_workers=2)
    steps = await asyncio.gather(*[start(run, f"sum(range({number}))") for number in range(12)])
    assert [json.loads(step.value) for step in steps if isinstance(step, Finished)] == [
        sum(range(number)) for number in range(12)
    ]
    assert len(run.pool.worker_pids) <= 2
    await run.aclose()


async def test_endless_script_does_not_delay_others_with_a_second_worker() -> None:
    run = interpreter(max_workers=2)
    endless = asyncio.create_task(start(run, ENDLESS, LONG_TIMEOUTS))
    await until(lambda: run.pool.worker_pids)
    for _ in range(5):
        assert isinstance(await start(run, "1"), Finished)
    assert not endless.done()
    endless.cancel()
    await run.aclose()


async def test_killed_worker_fails_its_step_only() -> None:
    run = interpreter(max_workers=1)
    endless = asyncio.create_task(start(run, ENDLESS, LONG_TIMEOUTS))
    await until(lambda: run.pool.worker_pids and children(run.pool.worker_pids[0]))
    os.kill(run.pool.worker_pids[0], signal.SIGKILL)
    step = await endless
    assert isinstance(step, Failed)
    assert (step.reason, step.error_type) == (FailureReason.WORKER, "worker_ended")
    assert isinstance(await start(run, "1"), Finished)
    await run.aclose()


async def test_killed_interpreter_process_fails_its_step_only() -> None:
    run = interpreter(max_workers=1)
    await start(run, "1")
    [worker] = run.pool.worker_pids
    endless = asyncio.create_task(start(run, ENDLESS, LONG_TIMEOUTS))
    [child] = children(worker)
    before = cpu_ticks(child)
    await until(lambda: cpu_ticks(child) > before + 10)
    os.kill(child, signal.SIGKILL)
    step = await endless
    assert isinstance(step, Failed)
    assert step.reason is FailureReason.WORKER
    assert isinstance(await start(run, "1"), Finished)
    await run.aclose()


async def test_interpreter_process_killed_between_two_steps_loses_nothing() -> None:
    run = interpreter(max_workers=1)
    step = await start(run, "x = await sleep(1)\n[x]")
    assert isinstance(step, Suspended)
    [worker] = run.pool.worker_pids
    [child] = children(worker)
    os.kill(child, signal.SIGKILL)
    await until(lambda: not exists(child))
    outcomes = {step.pending[0]: returned(5)}
    again = await run.resume(step.snapshot, outcomes, LIMITS, FACTS)
    if isinstance(again, Failed):
        # Such a step is run once more by the gateway.
        assert again.reason is FailureReason.WORKER
        again = await run.resume(step.snapshot, outcomes, LIMITS, FACTS)
    assert isinstance(again, Finished)
    assert json.loads(again.value) == [5]
    await run.aclose()


async def test_worker_killed_while_idle_is_replaced() -> None:
    run = interpreter(max_workers=1)
    await start(run, "1")
    [worker] = run.pool.worker_pids
    os.kill(worker, signal.SIGKILL)
    await until(lambda: not exists(worker))
    assert isinstance(await start(run, "2"), Finished)
    assert run.pool.worker_pids != [worker]
    await run.aclose()


async def test_hanging_worker_is_ended_at_the_deadline() -> None:
    run = interpreter(max_workers=1, grace_s=1.0)
    await start(run, "1")
    [worker] = run.pool.worker_pids
    os.kill(worker, signal.SIGSTOP)
    step = await start(run, "1", replace(LIMITS, wall_seconds=0.1))
    assert isinstance(step, Failed)
    assert (step.reason, step.error_type) == (FailureReason.WORKER, "worker_late")
    await until(lambda: not exists(worker))
    assert isinstance(await start(run, "1", LIMITS), Finished)
    await run.aclose()


async def held_up(run: MontyInterpreter, code: str, limits: ScriptLimits, seconds: float) -> Step:
    """A step whose process gets no CPU time for a while, as on a busy machine."""
    first = await start(run, f"await files.read_file()\n{code}", limits)
    [process] = children(run.pool.worker_pids[0])
    os.kill(process, signal.SIGSTOP)
    running = asyncio.create_task(resume(run, first, {0: returned("x")}, limits))
    await asyncio.sleep(seconds)
    if exists(process):
        os.kill(process, signal.SIGCONT)
    return await running


async def test_limit_of_computing_is_cpu_time() -> None:
    """A step ended after 0.74 s of CPU time, because 5 s had passed on a busy machine."""
    run = interpreter(max_workers=1)
    code = "n = 0\nwhile n < 1000:\n    n += 1\nn"
    step = await held_up(run, code, replace(LIMITS, step_seconds=1, wall_seconds=100), 2.5)
    await run.aclose()
    assert isinstance(step, Finished), step


async def test_step_without_cpu_time_ends_at_the_limit_of_real_time() -> None:
    run = interpreter(max_workers=1)
    step = await held_up(run, "1", replace(LIMITS, step_seconds=100, wall_seconds=1), 2.5)
    assert isinstance(step, Failed)
    assert (step.reason, step.error_type) == (FailureReason.LIMIT, "wall_seconds")
    assert isinstance(await start(run, "2"), Finished)
    await run.aclose()


async def test_cancelled_step_ends_its_worker() -> None:
    run = interpreter(max_workers=1)
    endless = asyncio.create_task(start(run, ENDLESS, LONG_TIMEOUTS))
    await until(lambda: run.pool.worker_pids and children(run.pool.worker_pids[0]))
    processes = [run.pool.worker_pids[0], *children(run.pool.worker_pids[0])]
    endless.cancel()
    with pytest.raises(asyncio.CancelledError):
        await endless
    await until(lambda: not any(map(exists, processes)))
    assert isinstance(await start(run, "1"), Finished)
    await run.aclose()


async def test_closing_fails_running_steps() -> None:
    run = interpreter(max_workers=1)
    endless = asyncio.create_task(start(run, ENDLESS, LONG_TIMEOUTS))
    waiting = asyncio.create_task(start(run, "1"))
    await until(lambda: run.pool.worker_pids)
    await run.aclose()
    for step in (await endless, await waiting):
        assert isinstance(step, Failed)
        assert step.reason is FailureReason.WORKER


class OtherProgram(WorkerCommand, frozen=True):
    """A worker that breaks the protocol."""

    program: str = ""

    def arguments(self) -> list[str]:
        return [sys.executable, "-I", "-S", "-c", "import sys, time\nout = sys.stdout.buffer\n" + self.program]


@pytest.mark.parametrize(
    ("program", "kind"),
    [
        ("out.write((5000).to_bytes(4, 'big') + bytes(5004)); out.flush(); time.sleep(100)", "worker_reply"),
        ("while True: out.write(b'x' * 65536)", "worker_reply"),
        ("out.write(bytes([127, 255, 255, 255] * 2)); out.flush(); time.sleep(100)", "worker_reply"),
        ("out.write(bytes(8) + b'x'); out.flush(); time.sleep(100)", "worker_reply"),
        ("sys.exit(3)", "worker_ended"),
        ("out.write(b'1234'); out.flush(); sys.exit(0)", "worker_ended"),
        ("time.sleep(100)", "worker_late"),
    ],
    ids=[
        "sends too much",
        "floods",
        "announces 2 GB",
        "sends more than announced",
        "exits",
        "exits in the middle",
        "hangs",
    ],
)
async def test_worker_that_breaks_the_protocol_is_ended(program: str, kind: str) -> None:
    pool = WorkerPool(lambda: OtherProgram("", "", 0, 0, program), maximum=1, idle_s=10)
    seconds = 2 if kind == "worker_late" else TIMEOUT_S
    with pytest.raises(StepLost) as lost:
        await pool.run(Exchange(b"x" * (300_000 if kind == "worker_late" else 10), 1000, 1000, seconds))
    assert lost.value.kind == kind
    assert pool.worker_pids == []
    await pool.aclose()


async def test_worker_that_cannot_start_says_why_in_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    program = "raise RuntimeError('no interpreter here')"
    pool = WorkerPool(lambda: OtherProgram("", "", 0, 0, program), maximum=1, idle_s=10)
    with pytest.raises(StepLost) as lost:
        await pool.run(Exchange(b"x", 1000, 1000, TIMEOUT_S))
    assert "exit code 1" in str(lost.value)
    assert "no interpreter here" not in str(lost.value)
    assert "no interpreter here" in capsys.readouterr().err
    await pool.aclose()


async def test_worker_that_reports_very_much_is_not_delayed() -> None:
    writing = "    try:\n        os.write(2, b'x' * 65536)\n    except BlockingIOError:\n        pass\n"
    program = f"import os\nfor _ in range(100):\n{writing}sys.exit(3)"
    pool = WorkerPool(lambda: OtherProgram("", "", 0, 0, program), maximum=1, idle_s=10)
    with pytest.raises(StepLost) as lost:
        await pool.run(Exchange(b"x", 1000, 1000, TIMEOUT_S))
    assert lost.value.kind == "worker_ended"
    await pool.aclose()


async def test_reply_to_another_request_is_refused() -> None:
    reply = json.dumps({"number": 77, "step": "finished", "value": 1}).encode()
    program = f"out.write({len(reply).to_bytes(4, 'big') + bytes(4) + reply!r}); out.flush(); time.sleep(100)"
    run = interpreter(max_workers=1)
    run.pool = WorkerPool(lambda: OtherProgram("", "", 0, 0, program), maximum=1, idle_s=10)
    step = await start(run, "1")
    assert isinstance(step, Failed)
    assert (step.reason, step.error_type) == (FailureReason.WORKER, "worker_reply")
    assert run.pool.worker_pids == []
    await run.aclose()


async def test_worker_has_no_environment_and_few_descriptors() -> None:
    with open("/dev/null") as inherited:
        os.set_inheritable(inherited.fileno(), True)
        run = interpreter(max_workers=1)
        await start(run, "1")
        [worker] = run.pool.worker_pids
        for pid in (worker, *children(worker)):
            # Python sets the locale of a program without one.
            names = {line.split(b"=")[0] for line in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if line}
            assert names <= {b"LC_CTYPE"}
            limits = Path(f"/proc/{pid}/limits").read_text()
            for limit in ("Max address space", "Max cpu time", "Max file size", "Max core file size"):
                [line] = [line for line in limits.splitlines() if line.startswith(limit)]
                assert "unlimited" not in line
        assert inherited.fileno() not in {
            int(fd.name) for fd in Path(f"/proc/{worker}/fd").iterdir() if fd.resolve() == Path("/dev/null")
        } - {2}
        await run.aclose()


def test_gateway_never_imports_the_interpreter() -> None:
    program = """
import asyncio, sys
from taskgate.ports.script_interpreter import *
from taskgate.scripts.frames import start_request
from taskgate.scripts.monty_interpreter import MontyInterpreter
async def main():
    run = MontyInterpreter()
    assert run.availability().available
    step = await run.start(ScriptProgram("1"), ScriptLimits(), StepFacts(0.0, bytes(32)))
    assert isinstance(step, Finished), step
    await run.aclose()
asyncio.run(main())
assert not any(name.startswith("pydantic_monty") for name in sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=TIMEOUT_S)


GATEWAY_WITH_ENDLESS_SCRIPT = """
import asyncio, sys
from taskgate.ports.script_interpreter import *
from taskgate.scripts.frames import start_request
from taskgate.scripts.monty_interpreter import MontyInterpreter
async def main():
    run = MontyInterpreter(max_workers=1)
    await run.start(ScriptProgram("1"), ScriptLimits(), StepFacts(0.0, bytes(32)))
    print(*run.pool.worker_pids, flush=True)
    if sys.argv[1] == "computing":
        limits = ScriptLimits(step_seconds=1000, wall_seconds=1000)
        await run.start(ScriptProgram("while True: pass"), limits, StepFacts(0.0, bytes(32)))
    await asyncio.sleep(1000)
asyncio.run(main())
"""


@pytest.mark.parametrize("state", ["idle", "computing"])
async def test_workers_of_a_killed_gateway_end(state: str) -> None:
    command = [sys.executable, "-c", GATEWAY_WITH_ENDLESS_SCRIPT, state]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as gateway:
        assert gateway.stdout is not None
        worker = int(await asyncio.to_thread(gateway.stdout.readline))
        [inner] = children(worker)
        if state == "computing":
            before = cpu_ticks(inner)
            await until(lambda: cpu_ticks(inner) > before + 10)
        gateway.kill()
    await until(lambda: not exists(worker) and not exists(inner))


async def test_without_the_extra_it_reports_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import metadata

    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    run = MontyInterpreter()
    assert not run.availability().available
    assert "taskgate[scripts]" in run.availability().reason
    assert run.version == ""
    step = await start(run, "1")
    assert isinstance(step, Failed)
    assert step.error_type == "worker_not_started"
    await run.aclose()
