"""Callers of four kinds, or five if the server asks, that keep a gateway busy while it is being killed, and record what is
reported to them.

Each call is made once and never repeated by its caller (but for the one kind that has a key for that). What fails because
the gateway died is not a failure here; what counts is settled afterwards by the checker.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
from tests.activity.callers import Failed, HttpSession, HttpStateless
from tests.chaos.checker import CallReport
from tests.chaos.crash_setup import CrashingGateway
from tests.chaos.ledger_server import TOOLS
from tests.harness.plain_http import NO_TLS

EXTENSION: dict[str, Any] = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
TASK_ID = re.compile(r"tg_[0-9A-HJKMNP-TV-Z]{26}")
ELICITATION: dict[str, Any] = {**EXTENSION, "elicitation": {"form": {}}}
TERMINAL = ("completed", "failed", "cancelled")
YES: dict[str, Any] = {"action": "accept", "content": {"value": "blue"}}
READ_TIMEOUT_S = 40.0
ASIDE_S = 2.0


class Load:
    def __init__(self, gateway: CrashingGateway, seed: int, *, asking: bool = False) -> None:
        """`asking`: the server has the tools that ask."""
        self.reports: list[CallReport] = []
        self._asking = asking
        self._gateway = gateway
        self._random = random.Random(seed)
        self._numbers = itertools.count(1)
        self._stopping = False

    async def run(self, callers: int) -> None:
        """Keep calling until `stop`."""
        kinds: tuple[tuple[str, Callable[[CallReport, dict[str, Any]], Awaitable[None]]], ...] = (
            ("2025 task", self._as_task),
            ("2026 handle", self._stateless),
            ("plain", self._plain_call),
            ("with key", self._with_key),
        )
        if self._asking:
            kinds += (("2026 asked", self._asked),)
        chosen = itertools.islice(itertools.cycle(kinds), callers)
        await asyncio.gather(*(self._keep_calling(kind, make) for kind, make in chosen))

    def stop(self) -> None:
        self._stopping = True

    async def _keep_calling(self, kind: str, make: Callable[[CallReport, dict[str, Any]], Awaitable[None]]) -> None:
        while not self._stopping:
            tool = self._random.choice(TOOLS)
            report = CallReport(f"c{next(self._numbers)}", tool, kind, time.time())
            self.reports.append(report)
            seconds = self._random.choice((0, 0, 0.05, 0.3, 0.8))
            params = {"name": f"books__{tool}", "arguments": {"call": report.call, "seconds": seconds}}
            try:
                await make(report, params)
            except (httpx2.HTTPError, AssertionError, Failed, KeyError):
                # The gateway has crashed or is starting; a caller would try again later.
                await asyncio.sleep(0.05)

    async def _as_task(self, report: CallReport, params: dict[str, Any]) -> None:
        async with self._http() as http:
            caller = await self._session(http)
            created = await caller.ask("tools/call", {**params, "task": {"ttl": 600_000}})
            report.task_id = created["taskId"]
            if self._random.random() < 0.5:
                await self._read(report, caller, ASIDE_S)

    async def _stateless(self, report: CallReport, params: dict[str, Any]) -> None:
        async with self._http() as http:
            caller = HttpStateless(http, self._gateway.url, EXTENSION, "chaos")
            answer = await caller.ask("tools/call", params)
            if answer.get("resultType") == "task":
                report.task_id = answer["taskId"]

    async def _plain_call(self, report: CallReport, params: dict[str, Any]) -> None:
        async with self._http() as http:
            answer = await (await self._session(http)).ask("tools/call", params)
            named = TASK_ID.search(answer["content"][0]["text"])
            if named is not None and "get_task_result" in answer["content"][0]["text"]:
                report.task_id = named.group()

    async def _with_key(self, report: CallReport, params: dict[str, Any]) -> None:
        """The only kind of caller that retries: its key makes that safe."""
        deadline = time.time() + READ_TIMEOUT_S
        while time.time() < deadline:
            try:
                async with self._http() as http:
                    caller = await self._session(http)
                    meta = {"taskgate/idempotencyKey": report.call}
                    created = await caller.ask("tools/call", {**params, "_meta": meta, "task": {"ttl": 600_000}})
                    report.task_id = created["taskId"]
                    return
            except (httpx2.HTTPError, AssertionError, KeyError):
                await asyncio.sleep(0.1)

    async def _asked(self, report: CallReport, params: dict[str, Any]) -> None:
        """A call that may run only once, whose server asks first. The caller answers whenever it is asked, also after a crash."""
        report.tool = "once_ask"
        as_task: dict[str, Any] = {"_meta": {"taskgate/task": True}} if self._random.random() < 0.5 else {}
        params = {**params, "name": "books__once_ask", **as_task}
        async with self._http() as http:
            caller = HttpStateless(http, self._gateway.url, ELICITATION, "chaos")
            answer = await caller.ask("tools/call", params)
            if answer.get("resultType") == "input_required":
                given = {"inputResponses": dict.fromkeys(answer["inputRequests"], YES)}
                answer = await caller.ask("tools/call", {**params, **given, "requestState": answer["requestState"]})
            if answer.get("resultType") != "task":
                return
            report.task_id = answer["taskId"]
            deadline = time.time() + READ_TIMEOUT_S
            while time.time() < deadline:
                with contextlib.suppress(httpx2.HTTPError, AssertionError):
                    shown = await caller.ask("tasks/get", {"taskId": report.task_id})
                    if shown["status"] in TERMINAL:
                        return
                    responses = dict.fromkeys(shown.get("inputRequests", {}), YES)
                    if responses:
                        await caller.ask("tasks/update", {"taskId": report.task_id, "inputResponses": responses})
                await asyncio.sleep(0.1)

    async def settle(self, max_wait_s: float) -> None:
        """Read the ending of every acknowledged task once more."""
        async with self._http() as http:
            caller = await self._session(http)
            gate = asyncio.Semaphore(16)

            async def one(report: CallReport) -> None:
                async with gate:
                    await self._read(report, caller, max_wait_s)

            await asyncio.gather(*(one(report) for report in self.reports if report.task_id is not None))

    async def _read(self, report: CallReport, caller: HttpSession, max_wait_s: float) -> None:
        """The ending as bytes. Tasks without authentication go by their id, so any session may read them."""
        try:
            try:
                async with asyncio.timeout(max_wait_s):
                    ended = await caller.ask("tasks/result", {"taskId": report.task_id})
            except TimeoutError:
                return
            except Failed as failed:
                if (failed.error.get("data") or {}).get("error_type") in ("unknown_task", "shutting_down"):
                    raise
                ended = dict(failed.error)
            task = await caller.ask("tasks/get", {"taskId": report.task_id})
        except Failed as failed:
            # A gateway that shuts down reports it, and another gateway returns how the task ended.
            if (failed.error.get("data") or {}).get("error_type") != "shutting_down":
                report.lost = str(failed)
            return
        report.status = task["status"]
        report.answers.append(json.dumps(ended, sort_keys=True))

    def _http(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(timeout=READ_TIMEOUT_S, verify=NO_TLS)

    async def _session(self, http: httpx2.AsyncClient) -> HttpSession:
        caller = HttpSession(http, self._gateway.url)
        await caller.open({"tasks": {}})
        return caller
