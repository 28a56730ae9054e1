"""Which results a script only passes on, and references to them."""

from __future__ import annotations

import pytest

from taskgate.core.scripts.check_source import parse
from taskgate.core.scripts.passed_on import passed_on
from taskgate.core.scripts.result_reference import referenced_call, result_reference

KEY = b"k" * 32


def calls(code: str) -> list[str]:
    """The calls whose results are only passed on, each as its source text up to the first parenthesis."""
    data = code.encode()
    return [data[start:].split(b"(")[0].decode() for start in sorted(passed_on(code, parse(code)))]


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("é = 'é'\nx = await a.read(n=1)\nawait b.write(content=x)\n1", ["a.read"]),
        ("await b.write(await a.read(n=1))\n1", ["a.read"]),
        ("x = await a.read()\nawait call_tool('b__write', content=x)\n1", ["a.read"]),
        ("x = await call_tool('a__read')\nawait call_tool('b__write', {'content': [x]})\n1", ["call_tool"]),
        ("x = await a.read()\nx", ["a.read"]),
        ("x = await a.read()\n{'whole': x, 'all': (x, [x])}", ["a.read"]),
        ("await a.read()", ["a.read"]),
        ("x = await read()\nawait write(x)\n1", ["read"]),
        ("async def f(n):\n    x = await a.read(n=n)\n    await b.write(content=x)\nawait f(1)\n1", ["a.read"]),
    ],
)
def test_result_that_is_only_passed_on_is_found(code: str, found: list[str]) -> None:
    assert calls(code) == found


@pytest.mark.parametrize(
    "code",
    [
        "x = await a.read()\nawait b.write(content=x['part'])\n1",
        "x = await a.read()\nprint(x)\nx",
        "x = await a.read()\nx += 'more'\nx",
        "x = y = await a.read()\nx",
        "x, y = await a.read()\nx",
        "x = await a.read()\ntexts = []\ntexts.append(x)\ntexts",
        "x = await a.read()\nif x:\n    await b.write(content=x)\n1",
        "x = await a.read()\nawait b.write(content=1, timeout=x)\n1",
        "x = await a.read()\nawait b.write(**x)\n1",
        "x = await a.read()\nawait call_tool(x)\n1",
        "x = await a.read()\nawait call_tool.of(x)\n1",
        "x = await a.read()\nawait ask(x)\n1",
        "x = await a.read()\nasyncio.gather(x)\n1",
        "x = await a.read()\ninputs.get(x)\n1",
        "x = 5\nx",
        "x = await y\nx",
        "x = await asyncio.sleep(1)\nx",
        "x = await a.b.read()\nx",
        "class A:\n    async def read(self):\n        pass\na = A()\nx = await a.read()\nx",
        "def f(a):\n    pass\nimport b as c\ntry:\n    pass\nexcept Exception as d:\n    pass\nx = await a.read()\nx",
        "import b as a\nx = await a.read()\nx",
        "import a\nx = await a.read()\nx",
        "try:\n    pass\nexcept Exception as a:\n    pass\nx = await a.read()\nx",
        "try:\n    pass\nexcept Exception:\n    pass\na = 1\nx = await a.read()\nx",
        "this is no Python",
        "",
        "x = 1",
    ],
)
def test_result_that_may_be_used_is_not_found(code: str) -> None:
    assert calls(code) == []


def test_reference_is_valid_for_its_script_and_call_only() -> None:
    reference = result_reference(KEY, "script", "call")
    assert referenced_call(KEY, "script", reference) == "call"
    assert referenced_call(KEY, "other", reference) is None
    assert referenced_call(b"o" * 32, "script", reference) is None
    assert referenced_call(KEY, "script", reference.replace("call", "other")) is None
    for forged in ("", "taskgate-result:", "taskgate-result:call:", "é"):
        assert referenced_call(KEY, "script", forged) is None
