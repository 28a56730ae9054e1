"""Child processes: lines in both directions, exit, and leaks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import textwrap
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import uvloop

from taskgate.core.errors import Executed
from taskgate.mcp.lines import Oversize
from taskgate.mcp.stdio import Child, ChildExit, ChildFailure, ChildProblem, ChildSpec, Reaper

pytestmark = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy")

ECHO = """
import sys
for line in sys.stdin.buffer:
    sys.stdout.buffer.write(line); sys.stdout.buffer.flush()
"""
# A server whose helper would live on: the helper ignores SIGTERM and holds the pipes.
WITH_HELPER = """
import subprocess, sys
helper = subprocess.Popen([sys.executable, "-I", "-S", "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"])
print(helper.pid, flush=True)
"""
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture(params=[asyncio.DefaultEventLoopPolicy, uvloop.EventLoopPolicy], ids=["asyncio", "uvloop"])
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    policy = request.param()
    assert isinstance(policy, asyncio.AbstractEventLoopPolicy)
    return policy


class Setup:
    """Starts children and records their output."""

    def __init__(self) -> None:
        self.reaper = Reaper()
        self.lines: list[bytes] = []
        self.exits: list[ChildExit] = []
        self.oversize: list[Oversize] = []
        self.errors: list[str] = []
        self.children: list[Child] = []

    async def start(self, code: str, *, env: dict[str, str] | None = None, max_line_bytes: int = 1 << 20) -> Child:
        spec = ChildSpec(sys.executable, ("-I", "-S", "-c", textwrap.dedent(code)), env)
        child = await Child.start(
            spec,
            on_line=self.lines.append,
            on_exit=self.exits.append,
            on_oversize=self.oversize.append,
            on_stderr=self.errors.append,
            reaper=self.reaper,
            max_line_bytes=max_line_bytes,
            stderr_lines=3,
        )
        self.children.append(child)
        return child

    async def until(self, condition: Callable[[], bool], within_s: float = 10) -> None:
        async with asyncio.timeout(within_s):
            while not condition():
                await asyncio.sleep(0.005)


@pytest.fixture
async def setup() -> AsyncIterator[Setup]:
    setup = Setup()
    yield setup
    for child in setup.children:
        await child.stop(0.05)
    await setup.reaper.close()


def alive(pid: int) -> bool:
    """A zombie counts as ended: it only waits to be reaped."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return True


async def test_lines_go_out_and_come_back(setup: Setup) -> None:
    child = await setup.start(ECHO)
    numbers = [child.send(b'{"id":%d}' % number) for number in range(1000)]
    assert numbers == list(range(1, 1001))
    await setup.until(lambda: len(setup.lines) == 1000)
    assert setup.lines == [b'{"id":%d}' % number for number in range(1000)]
    assert child.lines_handed_over == 1000
    await child.stop(5)
    assert setup.exits == [ChildExit(0, 1000)]
    assert not child.running


async def test_large_line_is_sent_and_received(setup: Setup) -> None:
    child = await setup.start(ECHO, max_line_bytes=8 << 20)
    line = b"x" * (4 << 20)
    child.send(line)
    child.send(b"after")
    await setup.until(lambda: len(setup.lines) == 2)
    assert setup.lines == [line, b"after"]
    assert child.lines_handed_over == 2


async def test_carriage_returns_and_empty_lines_are_tolerated(setup: Setup) -> None:
    await setup.start(r"import sys; sys.stdout.write('a\r\n\n\r\nb\n'); sys.stdout.flush()")
    await setup.until(lambda: bool(setup.exits))
    assert setup.lines == [b"a", b"b"]


async def test_line_over_limit_is_skipped(setup: Setup) -> None:
    await setup.start("print('x' * 300_000); print('after')", max_line_bytes=1000)
    await setup.until(lambda: bool(setup.exits))
    assert setup.lines == [b"after"]
    assert [(line.skipped_bytes, line.begin[:3], line.end[-3:]) for line in setup.oversize] == [
        (300_000, b"xxx", b"xxx")
    ]


async def test_incomplete_last_line_is_dropped_with_note(setup: Setup) -> None:
    child = await setup.start("import sys; sys.stdout.write('whole\\n{\"half')")
    await setup.until(lambda: bool(setup.exits))
    assert setup.lines == [b"whole"]
    assert any("half line of 6 bytes" in line for line in child.stderr_tail())


async def test_last_output_is_delivered_before_exit(setup: Setup) -> None:
    order: list[str] = []
    spec = ChildSpec(
        sys.executable, ("-I", "-S", "-c", "print('\\n'.join(map(str, range(20000)))); raise SystemExit(7)")
    )
    child = await Child.start(
        spec,
        on_line=lambda line: order.append("line"),
        on_exit=lambda ended: order.append(f"exit {ended.code}"),
        on_oversize=lambda size: None,
        reaper=setup.reaper,
    )
    setup.children.append(child)
    ended = await child.wait_exit(10)
    assert ended is not None
    assert order == ["line"] * 20000 + ["exit 7"]


async def test_last_stderr_lines_are_kept(setup: Setup) -> None:
    child = await setup.start(
        "import sys; [print(n, file=sys.stderr) for n in range(10)]; print('x' * 99_999, file=sys.stderr)"
    )
    await setup.until(lambda: bool(setup.exits) and len(setup.errors) == 11)
    assert child.stderr_tail() == ["8", "9", "[a line of 99999 bytes]"]


async def test_failing_listener_does_not_affect_other_lines(setup: Setup) -> None:
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))
    seen: list[bytes] = []

    def listen(line: bytes) -> None:
        seen.append(line)
        raise KeyError(line)

    child = await Child.start(
        ChildSpec(sys.executable, ("-I", "-S", "-c", "print('a'); print('b')")),
        on_line=listen,
        on_exit=setup.exits.append,
        on_oversize=setup.oversize.append,
        reaper=setup.reaper,
    )
    setup.children.append(child)
    await setup.until(lambda: bool(setup.exits))
    assert (seen, len(reported)) == ([b"a", b"b"], 2), reported


async def test_line_to_exited_child_is_not_executed(setup: Setup) -> None:
    child = await setup.start("pass")
    await setup.until(lambda: bool(setup.exits))
    with pytest.raises(ChildFailure) as caught:
        child.send(b"{}")
    assert (caught.value.problem, caught.value.executed) == (ChildProblem.GONE, Executed.NO)


async def test_line_to_child_with_closed_input_is_not_executed(setup: Setup) -> None:
    child = await setup.start("import os, time; os.close(0); print('closed', flush=True); time.sleep(60)")
    await setup.until(lambda: bool(setup.lines))

    def refused() -> bool:
        try:
            child.send(b"{}")
        except ChildFailure as failure:
            return failure.problem is ChildProblem.GONE
        return False

    await setup.until(refused)


async def test_lines_not_handed_over_to_killed_child_are_identified(setup: Setup) -> None:
    child = await setup.start("import time; print('ready', flush=True); time.sleep(60)")
    await setup.until(lambda: bool(setup.lines))
    child.send(b"small")
    child.send(b"x" * (4 << 20))
    child.send(b"behind it")
    assert child.lines_handed_over == 1
    os.kill(child.pid, signal.SIGKILL)
    await setup.until(lambda: bool(setup.exits))
    assert setup.exits == [ChildExit(-signal.SIGKILL, 1)]


async def test_buffer_of_child_that_does_not_read_is_bounded(setup: Setup) -> None:
    child = await setup.start("import time; time.sleep(60)")
    line = b"x" * (1 << 20)
    for _ in range(31):
        child.send(line)
    with pytest.raises(ChildFailure) as caught:
        _send_twice(child, line)
    assert (caught.value.problem, caught.value.executed) == (ChildProblem.BUFFER_FULL, Executed.NO)


def _send_twice(child: Child, line: bytes) -> None:
    child.send(line)
    child.send(line)


async def test_line_with_newline_is_rejected(setup: Setup) -> None:
    child = await setup.start(ECHO)
    with pytest.raises(ValueError, match="newline"):
        child.send(b"a\nb")


@pytest.mark.parametrize(
    "spec",
    [
        ChildSpec("taskgate-no-such-command"),
        ChildSpec("/nowhere/server"),
        ChildSpec("./server", cwd="/"),
        ChildSpec("/etc/passwd"),
        ChildSpec(sys.executable, cwd="/nowhere"),
    ],
    ids=["unknown name", "unknown path", "unknown relative path", "not executable", "unknown directory"],
)
async def test_unknown_command_is_reported(setup: Setup, spec: ChildSpec) -> None:
    with pytest.raises(ChildFailure) as caught:
        await Child.start(
            spec, on_line=setup.lines.append, on_exit=print, on_oversize=setup.oversize.append, reaper=setup.reaper
        )
    assert (caught.value.problem, caught.value.executed) == (ChildProblem.NOT_FOUND, Executed.NO)


async def test_program_that_cannot_run_is_reported(setup: Setup, tmp_path: Path) -> None:
    program = tmp_path / "server"
    program.write_text("#!/nowhere/interpreter\n")
    program.chmod(0o755)
    with pytest.raises(ChildFailure) as caught:
        await Child.start(ChildSpec(str(program)), on_line=print, on_exit=print, on_oversize=print, reaper=setup.reaper)
    assert (caught.value.problem, caught.value.executed) == (ChildProblem.NOT_STARTED, Executed.NO)


async def test_child_receives_safe_environment_only(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKGATE_SECRET", "canary")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    monkeypatch.setenv("SHELL", "() { echo function; }")
    await setup.start("import os; print('\\n'.join(sorted(os.environ)))", env={"MINE": "1"})
    await setup.until(lambda: bool(setup.exits))
    names = {line.decode() for line in setup.lines}
    assert {"PATH", "LC_ALL", "MINE"} <= names
    assert not {"TASKGATE_SECRET", "SHELL"} & names


async def test_child_inherits_no_descriptor(setup: Setup) -> None:
    with Path(__file__).open() as held:
        os.set_inheritable(held.fileno(), True)
        await setup.start("import os; print(sorted(int(n) for n in os.listdir('/dev/fd')))")
        await setup.until(lambda: bool(setup.exits))
    assert setup.lines == [b"[0, 1, 2, 3]"]  # 3 is the directory being listed


async def test_stop_lets_cooperative_child_exit(setup: Setup) -> None:
    child = await setup.start(ECHO)
    await child.stop(10)
    assert setup.exits[0].code == 0


async def test_stop_kills_child_that_ignores_signals(setup: Setup) -> None:
    child = await setup.start(STUBBORN)
    await setup.until(lambda: bool(setup.lines))
    await child.stop(0.1)
    assert setup.exits[0].code == -signal.SIGKILL
    await child.stop(0.1)


async def test_stop_kills_grandchildren(setup: Setup) -> None:
    child = await setup.start(WITH_HELPER + "\nimport time; time.sleep(600)")
    await setup.until(lambda: bool(setup.lines))
    helper = int(setup.lines[0])
    assert alive(helper)
    await child.stop(0.1)
    await setup.until(lambda: not alive(helper), 5)


async def test_grandchildren_of_exited_child_are_killed(setup: Setup) -> None:
    await setup.start(WITH_HELPER)
    await setup.until(lambda: bool(setup.exits))
    await setup.until(lambda: not alive(int(setup.lines[0])), 5)


async def test_child_that_closes_output_is_killed(setup: Setup) -> None:
    await setup.start("import os, time; os.close(1); time.sleep(600)")
    await setup.until(lambda: bool(setup.exits))
    assert setup.exits[0].code == -signal.SIGKILL


async def test_exit_is_detected_without_pidfd(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    await setup.start("print('said'); raise SystemExit(3)")
    await setup.until(lambda: bool(setup.exits))
    assert (setup.lines, setup.exits[0].code) == ([b"said"], 3)


async def test_cancelled_start_leaks_nothing(setup: Setup) -> None:
    warm = await setup.start(ECHO)
    await warm.stop(5)
    before = len(os.listdir("/dev/fd"))
    for turns in range(6):
        starting = asyncio.create_task(setup.start("import time; time.sleep(600)"))
        for _ in range(turns):
            await asyncio.sleep(0)
        starting.cancel()
        await asyncio.wait([starting])
        for child in setup.children:
            await child.stop(0.05)
    await setup.until(lambda: len(os.listdir("/dev/fd")) <= before)


async def test_many_children_leak_no_descriptor_or_zombie(setup: Setup) -> None:
    warm = await setup.start(ECHO)
    await warm.stop(5)
    before = len(os.listdir("/dev/fd"))
    pids = []
    for _ in range(12):
        child = await setup.start(ECHO)
        pids.append(child.pid)
        child.send(b"x")
        await child.stop(5)
    await setup.until(lambda: len(os.listdir("/dev/fd")) <= before)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert len(setup.exits) == 13
