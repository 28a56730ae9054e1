"""What a caller must observe of each behaviour of the behaviour servers: the conversations, written as data.

One list serves every pairing of caller and upstream, directly and through Taskgate. A behaviour is a few steps of a
script and what each must yield. Differences between generations (an error code, a missing ping) are listed here, so that the
runner has no exceptions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Observation = Mapping[str, Any]
Expectation = Callable[[Observation], str | None]
TOOLS: tuple[str, ...] = (
    "echo",
    "add",
    "slow",
    "ask",
    "ask_twice",
    "ask_url",
    "sample",
    "roots",
    "log",
    "fail",
    "crash",
    "big",
)
TOOLS += ("vendor", "update", "mutate")


@dataclass(frozen=True, slots=True)
class Step:
    """One operation, and what its observation must show; the expectation returns a complaint, or None."""

    do: dict[str, Any]
    see: Expectation


@dataclass(frozen=True, slots=True)
class Behaviour:
    name: str
    steps: tuple[Step, ...]


def returned(words: str, *, error: bool = False, **also: Any) -> Expectation:
    """A tool result with this text, and these keys beside it."""

    def check(seen: Observation) -> str | None:
        value = seen.get("value") or {}
        text = [block.get("text") for block in value.get("content", [])]
        wanted = {"isError": error, **also}
        found = {key: value.get(key, False if key == "isError" else None) for key in wanted}
        return None if text == [words] and found == wanted else f"wanted {words!r} and {wanted}"

    return check


def asked(*questions: Sequence[str], then: Expectation) -> Expectation:
    """The caller was asked exactly these questions, in this order, before the answer."""

    def check(seen: Observation) -> str | None:
        found = seen.get("questions", [])
        if found != [list(question) for question in questions]:
            return f"wanted the questions {questions}, saw {found}"
        return then(seen)

    return check


def progressed(*updates: Sequence[Any], then: Expectation) -> Expectation:
    """All of them, in order. TypeScript's SDKs forget who waits for progress when the reply stands in the same piece of bytes, and
    hand progress on only after that: on a busy machine they miss the last ones, directly too.
    """

    def check(seen: Observation) -> str | None:
        found, wanted = seen.get("progress", []), [list(update) for update in updates]
        if found == wanted or (seen.get("drops_late_progress") and found == wanted[: len(found)]):
            return then(seen)
        return f"wanted progress {updates}, saw {found}"

    return check


def logged(*lines: Sequence[str], then: Expectation) -> Expectation:
    """At least these lines, in order; a server may also send lines below the level that the caller requested."""

    def check(seen: Observation) -> str | None:
        found = [line for line in seen.get("logs", []) if tuple(line) in lines]
        return then(seen) if found == [list(line) for line in lines] else f"wanted {lines}, saw {seen.get('logs')}"

    return check


def failed(*codes: int, message: str | None = None, data: Any = None) -> Expectation:
    def check(seen: Observation) -> str | None:
        error = seen.get("error") or {}
        right = error.get("code") in codes and message in (None, error.get("message"))
        return None if right and data in (None, error.get("data")) else f"wanted an error {codes} {message!r} {data}"

    return check


def listed(*names: str) -> Expectation:
    """These names, in this order; a server may have grown since, and only some have tools for tasks."""

    def check(seen: Observation) -> str | None:
        found = [name for name in seen.get("value") or [] if not name.startswith(("extra", "work"))]
        return None if found == list(names) else f"wanted {list(names)}"

    return check


def having(name: str) -> Expectation:
    return lambda seen: None if name in (seen.get("value") or []) else f"wanted {name} among the names"


def within(*path: Any, equal: Any) -> Expectation:
    """The value at this path of the result."""

    def check(seen: Observation) -> str | None:
        value: Any = seen.get("value")
        for key in path:
            try:
                value = value[key]
            except (KeyError, IndexError, TypeError):
                return f"wanted something at {path}"
        return None if value == equal else f"wanted {equal!r} at {path}, saw {value!r}"

    return check


def finished(status: str, words: str) -> Expectation:
    """A task that ended in this state with this text."""

    def check(seen: Observation) -> str | None:
        value = seen.get("value") or {}
        if value.get("status") != status:
            return f"wanted a task that is {status}"
        return returned(words)({"value": value.get("result")})

    return check


def anything(seen: Observation) -> str | None:
    return "wanted an answer" if "error" in seen else None


def call(name: str, see: Expectation, progress: bool = False, **arguments: Any) -> Step:
    extra = {"progress": True} if progress else {}
    return Step({"op": "call", "name": name, "arguments": arguments, **extra}, see)


BEHAVIOURS = (
    Behaviour("tools are listed in the order of the server", (Step({"op": "tools"}, listed(*TOOLS)),)),
    Behaviour("a plain call is answered", (call("echo", returned("grüße 👋"), text="grüße 👋"),)),
    Behaviour("structured content arrives", (call("add", returned("5", structuredContent={"sum": 5}), a=2, b=3),)),
    Behaviour(
        "progress arrives in order, with its messages",
        (
            call(
                "slow",
                progressed([1, 3, "step 1"], [2, 3, "step 2"], [3, 3, "step 3"], then=returned("done after 3 steps")),
                progress=True,
                seconds=0.06,
                steps=3,
            ),
        ),
    ),
    Behaviour(
        "a form is asked and its answer used",
        (call("ask", asked(["form", "What is your name?"], then=returned("accept:Ann"))),),
    ),
    Behaviour(
        "two forms are asked one after the other",
        (
            call(
                "ask_twice",
                asked(
                    ["form", "What is the first name?"],
                    ["form", "What is the second name?"],
                    then=returned("Ann and Bob"),
                ),
            ),
        ),
    ),
    Behaviour(
        "a URL is shown to the caller",
        (call("ask_url", asked(["url", "Please sign in", "https://example.test/sign"], then=returned("accept"))),),
    ),
    Behaviour(
        "the caller's model is asked",
        (
            call(
                "sample",
                asked(["sampling", "Say hello"], then=returned("the model said: hello from the caller's model")),
            ),
        ),
    ),
    Behaviour(
        "the caller's roots are listed", (call("roots", asked(["roots"], then=returned("file:///tmp/project"))),)
    ),
    Behaviour(
        "log lines at the wanted level arrive",
        (
            Step({"op": "level", "level": "info"}, anything),
            call("log", logged(("info", "two"), ("error", "three"), then=returned("logged"))),
        ),
    ),
    Behaviour("a failing tool says so in its result", (call("fail", returned("it failed on purpose", error=True)),)),
    Behaviour(
        "a JSON-RPC error keeps its code, words and data",
        (call("crash", failed(-32010, message="it crashed on purpose", data={"why": "test"})),),
    ),
    Behaviour("a large result arrives whole", (call("big", returned("x" * 300_000), n=300_000),)),
    Behaviour("vendor metadata survives", (call("vendor", within("_meta", "example.com/mark", equal=7)),)),
    Behaviour("an unknown tool is an invalid parameter", (call("nonsense", failed(-32602)),)),
    Behaviour(
        "resources are listed and read",
        (
            Step({"op": "resources"}, listed("memo://plain", "memo://watched")),
            Step({"op": "templates"}, listed("memo://notes/{name}")),
            Step({"op": "read", "uri": "memo://plain"}, within("contents", 0, "text", equal="plain memo")),
            Step({"op": "read", "uri": "memo://notes/today"}, within("contents", 0, "text", equal="note today")),
            Step({"op": "read", "uri": "memo://gone"}, failed(-32002, -32602)),
        ),
    ),
    Behaviour(
        "prompts are listed, filled and completed",
        (
            Step({"op": "prompts"}, listed("greeting", "letter")),
            Step(
                {"op": "prompt", "name": "letter", "arguments": {"to": "Ann"}},
                within("messages", 0, "content", "text", equal="Dear Ann"),
            ),
            Step(
                {"op": "complete", "prompt": "letter", "argument": "to", "value": "An"},
                within("completion", "values", equal=["Ann", "Anton"]),
            ),
        ),
    ),
    Behaviour(
        "a watched resource announces its change",
        (
            Step({"op": "watch", "uri": "memo://watched"}, anything),
            call("update", returned("updated")),
            Step({"op": "notice", "method": "notifications/resources/updated"}, anything),
        ),
    ),
    Behaviour(
        "a changed tool list is announced and visible",
        (
            call("mutate", returned("mutated")),
            Step({"op": "notice", "method": "notifications/tools/list_changed"}, anything),
            Step({"op": "tools"}, having("extra")),
            call("extra", returned("hello"), text="hello"),
        ),
    ),
    Behaviour("a ping is answered", (Step({"op": "ping"}, anything),)),
)

TASK_BEHAVIOURS = (
    Behaviour(
        "a tool runs as a task and its result is kept",
        (Step({"op": "task", "name": "work", "arguments": {"seconds": 0.2}}, finished("completed", "worked")),),
    ),
    Behaviour(
        "a task asks its caller and goes on with the answer",
        (
            Step(
                {"op": "task", "name": "work_asking", "arguments": {}},
                asked(["form", "What is your name?"], then=finished("completed", "accept:Ann")),
            ),
        ),
    ),
    Behaviour(
        "a running task is cancelled",
        (
            Step(
                {"op": "task", "name": "work", "arguments": {"seconds": 30}, "cancel": True},
                within("status", equal="cancelled"),
            ),
        ),
    ),
)


def script(behaviours: Sequence[Behaviour] = BEHAVIOURS) -> list[dict[str, Any]]:
    return [step.do for behaviour in behaviours for step in behaviour.steps]


def complaints(
    observations: Sequence[Observation], behaviours: Sequence[Behaviour] = BEHAVIOURS
) -> dict[str, list[str]]:
    """What each behaviour failed to show, by its name; empty when the conversation went as it must."""
    found: dict[str, list[str]] = {}
    remaining = iter(observations)
    for behaviour in behaviours:
        for step in behaviour.steps:
            seen = next(remaining, {"error": {"message": "the client ended early"}})
            if complaint := step.see(seen):
                found.setdefault(behaviour.name, []).append(f"{step.do}: {complaint}; saw {str(seen)[:400]}")
    return found
