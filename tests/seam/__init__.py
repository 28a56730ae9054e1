"""The real gateway in the test's process, in virtual time, on real bytes without a socket.

A test is the conversation:

    from tests.seam import Call, Gateway, Upstream, seam

    @seam
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

What there is:
- `@seam` (or `@seam(seed=7)`) runs an `async def` test, with any fixtures, on a `VirtualLoop`. Time moves only when nothing
  can run: `await gate.advance(45)` and `asyncio.sleep(45)` take no real time. `the_loop().leap(3600)` is a machine that
  slept; `the_loop().set_wall(...)` sets its clock. Ids, keys and jitter come from the seed: the same seed,
  the same run.
- `Gateway(config, upstreams)` runs `Lifecycle.serve` itself. `gate.crash()` kills it between two steps, `await
  gate.start()` starts it on what was committed; `restart`, `stop`, `reload(config)`, `send_signal`. `gate.log` holds its
  log lines, `gate.operator("GET", "/api/approvals")` is the operator's API, `gate.http(...)` any page, `gate.connect()` a
  bare connection, `gate.life` the gateway object (look into it only for what no caller can see).
- `await gate.caller("2025" | "2026", capabilities=..., answers={"elicitation/create": {...}}, token=..., scope=...,
  client=...)`. `call`, `request`, `told` wait for the answer; `begin_call`, `begin` give an `Exchange`: `is_done`, `took`
  (virtual seconds), `reply.messages` while they come, `await message(0)`, `await done()`, `await hang_up()`. `await
  caller.listen()` is the GET stream (2025) or `subscriptions/listen` (2026). httpx2 clients and the product's own client
  work on this loop, too (`gate.url`).
- `Upstream("2025" | "2026" | "both")`: tools get a `Call` (`sleep`, `progress`, `ask`, `elicit`, `notify`;
  `call.reply.cut_after(37)` breaks the connection at that byte, `call.reply.send(503, b"...")` and
  `call.reply.write(b"...")` say anything). `upstream.on(method, handler)` replaces a whole method; `stop`, `start`,
  `hang_up`, `fall_silent`, `forget_sessions`; `ran`, `count`, `received`, `methods`. Tools with `as_task=True` run as the
  server's own tasks.
- Any asyncio server that listens by `create_server` (uvicorn too) can be started on the loop as an upstream.

Tests that are written with the harness of processes (`running_gateway`, `set_stage`, httpx2 callers, scripted servers) run here as
they are: `pytestmark = pytest.mark.virtual_time` in the module. `taskgate serve` and the servers that a test or a gateway starts
(Python scripts that read standard input or listen through asyncio) then run on the test's own loop (`processes.py`), signals and
kills included. Measure time with `taskgate.clock`. A single test that needs real processes is marked `@pytest.mark.real_processes`.

What is not here: TLS, watched files (reload by signal), pipes between the test and a program (`taskgate stdio`, commands), programs
that block, SDKs of other environments. Such tests start real processes and wait for facts.
A test that waits for ever fails with the stack of every task (`Deadlock`): at once if nothing can run, after 600 virtual seconds in
the library's own waits, after 120 real seconds if a thread does not come back.
"""

from tests.seam.callers import TASKS_EXTENSION, Caller, Caller2025, Caller2026, Exchange
from tests.seam.gateway import Gateway
from tests.seam.http11 import Reply
from tests.seam.loop import EPOCH, Deadlock, VirtualLoop
from tests.seam.run import run, seam
from tests.seam.upstream import Ran, Upstream, text
from tests.seam.upstream_call import Call, Failure
from tests.seam.waiting import settle, the_loop, until, within

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
    "seam",
    "settle",
    "text",
    "the_loop",
    "until",
    "within",
]
