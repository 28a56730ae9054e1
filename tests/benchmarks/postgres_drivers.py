"""Which driver suits a batched writer better: asyncpg, psycopg 3 one statement at a time, or psycopg 3 in pipeline mode.

Run it by hand: `python tests/benchmarks/postgres_drivers.py postgresql://…` (both drivers must be installed). Each batch is what 64
accepted calls write: five statements each, two of whose answers are looked at, and one commit. The control is one insert with a
commit of its own, one after the other.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import asyncpg
import psycopg

CALLS = 64
BATCHES = 40
TABLES = """
DROP TABLE IF EXISTS b_task, b_call, b_audit, b_stream, b_event;
CREATE TABLE b_task (id text PRIMARY KEY, caller text, doc bytea); CREATE INDEX ON b_task (caller, id DESC);
CREATE TABLE b_call (id text PRIMARY KEY, arguments bytea);
CREATE TABLE b_audit (number bigint PRIMARY KEY, content bytea);
CREATE TABLE b_stream (caller text PRIMARY KEY, last bigint NOT NULL);
CREATE TABLE b_event (caller text, number bigint, data bytea, PRIMARY KEY (caller, number));
"""
STATEMENTS = (
    "INSERT INTO b_task VALUES ({0}, {1}, {2}) ON CONFLICT DO NOTHING",
    "INSERT INTO b_call VALUES ({0}, {1})",
    "INSERT INTO b_audit VALUES ({0}, {1})",
    "INSERT INTO b_stream VALUES ({0}, 1) ON CONFLICT (caller) DO UPDATE SET last = b_stream.last + 1 RETURNING last",
    "INSERT INTO b_event VALUES ({0}, {1}, {2})",
)
BODY = b"x" * 700


def values(batch: int, call: int) -> tuple[tuple[Any, ...], ...]:
    name, caller, number = f"t{batch}-{call}", f"c{call % 50}", batch * CALLS + call
    return (name, caller, BODY), (name, BODY), (number, BODY), (caller,), (caller, number, BODY)


def psycopg_batch(connection: psycopg.Connection[Any], batch: int) -> None:
    statements = [text.format(*["%s"] * 3).encode() for text in STATEMENTS]
    connection.execute("BEGIN")
    for call in range(CALLS):
        for place, (text, given) in enumerate(zip(statements, values(batch, call), strict=True)):
            cursor = connection.execute(text, given)
            if place == 3:
                cursor.fetchone()
    connection.execute("COMMIT")


def with_psycopg(url: str, *, pipelined: bool) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(TABLES.encode())
        cpu, began = time.process_time(), time.perf_counter()
        for batch in range(BATCHES):
            if pipelined:
                with connection.pipeline():
                    psycopg_batch(connection, batch)
            else:
                psycopg_batch(connection, batch)
        print_result("psycopg, pipeline" if pipelined else "psycopg, one at a time", began, cpu, CALLS * BATCHES)


async def with_asyncpg(url: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(TABLES)
    prepared = [await connection.prepare(text.format("$1", "$2", "$3")) for text in STATEMENTS]
    cpu, began = time.process_time(), time.perf_counter()
    for batch in range(BATCHES):
        async with connection.transaction():
            for call in range(CALLS):
                for statement, given in zip(prepared, values(batch, call), strict=True):
                    await statement.fetch(*given)
    print_result("asyncpg, one at a time", began, cpu, CALLS * BATCHES)
    await connection.close()


def control(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(TABLES.encode())
        cpu, began = time.process_time(), time.perf_counter()
        for number in range(400):
            connection.execute("INSERT INTO b_audit VALUES (%s, %s)", [number, BODY])
        print_result("control: insert and commit, one by one", began, cpu, 400)


def print_result(what: str, began: float, cpu: float, count: int) -> None:
    wall, used = time.perf_counter() - began, time.process_time() - cpu
    print(f"{what:<40} {count / wall:>8,.0f} calls/s   {used / count * 1e6:>7.0f} us CPU a call")


def main(url: str) -> None:
    for _ in range(3):
        control(url)
        asyncio.run(with_asyncpg(url))
        with_psycopg(url, pipelined=False)
        with_psycopg(url, pipelined=True)


if __name__ == "__main__":
    main(sys.argv[1])
