"""Time comes through one module, so that a virtual clock reaches everything."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src" / "taskgate"
ASKING = {("time", "monotonic"), ("time", "time"), ("time", "time_ns"), ("time", "perf_counter"), ("asyncio", "sleep")}
ELSEWHERE = {
    "clock.py",  # the one place
    "bridge/timing.py",  # a process of its own that must not load the event loop
    "demo/files.py",  # a server of its own, in a process of its own
}


def _asks_for_time(tree: ast.AST) -> list[int]:
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute):
            continue
        owner = node.value
        named = (owner.id, node.attr) if isinstance(owner, ast.Name) else None
        of_a_loop = node.attr == "time" and ast.unparse(owner).rstrip("()").endswith("loop")
        if named in ASKING or of_a_loop:
            found.append(node.lineno)
    return found


def test_the_time_is_asked_for_in_one_module_only() -> None:
    asking = {
        str(path.relative_to(SOURCE)): lines
        for path in SOURCE.rglob("*.py")
        if (lines := _asks_for_time(ast.parse(path.read_text())))
    }
    assert set(asking) <= ELSEWHERE, asking


def test_the_check_sees_each_way_of_asking() -> None:
    for line in (
        "time.monotonic()",
        "asyncio.sleep(1)",
        "loop.time()",
        "asyncio.get_running_loop().time()",
        "self._loop.time()",
    ):
        assert _asks_for_time(ast.parse(line)), line
