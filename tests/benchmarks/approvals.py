"""What approvals cost: a governed call, an inbox with 10,000 pending approvals, a decision, and the time until the call is sent.

Run as a program: `python -m tests.benchmarks.approvals [PENDING]`. Prints one line per target, with the measured value; starts a
real gateway on loopback, whose store it fills beforehand.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import httpx2
from tests.governance.approval_setup import TOOLS, Setup, config
from tests.harness.gateway import Gateway
from tests.harness.programs import free_port

from taskgate.core.generations.generation import Generation
from taskgate.core.governance.approval import Binding
from taskgate.core.governance.held_call import ApprovalRequest
from taskgate.core.governance.pipeline import Gates, decide
from taskgate.core.governance.rules import compile_rules
from taskgate.core.governance.workflow import Workflow
from taskgate.core.identity.caller import Caller
from taskgate.core.ids import RANDOM_BYTES, new_task_id, ulid
from taskgate.core.patterns import PatternKind
from taskgate.core.scoping.registry import Registry
from taskgate.core.settings.governance import Action, Rule
from taskgate.core.tasks.task import Task
from taskgate.gateway.governance.evaluate import evaluate
from taskgate.gateway.governance.gated_call import GatedCall
from taskgate.gateway.governing import Governing
from taskgate.gateway.plan import Plan
from taskgate.policy.cedar import load_cedar
from taskgate.policy.cedar_statements import PolicyFile
from taskgate.store.operations.tasks import Accept
from taskgate.store.sqlite.store import open_store

RULES = 1_000
DECISIONS = 300
ROUNDS = 20_000
CEDAR = "permit (principal, action, resource) when { context.arguments.amount <= 100 };"


def report(what: str, measured: str, target: str) -> None:
    print(f"{what:<58} {measured:>14}   target {target}", flush=True)


def cost_us(work: Callable[[], object], rounds: int) -> float:
    """CPU of one round in microseconds, the best of five."""
    best = float("inf")
    for _ in range(5):
        began = time.process_time()
        for _ in range(rounds):
            work()
        best = min(best, (time.process_time() - began) / rounds * 1e6)
    return best


def governed_call() -> None:
    rules = [Rule(f"tool_{number}_*", Action.DENY) for number in range(RULES - 2)]
    rules += [Rule("pay_*", Action.POLICY, policy_id="p"), Rule("*", Action.FORWARD)]
    began = time.perf_counter()
    gates = Gates("1", compile_rules(rules))
    report("loading 1,000 rules", f"{(time.perf_counter() - began) * 1000:.1f} ms", "< 100 ms")
    engine = load_cedar([PolicyFile("p.cedar", CEDAR)])
    plan = Plan(1, Registry.build([]), {}, gates=gates, governing=Governing(engine))
    report(
        "governed call, 1,000 rules, cached",
        f"{cost_us(lambda: decide(gates, PatternKind.TOOL, 's', 'read_it'), ROUNDS):.2f} us",
        "<= 20 us",
    )
    caller = Caller("agent")
    asked = GatedCall(caller.principal, caller.roles, caller.scope, "s", "pay_it", b'{"amount": 5, "to": "somebody"}')
    decision = decide(gates, PatternKind.TOOL, "s", "pay_it")
    cost = cost_us(lambda: evaluate(plan, asked, decision, (), 0), 2_000)
    report("governed call with a Cedar evaluation", f"{cost:.0f} us", "<= 300 us")


async def fill(path: Path, pending: int) -> list[str]:
    """A store with that many open approvals, each with its task."""
    store = open_store(path)
    workflow = Workflow("ops", timeout_ms=3_600_000)

    async def one(number: int) -> str:
        now, noise = store.now_ms(), number.to_bytes(RANDOM_BYTES, "big")
        arguments = b'{"path": "/srv/reports/%d", "force": true}' % number
        approval = ApprovalRequest(
            "ap_" + ulid(now, noise),
            workflow,
            "rules[1] delete_*",
            Binding("agent", "s", "delete_it", f"sha256:{number:064x}", "", "1", 0, scope="default"),
            f"caller-{number % 600}",
            "s__delete_it",
            arguments,
        )
        task = Task(
            id=new_task_id(now, noise),
            principal="agent",
            caller=f"caller-{number % 600}",
            scope="default",
            server="s",
            tool="delete_it",
            wire_name="s__delete_it",
            arguments=arguments,
            digest=f"sha256:{number:064x}",
            generation=Generation.STATEFUL,
            ttl_ms=3_600_000,
            execution_budget_ms=600_000,
        )
        await store.do(Accept(task, approval=approval))
        return approval.id

    made: list[str] = []
    for start in range(0, pending, 500):
        made += await asyncio.gather(*(one(number) for number in range(start, min(start + 500, pending))))
    await store.close()
    return made


async def inbox(setup: Setup, approvals: list[str]) -> None:
    base, auth = setup.gateway.base, {"authorization": f"Bearer {setup.operator_token}"}
    link = (await setup.api("POST", "/api/login-links", {})).json()["url"]
    await _log_in(setup, link)
    for what, path, headers in (
        ("inbox page", "/approvals", {}),
        ("inbox as JSON", "/api/approvals", auth),
        ("one approval in full", f"/approvals/{approvals[0]}", {}),
    ):
        times = []
        for _ in range(30):
            began = time.perf_counter()
            reply = await setup.http.get(base + path, headers=headers)
            assert reply.status_code == 200
            times.append((time.perf_counter() - began) * 1000)
        report(f"{what}, {len(approvals)} pending (p95)", f"{sorted(times)[28]:.1f} ms", "<= 100 ms")
    times = []
    for number, approval_id in enumerate(approvals[:DECISIONS]):
        word = "deny" if number % 2 else "approve"
        began = time.perf_counter()
        reply = await setup.http.post(f"{base}/api/approvals/{approval_id}/{word}", json={}, headers=auth)
        assert reply.status_code == 200, reply.text
        times.append((time.perf_counter() - began) * 1000)
    times.sort()
    middle, tail = statistics.median(times), times[int(len(times) * 0.99)]
    report("decision acknowledged (median / p99)", f"{middle:.1f} / {tail:.1f} ms", "p99 <= 20 ms")


async def _log_in(setup: Setup, link: str) -> None:
    page = (await setup.http.get(link)).text
    fields = {name: page.partition(f'name="{name}" value="')[2].partition('"')[0] for name in ("form_token", "code")}
    assert (await setup.http.post(f"{setup.gateway.base}/login", data=fields)).status_code == 303


async def to_the_dispatch(setup: Setup) -> None:
    """From the decision to the result of a held call: an upper bound for the time until it is sent."""
    times = []
    for _ in range(20):
        caller = await setup.stateful()
        waiting = asyncio.create_task(caller.call("s__delete_two", {}))
        mine = await _asked_last(setup)
        began = time.perf_counter()
        await setup.approve(mine)
        await waiting
        times.append((time.perf_counter() - began) * 1000)
    times.sort()
    report("decision to result of the held call (median / max)", f"{times[10]:.1f} / {times[-1]:.1f} ms", "<= 100 ms")


async def _asked_last(setup: Setup) -> str:
    while True:
        page = (await setup.api("GET", "/api/tasks?limit=1")).json()
        if page and page[0]["state"] == "awaiting_approval" and page[0]["tool"] == "s__delete_two":
            return str(page[0]["approval_id"])
        await asyncio.sleep(0.01)


async def main(pending: int) -> None:
    governed_call()
    with tempfile.TemporaryDirectory(prefix="approvals-") as name:
        folder = Path(name)
        (folder / "state").mkdir()

        (folder / "tools.json").write_text(json.dumps(TOOLS))
        began = time.perf_counter()
        approvals = await fill(folder / "state" / "taskgate.db", pending)
        print(f"{pending} approvals asked for in {time.perf_counter() - began:.1f} s", flush=True)
        gateway = Gateway(folder, free_port())
        gateway.write(config(folder))
        began = time.perf_counter()
        await gateway.start()
        print(f"gateway ready with them after {time.perf_counter() - began:.1f} s", flush=True)
        try:
            async with httpx2.AsyncClient(timeout=30) as http:
                setup = Setup(gateway, folder / "notes", folder / "tools.json", http)
                await inbox(setup, approvals)
                await to_the_dispatch(setup)
        finally:
            await gateway.stop()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000))
