"""Twenty tool calls of an agent beside one script with the same result: `python -m tests.scripts.worked_example`.

The bytes are those that a model writes (arguments, the script) and reads (results, signatures). Seconds are those of the
calls alone, in virtual time, with a server that takes 0.3 s for each; the time that a model takes for each of its turns comes
on top of that.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from tests.virtual_time import Call, Caller, Gateway, Upstream, the_loop
from tests.virtual_time.run import run

ORDERS = 19
SECONDS = 0.3
AT_ONCE = 8
CODE = """
import json
listed = json.loads(await shop.list_orders())
texts = await map_tool("shop__get_order", [{"id": number} for number in listed["ids"]], limit=LIMIT)
late = [order for order in map(json.loads, texts) if order["days_late"] > 3]
{"late": [order["id"] for order in late], "total": sum(order["total"] for order in late)}
"""


@dataclass
class Account:
    """What passes through the model."""

    turns: int = 0
    written: int = 0
    read: int = 0
    seconds: float = 0.0

    async def turn(self, caller: Caller, *calls: tuple[str, dict[str, Any]]) -> list[dict[str, Any]]:
        """One turn of the model: calls that it makes at the same time."""
        began = the_loop().time()
        replies = await asyncio.gather(*(caller.call(tool, arguments) for tool, arguments in calls))
        results: list[dict[str, Any]] = [reply.result for reply in replies]
        self.turns += 1
        self.written += sum(len(tool) + len(json.dumps(arguments)) for tool, arguments in calls)
        self.read += sum(len(json.dumps(result["content"])) for result in results)
        self.seconds += the_loop().time() - began
        return results


def shop() -> Upstream:
    upstream = Upstream("2025")

    @upstream.tool("list_orders")
    async def list_orders(call: Call) -> str:
        await call.sleep(SECONDS)
        return json.dumps({"ids": [f"order-{number}" for number in range(ORDERS)]})

    @upstream.tool("get_order")
    async def get_order(call: Call) -> str:
        await call.sleep(SECONDS)
        number = int(str(call.arguments["id"]).rpartition("-")[2])
        lines = [{"article": f"article {line}", "count": line, "note": "as agreed by telephone"} for line in range(12)]
        return json.dumps({"id": call.arguments["id"], "days_late": number % 7, "total": number * 10, "lines": lines})

    return upstream


async def by_agent(caller: Caller, at_once: int) -> tuple[Account, Any]:
    """The model makes `at_once` calls in one turn."""
    account = Account()
    [listed] = await account.turn(caller, ("shop__list_orders", {}))
    ids = json.loads(listed["content"][0]["text"])["ids"]
    orders: list[dict[str, Any]] = []
    for start in range(0, len(ids), at_once):
        calls = [("shop__get_order", {"id": number}) for number in ids[start : start + at_once]]
        orders += [json.loads(result["content"][0]["text"]) for result in await account.turn(caller, *calls)]
    late = [order for order in orders if order["days_late"] > 3]
    return account, {"late": [order["id"] for order in late], "total": sum(order["total"] for order in late)}


async def by_script(caller: Caller, at_once: int) -> tuple[Account, Any]:
    """The script makes `at_once` calls at the same time. Reading the signatures is a turn too."""
    account = Account()
    await account.turn(caller, ("describe_tools", {"names": ["shop"]}))
    [reply] = await account.turn(caller, ("run_script", {"code": CODE.replace("LIMIT", str(at_once))}))
    assert "result" in reply["structuredContent"], reply["structuredContent"]
    return account, reply["structuredContent"]["result"]


async def compare() -> dict[str, tuple[Account, Any]]:
    """Return the account and the result of each way."""
    async with Gateway({"scopes": {"default": {"default_servers": ["*"], "scripts": "on"}}}, {"shop": shop()}) as gate:
        caller = await gate.caller("2025")
        return {
            "20 calls, one after the other": await by_agent(caller, 1),
            f"20 calls, {AT_ONCE} at once": await by_agent(caller, AT_ONCE),
            "one script, one after the other": await by_script(caller, 1),
            f"one script, {AT_ONCE} at once": await by_script(caller, AT_ONCE),
        }


def main() -> None:
    found = run(compare)
    results = [result for _, result in found.values()]
    assert all(result == results[0] for result in results), results
    print(f"{'':34}{'turns':>8}{'bytes written':>16}{'bytes read':>14}{'seconds':>10}")
    for name, (account, _) in found.items():
        print(f"{name:34}{account.turns:8}{account.written:16,}{account.read:14,}{account.seconds:10.1f}")


if __name__ == "__main__":
    main()
