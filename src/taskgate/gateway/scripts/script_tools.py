"""The tools of a scope as a script calls them."""

from __future__ import annotations

from taskgate.core.scoping.session_request import NO_REQUEST
from taskgate.core.scripts.given_script import GivenScript
from taskgate.core.scripts.names import PythonName, python_names
from taskgate.core.tasks.task import Task
from taskgate.gateway.calls.lookup import Lookup
from taskgate.gateway.catalog.views import View
from taskgate.gateway.scripts.call_request import caller_of
from taskgate.ports.script_interpreter import ScriptProgram, ScriptTool


async def script_program(lookup: Lookup, script: Task, given: GivenScript) -> ScriptProgram:
    """Return the program for the interpreter: the code, its inputs, and the names of the tools that the caller may call."""
    plan = lookup.plan.value
    view = await lookup.views.view(plan, caller_of(plan, script), NO_REQUEST)
    return ScriptProgram(given.code, given.inputs_json, script_tools(view))


def script_tools(view: View) -> tuple[ScriptTool, ...]:
    return tuple(ScriptTool(name.namespace, name.function, name.tool) for name in names_of(view))


def names_of(view: View) -> tuple[PythonName, ...]:
    """The script names of all tools that a model may see. Adding or removing a tool changes only the names of tools with a similar
    name.
    """
    return python_names((tool.server, tool.name, tool.wire) for tool in view.tools.values() if tool.is_for_model)
