"""The plan of a script: which tools it names, and where it computes a name."""

from __future__ import annotations

import pytest

from taskgate.core.scripts.check_source import parse
from taskgate.core.scripts.names import PythonName
from taskgate.core.scripts.plan import NamedCall, ScriptPlan
from taskgate.core.scripts.plan import plan_of as plan_of_tree

NAMES = (PythonName("files", "read", "files__read"), PythonName("files", "write", "files__write"))


def plan_of(code: str, names: tuple[PythonName, ...]) -> ScriptPlan:
    return plan_of_tree(parse(code), names)


def test_tools_by_namespace_and_by_name() -> None:
    plan = plan_of(
        "await files.write(1)\nawait files.read(1)\nx = await call_tool('files__read')\nawait map_tool('files__read', [])",
        NAMES,
    )
    assert plan.tools == (NamedCall("files__write", (1,)), NamedCall("files__read", (2, 3, 4)))
    assert (plan.unknown, plan.dynamic, plan.question_lines, plan.fault) == ((), (), (), None)


def test_tool_that_is_only_passed_on_is_named() -> None:
    assert plan_of("f = files.read\nawait f(1)", NAMES).tools == (NamedCall("files__read", (1,)),)


def test_unknown_tool_names_are_reported() -> None:
    plan = plan_of("await files.nope()\nawait call_tool('other')\nother.x()", NAMES)
    assert plan.unknown == (NamedCall("files.nope", (1,)), NamedCall("other", (2,)))


def test_computed_names_are_reported() -> None:
    code = """await call_tool(name)
g = files
f = call_tool
await map_tool(*a)
eval('x')
exec('x')
call_tool()
getattr(files, 'read')
await call_tool(3)
"""
    assert plan_of(code, NAMES).dynamic == (1, 2, 3, 4, 5, 6, 7, 8, 9)


@pytest.mark.parametrize(
    "code",
    [
        "e = [eval][0]; await e('s').charge()",
        "f = {'a': exec}['a']",
        "x = f'{eval}'",
        "def f(g=eval): pass",
        "x.eval('a')",
        "from x import exec as y",
        "eval = 3",
        "def exec(): pass",
        "f(eval=1)",
        "def f(eval): pass",
        "class eval: pass",
        "async def eval(): pass",
        "n = locals()['fi' + 'les']  # files read",
        "n = [locals][0]()",
        "files += x",
        "call_tool += x",
        "map_tool |= x",
    ],
)
def test_every_mention_of_what_reaches_any_tool_is_marked(code: str) -> None:
    """Also where it is not called: a script can pass it around under another name."""
    assert plan_of(f"1\n{code}", NAMES).dynamic == (2,)


def test_eval_in_a_text_is_not_marked() -> None:
    assert plan_of("x = 'eval'  # exec locals\nevaluate = 1\nx += 1", NAMES).dynamic == ()


def test_questions_are_reported() -> None:
    assert plan_of("x = 1\nawait ask('which?')\na = ask\nawait a('which?')", NAMES).question_lines == (2, 3)


def test_assigned_namespace_is_not_a_use() -> None:
    assert plan_of("files = 3\nx.call_tool('a')\nprint(1)", NAMES).dynamic == ()


def test_source_that_cannot_be_parsed_has_no_plan() -> None:
    assert plan_of("def f(:", NAMES).fault is not None
