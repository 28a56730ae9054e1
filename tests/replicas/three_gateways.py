"""Three gateways on one PostgreSQL store behind a round-robin balancer without stickiness, and an upstream with a ledger.

The balancer picks another gateway for every request, as a balancer in HTTP mode does: it reads the head and the body of a request,
opens a connection to the next gateway, and passes the answer back until the gateway closes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.crash_setup import LedgerFile, configuration, upstream_command
from tests.harness.absent import find_program
from tests.harness.gateway import Gateway
from tests.harness.postgres import fresh_url
from tests.harness.programs import free_port, listening, start, until_ready

NOTIFYING = Path(__file__).resolve().parent.parent / "peers" / "notifying_server.py"
PRODUCT = ("-m", "taskgate")
LONG_LEASE = (str(Path(__file__).with_name("gateway_long_lease.py")),)
"""For tests without a crash: no gateway loses its lease on a busy machine."""


class Balancer:
    """`chosen` gives the port for the next request; by default each gets its turn."""

    def __init__(self, ports: list[int]) -> None:
        self.ports = ports
        self._turns = itertools.count()
        self.only: int | None = None
        self._server: asyncio.Server | None = None
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    def _next(self) -> int:
        return self.only if self.only is not None else self.ports[next(self._turns) % len(self.ports)]

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(
                (int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0
            )
            body = await reader.readexactly(length)
            await self._exchange(head, body, reader, writer)
        writer.close()

    async def _exchange(
        self, head: bytes, body: bytes, caller: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        for _ in range(len(self.ports)):
            try:
                back, forth = await asyncio.open_connection("127.0.0.1", self._next())
                break
            except OSError:
                continue
        else:
            return
        lines = [line for line in head.split(b"\r\n")[:-2] if not line.lower().startswith(b"connection:")]
        forth.write(b"\r\n".join([*lines, b"connection: close", b"", b""]) + body)
        gone = asyncio.create_task(caller.read(1))
        try:
            while True:
                piece = asyncio.create_task(back.read(65536))
                done, _ = await asyncio.wait({piece, gone}, return_when=asyncio.FIRST_COMPLETED)
                if piece not in done or not piece.result():
                    piece.cancel()
                    return
                writer.write(piece.result())
                await writer.drain()
        finally:
            gone.cancel()
            forth.close()


@dataclass
class Replicas:
    gateways: list[Gateway]
    balancer: Balancer
    ledger: LedgerFile
    upstream_port: int
    internals: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return self.balancer.url

    def pause(self, index: int) -> None:
        os.kill(self.gateways[index].pid, signal.SIGSTOP)

    def go_on(self, index: int) -> None:
        os.kill(self.gateways[index].pid, signal.SIGCONT)


Internal = Callable[[Path, int], str]


def on_port(_folder: Path, _number: int) -> str:
    return f"127.0.0.1:{free_port()}"


def on_socket(folder: Path, number: int) -> str:
    return str(folder / f"internal-{number}.sock")


@asynccontextmanager
async def three_replicas(
    folder: Path,
    generation: str = "2025",
    internal: Internal = on_port,
    number: int = 3,
    launcher: tuple[str, ...] = PRODUCT,
    **more: Any,
) -> AsyncIterator[Replicas]:
    """With a server that records executions, and one that sends notifications and questions."""
    port, ledger = free_port(), LedgerFile(folder / "ledger.jsonl")
    upstream = await start(upstream_command(port, ledger, generation))
    config = {**configuration(port), **more}
    config["servers"]["tells"] = {"command": sys.executable, "args": [str(NOTIFYING)], "instances": "per_session"}
    try:
        await until_ready(upstream, listening(port))
        async with replicas_of(config, folder, internal, number, launcher) as (gateways, balancer, internals):
            yield Replicas(gateways, balancer, ledger, port, internals)
    finally:
        await upstream.end()


@asynccontextmanager
async def replicas_of(
    config: dict[str, Any],
    folder: Path,
    internal: Internal = on_port,
    number: int = 3,
    launcher: tuple[str, ...] = PRODUCT,
) -> AsyncIterator[tuple[list[Gateway], Balancer, list[str]]]:
    """So many gateways with the same configuration on one store, behind the balancer."""
    gateways, internals, url = [], [], fresh_url()
    for index in range(number):
        place = folder / f"g{index}"
        (place / "state").mkdir(parents=True)
        gateway = Gateway(place, free_port(), launcher=launcher)
        internals.append(internal(folder, index))
        # A deployed nginx passes the Host of its callers on, and names their addresses.
        hosts = {"allowed_hosts": ["127.0.0.1"], **config}
        gateway.write({**hosts, "store": {"url": url}, "listen": {"internal": internals[-1]}})
        gateways.append(gateway)
    balancer = Balancer([gateway.port for gateway in gateways])
    try:
        for gateway in gateways:
            await gateway.start()
        await balancer.start()
        yield gateways, balancer, internals
    finally:
        await balancer.close()
        for gateway in gateways:
            # The test is over: draining is tested elsewhere.
            if gateway.program is not None and gateway.program.alive:
                await gateway.program.end(signal.SIGKILL)


DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


@asynccontextmanager
async def deployed(kind: str, gateways: list[Gateway], folder: Path) -> AsyncIterator[str]:
    """The URL of HAProxy or nginx with the example file of `deploy/`, in front of these gateways instead of the two it names."""
    port, place = free_port(), folder / kind
    place.mkdir()
    if kind == "haproxy":
        (place / "haproxy.cfg").write_text(_haproxy(port, [gateway.port for gateway in gateways]))
        command = [str(find_program(kind)), "-db", "-f", str(place / "haproxy.cfg")]
    else:
        (place / "nginx.conf").write_text(nginx_around(_nginx(port, [gateway.port for gateway in gateways]), place))
        command = [
            str(find_program(kind)),
            "-p",
            str(place),
            "-e",
            str(place / "errors"),
            "-c",
            str(place / "nginx.conf"),
        ]
    program = await start(command, log=place / "log")
    try:
        await until_ready(program, Gateway(place, port).is_ready)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        await program.end()


def _haproxy(port: int, gateways: list[int]) -> str:
    text = (DEPLOY / "haproxy.cfg").read_text().replace("127.0.0.1:8470", f"127.0.0.1:{port}")
    # The abstract socket is one for the whole machine.
    text = text.replace("abns@taskgate-requests", f"abns@taskgate-requests-{port}")
    servers = "".join(f"    server g{number} 127.0.0.1:{number}\n" for number in gateways)
    return re.sub(r"(    server \S+ 127\.0\.0\.1:\d+\n)+", servers, text, count=1)


def _nginx(port: int, gateways: list[int]) -> str:
    text = (DEPLOY / "nginx-replicas.conf").read_text().replace("127.0.0.1:8471", f"127.0.0.1:{port}")
    servers = "".join(f"    server 127.0.0.1:{number} max_fails=1 fail_timeout=2s;\n" for number in gateways)
    return re.sub(r"(    server 127\.0\.0\.1:\d+ .*\n)+", servers, text, count=1)


def nginx_around(text: str, folder: Path) -> str:
    """The rest of an nginx configuration: everything that is written goes below the folder."""
    temporary = "".join(f"{kind}_temp_path {folder}/{kind};" for kind in ("proxy", "fastcgi", "uwsgi", "scgi"))
    return (
        f"daemon off; pid {folder}/pid; error_log {folder}/errors; worker_processes 1; events {{}}\n"
        f"http {{ access_log off; client_body_temp_path {folder}/body; {temporary}\n{text}\n}}\n"
    )
