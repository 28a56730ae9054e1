"""The checks of the fuzzer: they detect a server that hangs, answers 500, or answers wrongly."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.chaos import fuzz
from tests.chaos.frames import CALLER_FRAMES
from tests.chaos.mutations import Mutator
from tests.harness.gateway import Gateway


@asynccontextmanager
async def server(answer: bytes) -> AsyncIterator[int]:
    """A server that gives every connection the same answer, or none."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await reader.read()
        writer.close()

    running = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with running:
        yield running.sockets[0].getsockname()[1]


async def test_an_unresponsive_server_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz, "HANG", 0.1)
    async with server(b"") as port:
        with pytest.raises(fuzz.Broken, match="no answer"):
            await fuzz.HttpCaller(port).send(fuzz.posted(b"{}", {}))


async def test_a_wrong_answer_to_a_valid_call_is_detected(tmp_path: Path) -> None:
    async with server(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}") as port:
        with pytest.raises(fuzz.Broken, match="a good call got 200"):
            await fuzz.good_call(Gateway(tmp_path, port))


def test_a_response_with_status_500_is_detected(tmp_path: Path) -> None:
    with pytest.raises(fuzz.Broken, match="HTTP 500"):
        fuzz.Watch(Gateway(tmp_path, 0), 1).check_reply(500, b"oops", b"frame")


async def test_a_crashed_gateway_is_detected(tmp_path: Path) -> None:
    with pytest.raises(fuzz.Broken, match="died"):
        await fuzz.Watch(Gateway(tmp_path, 0), 1).look()


def test_the_same_seed_gives_the_same_frames() -> None:
    first, second = Mutator(CALLER_FRAMES, 7), Mutator(CALLER_FRAMES, 7)
    assert [first.frame() for _ in range(500)] == [second.frame() for _ in range(500)]


def test_some_frames_are_json_and_some_are_not() -> None:
    mutator = Mutator(CALLER_FRAMES, 3)
    readable = sum(is_json(mutator.frame()) for _ in range(1000))
    assert 200 < readable < 900


def is_json(frame: bytes) -> bool:
    try:
        json.loads(frame)
    except (ValueError, RecursionError):
        return False
    return True
