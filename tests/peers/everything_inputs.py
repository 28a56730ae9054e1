"""The conformance fixtures that ask the caller something in the manner of 2026-07-28 (`input_required`).

Keys, messages and result words are those the official suite looks for. `everything_server` lists them; nothing else
imports this.
"""

from __future__ import annotations

from typing import Any

from mcp.shared.exceptions import MCPError
from server_base_23 import INVALID_PARAMS, MISSING_CAPABILITY, Call, NeedsInput, Tool, Wire, text

NOTHING: Wire = {"type": "object", "properties": {}}


def form(message: str, **fields: str) -> Wire:
    properties = {name: {"type": kind} for name, kind in fields.items()}
    schema = {"type": "object", "properties": properties, "required": list(fields)}
    return {"method": "elicitation/create", "params": {"message": message, "requestedSchema": schema}}


def sampling(prompt: str, tokens: int) -> Wire:
    message = {"role": "user", "content": {"type": "text", "text": prompt}}
    return {"method": "sampling/createMessage", "params": {"messages": [message], "maxTokens": tokens}}


ROOTS: Wire = {"method": "roots/list", "params": {}}
NAME = form("What is your name?", name="string")


def content(answer: Any, name: str) -> Any:
    """The named field of an accepted form, or a clear refusal of anything else."""
    if not isinstance(answer, dict) or not isinstance(answer.get("content"), dict) or name not in answer["content"]:
        raise MCPError(INVALID_PARAMS, f"the answer holds no {name}")
    return answer["content"][name]


async def basic_elicitation(call: Call) -> Wire:
    answers = await call.ask_all({"user_name": NAME})
    return text(f"Hello, {content(answers['user_name'], 'name')}!")


async def basic_sampling(call: Call) -> Wire:
    answers = await call.ask_all({"capital_question": sampling("What is the capital of France?", 100)})
    return text(f"The model said: {answers['capital_question']['content'].get('text')}")


async def basic_roots(call: Call) -> Wire:
    roots = (await call.ask_all({"client_roots": ROOTS}))["client_roots"]["roots"]
    return text("Roots: " + ", ".join(root["uri"] for root in roots))


async def with_state(call: Call) -> Wire:
    """Carries a mark in the sealed state and refuses a retry that does not bring it back."""
    confirm = form("Please confirm", ok="boolean")
    if "confirm" not in call.answered:
        raise NeedsInput({"confirm": confirm}, {"mark": "state"})
    if call.answered.get("mark") != "state":
        raise MCPError(INVALID_PARAMS, "requestState is missing")
    return text("state-ok")


async def several(call: Call) -> Wire:
    requests = {"user_name": NAME, "greeting": sampling("Generate a greeting", 50), "client_roots": ROOTS}
    if missing := {key: request for key, request in requests.items() if key not in call.answered}:
        raise NeedsInput(missing, {"mark": "several"} | call.answered)
    return text(f"All three answered by {content(call.answered['user_name'], 'name')}")


async def rounds(call: Call) -> Wire:
    step1, step2 = (
        form("Step 1: What is your name?", name="string"),
        form("Step 2: What is your color?", color="string"),
    )
    if "step1" not in call.answered:
        raise NeedsInput({"step1": step1}, {"round": 1})
    if "step2" not in call.answered:
        raise NeedsInput({"step2": step2}, call.answered | {"round": 2})
    return text(f"{content(call.answered['step1'], 'name')} likes {content(call.answered['step2'], 'color')}")


async def by_capability(call: Call) -> Wire:
    possible = {
        "elicitation": ("name", NAME),
        "sampling": ("joke", sampling("Tell a joke", 50)),
        "roots": ("roots", ROOTS),
    }
    wanted = dict(possible[name] for name in possible if name in call.capabilities)
    if any(key not in call.answered for key in wanted):
        raise NeedsInput(wanted, {})
    return text("asked only what the client can answer")


async def needs_sampling(call: Call) -> Wire:
    if "sampling" not in call.capabilities:
        raise MCPError(MISSING_CAPABILITY, "needs sampling", {"requiredCapabilities": {"sampling": {}}})
    return text("the client can sample")


async def while_streaming(call: Call) -> Wire:
    await call.progress(1, 2)
    return await basic_elicitation(call)


async def context_for_prompt(call: Call) -> Wire:
    answers = await call.ask_all({"user_context": form("What context should the prompt use?", context="string")})
    words = f"Context: {content(answers['user_context'], 'context')}"
    return {"messages": [{"role": "user", "content": {"type": "text", "text": words}}]}


INPUT_PROMPT: Tool = context_for_prompt
INPUT_TOOLS: dict[str, tuple[Tool, Wire]] = {
    "test_input_required_result_elicitation": (basic_elicitation, NOTHING),
    "test_input_required_result_sampling": (basic_sampling, NOTHING),
    "test_input_required_result_list_roots": (basic_roots, NOTHING),
    "test_input_required_result_request_state": (with_state, NOTHING),
    "test_input_required_result_multiple_inputs": (several, NOTHING),
    "test_input_required_result_multi_round": (rounds, NOTHING),
    "test_input_required_result_tampered_state": (with_state, NOTHING),
    "test_input_required_result_capabilities": (by_capability, NOTHING),
    "test_missing_capability": (needs_sampling, NOTHING),
    "test_streaming_elicitation": (while_streaming, NOTHING),
}
