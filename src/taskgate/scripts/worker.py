"""The program of a worker: runs steps of scripts, one at a time.

Each step comes with its snapshot. The state of the newest step stays in the interpreter, and is used instead of loading the
snapshot if exactly that snapshot comes next.

The gateway starts it with `python -I -S` and communicates with it over standard input and output (`frames.py` describes a
frame).
It imports the standard library and the interpreter only, not Taskgate: that keeps its start short. The interpreter itself
runs in a process of its own, a child of this one; values of a script are converted here, which a hostile script can make
expensive.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import zlib
from _thread import allocate_lock, start_new_thread  # `threading` takes longer to import
from datetime import UTC, date, datetime
from types import ModuleType

TYPE_CHECKING = False
"""As in `typing`, whose import would take a tenth of the worker's start."""
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, BinaryIO, Final

_HEADER: Final = 8
_DEEPEST: Final = 60
"""Levels of a JSON value that a script passes or returns."""
_MAX_PROGRESS: Final = 100
_MAX_SUSPENSIONS: Final = 20_000
"""Of one step: calls, clock readings and undefined names. A loop that only does these ends here."""
_MAX_KEPT_SUSPENSIONS: Final = 2_000
"""After so many in one session its state is not kept: the interpreter counts them until a snapshot is loaded."""
_MAX_ENTROPY: Final = 65_536
_TOOL_MARK: Final = "tool:"
"""Begins the internal name of each tool function. No name in a script contains a colon, so that a script cannot imitate one."""
_CODE_FILE: Final = "<python-input-1>"
"""The script is what the interpreter is fed second, after the prelude."""
_REFERENCE: Final = b"taskgate-result:"
"""Begins a reference to a result, which a script has as bytes: no result of a tool is bytes."""
_SNAPSHOT_MAGIC: Final = b"TGS1"
_INTERNAL: Final = "Internal error in monty: "
_TOO_LATE: Final = "request timeout"
"""In the message of the interpreter's library when it has killed its process because of the time."""

_SERVER_CLASS: Final = """
class Server:
    def __init__(self, tools):
        for name in tools:
            setattr(self, name, tools[name])
"""
_TOOL_ERROR: Final = """
class ToolError:
    def __init__(self, parts):
        self.type = parts[0]
        self.executed = parts[1]
        self.message = parts[2]
def tool_error(error):
    return ToolError(_error_parts(type(error).__name__, str(error)))
"""
_MAP_TOOL: Final = """
async def map_tool(name, items, limit=8):
    import asyncio
    items = list(items)
    results = [None] * len(items)
    waiting = list(range(len(items)))
    async def lane():
        while waiting:
            place = waiting.pop(0)
            results[place] = await call_tool(name, items[place])
    await asyncio.gather(*[lane() for _ in range(max(1, min(limit, len(items))))])
    return results
"""

monty: ModuleType


_AGAIN: Final[dict[type, str]] = {list: "[...]", tuple: "(...)", dict: "{...}"}
"""What the interpreter gives for a container inside itself."""


class NotJson(Exception):
    """A value of the script cannot be represented in JSON."""


class TooLarge(NotJson):
    """A value of the script has more bytes than allowed."""


class StepFailed(Exception):
    """The step failed; carries the reply."""

    def __init__(self, reason: str, error_type: str, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.reply = {"step": "failed", "reason": reason, "error_type": error_type, "message": message, "line": line}


class JsonCheck:
    """Whether a value is JSON (finite numbers, names that are strings, not too deep) and how many bytes it has at least.

    The size is limited while counting: a value that contains itself twice, thirty times over, is small in the interpreter and has a
    billion parts as JSON.
    """

    def __init__(self, maximum: int) -> None:
        self._most = maximum
        self._bytes = 0
        self.has_references = False
        self._inside: list[str] = []
        """What the interpreter would give for each of the containers around a value, if that value were the container again."""

    def check_arguments(self, positional: list[Any], keywords: dict[str, Any]) -> None:
        """Raise NotJson, or TooLarge."""
        for value in positional:
            self.check(value, 1)
        self._bytes += sum(map(len, keywords))
        for value in keywords.values():
            self.check(value, 1)

    def check(self, value: Any, depth: int = 0) -> None:
        """Raise NotJson, or TooLarge."""
        if depth > _DEEPEST:
            raise NotJson(f"a value is nested more than {_DEEPEST} levels deep")
        again = _AGAIN.get(type(value))
        if again is not None:
            self._inside.append(again)
            self._check(value, depth)
            self._inside.pop()
        else:
            self._check(value, depth)

    def _check(self, value: Any, depth: int) -> None:
        if isinstance(value, str) and value in self._inside:
            raise NotJson(f"a value contains itself, or the text {value}, which cannot be told from it")
        self._bytes += 2 + (len(value) if isinstance(value, str) else 0)
        if self._bytes > self._most:
            raise TooLarge(f"it has more than {self._most:,} bytes")
        if isinstance(value, list | tuple):
            for item in value:
                self.check(item, depth + 1)
        elif isinstance(value, dict):
            self._check_members(value, depth)
        elif isinstance(value, float):
            if value != value or value in (float("inf"), float("-inf")):
                raise NotJson(f"{value!r} cannot be represented in JSON; use None or a text")
        elif isinstance(value, bytes) and value.startswith(_REFERENCE):
            self.has_references = True
        elif value is not None and not isinstance(value, str | bool | int):
            raise NotJson(
                f"{_kind(value)} cannot be represented in JSON; convert it to a text, a number, a list or a dict"
            )

    def _check_members(self, value: dict[Any, Any], depth: int) -> None:
        for name, item in value.items():
            if not isinstance(name, str):
                raise NotJson(f"keys in JSON are texts, not {_kind(name)}; write str(name)")
            self._bytes += len(name)
            self.check(item, depth + 1)


def take_references(value: Any, path: list[str | int], found: list[Any]) -> Any:
    """The value with null for each reference, and their places in `found`. For values that were checked."""
    if isinstance(value, bytes):
        found.append([path, value.decode()])
        return None
    if isinstance(value, list | tuple):
        return [take_references(item, [*path, place], found) for place, item in enumerate(value)]
    if isinstance(value, dict):
        return {name: take_references(item, [*path, name], found) for name, item in value.items()}
    return value


def _kind(value: Any) -> str:
    name = type(value).__name__
    return f"a value of type {value.name}" if name == "MontyClassProxy" else f"a value of type {name}"


def lines_to_bytes(code: str) -> bytes:
    """The line of `map_tool` and the length of each line in bytes of UTF-8, as variable-length integers.

    Calls that `map_tool` makes have no place in the code. Their line is known if the code uses it on one line only.
    """
    lines = code.encode().split(b"\n")
    mapping = [number for number, line in enumerate(lines, start=1) if b"map_tool(" in line]
    packed = bytearray()
    for length in (mapping[0] if len(mapping) == 1 else 0, *(len(line) + 1 for line in lines)):
        rest = length
        while rest > 127:
            packed.append(rest & 127 | 128)
            rest >>= 7
        packed.append(rest)
    return bytes(packed)


def line_at(packed: bytes, offset: int) -> int:
    """The line of an offset in bytes, from 1."""
    lengths = _lengths(packed)
    next(lengths, 0)
    for number, length in enumerate(lengths, start=1):
        if offset < length:
            return number
        offset -= length
    return 0


def mapping_line(packed: bytes) -> int:
    """The line of `map_tool`, or 0."""
    return next(_lengths(packed), 0)


def _lengths(packed: bytes) -> Iterator[int]:
    length = shift = 0
    for byte in packed:
        length |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            yield length
            length = shift = 0


class StepRun:
    """One step: drives the interpreter until the script ends or everything in it waits."""

    def __init__(self, request: dict[str, Any], lines: bytes) -> None:
        self._limits = request["limits"]
        self._now = float(request["now"])
        self._seed = bytes.fromhex(request["seed"])
        self._drawn = 0
        self._outcomes = {int(number): outcome for number, outcome in request.get("outcomes", {}).items()}
        self._lines = lines
        self._calls: dict[int, dict[str, Any]] = {}
        self._arguments = JsonCheck(self._limits["result_bytes"])
        self._open: set[int] = set()
        self.suspensions = 0
        self.waiting: Any = None
        """Where the interpreter waits for calls, if the step has suspended the script."""
        self._printed: list[str] = []
        self._printed_bytes = 0
        self.cut = False
        self.progress: list[list[Any]] = []

    def on_print(self, _stream: str, text: str) -> None:
        """Keep what fits."""
        room = self._limits["output_bytes"] - self._printed_bytes
        data = text.encode()
        if len(data) > room:
            self.cut = True
            text = data[: max(room, 0)].decode(errors="ignore")
        self._printed_bytes += min(len(data), max(room, 0))
        if text:
            self._printed.append(text)

    @property
    def printed(self) -> str:
        """What was kept."""
        return "".join(self._printed)

    def drive(self, snapshot: Any, spent: Any) -> tuple[dict[str, Any], bytes]:
        """Return the reply and the snapshot. `spent` returns the CPU seconds of this step so far."""
        while True:
            if isinstance(snapshot, monty.MontyComplete):
                return self._finished(snapshot), b""
            self.suspensions += 1
            if self.suspensions > _MAX_SUSPENSIONS:
                raise StepFailed(
                    "limit",
                    "suspensions",
                    f"The script called functions more than {_MAX_SUSPENSIONS:,} times in one step.",
                )
            if spent() > self._limits["step_seconds"]:
                ended = _limit_exceeded("step_seconds", self._limits)
                raise StepFailed("limit", "step_seconds", ended["message"])
            if isinstance(snapshot, monty.NameLookupSnapshot):
                snapshot = self._name(snapshot)
            elif isinstance(snapshot, monty.FunctionSnapshot):
                snapshot = self._function(snapshot)
            else:
                self._open = set(snapshot.pending_call_ids)
                known = {
                    number: self._settled(self._outcomes[number])
                    for number in sorted(self._open & self._outcomes.keys())
                }
                if not known:
                    return self._suspended(snapshot)
                for number in known:
                    del self._outcomes[number]
                self._open -= known.keys()
                snapshot = snapshot.resume(known)

    def _settled(self, outcome: dict[str, Any]) -> dict[str, Any]:
        if "value" in outcome:
            return {"return_value": outcome["value"]}
        if "reference" in outcome:
            return {"return_value": outcome["reference"].encode()}
        return {
            "exc_type": "RuntimeError",
            "message": f"[{outcome['type']}; executed={outcome['executed']}] {outcome['message']}",
        }

    def _name(self, snapshot: Any) -> Any:
        """A name that the script does not define: one of our functions as a value, or a NameError."""
        if snapshot.object_id is None and snapshot.variable_name in _FUNCTIONS:
            return snapshot.resume(value=named_function(snapshot.variable_name))
        return snapshot.resume()

    def _function(self, snapshot: Any) -> Any:
        name = snapshot.function_name
        try:
            positional, keywords = list(snapshot.args), dict(snapshot.kwargs)
        except ValueError as error:
            # An integer with more digits than Python converts.
            return snapshot.resume(_raise("ValueError", f"{name}: {error}"))
        if snapshot.is_os_function:
            return self._system(snapshot, name, positional)
        if name.startswith(_TOOL_MARK):
            return self._call(snapshot, "tool", name.removeprefix(_TOOL_MARK), positional, keywords)
        function = _FUNCTIONS.get(name)
        if function is None:
            return snapshot.resume(_raise("NameError", f"name {name!r} is not defined"))
        return function(self, snapshot, positional, keywords)

    def _call(self, snapshot: Any, kind: str, tool: str, positional: list[Any], keywords: dict[str, Any]) -> Any:
        """Note a call that the gateway makes. The script gets a future."""
        if len(self._open | self._calls.keys()) >= self._limits["parallel_calls"]:
            maximum = self._limits["parallel_calls"]
            return snapshot.resume(
                _raise(
                    "RuntimeError", f"[too_many_calls; executed=no] At most {maximum} calls at once; use map_tool(...)."
                )
            )
        try:
            self._arguments.check_arguments(positional, keywords)
            references: list[Any] = []
            if self._arguments.has_references:
                positional, keywords = take_references([positional, keywords], [], references)
            json.dumps([positional, keywords])
        except TooLarge as error:
            raise StepFailed("limit", "result_bytes", f"Arguments of calls: {error}.", self._line(snapshot)) from None
        except (NotJson, ValueError) as error:
            return snapshot.resume(_raise("TypeError", f"arguments of {tool or kind}: {error}"))
        self._calls[snapshot.call_id] = {
            "id": snapshot.call_id,
            "kind": kind,
            "tool": tool,
            "positional": positional,
            "keywords": keywords,
            "line": self._line(snapshot),
            "offset": snapshot.position.start if snapshot.position.filename == _CODE_FILE else -1,
            "references": references,
        }
        return snapshot.resume({"future": ...})

    def _line(self, snapshot: Any) -> int:
        where = snapshot.position
        return line_at(self._lines, where.start) if where.filename == _CODE_FILE else mapping_line(self._lines)

    def _system(self, snapshot: Any, name: str, positional: list[Any]) -> Any:
        """Answer a request of the interpreter to its host: clocks, entropy, waiting. Everything else is refused."""
        if name == "time.time":
            return snapshot.resume({"return_value": self._now})
        if name == "datetime.now":
            zone = positional[0] if positional else None
            moment = datetime.fromtimestamp(self._now, UTC)
            return snapshot.resume(
                {"return_value": moment.replace(tzinfo=None) if zone is None else moment.astimezone(zone)}
            )
        if name == "date.today":
            today = datetime.fromtimestamp(self._now, UTC)
            return snapshot.resume({"return_value": date(today.year, today.month, today.day)})
        if name == "os.urandom":
            count = positional[0]
            if count > _MAX_ENTROPY:
                return snapshot.resume(_raise("MemoryError", f"at most {_MAX_ENTROPY} random bytes at once"))
            return snapshot.resume({"return_value": self._entropy(count)})
        if name == "asyncio.sleep":
            return self._call(snapshot, "sleep", "", positional[:1], {})
        if name == "time.sleep":
            return snapshot.resume(_raise("RuntimeError", "write await sleep(seconds)"))
        return snapshot.resume_not_handled()

    def _entropy(self, count: int) -> bytes:
        from hashlib import shake_256  # on use: most scripts need no randomness, and it loads OpenSSL

        self._drawn += 1
        return shake_256(self._seed + self._drawn.to_bytes(8, "big")).digest(count)

    def call_tool(self, snapshot: Any, positional: list[Any], keywords: dict[str, Any]) -> Any:
        """`call_tool(NAME, argument=...)`, or with one dict of arguments."""
        if not positional or not isinstance(positional[0], str):
            return snapshot.resume(_raise("TypeError", "call_tool needs the name of a tool first"))
        tool, *rest = positional
        if len(rest) == 1 and isinstance(rest[0], dict):
            keywords, rest = {**rest[0], **keywords}, []
        if rest:
            return snapshot.resume(_raise("TypeError", "call_tool takes arguments by name, or as one dict"))
        return self._call(snapshot, "tool", tool, [], keywords)

    def ask(self, snapshot: Any, positional: list[Any], keywords: dict[str, Any]) -> Any:
        """`ask(message, schema)`."""
        return self._call(snapshot, "ask", "", positional, keywords)

    def sleep(self, snapshot: Any, positional: list[Any], keywords: dict[str, Any]) -> Any:
        """`sleep(seconds)`."""
        return self._call(snapshot, "sleep", "", positional, keywords)

    def report_progress(self, snapshot: Any, positional: list[Any], keywords: dict[str, Any]) -> Any:
        """`progress(done, total=None, text="")`."""
        given = dict(zip(("done", "total", "text"), positional, strict=False)) | keywords
        done, total, text = given.get("done"), given.get("total"), given.get("text", "")
        if not _is_number(done) or not (total is None or _is_number(total)) or len(positional) > 3:
            return snapshot.resume(
                _raise("TypeError", "progress(done, total=None, text='') takes finite numbers and a text")
            )
        self.progress.append([done, total, str(text)[:1000]])
        del self.progress[:-_MAX_PROGRESS]
        return snapshot.resume({"return_value": None})

    def now(self, snapshot: Any, _positional: list[Any], _keywords: dict[str, Any]) -> Any:
        """Seconds since 1970."""
        return snapshot.resume({"return_value": self._now})

    def random(self, snapshot: Any, _positional: list[Any], _keywords: dict[str, Any]) -> Any:
        """From 0 to below 1, with 53 random bits as Python's."""
        return snapshot.resume({"return_value": (int.from_bytes(self._entropy(7), "big") >> 3) / (1 << 53)})

    def error_parts(self, snapshot: Any, positional: list[Any], _keywords: dict[str, Any]) -> Any:
        """Take apart what `_settled` wrote."""
        if len(positional) != 2 or not all(isinstance(each, str) for each in positional):
            return snapshot.resume(_raise("TypeError", "write tool_error(e)"))
        name, text = positional
        head, found, message = text.partition("] ")
        kind, marked, executed = head.removeprefix("[").partition("; executed=")
        parts = (
            [kind, executed, message]
            if name == "RuntimeError" and text.startswith("[") and found and marked
            else [name, "no", text]
        )
        return snapshot.resume({"return_value": parts})

    def _suspended(self, snapshot: Any) -> tuple[dict[str, Any], bytes]:
        dumped = snapshot.dump()
        if len(dumped) > self._limits["snapshot_bytes"]:
            maximum = self._limits["snapshot_bytes"]
            raise StepFailed(
                "limit",
                "snapshot_bytes",
                f"The state of the script has {len(dumped):,} bytes, and at most {maximum:,} are kept.",
            )
        self.waiting = snapshot
        calls = [call for _, call in sorted(self._calls.items())]
        reply = {"step": "suspended", "calls": calls, "pending": sorted(self._open)}
        return reply, pack_snapshot(self._lines, dumped)

    def _finished(self, complete: Any) -> dict[str, Any]:
        if self._calls:
            forgotten = self._calls[min(self._calls)]
            name = forgotten["tool"] or forgotten["kind"]
            raise StepFailed(
                "script", "MissingAwait", f"The call of {name} has no await, so it was not made.", forgotten["line"]
            )
        try:
            value = complete.output
            checked = JsonCheck(self._limits["result_bytes"])
            checked.check(value)
            references: list[Any] = []
            if checked.has_references:
                value = take_references(value, [], references)
            json.dumps(value)
        except TooLarge as error:
            raise StepFailed("limit", "result_bytes", f"The value of the last line is too large: {error}.") from None
        except (NotJson, ValueError) as error:
            raise StepFailed("script", "ResultNotJson", f"The value of the last line is not JSON: {error}.") from None
        return {"step": "finished", "value": value, "abandoned": sorted(self._open), "references": references}


_FUNCTIONS: Final = {
    "call_tool": StepRun.call_tool,
    "ask": StepRun.ask,
    "sleep": StepRun.sleep,
    "progress": StepRun.report_progress,
    "now": StepRun.now,
    "random": StepRun.random,
    "_error_parts": StepRun.error_parts,
}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def _raise(exception: str, message: str) -> dict[str, str]:
    return {"exc_type": exception, "message": message}


def named_function(name: str) -> Any:
    """A function that the interpreter knows by this name; calling it suspends the script."""

    def function() -> None:
        raise AssertionError("only its name is used")

    function.__name__ = function.__qualname__ = name
    return function


def pack_snapshot(lines: bytes, dumped: bytes) -> bytes:
    """The lines of the code, which later steps need for the places of calls, and the state of the interpreter."""
    return _SNAPSHOT_MAGIC + zlib.compress(len(lines).to_bytes(4, "big") + lines + dumped, 1)


def unpack_snapshot(snapshot: bytes, maximum: int) -> tuple[bytes, bytes]:
    """Return the lines and the state in a snapshot. Raises ValueError."""
    if not snapshot.startswith(_SNAPSHOT_MAGIC):
        raise ValueError("it is not a snapshot")
    inflating = zlib.decompressobj()
    try:
        data = inflating.decompress(snapshot[len(_SNAPSHOT_MAGIC) :], maximum)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if not inflating.eof or len(data) < 4:
        raise ValueError("it is incomplete or too large")
    end = 4 + int.from_bytes(data[:4], "big")
    return data[4:end], data[end:]


def prelude_of(code_words: set[str], tools: list[list[str]]) -> tuple[str, dict[str, Any]]:
    """What is defined before the script runs: only what it names, since everything defined is part of each snapshot."""
    source, inputs = "", {}
    servers: dict[str, dict[str, Any]] = {}
    for namespace, function, tool in tools:
        if not namespace and function in code_words:
            inputs[function] = named_function(_TOOL_MARK + tool)
        elif namespace in code_words:
            servers.setdefault(namespace, {})
            if function in code_words:
                servers[namespace][function] = named_function(_TOOL_MARK + tool)
    if "asyncio" in code_words:
        source += "import asyncio\n"
    if servers:
        source += _SERVER_CLASS
    for place, (namespace, functions) in enumerate(servers.items()):
        inputs[f"_tools{place}"] = functions
        source += f"{namespace} = Server(_tools{place})\n_tools{place} = None\n"
    if "tool_error" in code_words:
        source += _TOOL_ERROR
    if "map_tool" in code_words:
        source += _MAP_TOOL
    return source or "None", inputs


def words_of(code: str) -> set[str]:
    """Every word of a source; more than its names, and never fewer."""
    return set(
        "".join(character if character.isidentifier() or character.isdigit() else " " for character in code).split()
    )


class InterpreterSession:
    """A session of the interpreter, with the state of one script."""

    def __init__(self, pool: Any, limits: dict[str, Any]) -> None:
        self.limits = limits
        self.snapshot = b""
        """What was returned for the state in which the session is; empty in a new one."""
        self.waiting: Any = None
        """Where the interpreter waits in that state."""
        self.lines = b""
        self.suspensions = 0
        self._context = pool.checkout(limits=_limits(limits), os_policy=_OS_POLICY)
        self._run: StepRun | None = None
        self._opened = self._context.__enter__()
        self.pid = self._opened.worker_pid

    def close(self) -> None:
        """Drop the state."""
        self._context.__exit__(None, None, None)

    def begin(self, request: dict[str, Any], snapshot: bytes) -> tuple[StepRun, Any]:
        """Return the step of a request and where the interpreter stands, from its code or from its snapshot."""
        if request["op"] == "start":
            self.lines = lines_to_bytes(request["code"])
            self._run = StepRun(request, self.lines)
            source, inputs = prelude_of(words_of(request["code"]), request["tools"])
            self._opened.feed_run(source, inputs=inputs)
            given = {"inputs": request["inputs"]}
            return self._run, self._opened.feed_start(request["code"], inputs=given, print_callback=self._on_print)
        if self.waiting is not None:
            self._run, waiting, self.waiting = StepRun(request, self.lines), self.waiting, None
            return self._run, waiting
        self.lines, dumped = unpack_snapshot(snapshot, self.limits["snapshot_bytes"] + 4_000_000)
        self._run = StepRun(request, self.lines)
        return self._run, self._opened.load_snapshot(dumped, print_callback=self._on_print)

    def _on_print(self, stream: str, text: str) -> None:
        if self._run is not None:
            self._run.on_print(stream, text)

    def keeps(self, run: StepRun, snapshot: bytes) -> bool:
        """Whether the state may be used for the next step, which comes with this snapshot."""
        self.suspensions += run.suspensions
        if run.waiting is None or self.suspensions > _MAX_KEPT_SUSPENSIONS:
            return False
        self.snapshot, self.waiting = snapshot, run.waiting
        return True


class Worker:
    """The interpreter's pool of one process, and the steps."""

    def __init__(self, binary: str) -> None:
        self._kept: InterpreterSession | None = None
        self._pool = monty.Monty(
            binary_path=binary,
            min_processes=1,
            max_processes=1,
            checkout_timeout=30,
            request_timeout=120,
            max_checkouts_per_worker=500,
        )

    def __enter__(self) -> Worker:
        self._pool.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._drop()
        self._pool.__exit__(*error)

    def step(self, request: dict[str, Any], snapshot: bytes) -> tuple[dict[str, Any], bytes]:
        """Run one step; never raises for what a script does."""
        began = time.process_time()
        run: StepRun | None = None
        child: float | None = None
        reply: dict[str, Any]
        state = b""
        spent = _spent_nothing
        watch: StepWatch | None = None
        try:
            session = self._session(request, snapshot)
            try:
                spent = cpu_since_now(session.pid)
                watch = StepWatch(session.pid, spent, request["limits"])
                run, first = session.begin(request, snapshot)
                reply, state = run.drive(first, spent)
                child = spent()
                if session.keeps(run, state):
                    self._kept = session
            finally:
                is_alive = watch is None or watch.end()
                if self._kept is not session or not is_alive:
                    self._kept = None
                    session.close()
        except StepFailed as ended:
            reply = ended.reply
        except monty.MontyCrashedError as error:
            exceeded = watch.exceeded if watch is not None else ""
            reply = _limit_exceeded(exceeded, request["limits"]) if exceeded else _reply_to_crash(str(error))
        except monty.MontyError as error:
            # What fails while a snapshot is loaded is no fault of the script.
            reply = _reply_to_error(error, running=run is not None or request["op"] == "start")
        except Exception as error:
            # Such as a snapshot that cannot be loaded. The gateway gets an answer, and the worker serves the next script.
            reply = _failure("interpreter", type(error).__name__, str(error))
        cpu = time.process_time() - began + (spent() if child is None else child)
        if run is not None:
            reply |= {"printed": run.printed, "cut": run.cut, "progress": run.progress}
        return reply | {"cpu": cpu}, state

    def _session(self, request: dict[str, Any], snapshot: bytes) -> InterpreterSession:
        """The session that is in the state of the snapshot, or a new one."""
        kept = self._kept
        if kept is not None and snapshot and kept.snapshot == snapshot:
            self._kept = None
            return kept
        self._drop()
        return InterpreterSession(self._pool, request["limits"])

    def _drop(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.close()


class StepWatch:
    """Ends the interpreter's process when a step exceeds its limit of CPU time or of real time.

    The interpreter itself measures real time only, which passes faster than CPU time on a busy machine, and not inside of every
    operation.
    """

    def __init__(self, pid: int | None, spent: Any, limits: dict[str, Any]) -> None:
        self.exceeded = ""
        """The limit because of which the process was ended."""
        self._pid = pid
        self._spent = spent
        self._limits = limits
        self._until = time.monotonic() + limits["wall_seconds"]
        self._ending = allocate_lock()
        self._ended = False
        self._waiting = allocate_lock()
        self._waiting.acquire()
        if pid is not None:
            start_new_thread(self._watch, ())

    def end(self) -> bool:
        """The step has ended: nothing is done any more. Return False if the process was ended before."""
        with self._ending:
            self._ended = True
        self._waiting.release()
        return not self.exceeded

    def _watch(self) -> None:
        while not self._waiting.acquire(timeout=self._left_s()):
            with self._ending:
                if not self._ended and self._end_process():
                    return

    def _left_s(self) -> float:
        """Until a limit can be reached at the earliest: a script uses no more CPU time than time passes."""
        left_s = min(self._limits["step_seconds"] - self._spent(), self._until - time.monotonic())
        return max(float(left_s), 0.01)

    def _end_process(self) -> bool:
        if self._spent() > self._limits["step_seconds"]:
            self.exceeded = "step_seconds"
        elif time.monotonic() >= self._until:
            self.exceeded = "wall_seconds"
        else:
            return False
        assert self._pid is not None
        os.kill(self._pid, 9)
        return True


def _limit_exceeded(limit: str, limits: dict[str, Any]) -> dict[str, Any]:
    if limit == "step_seconds":
        text = (
            f"The script computed for more than {limits[limit]:g} s of CPU time in one step (limits.script_step_time)."
        )
    else:
        text = f"A step of the script took longer than {limits[limit]:g} s (limits.script_step_wall)."
    return _failure("limit", limit, text)


_OS_POLICY: Final = {"datetime": "call_host", "sleep": "call_host", "random_start": "call_host"}


def _limits(limits: dict[str, Any]) -> dict[str, Any]:
    return {
        "max_memory": limits["memory_bytes"],
        "max_turn_duration_secs": limits["wall_seconds"],
        "max_recursion_depth": limits["recursion"],
        "max_suspensions": _MAX_SUSPENSIONS + _MAX_KEPT_SUSPENSIONS + 10,
    }


def _spent_nothing() -> float:
    return 0.0


def cpu_since_now(pid: int | None) -> Any:
    """A function that returns the CPU seconds that a process has used since this call. Linux numbers these clocks by process."""
    if pid is None or sys.platform != "linux":
        begin = time.monotonic()
        return lambda: time.monotonic() - begin
    clock = (~pid << 3) | 2
    begin = time.clock_gettime(clock)
    latest = 0.0

    def spent() -> float:
        nonlocal latest
        try:
            latest = time.clock_gettime(clock) - begin
        except OSError:
            # The process has ended.
            return latest
        return latest

    return spent


def _failure(reason: str, error_type: str, message: str, line: int = 0) -> dict[str, Any]:
    return {"step": "failed", "reason": reason, "error_type": error_type, "message": message[:4000], "line": line}


def _reply_to_crash(message: str) -> dict[str, Any]:
    """Return the reply if the interpreter's process has ended."""
    if _TOO_LATE in message:
        # It was in one operation that does not look at the time, such as a product of large integers or a regular expression.
        return _failure("limit", "wall_seconds", "The script computed for too long in one operation.")
    return _failure("worker", "interpreter_ended", message)


def _reply_to_error(error: Any, *, running: bool) -> dict[str, Any]:
    """Return the reply for an exception of the script, or for a limit of the interpreter."""
    frames = error.traceback() if isinstance(error, monty.MontyRuntimeError | monty.MontySyntaxError) else []
    lines = [frame.line for frame in frames if frame.filename == _CODE_FILE]
    line = lines[-1] if lines else 0
    inner = error.exception()
    name, message = type(inner).__name__, str(inner)
    if running and message.startswith(_INTERNAL):
        # An exception with something else than one text, which the interpreter cannot raise.
        name, message = "TypeError", message.removeprefix(_INTERNAL)
    if isinstance(error, monty.MontySyntaxError):
        return _failure("script", "SyntaxError", message, line)
    if name == "TimeoutError" and not frames and "time limit exceeded" in message:
        return _failure("limit", "wall_seconds", message)
    if name == "MemoryError":
        return _failure("limit", "memory_bytes", message, line)
    if name == "RecursionError":
        return _failure("limit", "recursion", message, line)
    if name == "RuntimeError" and message.startswith("suspension limit"):
        return _failure("limit", "suspensions", message, line)
    return _failure("script" if frames or running else "interpreter", name, message, line)


def limit_this_process(memory: int, cpu_seconds: int) -> None:
    """Set limits of this process, which the interpreter's process inherits. They apply even if all other limits fail."""
    import resource

    for which, maximum in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(which)[1]
        value = maximum if hard == resource.RLIM_INFINITY else min(maximum, hard)
        resource.setrlimit(which, (value, value))


class Replacement(ModuleType):
    """A module with the members that the interpreter uses of the one it replaces."""

    def __init__(self, name: str, members: dict[str, type]) -> None:
        super().__init__(name)
        self._members = members

    def __getattr__(self, name: str) -> type:
        if name not in self._members:
            raise AttributeError(name)
        return self._members[name]


def import_interpreter(packages: str) -> ModuleType:
    """Import the compiled module without the Python modules of its package: their imports take longer than all else until the first
    step. What it uses of them is replaced."""
    sys.path.append(packages)
    package = ModuleType("pydantic_monty")
    package.__path__ = [os.path.join(packages, "pydantic_monty")]
    # It compares values with these classes. The worker passes no instance of them.
    wrappers = {name: type(name, (), {}) for name in ("BaseWrapper", "ClassInstance", "ClassType")}
    # The search for the interpreter's program returns the path that it is given.
    search: dict[str, type] = {"find_monty_binary": str}
    replaced: dict[str, ModuleType] = {
        "pydantic_monty": package,
        "pydantic_monty.class_instance": Replacement("pydantic_monty.class_instance", wrappers),
        "pydantic_monty._binary": Replacement("pydantic_monty._binary", search),
    }
    sys.modules.update(replaced)
    # It looks for tracing and works without; the worker has none.
    sys.modules["opentelemetry"] = None  # type: ignore[assignment]
    try:
        return importlib.import_module("pydantic_monty._monty")
    except ImportError:
        for name in replaced:
            del sys.modules[name]
        return importlib.import_module("pydantic_monty")


def end_with_the_gateway(descriptor: int) -> None:
    """End this process and the interpreter when the gateway has closed its end of the pipe, also in the middle of a step."""
    import select
    import signal

    waiting = select.poll()
    waiting.register(descriptor, 0)  # no event but the end of the pipe
    waiting.poll()
    os.killpg(0, signal.SIGKILL)


def read_exactly(stream: BinaryIO, count: int) -> bytes | None:
    """None at the end of the stream."""
    data = stream.read(count)
    return data if len(data) == count else None


def serve(worker: Worker, requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer requests until the gateway closes the pipe."""
    while True:
        header = read_exactly(requests, _HEADER)
        if header is None:
            return
        body = read_exactly(requests, int.from_bytes(header[:4], "big"))
        blob = read_exactly(requests, int.from_bytes(header[4:], "big"))
        if body is None or blob is None:
            return
        request = json.loads(body)
        reply, state = worker.step(request, blob)
        encoded = json.dumps({"number": request["number"], **reply}).encode()
        replies.write(len(encoded).to_bytes(4, "big") + len(state).to_bytes(4, "big") + encoded + state)
        replies.flush()


def main() -> None:
    """`worker.py PACKAGES BINARY MEMORY CPU`."""
    global monty
    packages, binary, memory, cpu = sys.argv[1:]
    limit_this_process(int(memory), int(cpu))
    requests, replies = sys.stdin.buffer, sys.stdout.buffer
    start_new_thread(end_with_the_gateway, (requests.fileno(),))
    monty = import_interpreter(packages)
    with Worker(binary) as worker:
        serve(worker, requests, replies)


if __name__ == "__main__":
    main()
