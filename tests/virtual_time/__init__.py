"""The real gateway in the test's process, in virtual time, on real bytes without a socket.

A test is the conversation:

    from tests.virtual_time import Call, Gateway, Upstream, virtual_time

    @virtual_time
    async def test_a_slow_call_is_promoted_after_45_seconds() -> None:
        notes = Upstream("2025")

        @notes.tool("slow")
        async def slow(call: Call) -> str:
            await call.sleep(60)
            return "done"

        async with Gateway({}, {"notes": notes}) as gate:
            caller = await gate.caller("2025")
            call = caller.begin_call("notes__slow")
            await gate.advance(44.9)
            assert not call.is_done
            await gate.advance(0.2)
            assert "continues as task" in call.reply.text
            assert notes.count("slow") == 1

Contents:
- `@virtual_time` (or `@virtual_time(seed=7)`) runs an `async def` test, with any fixtures, on a `VirtualLoop`. Time advances only
  when no callback is ready: `await gate.advance(45)` and `asyncio.sleep(45)` take no real time. `the_loop().leap(3600)` simulates a
  suspended machine, `the_loop().compute(0.5)` a step that uses the CPU, `the_loop().set_wall(...)` sets the machine's clock. Ids,
  keys and jitter come from the seed: the same seed, the same run.
- `Gateway(config, upstreams)` runs `Lifecycle.serve` itself. `gate.crash()` kills it between two steps, `await
  gate.start()` starts it on what was committed; `restart`, `stop`, `reload(config)`, `send_signal`. `gate.log` contains its
  log lines, `gate.operator("GET", "/api/approvals")` is the operator's API, `gate.http(...)` any page, `gate.connect()` a
  bare connection, `gate.life` the gateway object (only for what no caller can see).
- `await gate.caller("2025" | "2026", capabilities=..., answers={"elicitation/create": {...}}, token=..., scope=...,
  client=...)`. `call`, `call_json` and `request` wait for the reply; `begin_call` and `begin` return an `Exchange`: `is_done`,
  `took` (virtual seconds), `reply.messages` as they arrive, `await message(0)`, `await done()`, `await disconnect()`. `await
  caller.listen()` is the GET stream (2025) or `subscriptions/listen` (2026). httpx2 clients and the client library
  work on this loop, too (`gate.url`).
- `Upstream("2025" | "2026" | "both")`: tools get a `Call` (`sleep`, `progress`, `ask`, `elicit`, `notify`;
  `call.reply.cut_after(37)` breaks the connection at that byte, `call.reply.send(503, b"...")` and
  `call.reply.write(b"...")` send any bytes). `upstream.on(method, handler)` replaces a whole method; `stop`, `start`,
  `disconnect`, `stop_answering`, `forget_sessions`; `ran`, `count`, `received`, `methods`. Tools with `as_task=True` run as the
  server's own tasks.
- Any asyncio server that listens by `create_server` (uvicorn too) can be started on the loop as an upstream.

Tests written for real processes (`running_gateway`, `running_setup`, httpx2 callers, scripted servers) run here unchanged with
`pytestmark = pytest.mark.virtual_time` in the module. `taskgate serve` and the servers that a test or a gateway starts
(Python scripts that read standard input or listen through asyncio) then run on the test's own loop (`processes.py`), including
signals and kills. Measure time with `taskgate.clock`. A single test that needs real processes is marked
`@pytest.mark.real_processes`.

Not supported: TLS, watched files (reload by signal), pipes between the test and a program (`taskgate stdio`, commands), programs
that block, SDKs of other environments. Such tests start real processes and wait for facts.
A test that waits for ever fails with the stack of every task (`Deadlock`): at once if no callback or timer is left, after 600
virtual seconds in the waits of this package, after 120 real seconds if a thread does not return.
"""

from tests.virtual_time.callers import TASKS_EXTENSION, Caller, Caller2025, Caller2026, Exchange
from tests.virtual_time.gateway import Gateway
from tests.virtual_time.http11 import Reply
from tests.virtual_time.loop import EPOCH, Deadlock, VirtualLoop
from tests.virtual_time.run import run, virtual_time
from tests.virtual_time.upstream import Ran, Upstream, text
from tests.virtual_time.upstream_call import Call, Failure
from tests.virtual_time.waiting import settle, the_loop, until, within

__all__ = [
    "EPOCH",
    "TASKS_EXTENSION",
    "Call",
    "Caller",
    "Caller2025",
    "Caller2026",
    "Deadlock",
    "Exchange",
    "Failure",
    "Gateway",
    "Ran",
    "Reply",
    "Upstream",
    "VirtualLoop",
    "run",
    "settle",
    "text",
    "the_loop",
    "until",
    "virtual_time",
    "within",
]
