"""`taskgate run`: run a script of tool calls at a gateway."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Annotated, Any

from taskgate.cli.call import AnswerOption, CallOptions, Ttl, call_tool, elicitation
from taskgate.cli.command_line import Argument, BadParameter, Commands, Exit, Option
from taskgate.cli.display import Display
from taskgate.cli.operator_tasks import is_operator, questions_api
from taskgate.cli.server_questions import ServerQuestions
from taskgate.cli.target import TakesCommand, Target, Timeout, with_target_options

Script = Annotated[str, Argument(metavar="SCRIPT", help="File with the Python source, or `-` for stdin.")]
Inputs = Annotated[
    list[str] | None,
    Option("--input", metavar="KEY=VALUE", help="A value of `inputs`: JSON, or else text. May be repeated."),
]
ResumeOf = Annotated[
    str | None,
    Option("--resume-of", metavar="TASK", help="Use the results of calls that this failed script has made."),
]
Watch = Annotated[
    bool, Option("--watch/--no-watch", help="Follow the script until it ends. Otherwise print its task id.")
]


def register(app: Commands) -> None:
    """Add the commands to the application."""
    app.command("run", kind=TakesCommand)(with_target_options(run))


def run(
    target: Target,
    *,
    as_json: bool,
    script: Script,
    inputs: Inputs = None,
    resume_of: ResumeOf = None,
    watch: Watch = True,
    ttl: Ttl = None,
    timeout: Timeout = None,
    answer: AnswerOption = None,
) -> None:
    """Run a script of tool calls at a gateway whose scope has scripts on. It survives restarts and waits for approvals."""
    given: dict[str, Any] = {"code": read_code(script), "inputs": read_inputs(inputs or [])}
    if resume_of is not None:
        given["resume_of"] = resume_of
    display = Display("run_script", as_json=as_json)
    answering = elicitation(answer, display, as_json=as_json)
    options = CallOptions(
        "run_script",
        given,
        as_task=True,
        watch=watch,
        ttl=ttl,
        timeout=timeout,
        as_json=as_json,
        attended=answering is not None,
        as_operator=is_operator(target),
    )
    beside = ServerQuestions(questions_api(target), "run_script", as_json=as_json, answer=answering)
    settings = {"elicitation": answering, "keep_session": True}
    raise Exit(asyncio.run(call_tool(target, options, display, beside, settings)))


def read_code(script: str) -> str:
    """Read the source from a file or stdin. Raises BadParameter."""
    try:
        return sys.stdin.read() if script == "-" else Path(script).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadParameter(f"the script cannot be read: {error}") from None


def read_inputs(given: list[str]) -> dict[str, Any]:
    """Read `KEY=VALUE` options. A value that is not JSON is text. Raises BadParameter."""
    inputs: dict[str, Any] = {}
    for one in given:
        key, equals, value = one.partition("=")
        if not equals or not key:
            raise BadParameter(f"--input takes KEY=VALUE, not {one!r}")
        try:
            inputs[key] = json.loads(value)
        except ValueError:
            inputs[key] = value
    return inputs
