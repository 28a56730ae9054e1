"""Time comes through one module, so that a virtual clock reaches everything."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.structure.source import nodes_of

SOURCE = Path(__file__).resolve().parents[2] / "src" / "taskgate"
ASKING = {("time", "monotonic"), ("time", "time"), ("time", "time_ns"), ("time", "perf_counter"), ("asyncio", "sleep")}
ELSEWHERE = {
    "clock.py",  # the module itself
    "bridge/gateway_files.py",  # a process of its own that must not load the event loop
    "scripts/worker.py",  # a program of its own
    "scripts/worker_process.py",  # waits in a thread for a program, in real time
    "demo/files.py",  # a server of its own, in a process of its own
}


def _reads_time(source: str) -> list[int]:
    found = []
    for node in nodes_of(source):
        if not isinstance(node, ast.Attribute):
            continue
        owner = node.value
        named = (owner.id, node.attr) if isinstance(owner, ast.Name) else None
        of_a_loop = node.attr == "time" and ast.unparse(owner).rstrip("()").endswith("loop")
        if named in ASKING or of_a_loop:
            found.append(node.lineno)
    return found


def test_the_time_is_read_in_one_module_only() -> None:
    asking = {
        str(path.relative_to(SOURCE)): lines
        for path in SOURCE.rglob("*.py")
        if (lines := _reads_time(path.read_text()))
    }
    assert set(asking) <= ELSEWHERE, asking


def test_the_check_detects_each_way_to_read_the_time() -> None:
    for line in (
        "time.monotonic()",
        "asyncio.sleep(1)",
        "loop.time()",
        "asyncio.get_running_loop().time()",
        "self._loop.time()",
    ):
        assert _reads_time(line), line


def _keeps_the_clock(source: str) -> list[int]:
    """Where a function of the clock is kept when the module is loaded: as a default, or by a name imported from it."""
    found = []
    for node in nodes_of(source):
        if isinstance(node, ast.ImportFrom) and node.module == "taskgate.clock":
            found.append(node.lineno)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            defaults = [*node.args.defaults, *(each for each in node.args.kw_defaults if each is not None)]
            found += [each.lineno for each in defaults if ast.unparse(each) in ("clock.wall", "clock.monotonic")]
    return found


def test_no_module_binds_the_clock_at_import() -> None:
    """A virtual clock that is put in its place later would not reach it."""
    keeping = {
        str(path.relative_to(SOURCE)): lines
        for path in SOURCE.rglob("*.py")
        if (lines := _keeps_the_clock(path.read_text()))
    }
    assert keeping == {}
    for line in ("from taskgate.clock import wall", "def f(now=clock.wall): ...", "def f(*, now=clock.monotonic): ..."):
        assert _keeps_the_clock(line), line
