"""Twenty tool calls of an agent beside one script with the same result: `python -m tests.scripts.worked_example`.

The bytes are those that a model writes (arguments, the script) and reads (results, signatures). Seconds are those of the
calls alone, in virtual time, with a server that takes 0.3 s for each; the time that a model takes for each of its turns comes
on top of that.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tests.seam import Call, Caller, Gateway, Upstream, the_loop
from tests.seam.run import run

ORDERS = 19
SECONDS = 0.3
CODE = """
import json
listed = json.loads(await shop.list_orders())
texts = await map_tool("shop__get_order", [{"id": number} for number in listed["ids"]], limit=8)
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

    async def call(self, caller: Caller, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
        began = the_loop().time()
        result: dict[str, Any] = (await caller.call(tool, arguments)).result
        self.turns += 1
        self.written += len(tool) + len(json.dumps(arguments))
        self.read += len(json.dumps(result["content"]))
        self.seconds += the_loop().time() - began
        return result


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


async def compare() -> tuple[Account, Account, Any, Any]:
    """Return the accounts of the agent and of the script, and their results."""
    async with Gateway({"scopes": {"default": {"default_servers": ["*"], "scripts": "on"}}}, {"shop": shop()}) as gate:
        caller = await gate.caller("2025")
        agent, script = Account(), Account()
        listed = json.loads((await agent.call(caller, "shop__list_orders", {}))["content"][0]["text"])
        orders = [
            json.loads((await agent.call(caller, "shop__get_order", {"id": number}))["content"][0]["text"])
            for number in listed["ids"]
        ]
        late = [order for order in orders if order["days_late"] > 3]
        by_agent = {"late": [order["id"] for order in late], "total": sum(order["total"] for order in late)}
        await script.call(caller, "describe_tools", {"names": ["shop"]})
        reply = await script.call(caller, "run_script", {"code": CODE})
        assert "result" in reply["structuredContent"], reply["structuredContent"]
        return agent, script, by_agent, reply["structuredContent"]["result"]


def main() -> None:
    agent, script, by_agent, by_script = run(compare)
    assert by_agent == by_script, (by_agent, by_script)
    print(f"{'':12}{'turns':>8}{'bytes written':>16}{'bytes read':>14}{'seconds':>10}")
    for name, account in (("20 calls", agent), ("one script", script)):
        print(f"{name:12}{account.turns:8}{account.written:16,}{account.read:14,}{account.seconds:10.1f}")


if __name__ == "__main__":
    main()
