"""A forked program is a program like one that was started: its own process, arguments, environment, streams, codes and end.

Each property is compared between the same program started normally and forked.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.harness import forking
from tests.harness.forking import FORKING, Forking, fresh_interpreters
from tests.harness.programs import die_with_parent, run_to_end, start

DESCRIBES_ITSELF = """
    import json, os, signal, sys, threading
    description = {
        "argv": sys.argv[1:],
        "name": __name__,
        "file": __file__,
        "path": sys.path[0],
        "first words": sys.orig_argv[1:],
        "folder": os.getcwd(),
        "environment": {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")},
        "parent": os.getppid(),
        "leads its session": os.getsid(0) == os.getpid(),
        "descriptors": sorted(each for each in map(int, os.listdir("/proc/self/fd")) if os.path.exists(f"/proc/self/fd/{each}")),
        "thread": threading.get_native_id() == os.getpid(),
        "writes bytecode": not sys.dont_write_bytecode,
        "threads": threading.active_count(),
        "signals": [str(signal.getsignal(each)) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)],
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "stdin": [sys.stdin.encoding, sys.stdin.errors, sys.stdin.readline()],
        "stdout": [sys.stdout.encoding, sys.stdout.errors, sys.stdout.line_buffering, sys.stdout.write_through],
        "stderr": [sys.stderr.encoding, sys.stderr.errors, sys.stderr.line_buffering, sys.stderr.write_through],
        "buffers": [type(each.buffer).__name__ for each in (sys.stdin, sys.stdout, sys.stderr)],
        "command line": open("/proc/self/cmdline").read().rstrip("\\0").split("\\0")[1:],
    }
    print(json.dumps(description))
"""

pytestmark = pytest.mark.skipif(
    subprocess.Popen._execute_child is not forking._execute_child,  # type: ignore[attr-defined]
    reason=f"programs are not forked here (Linux only, and not with {forking.VARIABLE}=0)",
)


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], Path]:
    def written(text: str) -> Path:
        file = tmp_path / "program.py"
        file.write_text(textwrap.dedent(text))
        return file

    return written


@contextlib.contextmanager
def forked(count: int = 1) -> Iterator[None]:
    before = FORKING.forked
    yield
    assert FORKING.forked - before == count, FORKING.why_not()


def described(command: list[Any], **how: Any) -> dict[str, Any]:
    done = subprocess.run(
        command, input="one line\n", stdout=subprocess.PIPE, text=True, check=True, timeout=240, **how
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    "received", [{}, {"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}], ids=["plain", "with options"]
)
def test_a_forked_program_has_the_environment_of_a_started_one(
    program: Callable[[str], Path], tmp_path: Path, received: dict[str, str]
) -> None:
    command: list[str | Path] = [sys.executable, program(DESCRIBES_ITSELF), "--word", "two words", "ü", ""]
    env = {name: value for name, value in os.environ.items() if name not in forking.FOLLOWED}
    how = {"cwd": tmp_path, "env": {**env, "ONLY_HERE": "1", **received}, "start_new_session": True}
    with fresh_interpreters():
        started = described(command, **how)
    with forked():
        assert described(command, **how) == started
    assert started["parent"] == os.getpid()


BECOMES_ANOTHER = """
    import atexit, os, signal, sys
    atexit.register(lambda: print("of the program before"))
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(number, lambda *_: None)
    sys.path.insert(0, "/of/the/program/before")
    kept, closed = os.pipe()
    os.set_inheritable(kept, True)
    os.chdir("/")
    environment = {name: value for name, value in os.environ.items() if name != "ONLY_BEFORE"}
    os.execve(sys.executable, [sys.executable, *sys.argv[1:]], {**environment, "ONLY_HERE": "1"})
"""


def test_a_program_that_it_becomes_finds_what_it_finds_after_a_real_exec(
    program: Callable[[str], Path], tmp_path: Path
) -> None:
    """As the bridge becomes a gateway."""
    then = program(DESCRIBES_ITSELF).rename(tmp_path / "then.py")
    command: list[str | Path] = [sys.executable, program(BECOMES_ANOTHER), then, "--word", "two words", "ü", ""]
    how = {"env": {**os.environ, "ONLY_BEFORE": "1"}}
    with fresh_interpreters():
        started = described(command, **how)
    with forked():
        assert described(command, **how) == started
    assert "ONLY_HERE" in started["environment"]
    assert "ONLY_BEFORE" not in started["environment"]


def test_a_program_that_it_becomes_has_the_imports(program: Callable[[str], Path], tmp_path: Path) -> None:
    imports = "import json, sys; print(json.dumps({'imported': 'taskgate.lifecycle.lifecycle' in sys.modules}))"
    then = program(imports).rename(tmp_path / "then.py")
    command: list[str | Path] = [sys.executable, program(BECOMES_ANOTHER), then]
    with forked():
        assert described(command) == {"imported": True}


ENDS_WITH_WORK_LEFT = """
    import atexit, logging.handlers, sys, threading, time
    atexit.register(lambda: print("said goodbye"))
    held = logging.handlers.MemoryHandler(10, target=logging.StreamHandler(sys.stdout))
    logging.getLogger().addHandler(held)
    logging.warning("written at the end")
    def later():
        time.sleep(0.2)
        print("the thread was waited for")
    threading.Thread(target=later).start()
    sys.stderr.write("to be flushed")
"""


@pytest.mark.parametrize("last", ["", "sys.exit(3)", "sys.exit()", "sys.exit('why')", "sys.exit(300)"])
def test_a_forked_program_completes_its_work_at_exit(program: Callable[[str], Path], last: str) -> None:
    command: list[str | Path] = [sys.executable, program(textwrap.dedent(ENDS_WITH_WORK_LEFT) + last)]
    with fresh_interpreters():
        started = subprocess.run(command, capture_output=True, timeout=240)
    with forked():
        done = subprocess.run(command, capture_output=True, timeout=240)
    assert (done.returncode, done.stdout, done.stderr) == (started.returncode, started.stdout, started.stderr)
    assert started.stdout.split(b"\n")[:-1] == [b"the thread was waited for", b"said goodbye", b"written at the end"]


def test_unread_output_ends_a_forked_program_like_a_started_one(program: Callable[[str], Path]) -> None:
    command: list[str | Path] = [
        sys.executable,
        program("import sys; sys.stdin.readline(); print('nobody reads this')"),
    ]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    pipe, ends = subprocess.PIPE, []
    for fresh in (True, False):
        with fresh_interpreters() if fresh else forked():
            process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=env)
        for stream in (process.stdout, process.stdin):
            assert stream is not None
            stream.close()
        with process:
            assert process.stderr is not None
            ends.append((b"BrokenPipeError" in process.stderr.read(), process.wait(240)))
    assert ends == [(True, 120)] * 2


@pytest.mark.parametrize("now", [signal.SIG_IGN, signal.default_int_handler], ids=["ignored", "not ignored"])
def test_a_forked_program_inherits_the_handling_of_ctrl_c(program: Callable[[str], Path], now: Any) -> None:
    """Not as it was when the template was started: a run in the background begins with SIGINT ignored."""
    command: list[str | Path] = [sys.executable, program(DESCRIBES_ITSELF)]
    with forked():
        described(command)
    before = signal.signal(signal.SIGINT, now)
    try:
        with fresh_interpreters():
            started = described(command)["signals"]
        with forked():
            assert described(command)["signals"] == started
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_forked_program_inherits_only_its_own_descriptors(program: Callable[[str], Path]) -> None:
    reading, writing = os.pipe()
    command: list[str | Path] = [
        sys.executable,
        program("import os, sys; os.write(int(sys.argv[1]), b'here')"),
        str(writing),
    ]
    with forked():
        subprocess.run(command, pass_fds=[writing], check=True, timeout=240)
    os.close(writing)
    with open(reading, "rb") as text:
        assert text.read() == b"here"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", 0),
        ("raise SystemExit(7)", 7),
        ("raise ValueError('why')", 1),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("raise KeyboardInterrupt", -signal.SIGINT),
    ],
)
async def test_the_exit_status_of_a_forked_program_is_that_of_a_started_one(
    program: Callable[[str], Path], text: str, code: int
) -> None:
    with forked(2):
        file = program(text)
        assert (
            subprocess.run([sys.executable, file], check=False, timeout=240, stderr=subprocess.DEVNULL).returncode
            == code
        )
        process = await asyncio.create_subprocess_exec(sys.executable, file, stderr=subprocess.DEVNULL)
        assert await asyncio.wait_for(process.wait(), 240) == code


async def test_a_module_runs_as_with_m() -> None:
    with forked():
        code, output, wrong = await run_to_end([sys.executable, "-m", "taskgate", "--version"])
    with fresh_interpreters():
        assert (code, output, wrong) == await run_to_end([sys.executable, "-m", "taskgate", "--version"])


def test_a_forked_program_leads_its_process_group(program: Callable[[str], Path]) -> None:
    """A parent that ends the group immediately must find it."""
    file = program("import time; time.sleep(600)")
    with forked(20):
        for _ in range(20):
            process = subprocess.Popen([sys.executable, file], start_new_session=True)
            os.killpg(process.pid, signal.SIGKILL)
            assert process.wait(240) == -signal.SIGKILL


async def test_a_forked_program_is_killed_with_its_group(program: Callable[[str], Path]) -> None:
    with forked():
        running = await start([sys.executable, program("import time; time.sleep(600)")])
    running.end_group(signal.SIGKILL)
    assert await asyncio.wait_for(running.process.wait(), 240) == -signal.SIGKILL


def test_a_forked_program_ends_with_its_parent(program: Callable[[str], Path]) -> None:
    """Also if the parent is killed: no process is left, including the template."""
    starter = program(
        f"""
        import os, subprocess, sys
        sys.path.insert(0, {str(forking.ROOT)!r})
        from tests.harness import forking
        from tests.harness.programs import die_with_parent
        forking.install()
        with open("sleeps.py", "w") as file:
            file.write("import time; time.sleep(600)")
        child = subprocess.Popen([sys.executable, os.path.abspath("sleeps.py")], preexec_fn=die_with_parent)
        (template,) = forking.FORKING._templates.values()
        print(forking.FORKING.forked, child.pid, template.process.pid, flush=True)
        os.kill(os.getpid(), 9)
        """
    )
    with fresh_interpreters():
        done = subprocess.run(
            [sys.executable, starter], capture_output=True, text=True, check=False, timeout=240, cwd=starter.parent
        )
    count, *pids = map(int, done.stdout.split())
    assert (count, done.returncode) == (1, -signal.SIGKILL)
    for pid in pids:
        _wait_until_gone(pid)


def _wait_until_gone(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            import select

            assert select.select([descriptor], [], [], 240)[0]
        finally:
            os.close(descriptor)


def test_per_process_state_is_new_in_a_forked_program(program: Callable[[str], Path]) -> None:
    file = program("from taskgate.gateway.requests import request; print(request._STARTED)")
    with forked(2):
        body = {
            subprocess.run([sys.executable, file], capture_output=True, check=True, timeout=240).stdout
            for _ in range(2)
        }
    assert len(body) == 2


@pytest.mark.parametrize(
    "how",
    [
        {"env": {**os.environ, "PYTHONHASHSEED": "1"}},
        {"preexec_fn": lambda: None},
        {"umask": 0o077},
        {"close_fds": False},
    ],
    ids=lambda how: next(iter(how)),
)
def test_programs_that_cannot_be_forked_are_started(program: Callable[[str], Path], how: dict[str, Any]) -> None:
    with forked(0):
        subprocess.run([sys.executable, program("")], check=True, timeout=240, **how)


@pytest.mark.parametrize("words", [["-c", "pass"], ["-I", "{file}"], ["-m", "this"]], ids=lambda words: words[0])
def test_interpreters_with_options_are_started(program: Callable[[str], Path], words: list[str]) -> None:
    file = program("")
    with forked(0):
        done = [word.format(file=file) for word in words]
        subprocess.run([sys.executable, *done], check=True, timeout=240, stdout=subprocess.DEVNULL)


@pytest.mark.fresh_interpreter
def test_a_test_may_require_a_real_start(program: Callable[[str], Path]) -> None:
    with forked(0):
        subprocess.run([sys.executable, program("")], check=True, timeout=240, preexec_fn=die_with_parent)


def test_a_failing_template_is_reported_and_the_program_is_started(
    program: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Forking()
    own.installed = True
    monkeypatch.setattr(forking, "FORKING", own)
    monkeypatch.setattr(forking, "TEMPLATES", {Path(sys.executable): ("no_such_module",)})
    done = subprocess.run([sys.executable, program("print('here')")], capture_output=True, check=True, timeout=240)
    assert done.stdout == b"here\n"
    assert own.forked == 0
    (why,) = own.why_not()
    assert "no_such_module" in why


LAUNCHED = """
    import os, select, signal, sys, time
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
    print(os.getpid(), sys.argv[1:], os.environ.get("ONLY_HERE"), os.getcwd(), flush=True)
    # A handler runs between two instructions: a signal just before a read that never returns would have no effect.
    while not select.select([sys.stdin], [], [], 1)[0]:
        pass
    for line in sys.stdin:
        print(line.strip().upper(), flush=True)
    sys.exit(5)
"""


@pytest.fixture
def launched(program: Callable[[str], Path], tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A program by `launch.py`, as a gateway starts its servers, and its process id."""
    words = FORKING.launched(Path(sys.executable))
    assert words, FORKING.why_not()
    command: list[str | Path] = [*words, sys.executable, program(LAUNCHED), "two words"]
    env = {**os.environ, "ONLY_HERE": "yes"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=env, cwd=tmp_path) as process:
        assert process.stdout is not None
        pid, _, output = process.stdout.readline().partition(" ")
        assert output == f"['two words'] yes {tmp_path}\n"
        assert int(pid) != process.pid
        yield process, int(pid)
        process.kill()


def test_a_launched_program_uses_the_streams_and_exits_with_its_code(launched: tuple[Any, int]) -> None:
    process, _ = launched
    assert process.communicate("hello\n", timeout=240)[0] == "HELLO\n"
    assert process.returncode == 5


def test_a_launched_program_receives_signals(launched: tuple[Any, int]) -> None:
    process, _ = launched
    process.terminate()
    assert process.wait(240) == 9


def test_a_launched_program_ends_with_its_launcher(launched: tuple[Any, int]) -> None:
    process, pid = launched
    process.kill()
    _wait_until_gone(pid)


def test_the_signal_that_killed_a_launched_program_is_reported(launched: tuple[Any, int]) -> None:
    process, pid = launched
    os.kill(pid, signal.SIGKILL)
    assert process.wait(240) == -signal.SIGKILL


@pytest.mark.parametrize("received", [{}, {"PYTHONHASHSEED": "1"}], ids=["no template", "for another interpreter"])
def test_programs_that_cannot_be_launched_are_started(
    program: Callable[[str], Path], tmp_path: Path, received: dict[str, str]
) -> None:
    words = FORKING.launched(Path(sys.executable))
    if not received:
        words[-1] = str(tmp_path / "nobody")
    command: list[str | Path] = [*words, sys.executable, program("import os; print(os.getpid())")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **received}) as process:
        assert process.communicate(timeout=240)[0] == f"{process.pid}\n"


def test_a_program_without_a_language_in_its_environment_is_launched(program: Callable[[str], Path]) -> None:
    """Clients hand their servers few variables, and an interpreter without a language sets one for its children."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("LANG", "LC_"))}
    here = program("import os, sys; print(os.getpid(), sys.stdout.encoding)")
    command: list[str | Path] = [*FORKING.launched(Path(sys.executable)), sys.executable, here]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        pid, encoding = process.communicate(timeout=240)[0].split()
    assert (int(pid) != process.pid, encoding) == (True, "utf-8")
