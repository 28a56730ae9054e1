"""A program that writes to a store and prints on its standard output what the store has acknowledged, the moment it
has.

Run by the power-loss check under strace. Arguments: the store's file, the number of starts, and how to break it:
`none`, `normal-sync` (the database syncs only now and then) or `no-file-sync` (result files are not synced).
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import sys
import time
from pathlib import Path

from taskgate.core.generations.generation import Generation
from taskgate.core.ids import new_task_id
from taskgate.core.tasks.task import Task
from taskgate.core.tasks.transition import ResultReceived
from taskgate.ports.store_answers import Change, Intended
from taskgate.store.operations import tasks
from taskgate.store.operations.tasks import Accept, Advance, Intend
from taskgate.store.sqlite import checkpointer, result_files
from taskgate.store.sqlite.store import SqliteStore, open_store

AT_ONCE = 4
SPILL_OVER = 20_000
WITHOUT_CHECKPOINT = 100_000


def write_line(word: str, task_id: str, rest: str = "") -> None:
    os.write(1, f"{word} {task_id} {rest}\n".encode())


def a_call() -> Task:
    return Task(
        id=new_task_id(time.time_ns() // 1_000_000, secrets.token_bytes(10)),
        principal="carol",
        caller="carol",
        scope="default",
        server="reports",
        tool="build",
        wire_name="reports__build",
        arguments=b'{"year":2026}',
        digest="sha256:d1",
        generation=Generation.STATEFUL,
        ttl_ms=600_000,
        execution_budget_ms=60_000,
    )


async def live(store: SqliteStore, number: int) -> None:
    call = a_call()
    assert isinstance(await store.do(Accept(call)), Change)
    write_line("accepted", call.id)
    assert isinstance(await store.do(Intend(call.id, byte_hash="b", upstream="u", recheck=lambda *_: None)), Intended)
    write_line("intended", call.id)
    body = b'"' + secrets.token_hex(15_000 if number % 5 == 0 else 50).encode() + b'"'
    assert isinstance(await store.do(Advance(call.id, ResultReceived(body))), Change)
    write_line("finished", call.id, hashlib.sha256(body).hexdigest())


async def main(path: Path, runs: int, broken: str) -> None:
    # Small figures, so that a short run spills and checkpoints often.
    tasks.LARGE_RESULT = SPILL_OVER  # type: ignore[misc]
    checkpointer.COMMITS_BETWEEN = 6  # type: ignore[misc]
    checkpointer.START_OVER_BYTES = 0  # type: ignore[misc]
    if broken == "no-file-sync":
        result_files.os.fsync = lambda fd: None  # type: ignore[attr-defined]
    store = open_store(path, synchronous="NORMAL" if broken == "normal-sync" else "FULL")
    numbers = iter(range(runs))

    async def worker() -> None:
        for number in numbers:
            await live(store, number)

    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
    while path.stat().st_size <= WITHOUT_CHECKPOINT:  # they are made by a thread at any time
        await asyncio.sleep(0.005)
    # No orderly shutdown, as in a power failure.
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
