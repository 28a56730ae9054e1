"""Scripts after a restart whose snapshot cannot be used, and corrected scripts that resume a failed one."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from typing import Any

import pytest
from tests.scripts.test_running_scripts import ON, ended, shop, started, structured
from tests.virtual_time import Call, Gateway, virtual_time

from taskgate.gateway.scripts import script_run
from taskgate.gateway.scripts.script_chain import calls_of
from taskgate.scripts import monty_interpreter


def flip_one_bit(gate: Gateway, place: int) -> None:
    (database,) = gate.state.glob("*.db")
    with sqlite3.connect(database) as writing:
        task, snapshot = writing.execute("SELECT task_id, snapshot FROM scripts").fetchone()
        changed = bytearray(snapshot)
        changed[place] ^= 1
        writing.execute("UPDATE scripts SET snapshot = ? WHERE task_id = ?", (bytes(changed), task))


async def failure_after_restart(gate: Gateway, caller: Any, change: Any) -> dict[str, Any]:
    task = await started(gate, caller, "await shop.read(n=1)\nawait sleep(300)\n'ended'")
    await gate.advance(5)
    await gate.stop()
    change(task)
    await gate.start()
    reply = await (await gate.caller("2025")).request("tasks/result", {"taskId": task})
    return reply.error


@pytest.mark.parametrize("place", [0, script_run.SEAL_BYTES, -1], ids=["seal", "snapshot", "digest of the record"])
@virtual_time
async def test_changed_snapshot_is_never_loaded(place: int) -> None:
    store = shop()
    async with Gateway({**ON}, {"shop": store}) as gate:
        error = await failure_after_restart(gate, await gate.caller("2025"), lambda _: flip_one_bit(gate, place))
        assert error["data"]["error_type"] == "script_not_resumable"
        assert error["data"]["executed"] == "yes"
        assert [call["tool"] for call in error["data"]["calls"]["executed"]] == ["shop__read"]
        assert store.count("read") == 1


def change_record(gate: Gateway, task: str, **changed: Any) -> None:
    (database,) = gate.state.glob("*.db")
    with sqlite3.connect(database) as writing:
        (doc,) = writing.execute("SELECT doc FROM scripts WHERE task_id = ?", (task,)).fetchone()
        record = json.dumps({**json.loads(doc), **changed}).encode()
        writing.execute("UPDATE scripts SET doc = ? WHERE task_id = ?", (record, task))


@pytest.mark.parametrize(
    "changed", [{"calls": 0}, {"printed": "never printed"}, {"spent_ms": 77_777}, {"reused": ["tg_1"]}]
)
@virtual_time
async def test_changed_record_is_never_used(changed: dict[str, Any]) -> None:
    async with Gateway({**ON}, {"shop": shop()}) as gate:
        caller = await gate.caller("2025")
        error = await failure_after_restart(gate, caller, lambda task: change_record(gate, task, **changed))
        assert (error["data"]["error_type"], error["data"]["executed"]) == ("script_not_resumable", "yes")


@virtual_time
async def test_script_that_was_sealed_without_its_record_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in stores of version 0.1.0."""
    async with Gateway({**ON}, {"shop": shop()}) as gate:
        monkeypatch.setattr(script_run, "bind_record", lambda snapshot, record: snapshot)
        task = await started(gate, await gate.caller("2025"), "await shop.read(n=1)\nawait sleep(300)\n'ended'")
        await gate.advance(5)
        gate.crash()
        monkeypatch.undo()
        await gate.start()
        assert structured(await ended(await gate.caller("2025"), task))["result"] == "ended"


@virtual_time
async def test_snapshot_of_another_interpreter_is_never_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Gateway({**ON}, {"shop": shop()}) as gate:
        upgrade = lambda _: monkeypatch.setattr(monty_interpreter, "_SNAPSHOT_FORMAT", 2)  # noqa: E731
        error = await failure_after_restart(gate, await gate.caller("2025"), upgrade)
        assert (error["data"]["error_type"], error["data"]["executed"]) == ("script_not_resumable", "yes")


@virtual_time
async def test_unchanged_snapshot_continues_after_a_restart() -> None:
    store = shop()
    async with Gateway({**ON}, {"shop": store}) as gate:
        task = await started(gate, await gate.caller("2025"), "await shop.read(n=1)\nawait sleep(300)\n'ended'")
        await gate.advance(5)
        gate.crash()
        await gate.start()
        result = await ended(await gate.caller("2025"), task)
        assert structured(result)["result"] == "ended"
        assert store.count("read") == 1


FAILING = "a = await shop.buy(n=1)\nb = await shop.buy(n=1)\nc = await shop.read(n=2)\nraise ValueError('typo')"
CORRECTED = (
    "[await shop.read(n=9), await shop.buy(n=1), await shop.buy(n=1), await shop.buy(n=1), await shop.read(n=2)]"
)


@virtual_time
async def test_corrected_script_receives_earlier_results_each_once() -> None:
    store = shop()
    async with Gateway({**ON}, {"shop": store}) as gate:
        caller = await gate.caller("2025")
        failed = await started(gate, caller, FAILING)
        assert (await ended(caller, failed))["isError"] is True
        task = await started(gate, caller, CORRECTED, resume_of=failed)
        content = structured(await ended(caller, task))
        assert content["result"] == ["read 9", "bought 1", "bought 1", "bought 1", "read 2"]
        assert (store.count("buy"), store.count("read")) == (3, 2)
        assert content["calls"] == {"executed": 5, "not_executed": 0, "unknown": 0, "reused": 3}


@virtual_time
async def test_script_of_another_principal_is_not_resumed() -> None:
    tokens = [
        {"id": name, "sha256": __import__("hashlib").sha256(name.encode()).hexdigest()} for name in ("ann", "bob")
    ]
    async with Gateway({**ON, "tokens": tokens}, {"shop": shop()}) as gate:
        ann, bob = await gate.caller("2025", token="ann"), await gate.caller("2025", token="bob")
        failed = await started(gate, ann, FAILING)
        await ended(ann, failed)
        reply = await bob.call("run_script", {"code": CORRECTED, "resume_of": failed})
        assert reply.result["_meta"]["taskgate/error"]["error_type"] == "unknown_task"


@virtual_time
async def test_rules_are_checked_again_for_a_resumed_script() -> None:
    store = shop()
    async with Gateway({**ON}, {"shop": store}) as gate:
        caller = await gate.caller("2025")
        failed = await started(gate, caller, FAILING)
        await ended(caller, failed)
        await gate.reload({**ON, "governance": {"rules": [{"match": "buy", "action": "deny"}]}})
        task = await started(gate, caller, "await shop.buy(n=1)", resume_of=failed)
        content = structured(await ended(caller, task))
        assert [call["line"] for call in content["calls"]["not_executed"]] == [1]
        assert {(call["script"], call["reused"]) for call in content["calls"]["executed"]} == {(failed, False)}
        assert store.count("buy") == 2


@virtual_time
async def test_script_of_another_scope_is_not_resumed() -> None:
    both = {"scopes": dict.fromkeys(("default", "other"), ON["scopes"]["default"])}
    store = shop()
    async with Gateway(both, {"shop": store}) as gate:
        here, there = await gate.caller("2025"), await gate.caller("2025", scope="other")
        failed = await started(gate, here, FAILING)
        await ended(here, failed)
        task = await started(gate, there, CORRECTED, resume_of=failed)
        reply = await there.request("tasks/result", {"taskId": task})
        assert (reply.error["data"]["error_type"], reply.error["data"]["executed"]) == ("unknown_task", "no")
        assert store.count("buy") == 2


def forget_results(gate: Gateway) -> None:
    (database,) = gate.state.glob("*.db")
    with sqlite3.connect(database) as writing:
        writing.execute("DELETE FROM task_outcomes WHERE task_id IN (SELECT task_id FROM script_calls)")


@virtual_time
async def test_call_whose_result_has_expired_fails_and_is_not_sent_again() -> None:
    store = shop()
    async with Gateway({**ON}, {"shop": store}) as gate:
        failed = await started(gate, await gate.caller("2025"), FAILING)
        await ended(await gate.caller("2025"), failed)
        await gate.stop()
        forget_results(gate)
        await gate.start()
        caller = await gate.caller("2025")
        code = "try:\n    await shop.buy(n=1)\nexcept Exception as e:\n    told = tool_error(e)\n[told.type, told.executed]"
        content = structured(await ended(caller, await started(gate, caller, code, resume_of=failed)))
        assert content["result"] == ["result_expired", "yes"]
        assert store.count("buy") == 2


CHAIN_FIRST = "await shop.buy(n=1)\nraise ValueError('typo')"
CHAIN_SECOND = "await shop.buy(n=1)\nawait shop.buy(n=2)\nraise ValueError('another typo')"
CHAIN_THIRD = "await shop.buy(n=1)\nawait shop.buy(n=2)\nawait shop.read(n=3)\nraise ValueError('a third typo')"
CHAIN_LAST = "[await shop.buy(n=1), await shop.buy(n=2), await shop.read(n=3), await shop.buy(n=4)]"


def executed_of(content: dict[str, Any]) -> list[tuple[str, str | None]]:
    """The executed calls of a report: the tool, and the earlier script that made the call."""
    return [(call["tool"], call.get("script")) for call in content["calls"]["executed"]]


@virtual_time
async def test_corrections_of_a_corrected_script_repeat_no_call_of_the_chain() -> None:
    store = shop()
    async with Gateway({**ON}, {"shop": store}) as gate:
        caller = await gate.caller("2025")
        first = await started(gate, caller, CHAIN_FIRST)
        await ended(caller, first)
        second = await started(gate, caller, CHAIN_SECOND, resume_of=first)
        assert executed_of(structured(await ended(caller, second))) == [("shop__buy", first), ("shop__buy", None)]
        third = await started(gate, caller, CHAIN_THIRD, resume_of=second)
        content = structured(await ended(caller, third))
        assert executed_of(content) == [("shop__buy", first), ("shop__buy", second), ("shop__read", None)]
        assert [call.get("reused") for call in content["calls"]["executed"]] == [True, True, None]
        assert content["error"]["executed"] == "yes"
        last = structured(await ended(caller, await started(gate, caller, CHAIN_LAST, resume_of=third)))
        assert last["result"] == ["bought 1", "bought 2", "read 3", "bought 4"]
        assert last["calls"] == {"executed": 4, "not_executed": 0, "unknown": 0, "reused": 3}
        assert (store.count("buy"), store.count("read")) == (3, 1)


async def refusal(caller: Any, task: str) -> dict[str, Any]:
    error = (await caller.request("tasks/result", {"taskId": task})).error
    return {**error["data"], "message": error["message"]}


async def newest_of(gate: Gateway, caller: Any, earlier: str) -> str:
    """The script that a refused correction of the earlier one is told to resume."""
    refused = await refusal(caller, await started(gate, caller, CHAIN_FIRST, resume_of=earlier))
    return str(refused["resume_with"]["arguments"]["resume_of"])


@virtual_time
async def test_second_correction_of_a_script_is_refused_and_names_the_newest() -> None:
    """As after a lost reply: it does not know the calls of the first correction."""
    store = shop()
    async with Gateway({**ON}, {"shop": store}) as gate:
        caller = await gate.caller("2025")
        first = await started(gate, caller, CHAIN_FIRST)
        await ended(caller, first)
        second = await started(gate, caller, CHAIN_SECOND, resume_of=first)
        await ended(caller, second)
        third = await started(gate, caller, CHAIN_THIRD, resume_of=second)
        await ended(caller, third)
        for earlier in (first, second):
            again = await started(gate, caller, CHAIN_LAST, resume_of=earlier)
            refused = await refusal(caller, again)
            assert (refused["error_type"], refused["executed"]) == ("script_resumed", "no")
            assert refused["resume_with"]["arguments"] == {"resume_of": third}
            assert f'resume_of="{third}"' in refused["message"]
            # Nor does the refused one lead past the others.
            after_refused = await started(gate, caller, CHAIN_LAST, resume_of=again)
            assert (await refusal(caller, after_refused))["error_type"] == "script_resumed"
        assert (store.count("buy"), store.count("read")) == (2, 1)
        last = structured(await ended(caller, await started(gate, caller, CHAIN_LAST, resume_of=third)))
        assert last["calls"] == {"executed": 4, "not_executed": 0, "unknown": 0, "reused": 3}


@virtual_time
async def test_second_correction_is_refused_while_the_first_one_runs_also_after_a_crash() -> None:
    store = shop(slow_s=30)
    async with Gateway({**ON}, {"shop": store}) as gate:
        caller = await gate.caller("2025")
        first = await started(gate, caller, "raise ValueError('typo')")
        await ended(caller, first)
        running = await started(gate, caller, "await sleep(60)\nawait shop.buy(n=1)", resume_of=first)
        assert await newest_of(gate, caller, first) == running
        gate.crash()
        await gate.start()
        caller = await gate.caller("2025")
        assert await newest_of(gate, caller, first) == running
        assert structured(await ended(caller, running))["result"] == "bought 1"
        assert store.count("buy") == 1


@virtual_time
async def test_of_two_corrections_at_once_one_runs() -> None:
    store = shop(slow_s=30)
    async with Gateway({**ON}, {"shop": store}) as gate:
        caller = await gate.caller("2025")
        first = await started(gate, caller, "raise ValueError('typo')")
        await ended(caller, first)
        both = await asyncio.gather(*[started(gate, caller, "await shop.buy(n=1)", resume_of=first) for _ in range(2)])
        replies = [await caller.request("tasks/result", {"taskId": task}) for task in both]
        (refused,) = [reply.error["data"] for reply in replies if "error" in reply.last]
        assert refused["error_type"] == "script_resumed"
        assert refused["resume_with"]["arguments"]["resume_of"] in both
        assert store.count("buy") == 1


@virtual_time
async def test_correction_that_never_began_does_not_prevent_another() -> None:
    store = shop()
    rule = {"governance": {"rules": [{"match": "run_script", "action": "approve"}]}}
    async with Gateway({**ON}, {"shop": store}) as gate:
        caller = await gate.caller("2025")
        first = await started(gate, caller, CHAIN_FIRST)
        await ended(caller, first)
        await gate.reload({**ON, **rule})
        never = await started(gate, caller, CHAIN_SECOND, resume_of=first)
        await caller.request("tasks/cancel", {"taskId": never})
        await gate.reload({**ON})
        content = structured(await ended(caller, await started(gate, caller, CHAIN_SECOND, resume_of=first)))
        assert executed_of(content) == [("shop__buy", first), ("shop__buy", None)]
        assert store.count("buy") == 2


@virtual_time
async def test_failed_correction_that_made_no_call_itself_reports_the_reused_ones() -> None:
    async with Gateway({**ON}, {"shop": shop()}) as gate:
        caller = await gate.caller("2025")
        first = await started(gate, caller, CHAIN_FIRST)
        await ended(caller, first)
        again = await started(gate, caller, CHAIN_FIRST, resume_of=first)
        content = structured(await ended(caller, again))
        assert content["error"]["executed"] == "yes"
        assert executed_of(content) == [("shop__buy", first)]


@virtual_time
async def test_script_that_cannot_be_continued_reports_the_calls_of_the_whole_chain() -> None:
    store = shop()
    async with Gateway({**ON}, {"shop": store}) as gate:
        caller = await gate.caller("2025")
        first = await started(gate, caller, CHAIN_FIRST)
        await ended(caller, first)
        second = await started(gate, caller, "await shop.buy(n=1)\nawait sleep(300)", resume_of=first)
        await gate.advance(5)
        await gate.stop()
        change_record(gate, second, printed="never printed")
        await gate.start()
        refused = await refusal(await gate.caller("2025"), second)
        assert (refused["error_type"], refused["executed"]) == ("script_not_resumable", "yes")
        assert executed_of(refused) == [("shop__buy", first)]
        assert refused["resume_with"]["arguments"] == {"resume_of": second}


@virtual_time
async def test_internal_error_reports_the_calls_of_the_whole_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    def defect(*_: Any) -> bytes:
        raise RuntimeError("a defect")

    store = shop()
    async with Gateway({**ON}, {"shop": store}) as gate:
        caller = await gate.caller("2025")
        first = await started(gate, caller, CHAIN_FIRST)
        await ended(caller, first)
        monkeypatch.setattr(script_run, "seal", defect)
        second = await started(gate, caller, CHAIN_SECOND, resume_of=first)
        refused = await refusal(caller, second)
        assert (refused["error_type"], refused["executed"]) == ("internal", "yes")
        assert executed_of(refused) == [("shop__buy", first)]
        assert refused["resume_with"]["arguments"] == {"resume_of": second}
        monkeypatch.undo()
        third = await started(gate, caller, CHAIN_SECOND, resume_of=second)
        assert executed_of(structured(await ended(caller, third))) == [("shop__buy", first), ("shop__buy", None)]
        assert store.count("buy") == 2


@virtual_time
async def test_chain_whose_beginning_is_no_longer_kept_is_not_resumed() -> None:
    store = shop()
    async with Gateway({**ON}, {"shop": store}) as gate:
        caller = await gate.caller("2025")
        reply = await caller.request(
            "tools/call", {"name": "run_script", "arguments": {"code": CHAIN_FIRST}, "task": {"ttl": 60_000}}
        )
        first = reply.result["task"]["taskId"]
        await ended(caller, first)
        second = await started(gate, caller, CHAIN_SECOND, resume_of=first)
        await ended(caller, second)
        await gate.advance(600)
        third = await started(gate, caller, CHAIN_THIRD, resume_of=second)
        reply = await caller.request("tasks/result", {"taskId": third})
        assert (reply.error["data"]["error_type"], reply.error["data"]["executed"]) == ("unknown_task", "no")
        assert store.count("buy") == 2


@virtual_time
async def test_call_in_flight_of_a_cancelled_script_is_not_sent_again() -> None:
    store = shop(slow_s=30)
    async with Gateway({**ON}, {"shop": store}) as gate:
        caller = await gate.caller("2025")
        first = await started(gate, caller, "await shop.buy(n=1)")
        await gate.advance(5)
        await caller.request("tasks/cancel", {"taskId": first})
        code = "try:\n    await shop.buy(n=1)\nexcept Exception as e:\n    told = tool_error(e)\n[told.type, told.executed]"
        second = await started(gate, caller, code, resume_of=first)
        assert structured(await ended(caller, second))["result"] == ["cancelled", "unknown"]
        assert store.count("buy") == 1


@virtual_time
async def test_read_call_after_three_crashes_blames_no_server() -> None:
    store = shop()

    @store.tool("slow")
    async def slow(call: Call) -> str:
        await call.sleep(60)
        return "late"

    config = {**ON, "servers": {"shop": {"tools": {"slow": {"class": "read"}}}}}
    async with Gateway(config, {"shop": store}) as gate:
        code = (
            "try:\n    await shop.slow()\nexcept Exception as e:\n    told = tool_error(e)\n[told.type, told.executed]"
        )
        task = await started(gate, await gate.caller("2025"), code)
        for sent in range(1, 4):
            await gate.advance(5)
            assert store.count("slow") == sent
            gate.crash()
            await gate.start()
        result = await ended(await gate.caller("2025"), task)
        assert structured(result)["result"] == ["outcome_unknown", "unknown"]
        assert store.count("slow") == 3


@virtual_time
async def test_calls_of_a_script_in_a_restored_store_are_not_sent() -> None:
    store = shop()

    @store.tool("slow")
    async def slow(call: Call) -> str:
        await call.sleep(60)
        return "late"

    config = {**ON, "servers": {"shop": {"tools": {"slow": {"class": "read"}}}}}
    async with Gateway(config, {"shop": store}) as gate:
        task = await started(gate, await gate.caller("2025"), "await shop.slow()")
        await gate.advance(5)
        gate.crash()
        (mark,) = gate.state.glob("*.known")
        mark.unlink()
        await gate.start()
        await gate.advance(5)
        reply = await (await gate.caller("2025")).request("tasks/result", {"taskId": task})
        assert reply.error["data"]["error_type"] == "outcome_unknown"
        assert store.count("slow") == 1


@virtual_time
async def test_script_of_more_than_a_thousand_calls_is_reported_and_cancelled_in_full() -> None:
    store = shop(slow_s=600)
    many = "for n in range(21):\n    await asyncio.gather(*[shop.read(n=n) for _ in range(48)])"
    async with Gateway({**ON, "limits": {"script_calls": 1_100}}, {"shop": store}) as gate:
        caller = await gate.caller("2025")
        failed = await started(gate, caller, f"{many}\n1 / 0")
        assert len(structured(await ended(caller, failed))["calls"]["executed"]) == 1_008
        task = await started(gate, caller, f"{many}\nawait shop.buy(n=1)")
        await gate.advance(300)
        assert store.count("buy") == 1
        await caller.request("tasks/cancel", {"taskId": task})
        await gate.advance(5)
        calls = await calls_of(gate.life.app.store, task)
        assert len(calls) == 1_009
        assert calls[-1].task.state == "cancelled"
