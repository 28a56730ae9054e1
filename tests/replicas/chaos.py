"""Three gateways on one database under faults and load, checked against the ledger of the server behind them.

Callers make tasks at one gateway, often in a session of another one, follow them at any, and answer their questions at a third. A
`Fault` is injected meanwhile. At the end `problems` compares the replies of callers with the record of the server, and reports what
was lost, ran twice, or was reported wrongly. A gateway that lost its lease without a fault (the machine was too busy) logs it,
and that counts as a fault too.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
from tests.chaos.crash_setup import LedgerFile, configuration, upstream_command
from tests.harness.gateway import Gateway
from tests.harness.postgres import RestartableServer
from tests.harness.programs import free_port, listening, start, until_ready
from tests.harness.raw_client import RawClient

TASKS: dict[str, Any] = {"extensions": {"io.modelcontextprotocol/tasks": {}}, "elicitation": {"form": {}}}
OVER = ("completed", "failed", "cancelled")
TOOLS = ("once", "once", "read", "once_ask")
UNKNOWN = ("may or may not have", "'executed': 'maybe'")
LEASE_LOST = "was declared dead"
TAKEN_OVER = "tasks of a gateway that died were taken over"
LOGGED_WITHIN_S = 5
EXCUSED_WITHIN_S = 30
LONGER_THAN_A_LEASE_S = 2.5
REQUEST_WITHIN_S = 6
DEADLINE_S = 120
TRANSIENT = (AssertionError, OSError, httpx2.HTTPError, TimeoutError, ValueError, IndexError, KeyError)


class Link:
    """The connection of one gateway to the database: it can be cut or stalled."""

    def __init__(self, database: RestartableServer) -> None:
        self._database = database
        self._writers: set[asyncio.StreamWriter] = set()
        self._is_up = asyncio.Event()
        self._is_up.set()
        self._server: asyncio.Server | None = None

    async def open(self) -> str:
        """The address of the store by this way."""
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        return f"postgresql://postgres@127.0.0.1:{self._server.sockets[0].getsockname()[1]}/postgres"

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def silent(self, seconds: float) -> None:
        """Nothing arrives on either side, and neither gets an error."""
        self._is_up.clear()
        await asyncio.sleep(seconds)  # the length of the fault
        self.cut()
        self._is_up.set()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with suppress(OSError):
            back, forth = await asyncio.open_unix_connection(self._database.socket)
            self._writers.add(forth)
            ways = [asyncio.create_task(self._pass(reader, forth)), asyncio.create_task(self._pass(back, writer))]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in ways:
                way.cancel()
            self._writers.discard(forth)
            forth.transport.abort()
        self._writers.discard(writer)
        writer.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while piece := await reader.read(65536):
                await self._is_up.wait()
                writer.write(piece)
                await writer.drain()


@dataclass
class Strike:
    """A fault: when it was, and whom it hit."""

    kind: str
    victims: frozenset[int]
    began: float
    ended: float = float("inf")


@dataclass
class Made:
    """A task that was acknowledged, and its outcome."""

    tool: str
    at: int
    began: float
    ended: float = float("inf")
    shown: dict[str, Any] = field(default_factory=lambda: {"status": "never seen to end"})
    elsewhere: dict[str, Any] | None = None


@dataclass
class Cluster:
    gateways: list[Gateway]
    links: list[Link]
    database: RestartableServer
    ledger: LedgerFile
    strikes: list[Strike] = field(default_factory=list)
    _looked: float = field(default_factory=time.time)
    _lost: dict[int, int] = field(default_factory=dict)

    def note_lost_leases(self, *, is_over: bool = False) -> None:
        """Gateways that lost their lease since the last call of this, by a fault or because the machine was too busy.

        `is_over`: callers have ended, and later reports are about the time before that.
        """
        now, since = time.time(), self._looked - LOGGED_WITHIN_S
        for number, gateway in enumerate(self.gateways):
            count = (gateway.folder / "gateway.log").read_text(errors="replace").count(LEASE_LOST)
            if count > self._lost.get(number, 0):
                self.strikes.append(Strike("lost lease", frozenset({number}), since, now))
            self._lost[number] = count
        if not is_over:
            self._looked = now

    def taken_over(self) -> int:
        """How often tasks of a dead gateway were taken over by others."""
        return sum(
            (gateway.folder / "gateway.log").read_text(errors="replace").count(TAKEN_OVER) for gateway in self.gateways
        )


@asynccontextmanager
async def cluster(folder: Path, source: Path | None = None, at_once: int = 60) -> AsyncIterator[Cluster]:
    """`source`: where the gateways' code is, if it is not this one. `at_once`: how many calls their server takes: with few of them
    tasks wait in the queue, and tasks that are not followed, because their caller never received the handle, delay others."""
    port, ledger = free_port(), LedgerFile(folder / "ledger.jsonl")
    upstream = await start(upstream_command(port, ledger, "2026"))
    gateways: list[Gateway] = []
    async with RestartableServer() as database:
        links = [Link(database) for _ in range(3)]
        try:
            await until_ready(upstream, listening(port))
            for index, link in enumerate(links):
                gateways.append(_gateway(folder / f"g{index}", port, await link.open(), source, at_once))
                await gateways[-1].start()
            yield Cluster(gateways, links, database, ledger)
        finally:
            for gateway in gateways:
                if gateway.program is not None:
                    with suppress(ProcessLookupError):
                        os.kill(gateway.pid, signal.SIGCONT)
                    await gateway.program.end(signal.SIGTERM, within=20)
            for link in links:
                link.close()
            await upstream.end()


def _gateway(place: Path, port: int, url: str, source: Path | None, at_once: int) -> Gateway:
    (place / "state").mkdir(parents=True)
    environment = {} if source is None else {"PYTHONPATH": str(source)}
    launcher = str(Path(__file__).with_name("gateway_with_stacks.py"))
    gateway = Gateway(place, free_port(), environment, launcher=(launcher,))
    options = configuration(port)
    options["servers"]["books"]["budgets"] = {"max_concurrency": at_once}
    gateway.write({**options, "store": {"url": url}, "listen": {"internal": f"127.0.0.1:{free_port()}"}})
    return gateway


class Load:
    """Callers that create tasks and follow each to its end at any gateway that answers, until they are stopped."""

    def __init__(
        self,
        cluster: Cluster,
        seed: int,
        deadline_s: float = DEADLINE_S,
        *,
        tools: tuple[str, ...] = TOOLS,
        seconds: float = 0.2,
    ) -> None:
        """`seconds`: how long the server works on a call."""
        self._cluster = cluster
        self._seed = seed
        self._deadline_s = deadline_s
        self._tools = tools
        self._seconds = seconds
        self.answering = asyncio.Event()
        """Whether questions are answered as they come."""
        self.answering.set()
        self.asked: set[str] = set()
        """Calls that were seen to wait for an answer."""
        self.passed_over: int | None = None
        """A gateway that callers do not ask, because they would only wait for it."""
        self.made: dict[str, Made] = {}
        self.refused: set[str] = set()
        """Calls that were reported to a caller as not executed."""
        self.stopping = False

    async def caller(self, number: int, maximum: int | None = None) -> None:
        chance, count = random.Random(self._seed * 1000 + number), 0
        while not self.stopping and (maximum is None or count < maximum):
            call, tool = f"w{self._seed}-{number}-{count}", chance.choice(self._tools)
            count += 1
            task_id = await self._begin(call, tool, chance)
            if task_id is None:
                await asyncio.sleep(0.05)
            else:
                await self._follow(call, task_id, chance)

    async def _begin(self, call: str, tool: str, chance: random.Random) -> str | None:
        """None: not acknowledged, so only the statement of the refusal is checked."""
        gateways, began = self._cluster.gateways, time.time()
        opened, asked = chance.randrange(len(gateways)), chance.randrange(len(gateways))
        try:
            async with (
                asyncio.timeout(REQUEST_WITHIN_S),
                RawClient(gateways[opened].url, capabilities={"elicitation": {}}) as caller,
            ):
                caller.url = gateways[asked].url
                arguments = {"call": call, "seconds": self._seconds}
                answer = await caller.call(f"books__{tool}", arguments, task={"ttl": 600_000})
                if "error" in answer.reply:
                    if (answer.reply["error"].get("data") or {}).get("executed") == "no":
                        self.refused.add(call)
                    return None
                found: str = answer.result["task"]["taskId"]
        except TRANSIENT:
            return None
        # The session's home is the owner of the task.
        self.made[call] = Made(tool, opened, began)
        return found

    async def _follow(self, call: str, task_id: str, chance: random.Random) -> None:
        made = self.made[call]
        with suppress(TimeoutError):
            async with asyncio.timeout(self._deadline_s):
                while True:
                    shown = await self._asked(task_id, chance)
                    if shown["status"] in (*OVER, "lost"):
                        break
                    if shown["status"] == "input_required":
                        self.asked.add(call)
                    if shown["status"] == "input_required" and self.answering.is_set():
                        await self._answer(task_id, shown, chance)
                    await asyncio.sleep(0.1)
                made.shown, made.ended = shown, time.time()
                made.elsewhere = await self._asked(task_id, chance)
            return
        made.shown = {"status": "never seen to end", "last": shown}

    async def _asked(self, task_id: str, chance: random.Random) -> dict[str, Any]:
        while True:
            try:
                return await self._request(chance, "tasks/get", {"taskId": task_id})
            except TRANSIENT:
                await asyncio.sleep(0.05)

    async def _answer(self, task_id: str, shown: dict[str, Any], chance: random.Random) -> None:
        answers = {key: {"action": "accept", "content": {"value": "x"}} for key in shown.get("inputRequests") or ()}
        with suppress(*TRANSIENT):
            await self._request(chance, "tasks/update", {"taskId": task_id, "inputResponses": answers})

    async def _request(self, chance: random.Random, method: str, params: dict[str, Any]) -> dict[str, Any]:
        gateway = chance.choice(
            [one for number, one in enumerate(self._cluster.gateways) if number != self.passed_over]
        )
        async with (
            asyncio.timeout(REQUEST_WITHIN_S),
            RawClient(gateway.url, stateless=True, capabilities=TASKS) as caller,
        ):
            reply = (await caller.request(method, params)).reply
        if "error" in reply and reply["error"].get("code") == -32602:
            return {"status": "lost", "error": reply["error"]}
        found: dict[str, Any] = reply["result"]
        return found


# Faults


async def kill(all_of_them: Cluster, victim: int) -> None:
    await all_of_them.gateways[victim].kill()
    await all_of_them.gateways[victim].start()


async def pause(all_of_them: Cluster, victim: int) -> None:
    os.kill(all_of_them.gateways[victim].pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(LONGER_THAN_A_LEASE_S)  # the length of the fault
    finally:
        os.kill(all_of_them.gateways[victim].pid, signal.SIGCONT)


async def cut(all_of_them: Cluster, victim: int) -> None:
    all_of_them.links[victim].cut()


async def silence(all_of_them: Cluster, victim: int) -> None:
    await all_of_them.links[victim].silent(LONGER_THAN_A_LEASE_S)


async def cut_all(all_of_them: Cluster, _victim: int) -> None:
    for link in all_of_them.links:
        link.cut()


async def database_restart(all_of_them: Cluster, _victim: int) -> None:
    await all_of_them.database.restart_immediately()


async def rolling_restart(all_of_them: Cluster, _victim: int) -> None:
    for gateway in all_of_them.gateways:
        await gateway.restart()


Fault = Callable[[Cluster, int], Awaitable[None]]
FAULTS: tuple[Fault, ...] = (kill, pause, database_restart, cut, rolling_restart, silence, cut_all)
_OF_ONE = (kill, pause, cut, silence)


async def strike(all_of_them: Cluster, fault: Fault, victim: int) -> None:
    """Until everybody serves again."""
    all_of_them.note_lost_leases()
    hit = {victim} if fault in _OF_ONE else set(range(len(all_of_them.gateways)))
    record = Strike(fault.__name__, frozenset(hit), time.time())
    all_of_them.strikes.append(record)
    await fault(all_of_them, victim)
    for gateway in all_of_them.gateways:
        async with asyncio.timeout(DEADLINE_S):
            while not await gateway.is_ready():
                await asyncio.sleep(0.1)
    record.ended = time.time()
    all_of_them.note_lost_leases()


async def answered_while_paused(all_of_them: Cluster, load: Load, callers: int) -> None:
    """The owner of tasks that wait for an answer is paused. Others take them over and go on with the answers, and while the
    server works on the first of them the former owner is back, and finds the same answers."""
    load.answering.clear()
    calling = [asyncio.create_task(load.caller(number, maximum=1)) for number in range(callers)]
    await _until(lambda: load.made and len(load.asked) == len(load.made) >= callers // 2)
    victim = max(range(len(all_of_them.gateways)), key=[made.at for made in load.made.values()].count)
    its_own = [call for call, made in load.made.items() if made.at == victim]
    record = Strike("pause", frozenset({victim}), time.time())
    all_of_them.strikes.append(record)
    before, load.passed_over = all_of_them.taken_over(), victim
    os.kill(all_of_them.gateways[victim].pid, signal.SIGSTOP)
    try:
        await _until(lambda: all_of_them.taken_over() > before)
        load.answering.set()
        await _until(lambda: any(all_of_them.ledger.count(call) for call in its_own))
    finally:
        os.kill(all_of_them.gateways[victim].pid, signal.SIGCONT)
        load.answering.set()
        load.passed_over = None
    record.ended = time.time()
    await asyncio.gather(*calling)
    all_of_them.note_lost_leases()


async def _until(fact: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not fact():
            await asyncio.sleep(0.05)


# The verdict


async def verdict(all_of_them: Cluster, load: Load) -> list[str]:
    """Problems after the callers have ended. A gateway that was suspended logs the loss of its lease when it continues, and others
    have reported its tasks as unknown before: while something is wrong, such an excuse may still come."""
    until = time.monotonic() + EXCUSED_WITHIN_S
    while True:
        all_of_them.note_lost_leases(is_over=True)
        found = problems(load.made, load.refused, all_of_them.ledger, all_of_them.strikes)
        if not found or time.monotonic() > until:
            return found
        await asyncio.sleep(0.5)


def problems(made: dict[str, Made], refused: set[str], ledger: LedgerFile, strikes: list[Strike]) -> list[str]:
    """Contradictions between the ledger and the replies."""
    runs = {call: len(executions) for call, executions in ledger.executions().items()}
    found = [f"{call} was refused as not executed, and ran" for call in sorted(refused) if runs.get(call)]
    found += [
        f"{line['call']} was answered, and its server received another answer"
        for line in ledger.lines()
        if line["what"] == "not answered"
    ]
    repeated = {line["call"]: line["tool"] for line in ledger.lines() if line["what"] == "begin"}
    for call, count in runs.items():
        if repeated[call] != "read" and count > 1:
            found.append(f"{call} may run once and ran {count} times")
    for call, task in made.items():
        if why := _wrong(task, runs.get(call, 0), strikes):
            found.append(f"{call} ({task.tool}) {why}: {task.shown}")
    return found


def _wrong(task: Made, runs: int, strikes: list[Strike]) -> str:
    status, is_unknown = task.shown["status"], any(words in str(task.shown) for words in UNKNOWN)
    if status not in OVER:
        return "was acknowledged and is lost"
    if task.elsewhere is not None and _result(task.elsewhere) != _result(task.shown):
        return f"is reported differently by another gateway: {task.elsewhere}"
    if status == "completed" and not runs:
        return "is said to be completed and never ran"
    if status == "failed" and runs and not is_unknown:
        return "is said not to have run, and ran"
    if is_unknown and not any(_hit(fault, task) for fault in strikes):
        return "is said to be unknown, and nothing had happened to its gateway"
    return ""


def _result(shown: dict[str, Any]) -> tuple[Any, ...]:
    return shown.get("status"), shown.get("result"), shown.get("error")


def _hit(fault: Strike, task: Made) -> bool:
    return task.at in fault.victims and fault.began <= task.ended and task.began <= fault.ended
