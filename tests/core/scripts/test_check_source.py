"""What the language lacks is refused before a script runs, with the line and what to write instead."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable

import pytest

from taskgate.core.scripts.check_source import MAX_BYTES, SourceFault, parse
from taskgate.core.scripts.check_source import check_source as check_tree
from taskgate.core.scripts.names import PythonName

TOOLS = (PythonName("files", "read_file", "files__read_file"),)


def check_source(code: str, tools: Iterable[PythonName] = ()) -> tuple[SourceFault, ...]:
    return check_tree(parse(code), tools)


REFUSED = [
    ("x = 1\nclass A(Exception):\n    pass", 2, "tool_error"),
    ("class A(B):\n    pass", 1, "functions"),
    ("class A(metaclass=M):\n    pass", 1, "functions"),
    ("class A:\n    @property\n    def x(self):\n        return 1", 3, "plain method"),
    ("def f():\n    yield 1", 2, "list"),
    ("def f():\n    yield from x", 2, "list"),
    ("del a", 1, "pop"),
    ("try:\n    pass\nexcept* ValueError:\n    pass", 1, "except Exception"),
    ("import asyncio\nasyncio.create_task(1)", 2, "gather"),
    ("import asyncio\nasyncio.wait_for(1, 3)", 2, "timeout="),
    ("import asyncio\nasyncio.TaskGroup()", 2, "gather"),
    ("from asyncio import create_task", 1, "gather"),
    ("import asyncio\nasyncio.current_task()", 2, "gather"),
    ("async def f():\n    async with a:\n        pass", 2, "plain"),
    ("async def f():\n    async for a in b:\n        pass", 2, "loop"),
    ("async def f():\n    return [x async for x in y]", 2, "loop"),
    ("async def f():\n    return {x async for x in y}", 2, "loop"),
    ("x = [id for id in y]", 1, "id_"),
    ("x = {a: type for a, (type, b) in y}", 1, "type_"),
    ("import numpy", 1, "json"),
    ("from requests import get", 1, "json"),
    ("from . import x", 1, "json"),
    ("import time\ntime.sleep(3)", 2, "await sleep"),
    ("from typing import TypedDict", 1, "dict"),
    ("import typing\nx = typing.TypedDict", 2, "dict"),
    ("x = input('a')", 1, "ask"),
    ("open('a')", 1, "tool"),
    ("__import__('os')", 1, "import"),
    ("await now()", 1, "without await"),
    ("await progress(1)", 1, "without await"),
    ("files.read_file()", 1, "await files.read_file"),
    ("sleep(3)", 1, "await sleep"),
    ("import asyncio\nawait asyncio.gather(sleep(1), return_exceptions=True)", 2, "try"),
    ("x = files__read_file(path='a')", 1, "await files.read_file(...)"),
    ("x = 1\nawait call('files__read_file')", 2, "call_tool(...)"),
    ("zip_everything_up()", 1, "describe_tools"),
    ("await files.read_fil(path='a')", 1, "await files.read_file(...)"),
    ("x = 1\ny = await files.zip_everything_up()", 2, "describe_tools"),
    ("x = 1\ny = 'a\\ud800'", 2, "whole character"),
    ("x = 1\ny = f'{x}\\udfff'", 2, "whole character"),
    ("x = 1\ndef f(:", 2, ""),
    ("x = '\0'", 1, ""),
    ("'\ud800'", 1, ""),
]


@pytest.mark.parametrize(("code", "line", "instead"), REFUSED)
def test_unsupported_source_is_refused_with_its_line(code: str, line: int, instead: str) -> None:
    [fault] = check_source(code, TOOLS)
    assert fault.line == line
    assert instead in fault.instead
    assert f"line {line}" in str(fault)


ACCEPTED = [
    "",
    "from __future__ import annotations\nfrom asyncio import gather\nfrom typing import Any\nimport json, re, os.path",
    "import asyncio\nx = await asyncio.gather(files.read_file(), call_tool('a'))\nx",
    "@dec\ndef f(a, /, b=1, *c, d, **e):\n    return a\nclass A:\n    def f(self):\n        return 1\nA().f()",
    "async def main():\n    return [x for x in range(3) if x]\nawait main()",
    "x = now()\nprogress(1)\nprint(x)\nfiles.read_file\n[1, 2]",
    "match x:\n    case {'a': 1}:\n        y = 2\nf'{x!r:>{y}}'",
    "text = '''\n((((\n'''\n# ((((\ny = {\n"
    + "".join(f"    'k{number}': {number} + 1,\n" for number in range(500))
    + "}",
    "x.y.z()[0](1)",
    "files = []\nfiles.append(1)",
    "for files in ['a']:\n    files.upper()",
    "from json import *\ndumps(1)",
    "import os.path as p\nfrom re import sub\np(sub('', '', ''))",
    "def f(g, *h, **i):\n    return g(h(i))\ntry:\n    j = (k := f)\nexcept Exception:\n    j()\nk(1)",
    "match x:\n    case {'a': 1, **rest} | [_, *rest] | rest:\n        rest()\nfor a, [b] in c:\n    b(a)",
]


@pytest.mark.parametrize("code", ACCEPTED)
def test_supported_source_is_accepted(code: str) -> None:
    assert check_source(code, TOOLS) == ()


HOSTILE = {
    "too many bytes": "x" * (MAX_BYTES + 1),
    "too many bytes of UTF-8": "é" * (MAX_BYTES - 1),
    "parentheses": "(" * 90_000 + ")" * 90_000,
    "unary operators": "-" * 150_000 + "1",
    "unary operators inside": "(" + "not " * 40_000 + "1)",
    "binary operators": "1" + "+1" * 90_000,
    "attributes": "a" + ".b" * 90_000,
    "calls": "f" + "()" * 90_000,
    "lambdas": "lambda:" * 25_000 + "1",
    "conditions": "1 if 1 else " * 15_000 + "1",
    "blocks": "".join(" " * depth + "if 1:\n" for depth in range(600)) + " " * 600 + "pass",
    "branches": "if 1: pass\n" + "elif 1: pass\n" * 15_000,
    "statements": "a;" * 90_000,
    "list": "x=[" + "1," * 90_000 + "]",
    "quotes": "'" * 199_999,
    "backslashes": '"' + "\\" * 190_000,
}
DEPTH = 400
"""Of the syntax tree, from which on a script is refused."""
# Each gets this number of levels from a source that no other limit refuses.
DEEP: dict[str, Callable[[int], str]] = {
    "branches": lambda levels: "if 1: pass\n" + "elif 1: pass\n" * levels,
    "calls of results": lambda levels: "x = print" + "()" * levels,
    "items of items": lambda levels: "x = a" + "[0]" * levels,
    "methods of results": lambda levels: "x = a" + ".b()" * (levels // 2),
    "attributes": lambda levels: "x = (a" + ".b" * levels + ")",
    "base class": lambda levels: "class A(a" + ".b" * levels + "): pass",
    "sums": lambda levels: "x = (" + "1 + " * levels + "1)",
    "negations": lambda levels: "x = (" + "not " * levels + "1)",
    "lambdas": lambda levels: "x = (" + "lambda: " * levels + "1)",
    "f-string": lambda levels: "x = f'{" + "not " * levels + "1}'",
}


@pytest.mark.parametrize("code", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_source_is_refused(code: str) -> None:
    assert len(check_source(code)) == 1


@pytest.mark.parametrize("source", DEEP.values(), ids=DEEP.keys())
@pytest.mark.parametrize("levels", [DEPTH + 1, 1_100, 2_400, 4_500])
def test_deep_source_is_refused_with_one_error_on_every_version(source: Callable[[int], str], levels: int) -> None:
    """Which of them Python parses, and which error it raises for the others, depends on its version."""
    [fault] = check_source(source(levels), TOOLS)
    assert fault.problem == "the script is nested too deeply or has too many parts"
    assert fault.instead


@pytest.mark.parametrize("source", [each for name, each in DEEP.items() if name != "base class"])
def test_source_within_the_depth_is_accepted(source: Callable[[int], str]) -> None:
    assert check_source(source(DEPTH - 10), TOOLS) == ()


def test_deep_source_is_refused_with_the_line_of_the_part_that_is_too_deep() -> None:
    [fault] = check_source("y = 1\nif 1: pass\n" + "elif 1: pass\n" * 600)
    assert abs(fault.line - DEPTH) < 5


def test_faults_are_in_order_and_limited() -> None:
    faults = check_source("\n".join(["del a"] * 100))
    assert [fault.line for fault in faults] == list(range(1, 21))


@pytest.mark.parametrize(("failures", "faults"), [(1, 0), (2, 1)])
def test_system_error_of_the_parser_is_retried_once_then_refused(
    monkeypatch: pytest.MonkeyPatch, failures: int, faults: int
) -> None:
    really, left = ast.parse, [SystemError("AST constructor recursion depth mismatch")] * failures

    def parse(code: str) -> ast.Module:
        if left:
            raise left.pop()
        return really(code)

    with monkeypatch.context() as patch:
        patch.setattr(ast, "parse", parse)
        found = check_source("x = 1")
    assert (len(found), left) == (faults, [])
